//! The driver's sending half.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rescind_core::{
    CloseReason, ExchangeEnd, ExchangeId, Lane, Outbound, Sender, TransportError, TransportErrorKind,
};

use super::in_flight;
use super::state::Client;
use crate::check_size::fits;
use crate::client::{Farewell, send_delete};

/// Bulk is taken while frames whose response has not begun hold no more than this, in bytes.
const YOUNG: usize = 32 * 1024;
/// Bulk is taken while no more frames than this have no response that has begun: what is ahead of a cancel, in this
/// client and in its server, is bounded so.
const YOUNG_BULK: usize = 64;
/// So many frames are on their way at most without a response that has begun, cancels included.
const YOUNG_FRAMES: usize = 4096;

pub(super) struct ClientSender {
    client: Arc<Client>,
    farewell: Farewell,
    is_closed: bool,
}

impl ClientSender {
    pub(super) fn new(client: Client) -> Self {
        Self { client: Arc::new(client), farewell: Farewell::default(), is_closed: false }
    }

    fn end(&mut self) {
        self.is_closed = true;
        self.client.close();
    }
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
        if self.is_closed || state.closed {
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
        fits(&out, self.client.max_frame)?;
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
        if !self.farewell.is_sent() {
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
        }
        let this = &mut *self;
        ready!(this.farewell.poll(|| this.client.delete(), cx));
        this.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientSender {
    /// The server hears of the end all the same, if there is a runtime to say it by: else it would wait for a client
    /// that does not come back.
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        if let Some(runtime) = self.farewell.unsent().filter(|_| self.client.state().id.is_some()) {
            // Before the streams end: the end of a session is another thing than the loss of its streams.
            let (requester, headers) = self.client.delete();
            let tasks = self.client.take_tasks();
            runtime.spawn(async move {
                send_delete(requester, headers).await;
                drop(tasks);
            });
        }
        self.end();
    }
}
