//! The sending half that the driver uses.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rescind_core::{
    CloseReason, ExchangeId, FrameKind, Lane, Outbound, Sender, TransportError, TransportErrorKind,
    Unsupported,
};

use super::state::Client;
use crate::check_size::check_size;
use crate::client::closed;

/// The most requests in flight. Further requests wait in the outbox.
const MAX_IN_FLIGHT: usize = 1024;

pub(super) struct ClientSender(pub(super) Arc<Client>);

impl Sender for ClientSender {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let mut state = self.0.state();
        if state.closed {
            return Poll::Ready(Err(closed()));
        }
        if lane == Lane::Data && (state.requests >= MAX_IN_FLIGHT || state.leaving > 0) {
            state.driver = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        if self.0.state().closed {
            return Err(closed());
        }
        check_size(&out, self.0.max_frame)?;
        if out.head.kind == FrameKind::Answer {
            let error = TransportError::new(TransportErrorKind::Closed, "a client posts no answers here");
            return Err(TransportError { exchange: Some(out.exchange), ..error });
        }
        self.0.start(out);
        Ok(())
    }

    /// Nothing to flush: a POST that was accepted is already on its way.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(Ok(()))
    }

    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        let mut state = self.0.state();
        let Some(flight) = state.in_flight.get_mut(&exchange.0) else { return Ok(()) };
        flight.given_up.cancel();
        // Without a head, the request may need a while to end. Other frames do not wait for it.
        let leaves = flight.headed && !std::mem::replace(&mut flight.leaves, flight.headed);
        state.leaving += usize::from(leaves);
        Ok(())
    }

    /// Aborts the requests. POSTs that need no answer, and abandoned requests without a head, still get time to arrive.
    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let reported = {
            let mut state = self.0.state();
            let mut requests = 0;
            state.in_flight.retain(|_, flight| {
                let stays = flight.has_to_arrive();
                if stays {
                    requests += usize::from(flight.asks);
                } else {
                    flight.task.abort();
                }
                stays
            });
            state.requests = requests;
            state.driver = Some(cx.waker().clone());
            state.in_flight.len()
        };
        if reported > 0 {
            return Poll::Pending;
        }
        self.0.close();
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientSender {
    fn drop(&mut self) {
        self.0.close();
    }
}
