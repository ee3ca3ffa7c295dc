//! What the threads of pipes meet at, in one place. The engine that tries out orders of threads compiles them with its own
//! (`integration-tests/threads`).

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use std::thread;
