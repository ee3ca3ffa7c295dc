//! A child process behind a wire: it is told to end by the end of its input, then by signals, and is always waited for.
//!
//! One thread supervises each child. It alone reaps it, so that a signal can never reach a process that took over its
//! number, and it outlives the runtime, so that no child is left behind when the runtime is gone.

mod error;
mod handle;
mod link;
mod process;
mod ring_buffer;
mod supervisor;

pub use error::ChildError;
pub use handle::ChildHandle;

pub(crate) use link::child_link;
pub(crate) use process::Process;
pub(crate) use supervisor::{WakeSender, supervise};
