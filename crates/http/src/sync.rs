//! Locks and tasks: all primitives that threads share, in one place, as in `sync.rs` of the core. The engine that tests
//! different thread orders replaces them with its own (`cfg(rescind_shuttle)`, which only `integration-tests/threads`
//! sets).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

#[cfg(feature = "verify")]
use tokio::io::{AsyncRead, AsyncWrite};

#[cfg(rescind_shuttle)]
pub(crate) use crate::sync::tasks::{Handle, JoinSet};
#[cfg(rescind_shuttle)]
pub(crate) use shuttle::future::{AbortHandle, JoinHandle, spawn};
#[cfg(rescind_shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(rescind_shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(not(rescind_shuttle))]
pub(crate) use tokio::runtime::Handle;
#[cfg(not(rescind_shuttle))]
pub(crate) use tokio::spawn;
#[cfg(not(rescind_shuttle))]
pub(crate) use tokio::task::{AbortHandle, JoinHandle, JoinSet};

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

/// A map whose keys this crate assigns. No peer chooses them, so they need no keyed hash, which would be a large part
/// of the cost of a small request.
pub(crate) type IntMap<T> = HashMap<u64, T, BuildHasherDefault<IntHasher>>;

/// Spreads consecutive numbers over the hash space.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IntHasher(u64);

impl Hasher for IntHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte) ^ self.0);
        }
    }

    /// The factor is odd, so different numbers have different hashes. The high bits depend on all bits of the number.
    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A stream that the test supplies.
#[cfg(feature = "verify")]
pub trait GivenStream: AsyncRead + AsyncWrite + Send + Unpin {}

#[cfg(feature = "verify")]
impl<S: AsyncRead + AsyncWrite + Send + Unpin> GivenStream for S {}
