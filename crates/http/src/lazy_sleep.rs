//! A timer that is looked at only when it has something new to tell.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// A sleep beside something that is polled often. The runtime's own takes its time at each poll, though nearly all of
/// them find what the one before has found.
#[derive(Debug)]
pub(crate) struct LazySleep {
    sleep: Pin<Box<Sleep>>,
    /// Who is woken at its end.
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

    /// Ready once its time has come.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_waited_for = self.wakes.as_ref().is_some_and(|wakes| wakes.will_wake(cx.waker()));
        if is_waited_for && !self.sleep.is_elapsed() {
            return Poll::Pending;
        }
        // A poll that a spent budget put off would have left no waker.
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
    async fn it_ends_in_its_time_however_often_it_is_looked_at() {
        let since = Instant::now();
        let mut doze = LazySleep::new(WAIT);
        for _ in 0..1000 {
            assert!(poll_fn(|cx| Poll::Ready(doze.poll(cx))).await.is_pending());
        }
        poll_fn(|cx| doze.poll(cx)).await;
        assert_eq!(since.elapsed(), WAIT);
        doze.reset(Instant::now() + WAIT);
        poll_fn(|cx| doze.poll(cx)).await;
        assert_eq!(since.elapsed(), WAIT * 2, "it can be set again");
    }

    #[tokio::test(start_paused = true)]
    async fn it_wakes_who_looked_last() {
        let mut doze = LazySleep::new(WAIT);
        assert!(doze.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let since = Instant::now();
        poll_fn(|cx| doze.poll(cx)).await;
        assert_eq!(since.elapsed(), WAIT);
    }
}
