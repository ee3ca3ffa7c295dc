#[cfg(not(unix))]
mod other;
mod termination;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub(crate) use other::{WakeSender, kill_now, supervise};
#[cfg(unix)]
pub(crate) use unix::{WakeSender, kill_now, supervise};
