//! The end of a listener: first it may drain, then it is dropped, and everything that belongs to it ends.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use tokio::sync::{Notify, Semaphore};
use tokio::task::coop::unconstrained;

/// The listener's part. When it is dropped, everything that belongs to the listener ends.
#[derive(Debug)]
pub(super) struct ShutdownTrigger(Arc<Phases>);

/// Reports the phase of the listener.
#[derive(Clone, Debug)]
pub(super) struct ShutdownSignal(Arc<Phases>);

#[derive(Debug)]
struct Phases {
    /// Closed when the listener is dropped.
    open: Semaphore,
    draining: Notify,
}

/// Both parts. Those that wait for the end are woken in the order in which they began to wait, so that connections end
/// in the order in which they began. A semaphore without permits guarantees that order.
pub(super) fn shutdown_pair() -> (ShutdownTrigger, ShutdownSignal) {
    let phases = Arc::new(Phases { open: Semaphore::new(0), draining: Notify::new() });
    (ShutdownTrigger(Arc::clone(&phases)), ShutdownSignal(phases))
}

impl ShutdownTrigger {
    /// Informs the task that accepts connections that the listener drains.
    pub(super) fn drain(&self) {
        self.0.draining.notify_one();
    }
}

impl ShutdownSignal {
    /// Waits until the listener drains. Only one task may wait.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn draining(&self) {
        self.0.draining.notified().await;
    }

    /// Waits for the listener's end.
    ///
    /// # Cancel safety
    /// Dropping the future loses only its position among the waiting tasks.
    pub(super) async fn ended(&self) {
        let mut acquire = pin!(self.0.open.acquire());
        let mut wakes: Option<Waker> = None;
        // Each connection polls this whenever it is polled, and nearly always nothing has changed.
        poll_fn(|cx| {
            let is_waited_for = wakes.as_ref().is_some_and(|wakes| wakes.will_wake(cx.waker()));
            if is_waited_for && !self.0.open.is_closed() {
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
        self.0.open.close();
    }
}
