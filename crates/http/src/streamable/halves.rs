//! The driver's two halves of a session on the serving side.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rescind_core::plant::{self, Plant};
use rescind_core::{
    CloseReason, ExchangeId, Fault, Finish, Lane, Link, LinkTraits, Meta, Outbound, Receiver, Sender,
    TransportError, TransportErrorKind, TransportEvent, Unsupported,
};
use tokio::time::{Instant, Sleep};

use super::conversation::Conversation;
use crate::doze::Doze;
use crate::intake::IntakeReceiver;

/// The link of a session.
pub(super) fn link(conversation: &Arc<Conversation>) -> Link {
    let traits = LinkTraits {
        ordered: plant::is(Plant::PostsCountAsOrdered),
        exchanges_abortable: false,
        exchange_scoped: false,
        peer_can_request: true,
        // A session that is gone is gone; what can be taken up again is an exchange.
        resumable: false,
        batches: false,
        max_frame: conversation.settings.max_frame,
    };
    let receiver = ServerReceiver {
        intake: IntakeReceiver(Arc::clone(&conversation.intake)),
        conversation: Arc::clone(conversation),
        idle: None,
    };
    let sender = ServerSender { conversation: Arc::clone(conversation), stalled: None };
    let mut meta = Meta::default();
    meta.principal.clone_from(&conversation.principal);
    Link::new(receiver, sender, traits, meta)
}

struct ServerReceiver {
    intake: IntakeReceiver,
    conversation: Arc<Conversation>,
    /// When to look whether the session is idle.
    idle: Option<Doze>,
}

impl Receiver for ServerReceiver {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        if let Poll::Ready(event) = Pin::new(&mut self.intake).poll_event(cx) {
            return Poll::Ready(event);
        }
        let this = &mut *self;
        let wait = this.conversation.settings.session_idle;
        let idle = this.idle.get_or_insert_with(|| Doze::new(wait));
        while idle.poll(cx).is_ready() {
            let now = Instant::now();
            match this.conversation.idle_at() {
                Some(at) if at <= now => {
                    this.conversation.settings.counts.session_idled();
                    tracing::debug!("an idle session is ended");
                    return Poll::Ready(None);
                }
                Some(at) => idle.reset(at),
                None => idle.reset(now + wait),
            }
        }
        Poll::Pending
    }
}

struct ServerSender {
    conversation: Arc<Conversation>,
    /// Since when the wire takes no bulk, and when that has been so for too long.
    stalled: Option<(Instant, Pin<Box<Sleep>>)>,
}

fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "the session has ended")
}

impl Sender for ServerSender {
    fn poll_ready(
        mut self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let this = &mut *self;
        loop {
            if this.conversation.is_closed() {
                return Poll::Ready(Err(closed()));
            }
            if lane == Lane::Control || this.conversation.has_room(cx) {
                if lane == Lane::Bulk {
                    this.stalled = None;
                }
                return Poll::Ready(Ok(()));
            }
            let wait = this.conversation.settings.stall_timeout;
            let (since, due) =
                this.stalled.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(wait))));
            if due.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.conversation.cut_stalled(*since);
            this.stalled = None;
        }
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        let limit = self.conversation.settings.max_frame;
        if out.body.len() > limit {
            let text = format!("the frame is larger than {limit} bytes and was not sent");
            let error = TransportError::new(TransportErrorKind::TooLarge, text);
            return Err(TransportError { exchange: Some(out.exchange), ..error });
        }
        self.conversation.send(out)
    }

    /// What is taken is there for the connections to write; how much that is, readiness bounds.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(if self.conversation.is_closed() { Err(closed()) } else { Ok(()) })
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: Finish) {
        self.conversation.finish(exchange, how);
    }

    fn note_fault(self: Pin<&mut Self>, exchange: ExchangeId, fault: Fault) {
        self.conversation.note_fault(exchange, fault);
    }

    fn abort_exchange(self: Pin<&mut Self>, _: ExchangeId) -> Result<(), Unsupported> {
        Err(Unsupported)
    }

    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.conversation.poll_close(cx).map(Ok)
    }
}

impl Drop for ServerSender {
    fn drop(&mut self) {
        self.conversation.end();
    }
}
