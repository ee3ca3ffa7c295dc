//! What is written: frames to stdout, logs to stderr.

use std::io::{Write as _, stderr, stdout};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::framing::Framing;

/// Writes whole frames, from any thread.
#[derive(Debug)]
pub(super) struct Output {
    framing: Framing,
    other_framing: bool,
    pieces: bool,
    whole: Mutex<()>,
}

impl Output {
    pub(super) fn new(framing: Framing, other_framing: bool, pieces: bool) -> Self {
        Self { framing, other_framing, pieces, whole: Mutex::new(()) }
    }

    pub(super) fn send(&self, message: &Value) {
        self.write(&self.framing.frame(&message.to_string(), self.other_framing));
    }

    pub(super) fn write(&self, bytes: &[u8]) {
        let _whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let (head, tail) = bytes.split_at(if self.pieces { bytes.len() / 2 } else { 0 });
        // A client that is gone needs no answer.
        for part in [head, tail] {
            drop(stdout().write_all(part));
            drop(stdout().flush());
        }
    }

    /// Waits for the frame that is being written, and writes no other: the program is about to exit.
    pub(super) fn close(&self) {
        std::mem::forget(self.whole.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A line on stderr, which both protocols leave to logs.
pub(super) fn log(line: &str) {
    drop(writeln!(stderr(), "{line}"));
}
