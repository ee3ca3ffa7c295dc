//! Output to stdout and stderr, either of which may be closed or full.

use std::io::{self, Write};

use crate::Failure;

/// Writes the result of a command.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn result(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| format!("the result could not be written to stdout: {error}"))
}

/// Writes a message that is not part of the result. A failed write is ignored.
pub(crate) fn message(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
