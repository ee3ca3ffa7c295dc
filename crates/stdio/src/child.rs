//! A child process behind a transport. It is asked to end by the end of its input, then by signals, and it is always
//! waited for.
//!
//! One thread supervises each child. Only this thread reaps the child, so no signal can reach another process with a
//! reused id. The thread outlives the runtime, so no child remains after the runtime has ended.

mod error;
mod handle;
mod link;
mod process;
mod ring_buffer;
mod supervisor;

pub use error::ChildError;
pub use handle::ChildHandle;

pub(crate) use link::{Output, child_link};
pub(crate) use process::Process;
pub(crate) use supervisor::{WakeSender, supervise};
