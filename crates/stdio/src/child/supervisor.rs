#[cfg(not(unix))]
mod other;
mod stairs;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub(crate) use other::{Bell, kill_now, supervise};
#[cfg(unix)]
pub(crate) use unix::{Bell, kill_now, supervise};
