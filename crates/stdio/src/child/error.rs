use std::fmt;
use std::process::ExitStatus;

/// The failure of a child process. It is the source of the transport's
/// [`TransportError`](rescind_core::TransportError).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChildError {
    /// The program, without its arguments, which may contain secrets.
    pub command: String,
    /// What happened.
    pub what: String,
    /// Its exit status. `None`: it never ran, or it is still running.
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
