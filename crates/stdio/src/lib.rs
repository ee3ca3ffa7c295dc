//! Rescind over stdin and stdout: this process's own, and those of a child process.
//!
//! ```no_run
//! # async fn example() -> Result<(), rescind_core::TransportError> {
//! use rescind_core::Transport;
//!
//! // An agent: it receives frames on its stdin and sends frames on its stdout.
//! let link = Box::new(rescind_stdio::this_process()).open().await?;
//! // A client: it starts the agent.
//! let (link, child) = rescind_stdio::Command::new("agent").arg("--stdio").start()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Tested systems
//! The tests run on Linux, and those of children also under Wine. On other Unix systems two things differ: threads read and
//! write this process's stdin and stdout, and the exit of a child is polled every 20 ms. So it is on Windows. There a child
//! and what it starts are one job object, no signal asks it to end, and a stray `println!` cannot be redirected to stderr.

mod child;
mod command;
#[cfg(unix)]
mod descriptors;
mod this_process;
mod threads;

pub use child::{ChildError, ChildHandle};
pub use command::Command;
#[cfg(unix)]
pub use descriptors::Descriptors;
pub use this_process::{ThisProcess, this_process};

/// What the threads of pipes share, in one place. The engine that tries out orders of threads replaces it with its own
/// (`integration-tests/threads`).
mod sync {
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread;

    /// The most bytes that wait between a thread and its user.
    pub(crate) const MAX_BUFFERED: usize = 16 * 1024;
}
