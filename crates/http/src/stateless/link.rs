//! The driver's sending half on the serving side.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rescind_core::{
    CloseReason, ExchangeId, Fault, Finish, Lane, Link, LinkTraits, Meta, Outbound, Sender, TransportError,
    TransportErrorKind,
};
use tokio::time::Sleep;

use super::hub::Hub;
use crate::intake::IntakeReceiver;

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
    let sender = HubSender { hub: Arc::clone(hub), stalled: None };
    Link::new(IntakeReceiver(Arc::clone(&hub.intake)), sender, traits, Meta::default())
}

struct HubSender {
    hub: Arc<Hub>,
    /// When the wire has taken no bulk for too long.
    stalled: Option<Pin<Box<Sleep>>>,
}

fn of_exchange(kind: TransportErrorKind, exchange: ExchangeId, text: String) -> TransportError {
    TransportError { exchange: Some(exchange), ..TransportError::new(kind, text) }
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
                this.stalled = None;
                return Poll::Ready(Ok(()));
            }
            let wait = this.hub.settings.stall_timeout;
            let due = this.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
            if due.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.stalled = None;
            this.hub.cut_slowest();
        }
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        self.checked()?;
        let (exchange, limit) = (out.exchange, self.hub.settings.max_frame);
        if out.body.len() > limit {
            let text = format!("the frame is larger than {limit} bytes and was not sent");
            return Err(of_exchange(TransportErrorKind::TooLarge, exchange, text));
        }
        if self.hub.send(out) {
            return Ok(());
        }
        let text = "a server says nothing here but on a request of its client's".to_owned();
        Err(of_exchange(TransportErrorKind::Closed, exchange, text))
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
