//! Locks and tasks: all primitives that threads share, in one place, as in `sync.rs` of the core. The engine that tests
//! different thread orders replaces them with its own (`cfg(rescind_shuttle)`, which only `integration-tests/threads`
//! sets).
//!
//! # Timers
//!
//! [`SharedDelay`] is one timer for all requests that wait for the same time. [`LazySleep`] is for a time that is polled
//! often, together with something else.
//!
//! # Maps by number
//!
//! The keys of [`IntMap`] are consecutive numbers that this crate assigns.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::{BuildHasherDefault, Hasher};
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[cfg(feature = "verify")]
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep};

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

/// The resolution of the runtime's clock.
const STEP: Duration = Duration::from_millis(1);

/// Ends waits after a delay that is the same for all. With one timer for each request, every request would have to wake
/// the runtime's clock, although nearly all are answered long before. This timer is set once while there are any waits.
#[derive(Debug)]
pub(crate) struct SharedDelay {
    wait: Duration,
    state: Mutex<DelayState>,
}

#[derive(Debug, Default)]
struct DelayState {
    /// In the order of their times, because the delay is the same for all.
    waiting: VecDeque<DelayWaiter>,
    next: u64,
    /// The task that waits for the first of them.
    timer: Option<AbortHandle>,
}

#[derive(Debug)]
struct DelayWaiter {
    number: u64,
    due: Instant,
    /// `None`: the wait was dropped.
    waker: Option<Waker>,
}

impl SharedDelay {
    pub(crate) fn new(wait: Duration) -> Arc<Self> {
        Arc::new(Self { wait, state: Mutex::default() })
    }

    pub(crate) const fn wait(&self) -> Duration {
        self.wait
    }

    fn state(&self) -> MutexGuard<'_, DelayState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes after the delay, which begins with the first poll.
    pub(crate) const fn over(self: &Arc<Self>) -> DelayFuture<'_> {
        DelayFuture { delay: self, begun: None }
    }

    /// Wakes the waits whose time is over, until there are none.
    async fn run(delay: Weak<Self>) {
        loop {
            let Some(delay) = delay.upgrade() else { return };
            let now = Instant::now();
            let (due, wakers) = {
                let mut state = delay.state();
                let mut wakers = Vec::new();
                while state.waiting.front().is_some_and(|first| first.waker.is_none() || first.due <= now) {
                    wakers.extend(state.waiting.pop_front().and_then(|first| first.waker));
                }
                let due = state.waiting.front().map(|first| first.due);
                if due.is_none() {
                    state.timer = None;
                }
                (due, wakers)
            };
            wakers.into_iter().for_each(Waker::wake);
            drop(delay);
            let Some(due) = due else { return };
            tokio::time::sleep_until(due).await;
        }
    }
}

impl Drop for SharedDelay {
    fn drop(&mut self) {
        if let Some(timer) = self.state().timer.take() {
            timer.abort();
        }
    }
}

/// A wait for the end of the delay. If it is dropped, it is removed.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct DelayFuture<'a> {
    delay: &'a Arc<SharedDelay>,
    begun: Option<u64>,
}

impl Future for DelayFuture<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let delay = self.delay;
        let mut state = delay.state();
        let Some(number) = self.begun else {
            let due = Instant::now() + delay.wait.max(STEP);
            let number = state.next;
            state.next += 1;
            state.waiting.push_back(DelayWaiter { number, due, waker: Some(cx.waker().clone()) });
            self.begun = Some(number);
            if state.timer.is_none() {
                state.timer = Some(spawn(SharedDelay::run(Arc::downgrade(delay))).abort_handle());
            }
            return Poll::Pending;
        };
        // At its time it is taken out of the queue.
        let Some(waiting) = state.of(number) else { return Poll::Ready(()) };
        match &mut waiting.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for DelayFuture<'_> {
    fn drop(&mut self) {
        let Some(number) = self.begun else { return };
        let mut state = self.delay.state();
        let waker = state.of(number).and_then(|waiting| waiting.waker.take());
        // Dropped waits at the end of the queue are removed at once, without the timer.
        while state.waiting.back().is_some_and(|last| last.waker.is_none()) {
            state.waiting.pop_back();
        }
        drop(state);
        drop(waker);
    }
}

