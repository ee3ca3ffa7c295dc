//! Locks and tasks: all primitives that threads share, in one place, as in `sync.rs` of the core. The engine that tests
//! different thread orders replaces them with its own (`cfg(rescind_shuttle)`, which only `integration-tests/threads`
//! sets).

#[cfg(not(rescind_shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(not(rescind_shuttle))]
pub(crate) use tokio::{
    runtime::Handle,
    spawn,
    task::{AbortHandle, JoinHandle, JoinSet},
};

#[cfg(rescind_shuttle)]
pub(crate) use self::tasks::{Handle, JoinSet};
#[cfg(rescind_shuttle)]
pub(crate) use shuttle::future::{AbortHandle, JoinHandle, spawn};
#[cfg(rescind_shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};

#[cfg(rescind_shuttle)]
mod tasks {
    use std::convert::Infallible;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use super::{JoinHandle, spawn};

    /// Starts tasks of the engine.
    pub(crate) struct Handle;

    impl Handle {
        pub(crate) const fn try_current() -> Result<Self, Infallible> {
            Ok(Self)
        }

        pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
            drop(spawn(task));
        }
    }

    /// Tasks that end when this value is dropped.
    #[derive(Default)]
    pub(crate) struct JoinSet<T: Send + 'static>(Vec<JoinHandle<T>>);

    impl<T: Send + 'static> JoinSet<T> {
        pub(crate) fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) {
            self.0.push(spawn(task));
        }

        /// Removes a task that has ended. Its result is not kept.
        pub(crate) fn try_join_next(&mut self) -> Option<()> {
            let ended = self.0.iter().position(JoinHandle::is_finished)?;
            drop(self.0.swap_remove(ended));
            Some(())
        }

        /// Waits until a task ends, and removes it. `None`: there is no task.
        pub(crate) fn poll_join_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<()>> {
            if self.0.is_empty() {
                return Poll::Ready(None);
            }
            let ended = self.0.iter_mut().position(|task| Pin::new(task).poll(cx).is_ready());
            ended.map_or(Poll::Pending, |ended| {
                drop(self.0.swap_remove(ended));
                Poll::Ready(Some(()))
            })
        }
    }

    impl<T: Send + 'static> Drop for JoinSet<T> {
        fn drop(&mut self) {
            for task in &self.0 {
                task.abort();
            }
        }
    }
}
