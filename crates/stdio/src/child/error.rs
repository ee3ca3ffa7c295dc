use std::fmt;
use std::process::ExitStatus;

/// What is known of a child whose connection ended, or never began, in bad order. It is the source of the
/// [`TransportError`](rescind_core::TransportError) the wire gives.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChildError {
    /// The program; its arguments are left out, as they may hold secrets.
    pub command: String,
    /// What happened.
    pub what: String,
    /// How it exited; `None`: it never ran, or runs still.
    pub status: Option<ExitStatus>,
    /// The end of its stderr.
    pub stderr_tail: String,
}

impl fmt::Display for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.command, self.what)?;
        if let Some(status) = self.status {
            write!(f, "; {status}")?;
        }
        let tail = self.stderr_tail.trim_end();
        if tail.is_empty() { f.write_str("; nothing on stderr") } else { write!(f, "; stderr ends: {tail}") }
    }
}

impl std::error::Error for ChildError {}
