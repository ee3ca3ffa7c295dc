//! Rescind over stdin and stdout: this process's own, and those of a child process.
//!
//! ```no_run
//! # async fn example() -> Result<(), rescind_core::TransportError> {
//! use rescind_core::Transport;
//!
//! // An agent: frames come in by our stdin and go out by our stdout.
//! let ours = Box::new(rescind_stdio::this_process()).open().await?;
//! // A client: it starts the agent and is told how it ends.
//! let (link, child) = rescind_stdio::Command::new("agent").arg("--stdio").start()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What was run where
//! The tests ran on Linux. The paths for other Unix systems differ only in that our own descriptors are served by
//! threads and that a child's exit is found by asking every 20 ms. Those for Windows, where there are no process
//! groups (a child is ended by `TerminateProcess` and its own children are not) and a stray `println!` cannot be led
//! to stderr, were written and not run.

mod child;
mod command;
#[cfg(unix)]
mod descriptors;
mod own;
mod sync;
mod threads;

pub use child::{ChildError, ChildHandle};
pub use command::Command;
#[cfg(unix)]
pub use descriptors::Descriptors;
pub use own::{ThisProcess, this_process};
