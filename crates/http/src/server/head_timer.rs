//! The timeout for the heads on one connection, with one timer of the runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

use crate::lazy_sleep::LazySleep;

/// The timer of one connection, which waits for one head at a time. Each head creates a sleep, and nearly all sleeps
/// are dropped long before they end. So the runtime's timer is only moved when it ends.
#[derive(Clone, Default)]
pub(super) struct HeadTimer(Arc<Mutex<Option<LazySleep>>>);

struct HeadSleep {
    timer: HeadTimer,
    deadline: Instant,
}

impl Timer for HeadTimer {
    fn sleep(&self, wait: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + wait)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(HeadSleep { timer: self.clone(), deadline })
    }

    /// The time of the runtime, which tests may pause.
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

impl Future for HeadSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = tokio::time::Instant::from_std(self.deadline);
        let mut timer = self.timer.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sleep = timer.get_or_insert_with(|| LazySleep::until(deadline));
        if sleep.deadline() > deadline {
            sleep.reset(deadline);
        }
        // The timer may have been set for an earlier head that arrived in time.
        while sleep.poll(cx).is_ready() {
            if tokio::time::Instant::now() >= deadline {
                return Poll::Ready(());
            }
            sleep.reset(deadline);
        }
        Poll::Pending
    }
}

impl Sleep for HeadSleep {}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn each_sleep_takes_its_own_time_whatever_came_before() {
        let timer = HeadTimer::default();
        let begun = tokio::time::Instant::now();
        // Dropped, like the sleep of a head that has arrived.
        assert!(tokio::time::timeout(WAIT / 2, timer.sleep(WAIT)).await.is_err());
        timer.sleep(WAIT).await;
        assert_eq!(begun.elapsed(), WAIT + WAIT / 2);
        tokio::time::advance(WAIT * 3).await;
        let begun = tokio::time::Instant::now();
        timer.sleep(WAIT).await;
        timer.sleep(WAIT / 4).await;
        assert_eq!(begun.elapsed(), WAIT + WAIT / 4);
        // A shorter sleep after a longer one.
        assert!(tokio::time::timeout(Duration::from_secs(1), timer.sleep(WAIT)).await.is_err());
        timer.sleep(WAIT / 4).await;
        assert_eq!(begun.elapsed(), WAIT + WAIT / 2 + Duration::from_secs(1));
    }
}
