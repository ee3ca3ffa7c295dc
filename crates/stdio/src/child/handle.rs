use std::fmt;
use std::future::poll_fn;
use std::process::ExitStatus;
use std::sync::Arc;

use super::Process;

/// A handle of a child process. It keeps neither the process nor the connection alive.
#[derive(Clone)]
#[must_use = "it is the only way to ask for the child's exit status"]
pub struct ChildHandle(Arc<Process>);

impl ChildHandle {
    pub(crate) fn new(process: Arc<Process>) -> Self {
        Self(process)
    }

    /// Its process id; on Unix also the id of its process group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Its exit status. `None`: it is running.
    #[must_use]
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.0.exit_status()
    }

    /// The last 8 KiB of its stderr. Bytes that are not UTF-8 are replaced, and control characters are escaped.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        self.0.stderr_tail()
    }

    /// Waits until it has exited and was reaped.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; the child is reaped nevertheless.
    pub async fn wait(&self) -> ExitStatus {
        poll_fn(|cx| self.0.poll_exit(cx)).await
    }
}

impl fmt::Debug for ChildHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildHandle")
            .field("pid", &self.pid())
            .field("exit_status", &self.exit_status())
            .finish_non_exhaustive()
    }
}
