//! Locks and tasks: what threads meet at, in one place, as in the core's own `sync.rs`. The engine that tries out orders of
//! threads puts its own in their stead (`cfg(rescind_shuttle)`, which `integration-tests/threads` sets and nothing else does).

#[cfg(not(rescind_shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(not(rescind_shuttle))]
pub(crate) use tokio::{spawn, task::AbortHandle};

#[cfg(rescind_shuttle)]
pub(crate) use shuttle::future::{AbortHandle, spawn};
#[cfg(rescind_shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
