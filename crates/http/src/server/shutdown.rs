//! Whether a listener is there still, for all that ends with it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use tokio::sync::Semaphore;
use tokio::task::coop::unconstrained;

/// The listener's part; with it the listener ends.
#[derive(Debug)]
pub(super) struct ShutdownTrigger(Arc<Semaphore>);

/// Knows whether the listener is there.
#[derive(Clone, Debug)]
pub(super) struct ShutdownSignal(Arc<Semaphore>);

/// Both parts. Those who wait are told in the order in which they began to, so that connections end in the order of their
/// beginning; a semaphore that nothing is ever put into promises that.
pub(super) fn shutdown_pair() -> (ShutdownTrigger, ShutdownSignal) {
    let semaphore = Arc::new(Semaphore::new(0));
    (ShutdownTrigger(Arc::clone(&semaphore)), ShutdownSignal(semaphore))
}

impl ShutdownSignal {
    /// Waits for the listener's end.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing, but its place among those who wait.
    pub(super) async fn ended(&self) {
        let mut acquire = pin!(self.0.acquire());
        let mut wakes: Option<Waker> = None;
        // Connections ask at each turn of theirs, and nearly always nothing has changed.
        poll_fn(|cx| {
            let is_waited_for = wakes.as_ref().is_some_and(|wakes| wakes.will_wake(cx.waker()));
            if is_waited_for && !self.0.is_closed() {
                return Poll::Pending;
            }
            wakes = Some(cx.waker().clone());
            pin!(unconstrained(acquire.as_mut())).poll(cx).map(drop)
        })
        .await;
    }
}

impl Drop for ShutdownTrigger {
    fn drop(&mut self) {
        self.0.close();
    }
}
