use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use rescind_core::{
    CloseReason, ExchangeEnd, ExchangeId, Lane, Outbound, Sender, TransportError, TransportErrorKind,
    Unsupported,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::receiver::poll_drained;
use super::{CloseState, LinkInner, LinkState, close_frame_after, close_frame_of};

/// A sender that holds at most this many bytes takes a data frame, so that a usual frame still fits below [`MAX_HELD`].
const MAX_HELD_FOR_DATA: usize = 32 * 1024;
/// The most bytes that a sender holds without a flush, except one larger frame.
const MAX_HELD: usize = 64 * 1024;
/// The time for the peer to answer the close frame of this side.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The sending half.
pub(super) struct WebSocketSender<S: AsyncRead + AsyncWrite + Unpin> {
    inner: Arc<LinkInner<S>>,
    max_frame: usize,
    /// Bytes since the stream was last flushed.
    unflushed: usize,
    state: SenderState,
}

enum SenderState {
    Open,
    /// The close frame was passed to the stream.
    Closing(Pin<Box<Sleep>>),
    /// The peer has closed too, or its time has elapsed. Only the stream must be closed.
    Ending(Pin<Box<Sleep>>),
    Closed,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocketSender<S> {
    pub(super) const fn new(inner: Arc<LinkInner<S>>, max_frame: usize) -> Self {
        Self { inner, max_frame, unflushed: 0, state: SenderState::Open }
    }

    fn check_open(&self) -> Result<(), TransportError> {
        match &self.state {
            SenderState::Open => {}
            SenderState::Closing(_) | SenderState::Ending(_) | SenderState::Closed => {
                return Err(closed("this side closed it"));
            }
        }
        match &self.inner.lock().close_state {
            CloseState::Open | CloseState::ReadFailed(_) => Ok(()),
            CloseState::ClosedByPeer => Err(closed("the peer closed it")),
            CloseState::Closed => Err(closed("this side closed it")),
            CloseState::Broken(error) => Err(error.clone()),
        }
    }

    fn poll_flushed(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let mut state = self.inner.lock();
        let done = state.poll_flush(cx);
        if done.is_pending() {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        drop(state);
        self.unflushed = 0;
        done
    }

    /// Waits for the peer's close frame. If its frames cannot be read any more, waits for the end of its input.
    fn poll_peer_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.inner.lock();
        let LinkState { stream, close_state, .. } = &mut *state;
        loop {
            match close_state {
                CloseState::ReadFailed(_) => {
                    // The peer must see the end of the output. Else both sides may wait for each other.
                    let _ = Pin::new(stream.get_mut()).poll_shutdown(cx);
                    return poll_drained(stream.get_mut(), cx);
                }
                CloseState::ClosedByPeer | CloseState::Closed | CloseState::Broken(_) => {
                    return Poll::Ready(());
                }
                // Messages after the close frame of this side are ignored.
                CloseState::Open => match ready!(Pin::new(&mut *stream).poll_next(cx)) {
                    Some(Ok(Message::Close(_)) | Err(_)) | None => *close_state = CloseState::ClosedByPeer,
                    Some(Ok(_)) => {}
                },
            }
        }
    }

    fn poll_closing(&mut self, why: &CloseReason, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        loop {
            match &mut self.state {
                SenderState::Open => {
                    let mut state = self.inner.lock();
                    match &state.close_state {
                        CloseState::Broken(error) => return Poll::Ready(Err(error.clone())),
                        CloseState::Open => {
                            state.send(Message::Close(Some(close_frame_of(why))))?;
                        }
                        CloseState::ReadFailed(bad) => {
                            let frame = close_frame_after(*bad);
                            state.send(Message::Close(Some(frame)))?;
                        }
                        CloseState::ClosedByPeer | CloseState::Closed => {}
                    }
                    drop(state);
                    self.state = SenderState::Closing(Box::pin(tokio::time::sleep(CLOSE_TIMEOUT)));
                }
                SenderState::Closing(by) => {
                    let late = by.as_mut().poll(cx).is_ready();
                    let flushed = self.poll_flushed(cx)?.is_ready();
                    if !flushed && late {
                        let error = closed("the peer did not read the remaining frames before it closed");
                        self.state = SenderState::Closed;
                        return Poll::Ready(Err(self.inner.lock().fail(error)));
                    }
                    let over = late || (flushed && self.poll_peer_closed(cx).is_ready());
                    if !over {
                        return Poll::Pending;
                    }
                    let by = Box::pin(tokio::time::sleep(CLOSE_TIMEOUT));
                    self.state = SenderState::Ending(by);
                }
                SenderState::Ending(by) => {
                    let late = by.as_mut().poll(cx).is_ready();
                    let mut state = self.inner.lock();
                    // It does not matter whether the peer still accepts the end: it has all frames.
                    if Pin::new(state.stream.get_mut()).poll_shutdown(cx).is_pending() && !late {
                        return Poll::Pending;
                    }
                    state.close_state = CloseState::Closed;
                    state.wake();
                    drop(state);
                    self.state = SenderState::Closed;
                }
                SenderState::Closed => return Poll::Ready(Ok(())),
            }
        }
    }
}

fn closed(text: &str) -> TransportError {
    TransportError::new(TransportErrorKind::Closed, text)
}

/// The error of a frame that was not taken. The connection continues.
fn refused(exchange: ExchangeId, kind: TransportErrorKind, text: String) -> TransportError {
    TransportError { exchange: Some(exchange), ..TransportError::new(kind, text) }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Sender for WebSocketSender<S> {
    fn poll_ready(
        mut self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.check_open()?;
        let room = match lane {
            Lane::Control => self.unflushed < MAX_HELD,
            Lane::Data => self.unflushed <= MAX_HELD_FOR_DATA,
        };
        if room { Poll::Ready(Ok(())) } else { self.poll_flushed(cx) }
    }

    fn start_send(mut self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        self.check_open()?;
        let size = out.body.len();
        if size > self.max_frame {
            let text = format!("the frame is larger than {} bytes and was not sent", self.max_frame);
            return Err(refused(out.exchange, TransportErrorKind::TooLarge, text));
        }
        let Ok(text) = Utf8Bytes::try_from(out.body) else {
            let text = "the frame is no UTF-8 and was not sent".to_owned();
            return Err(refused(out.exchange, TransportErrorKind::Framing, text));
        };
        self.inner.lock().send_text(text)?;
        self.unflushed += size;
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.check_open()?;
        self.poll_flushed(cx)
    }

    fn finish_exchange(self: Pin<&mut Self>, _: ExchangeId, _: ExchangeEnd) {}

    fn abort_exchange(self: Pin<&mut Self>, _: ExchangeId) -> Result<(), Unsupported> {
        Err(Unsupported)
    }

    /// Sends the close frame and waits for the peer's close frame, for at most one second.
    fn poll_close(
        mut self: Pin<&mut Self>,
        why: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.poll_closing(why, cx)
    }
}