impl DelayState {
    fn of(&mut self, number: u64) -> Option<&mut DelayWaiter> {
        let place = self.waiting.binary_search_by_key(&number, |waiting| waiting.number).ok()?;
        self.waiting.get_mut(place)
    }
}

/// A sleep that is polled often, together with something else. Each poll of the runtime's own sleep takes time,
/// although nearly all polls have the same result as the one before.
#[derive(Debug)]
pub(crate) struct LazySleep {
    sleep: Pin<Box<Sleep>>,
    /// The waker that is called at its end.
    wakes: Option<Waker>,
}

impl LazySleep {
    pub(crate) fn new(wait: Duration) -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(wait)), wakes: None }
    }

    pub(crate) fn until(deadline: Instant) -> Self {
        Self { sleep: Box::pin(tokio::time::sleep_until(deadline)), wakes: None }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.sleep.deadline()
    }

    pub(crate) fn reset(&mut self, deadline: Instant) {
        self.wakes = None;
        self.sleep.as_mut().reset(deadline);
    }

    /// Ready when its time is over.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_waited_for = self.wakes.as_ref().is_some_and(|wakes| wakes.will_wake(cx.waker()));
        if is_waited_for && !self.sleep.is_elapsed() {
            return Poll::Pending;
        }
        // A poll that the runtime defers because the task's budget is spent would register no waker.
        let polled = pin!(tokio::task::coop::unconstrained(self.sleep.as_mut())).poll(cx);
        self.wakes = polled.is_pending().then(|| cx.waker().clone());
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const WAIT: Duration = Duration::from_millis(10);

    #[tokio::test(start_paused = true)]
    async fn each_wait_is_over_in_its_time() {
        let delay = SharedDelay::new(WAIT);
        let begun = Instant::now();
        let first = delay.over();
        let second = async {
            tokio::time::sleep(WAIT / 2).await;
            delay.over().await;
            begun.elapsed()
        };
        let first = async {
            first.await;
            begun.elapsed()
        };
        assert_eq!(tokio::join!(first, second), (WAIT, WAIT + WAIT / 2));
        tokio::time::sleep(WAIT * 5).await;
        delay.over().await;
        assert_eq!(begun.elapsed(), WAIT * 7 + WAIT / 2, "the timer is set again");
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_waits_leave_nothing() {
        let delay = SharedDelay::new(WAIT);
        for _ in 0..1000 {
            let given_up = tokio::time::timeout(Duration::ZERO, delay.over()).await;
            assert!(given_up.is_err());
        }
        assert!(delay.state().waiting.is_empty());
        let since = Instant::now();
        delay.over().await;
        assert_eq!(since.elapsed(), WAIT);
        tokio::task::yield_now().await;
        assert!(delay.state().timer.is_none());
    }

    const DELAY: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn the_sleep_ends_in_time_however_often_it_is_polled() {
        let since = Instant::now();
        let mut sleep = LazySleep::new(DELAY);
        for _ in 0..1000 {
            assert!(poll_fn(|cx| Poll::Ready(sleep.poll(cx))).await.is_pending());
        }
        poll_fn(|cx| sleep.poll(cx)).await;
        assert_eq!(since.elapsed(), DELAY);
        sleep.reset(Instant::now() + DELAY);
        poll_fn(|cx| sleep.poll(cx)).await;
        assert_eq!(since.elapsed(), DELAY * 2, "it can be set again");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_poller_is_woken() {
        let mut sleep = LazySleep::new(DELAY);
        assert!(sleep.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let since = Instant::now();
        poll_fn(|cx| sleep.poll(cx)).await;
        assert_eq!(since.elapsed(), DELAY);
    }
}
