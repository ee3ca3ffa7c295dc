//! The driver's two halves of a client's session.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rescind_core::{
    CloseReason, ExchangeEnd, ExchangeId, Lane, Outbound, Sender, TransportError, TransportErrorKind,
};

use super::in_flight;
use super::state::{Client, EVENTS, Standing, abort};
use crate::check_size::fits;
use crate::inbound_queue::InboundReceiver;
use crate::sync::{Handle, JoinHandle, spawn};

/// Bulk is taken while frames whose response has not begun hold no more than this, in bytes.
const YOUNG: usize = 32 * 1024;
/// Bulk is taken while no more frames than this have no response that has begun: what is ahead of a cancel, in this client
/// and in its server, is bounded so.
const YOUNG_BULK: usize = 64;
/// So many frames are on their way at most without a response that has begun, cancels included.
const YOUNG_FRAMES: usize = 4096;

pub(super) fn halves(client: Arc<Client>) -> (InboundReceiver, ClientSender) {
    let receiver = InboundReceiver(Arc::clone(&client.inbound_queue));
    (receiver, ClientSender { client, farewell: None, is_closed: false })
}

pub(super) struct ClientSender {
    client: Arc<Client>,
    farewell: Option<JoinHandle<()>>,
    is_closed: bool,
}

fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "this side closed it")
}

impl Sender for ClientSender {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let mut state = self.client.state();
        if self.is_closed || matches!(state.standing, Standing::Closed) {
            return Poll::Ready(Err(closed()));
        }
        let (bytes, frames) = state.pending;
        let room = frames < YOUNG_FRAMES
            && match lane {
                Lane::Control => true,
                Lane::Data => {
                    state.leaving == 0
                        && bytes <= YOUNG
                        && frames < YOUNG_BULK
                        && state.requests < self.client.settings.exchanges
                }
            };
        if room {
            return Poll::Ready(Ok(()));
        }
        state.driver = Some(cx.waker().clone());
        Poll::Pending
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        if self.is_closed {
            return Err(closed());
        }
        fits(&out, self.client.settings.max_frame)?;
        in_flight::start(&self.client, out);
        Ok(())
    }

    /// Each frame is on its way by itself; how many are, readiness bounds.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(if self.is_closed { Err(closed()) } else { Ok(()) })
    }

    /// The server's requests come on exchanges of ours, or on its own stream: neither ends with their answer.
    fn finish_exchange(self: Pin<&mut Self>, _: ExchangeId, _: ExchangeEnd) {}

    fn poll_close(
        mut self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        if self.is_closed {
            return Poll::Ready(Ok(()));
        }
        if self.farewell.is_none() {
            let mut state = self.client.state();
            if state.pending.1 > 0 {
                state.driver = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let known = state.id.is_some();
            drop(state);
            if !known {
                self.end();
                return Poll::Ready(Ok(()));
            }
            self.farewell = Some(spawn(self.send_delete()));
        }
        if let Some(farewell) = &mut self.farewell {
            std::task::ready!(Pin::new(farewell).poll(cx)).ok();
        }
        self.end();
        Poll::Ready(Ok(()))
    }
}

impl ClientSender {
    fn send_delete(&self) -> impl Future<Output = ()> + use<> {
        Client::send_delete(self.client.requester.clone(), self.client.headers(EVENTS))
    }

    fn end(&mut self) {
        self.is_closed = true;
        self.client.close();
    }
}

impl Drop for ClientSender {
    /// The server hears of the end all the same, if there is a runtime to say it by: else it would wait for a client that
    /// does not come back.
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        let named = self.client.state().id.is_some();
        if let (true, None, Ok(runtime)) = (named, &self.farewell, Handle::try_current()) {
            // Before the streams end: the end of a session is another thing than the loss of its streams.
            let farewell = self.send_delete();
            let tasks = self.client.take_tasks();
            runtime.spawn(async move {
                farewell.await;
                abort(tasks);
            });
        }
        self.end();
    }
}
