//! How long a link waits for a client that reads nothing.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// The task that waits is woken at the end of the wait and polls at once. If it polls later than this, it had no data
/// frames to send in between, or its runtime was blocked, which is not the client's fault. Then the wait starts again.
const SOON: Duration = Duration::from_secs(1);

/// How long data frames have had no room, and when that is too long. It is only checked when a data frame is to be
/// sent.
#[derive(Debug, Default)]
pub(crate) struct StallTimer(Option<(Instant, Pin<Box<Sleep>>)>);

impl StallTimer {
    /// Called when data frames have room.
    pub(crate) fn renew(&mut self) {
        self.0 = None;
    }

    /// Ready when there was no room for this time; returns when that began. Then it starts again.
    pub(crate) fn poll_end(&mut self, wait: Duration, cx: &mut Context<'_>) -> Poll<Instant> {
        loop {
            let (since, due) =
                self.0.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(wait))));
            ready!(due.as_mut().poll(cx));
            let (since, late) = (*since, due.deadline().elapsed());
            self.0 = None;
            if late < SOON {
                return Poll::Ready(since);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const WAIT: Duration = Duration::from_secs(30);

    async fn end(timer: &mut StallTimer) -> Instant {
        poll_fn(|cx| timer.poll_end(WAIT, cx)).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_timer_expires_and_restarts() {
        let (mut timer, begun) = (StallTimer::default(), Instant::now());
        assert_eq!(end(&mut timer).await, begun);
        assert_eq!(begun.elapsed(), WAIT);
        assert_eq!(end(&mut timer).await, begun + WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unawaited_expiry_does_not_count() {
        let mut timer = StallTimer::default();
        assert!(tokio::time::timeout(WAIT / 2, end(&mut timer)).await.is_err());
        tokio::time::sleep(WAIT * 2).await;
        let again = Instant::now();
        assert_eq!(end(&mut timer).await, again);
        assert_eq!(again.elapsed(), WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn free_room_restarts_the_stall_timer() {
        let mut timer = StallTimer::default();
        assert!(tokio::time::timeout(WAIT / 2, end(&mut timer)).await.is_err());
        timer.renew();
        let again = Instant::now();
        assert_eq!(end(&mut timer).await, again);
    }
}
