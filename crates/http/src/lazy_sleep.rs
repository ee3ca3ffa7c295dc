//! A timer that is polled only when its result may have changed.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

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

    const WAIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn the_sleep_ends_in_time_however_often_it_is_polled() {
        let since = Instant::now();
        let mut sleep = LazySleep::new(WAIT);
        for _ in 0..1000 {
            assert!(poll_fn(|cx| Poll::Ready(sleep.poll(cx))).await.is_pending());
        }
        poll_fn(|cx| sleep.poll(cx)).await;
        assert_eq!(since.elapsed(), WAIT);
        sleep.reset(Instant::now() + WAIT);
        poll_fn(|cx| sleep.poll(cx)).await;
        assert_eq!(since.elapsed(), WAIT * 2, "it can be set again");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_poller_is_woken() {
        let mut sleep = LazySleep::new(WAIT);
        assert!(sleep.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let since = Instant::now();
        poll_fn(|cx| sleep.poll(cx)).await;
        assert_eq!(since.elapsed(), WAIT);
    }
}
