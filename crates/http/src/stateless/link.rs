//! The driver's sending half on the serving side.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rescind_core::{
    Capabilities, CloseReason, ExchangeEnd, ExchangeId, Lane, Link, Outbound, PeerInfo, RejectReason, Sender,
    TransportError, TransportErrorKind,
};

use super::exchange_table::{ExchangeTable, Progress};
use crate::check_size::fits;
use crate::inbound_queue::InboundReceiver;
use crate::server::stall_timer::StallTimer;

/// The one link of a listener (N1).
pub(super) fn link(exchanges: &Arc<ExchangeTable>) -> Link {
    let traits = Capabilities {
        ordered: false,
        opens_exchanges: false,
        exchange_scoped: true,
        batches: false,
        max_frame: exchanges.settings.max_frame,
    };
    let sender = StatelessSender { exchanges: Arc::clone(exchanges), patience: StallTimer::default() };
    Link::new(InboundReceiver(Arc::clone(&exchanges.inbound_queue)), sender, traits, PeerInfo::default())
}

struct StatelessSender {
    exchanges: Arc<ExchangeTable>,
    patience: StallTimer,
}

impl StatelessSender {
    fn checked(&self) -> Result<(), TransportError> {
        if self.exchanges.is_closed() {
            return Err(TransportError::new(TransportErrorKind::Closed, "the server has ended"));
        }
        Ok(())
    }
}

impl Sender for StatelessSender {
    fn poll_ready(
        mut self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let this = &mut *self;
        loop {
            this.checked()?;
            if lane == Lane::Control || this.exchanges.has_room(cx) {
                if lane == Lane::Data {
                    this.patience.renew();
                }
                return Poll::Ready(Ok(()));
            }
            ready!(this.patience.poll_end(this.exchanges.settings.stall_timeout, cx));
            this.exchanges.cut_slowest();
        }
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        self.checked()?;
        fits(&out, self.exchanges.settings.max_frame)?;
        let exchange = out.exchange;
        if self.exchanges.send(out) {
            return Ok(());
        }
        let text = "a server says nothing here but on a request of its client's";
        let error = TransportError::new(TransportErrorKind::Closed, text);
        Err(TransportError { exchange: Some(exchange), ..error })
    }

    /// What is taken is there for the connections to write; how much that is, readiness bounds.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(self.checked())
    }

    fn begin_exchange(self: Pin<&mut Self>, exchange: ExchangeId) {
        self.exchanges.note_progress(exchange, Progress::Started);
    }

    fn note_waiting(self: Pin<&mut Self>, exchange: ExchangeId) {
        self.exchanges.note_progress(exchange, Progress::Waiting);
    }

    fn note_rejection(self: Pin<&mut Self>, exchange: ExchangeId, fault: RejectReason) {
        self.exchanges.note_rejection(exchange, fault);
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        self.exchanges.finish(exchange, how);
    }

    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.exchanges.close();
        Poll::Ready(Ok(()))
    }
}

impl Drop for StatelessSender {
    fn drop(&mut self) {
        self.exchanges.close();
    }
}
