//! The driver's two halves of a session on the serving side.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rescind_core::failpoint::{self, Failpoint};
use rescind_core::{
    Capabilities, CloseReason, ExchangeEnd, ExchangeId, Lane, Link, Outbound, PeerInfo, RejectReason, Sender,
    TransportError, TransportErrorKind, Unsupported,
};
use tokio::time::Instant;

use super::session_state::SessionState;
use crate::check_size::fits;
use crate::inbound_queue::InboundQueue;
use crate::server::Settings;
use crate::server::idle::{Idles, IdlingReceiver};
use crate::server::stall_timer::StallTimer;

/// The link of a session.
pub(super) fn link(conversation: &Arc<SessionState>) -> Link {
    let traits = Capabilities {
        ordered: failpoint::active(Failpoint::PostsCountAsOrdered),
        opens_exchanges: false,
        exchange_scoped: false,
        batches: false,
        max_frame: conversation.settings.max_frame,
    };
    let receiver = IdlingReceiver::new(conversation);
    let sender = ServerSender { conversation: Arc::clone(conversation), patience: StallTimer::default() };
    let mut meta = PeerInfo::default();
    meta.principal.clone_from(&conversation.principal);
    meta.address = conversation.address;
    Link::new(receiver, sender, traits, meta).with_budget(conversation.budget.clone())
}

impl Idles for SessionState {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn inbound_queue(&self) -> &Arc<InboundQueue> {
        &self.inbound_queue
    }

    fn idle_at(&self) -> Option<Instant> {
        Self::idle_at(self)
    }
}

struct ServerSender {
    conversation: Arc<SessionState>,
    patience: StallTimer,
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
                if lane == Lane::Data {
                    this.patience.renew();
                }
                return Poll::Ready(Ok(()));
            }
            let since = ready!(this.patience.poll_end(this.conversation.settings.stall_timeout, cx));
            this.conversation.cut_stalled(since);
        }
    }

    fn start_send(self: Pin<&mut Self>, mut out: Outbound) -> Result<(), TransportError> {
        fits(&out, self.conversation.settings.max_frame)?;
        // Until its last byte is written, or the client has let it go.
        out.body = self.conversation.budget.hold_frame(out.body);
        self.conversation.send(out)
    }

    /// What is taken is there for the connections to write; how much that is, readiness bounds.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(if self.conversation.is_closed() { Err(closed()) } else { Ok(()) })
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        self.conversation.finish(exchange, how);
    }

    fn note_waiting(self: Pin<&mut Self>, exchange: ExchangeId) {
        self.conversation.note_waiting(exchange);
    }

    fn note_rejection(self: Pin<&mut Self>, exchange: ExchangeId, fault: RejectReason) {
        self.conversation.note_rejection(exchange, fault);
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
