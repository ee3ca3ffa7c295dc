//! The driver's sending half on the serving side.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rescind_core::{
    CloseReason, ExchangeId, Fault, Finish, Lane, Link, LinkTraits, Meta, Outbound, Sender, TransportError,
    TransportErrorKind,
};

use super::hub::Hub;
use crate::fits::fits;
use crate::intake::IntakeReceiver;
use crate::server::patience::Patience;

/// The one link of a listener (N1).
pub(super) fn link(hub: &Arc<Hub>) -> Link {
    let traits = LinkTraits {
        ordered: false,
        exchanges_abortable: false,
        exchange_scoped: true,
        peer_can_request: true,
        resumable: false,
        batches: false,
        max_frame: hub.settings.max_frame,
    };
    let sender = HubSender { hub: Arc::clone(hub), patience: Patience::default() };
    Link::new(IntakeReceiver(Arc::clone(&hub.intake)), sender, traits, Meta::default())
}

struct HubSender {
    hub: Arc<Hub>,
    patience: Patience,
}

impl HubSender {
    fn checked(&self) -> Result<(), TransportError> {
        if self.hub.is_closed() {
            return Err(TransportError::new(TransportErrorKind::Closed, "the server has ended"));
        }
        Ok(())
    }
}

impl Sender for HubSender {
    fn poll_ready(
        mut self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let this = &mut *self;
        loop {
            this.checked()?;
            if lane == Lane::Control || this.hub.has_room(cx) {
                if lane == Lane::Bulk {
                    this.patience.renew();
                }
                return Poll::Ready(Ok(()));
            }
            ready!(this.patience.poll_end(this.hub.settings.stall_timeout, cx));
            this.hub.cut_slowest();
        }
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        self.checked()?;
        fits(&out, self.hub.settings.max_frame)?;
        let exchange = out.exchange;
        if self.hub.send(out) {
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
        self.hub.begin(exchange);
    }

    fn note_fault(self: Pin<&mut Self>, exchange: ExchangeId, fault: Fault) {
        self.hub.note_fault(exchange, fault);
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: Finish) {
        self.hub.finish(exchange, how);
    }

    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.hub.close();
        Poll::Ready(Ok(()))
    }
}

impl Drop for HubSender {
    fn drop(&mut self) {
        self.hub.close();
    }
}
