//! The sending half that the driver uses.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rescind_core::{CloseReason, ExchangeEnd, ExchangeId, Lane, Outbound, Sender, TransportError};

use super::in_flight;
use super::state::Client;
use crate::client::{DeleteRequest, closed, send_delete};
use crate::collect_body::check_size;

/// Data frames are accepted while the frames whose response has not begun hold at most this number of bytes.
const MAX_PENDING_BYTES: usize = 32 * 1024;
/// Data frames are accepted while fewer frames than this have a response that has not begun. This bounds what is ahead
/// of a cancel, in this client and in its server.
const MAX_PENDING_DATA: usize = 64;
/// The most frames in flight whose response has not begun, including cancels.
const MAX_PENDING_FRAMES: usize = 4096;

pub(super) struct ClientSender {
    client: Arc<Client>,
    delete_request: DeleteRequest,
    is_closed: bool,
}

impl ClientSender {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Self { client, delete_request: DeleteRequest::default(), is_closed: false }
    }

    fn end(&mut self) {
        self.is_closed = true;
        self.client.close();
    }
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
        let room = frames < MAX_PENDING_FRAMES
            && match lane {
                Lane::Control => true,
                Lane::Data => {
                    state.leaving == 0
                        && bytes <= MAX_PENDING_BYTES
                        && frames < MAX_PENDING_DATA
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
        check_size(&out, self.client.max_frame)?;
        in_flight::start(&self.client, out);
        Ok(())
    }

    /// Nothing to flush: each frame is sent in its own task, and `poll_ready` bounds their number.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Ready(if self.is_closed { Err(closed()) } else { Ok(()) })
    }

    /// The server's requests arrive on our exchanges or on its own stream. Neither ends with the answer.
    fn finish_exchange(self: Pin<&mut Self>, _: ExchangeId, _: ExchangeEnd) {}

    fn poll_close(
        mut self: Pin<&mut Self>,
        _: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        if self.is_closed {
            return Poll::Ready(Ok(()));
        }
        if !self.delete_request.is_sent() {
            let mut state = self.client.state();
            let is_first = !std::mem::replace(&mut state.closing, true);
            let is_pending = state.pending.1 > 0;
            if is_pending {
                state.driver = Some(cx.waker().clone());
            }
            let known = state.id.is_some();
            drop(state);
            if is_first {
                self.client.moved.notify_waiters();
            }
            if is_pending {
                return Poll::Pending;
            }
            if !known {
                self.end();
                return Poll::Ready(Ok(()));
            }
        }
        let this = &mut *self;
        ready!(this.delete_request.poll(|| this.client.delete(), cx));
        this.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientSender {
    /// The server is informed of the end even here, if there is a runtime to send the DELETE. Otherwise it would wait
    /// for a client that does not return.
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        if let Some(runtime) = self.delete_request.unsent().filter(|_| self.client.state().id.is_some()) {
            // The DELETE is sent before the streams end: the end of a session is different from the loss of its
            // streams.
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
