//! What the threads of pipes share, in one place. The engine that tries out orders of threads replaces it with its own
//! (`integration-tests/threads`).

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use std::thread;
