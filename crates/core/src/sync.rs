//! Locks, atomics and tasks, in one place. The engine that tries out orders of threads replaces them with its own
//! (`cfg(rescind_shuttle)`, which only `integration-tests/threads` sets).

#[cfg(not(rescind_shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock};

#[cfg(not(rescind_shuttle))]
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    #[cfg(feature = "tokio")]
    pub(crate) use std::sync::atomic::{AtomicU8, fence};
}

#[cfg(all(feature = "tokio", not(rescind_shuttle)))]
pub(crate) use tokio::{runtime::Handle, task::AbortHandle};

#[cfg(rescind_shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock};

#[cfg(rescind_shuttle)]
pub(crate) mod atomic {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, fence};
}

#[cfg(rescind_shuttle)]
pub(crate) use self::tasks::{AbortHandle, Handle};

#[cfg(rescind_shuttle)]
mod tasks {
    use std::convert::Infallible;
    use std::future::Future;

    pub(crate) use shuttle::future::{AbortHandle, JoinHandle};

    /// Starts tasks of the engine.
    #[derive(Clone, Debug)]
    pub(crate) struct Handle;

    impl Handle {
        pub(crate) const fn try_current() -> Result<Self, Infallible> {
            Ok(Self)
        }

        pub(crate) fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
        where
            F: Future + Send + 'static,
            F::Output: Send + 'static,
        {
            shuttle::future::spawn(future)
        }

        pub(crate) fn spawn_blocking<R: Send + 'static>(
            &self,
            work: impl FnOnce() -> R + Send + 'static,
        ) -> JoinHandle<R> {
            shuttle::future::spawn(async move { work() })
        }
    }
}
