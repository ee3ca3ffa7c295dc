//! The receiving half of a link whose session ends when no client has used it for too long.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rescind_core::{Receiver, TransportError, TransportEvent};
use tokio::time::Instant;

use super::link::Linked;
use crate::inbound_queue::InboundReceiver;
use crate::lazy_sleep::LazySleep;

/// A session that may become idle.
pub(crate) trait IdleSession: Linked {
    /// When it may end if no client uses it until then. `None`: it is in use.
    fn idle_at(&self) -> Option<Instant>;
    /// When the first of its messages that no stream can carry has waited long enough. `None`: none waits.
    fn parked_until(&self) -> Option<Instant> {
        None
    }
    /// Ends the messages that have waited long enough, and informs the driver of them through the inbound queue.
    fn expire_parked(&self) {}
    /// Called when it was idle for too long. Its link ends without this call; the method ends everything else.
    fn idled(&self) {}
}

/// The received messages, until the session has been idle for too long.
pub(crate) struct IdlingReceiver<T> {
    inbound_queue: InboundReceiver,
    session: Arc<T>,
    /// When to check whether the session is idle.
    idle: Option<LazySleep>,
    /// When a message that no stream can carry has waited long enough.
    parked: Option<LazySleep>,
}

impl<T: IdleSession> IdlingReceiver<T> {
    pub(crate) fn new(session: &Arc<T>) -> Self {
        let inbound_queue = InboundReceiver(Arc::clone(session.inbound_queue()));
        Self { inbound_queue, session: Arc::clone(session), idle: None, parked: None }
    }
}

impl<T: IdleSession> Receiver for IdlingReceiver<T> {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        if let Poll::Ready(event) = Pin::new(&mut self.inbound_queue).poll_event(cx) {
            return Poll::Ready(event);
        }
        let this = &mut *self;
        while let Some(at) = this.session.parked_until() {
            let parked = this.parked.get_or_insert_with(|| LazySleep::until(at));
            if parked.deadline() != at {
                parked.reset(at);
            }
            if parked.poll(cx).is_pending() {
                break;
            }
            this.session.expire_parked();
            if let Poll::Ready(event) = Pin::new(&mut this.inbound_queue).poll_event(cx) {
                return Poll::Ready(event);
            }
        }
        let wait = this.session.settings().session_idle;
        let idle = this.idle.get_or_insert_with(|| LazySleep::new(wait));
        while idle.poll(cx).is_ready() {
            let now = Instant::now();
            match this.session.idle_at() {
                Some(at) if at <= now => {
                    this.session.settings().counts.session_idled();
                    tracing::debug!("an idle session is ended");
                    this.session.idled();
                    return Poll::Ready(None);
                }
                Some(at) => idle.reset(at),
                None => idle.reset(now + wait),
            }
        }
        Poll::Pending
    }
}
