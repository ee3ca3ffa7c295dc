//! The link that a binding passes to the driver: one type for a session, a connection of ACP, and all POSTs of a
//! listener.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rescind_core::{
    Capabilities, CloseReason, ExchangeEnd, ExchangeId, Lane, Link, Outbound, PeerInfo, Receiver,
    RejectReason, Sender, TransportError, TransportErrorKind,
};
use tokio::time::Instant;

use super::Settings;
use crate::collect_body::check_size;
use crate::inbound_queue::InboundQueue;
use crate::server::response_body::StallTimer;

/// The state behind a link, as the driver uses it.
pub(crate) trait Linked: Send + Sync + 'static {
    /// The error text for a frame that is refused after the end.
    const ENDED: &'static str;
    /// Whether ids are unique only within an exchange.
    const EXCHANGE_SCOPED: bool = false;

    fn settings(&self) -> &Settings;
    fn inbound_queue(&self) -> &Arc<InboundQueue>;
    fn is_closed(&self) -> bool;

    /// Whether a data frame may be sent. If not, the driver is woken when there is room.
    fn has_room(&self, cx: &mut Context<'_>) -> bool;

    /// Cuts the streams that have held data frames back since then.
    fn cut_stalled(&self, since: Instant);

    /// Accepts a frame from the driver.
    fn send(&self, out: Outbound) -> Result<(), TransportError>;

    /// The handler of an exchange's request has started.
    fn begin(&self, _: ExchangeId) {}

    /// The handler of an exchange's request awaits something.
    fn note_waiting(&self, _: ExchangeId) {}

    /// The next answer on an exchange is a refusal with this reason.
    fn note_rejection(&self, _: ExchangeId, _: RejectReason) {}

    /// Ends an exchange without a frame.
    fn finish(&self, exchange: ExchangeId, how: ExchangeEnd);

    /// Ends everything, after the messages that wait for readers.
    fn poll_close(&self, _: &mut Context<'_>) -> Poll<()> {
        self.end();
        Poll::Ready(())
    }

    /// Ends everything now.
    fn end(&self);

    /// The error for a frame that arrives after the end.
    fn ended() -> TransportError {
        TransportError::new(TransportErrorKind::Closed, Self::ENDED)
    }
}

/// The sending half. Accepted frames wait until the connections write them. `poll_ready` bounds their number.
pub(crate) struct ServerLink<S: Linked> {
    state: Arc<S>,
    stall_timer: StallTimer,
}

impl<S: Linked> ServerLink<S> {
    pub(crate) fn open(state: &Arc<S>, receiver: impl Receiver + 'static, peer: PeerInfo) -> Link {
        let capabilities = Capabilities {
            ordered: false,
            opens_exchanges: false,
            exchange_scoped: S::EXCHANGE_SCOPED,
            batches: false,
            max_frame: state.settings().max_frame,
        };
        let sender = Self { state: Arc::clone(state), stall_timer: StallTimer::default() };
        Link::new(receiver, sender, capabilities, peer)
    }

    fn check_open(&self) -> Result<(), TransportError> {
        if self.state.is_closed() { Err(S::ended()) } else { Ok(()) }
    }
}

impl<S: Linked> Sender for ServerLink<S> {
    fn poll_ready(
        mut self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let this = &mut *self;
        loop {
            this.check_open()?;
            if lane == Lane::Control || this.state.has_room(cx) {
                if lane == Lane::Data {
                    this.stall_timer.renew();
                }
                return Poll::Ready(Ok(()));
            }
            let since = ready!(this.stall_timer.poll_end(this.state.settings().stall_timeout, cx));
            this.state.cut_stalled(since);
        }
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        check_size(&out, self.state.settings().max_frame)?;
        self.state.send(out)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(self.check_open())
    }

    fn begin_exchange(self: Pin<&mut Self>, exchange: ExchangeId) {
        self.state.begin(exchange);
    }

    fn note_waiting(self: Pin<&mut Self>, exchange: ExchangeId) {
        self.state.note_waiting(exchange);
    }

    fn note_rejection(self: Pin<&mut Self>, exchange: ExchangeId, reason: RejectReason) {
        self.state.note_rejection(exchange, reason);
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        self.state.finish(exchange, how);
    }

    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.state.poll_close(cx).map(Ok)
    }
}

impl<S: Linked> Drop for ServerLink<S> {
    fn drop(&mut self) {
        self.state.end();
    }
}
