use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_util::{Sink, Stream};
use rescind_core::failpoint::{self, Failpoint};
use rescind_core::{
    BadFrame, BadMessage, CloseReason, Deviation, ExchangeId, Inbound, Receiver, TransportError,
    TransportErrorKind, TransportEvent,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::counting_io::Carried;
use super::{
    CloseState, LinkInner, LinkState, MAX_PENDING_PONGS, bad_frame_of, close_frame_of_expiry, close_reason_of,
};
use crate::options::{BinaryMessages, LinkOptions};

/// After this many messages without a frame for the driver the other tasks get their turn.
const MAX_MESSAGES_PER_POLL: usize = 32;
/// The pings in a row without a sign of life after which the peer counts as disconnected.
const MAX_MISSED_PINGS: u32 = 2;
/// At least this many bytes between two pings are a sign of life too, because a pong cannot arrive before the end of a
/// large message, and a ping cannot be sent before the end of one. Fewer bytes are not, because one byte a second would
/// hold a connection forever.
const MIN_PROGRESS_BYTES: u64 = 64 * 1024;
/// The time for the peer to read the close frame and to answer it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The receiving half.
pub(super) struct WebSocketReceiver<S: AsyncRead + AsyncWrite + Unpin> {
    inner: Arc<LinkInner<S>>,
    keepalive: Option<Keepalive>,
    expiry: Option<Expiry>,
    binary: BinaryMessages,
    max_frame: usize,
    /// A ping is queued and not flushed yet.
    unflushed_ping: bool,
    state: ReceiverState,
}

#[derive(Clone, Copy, Debug)]
enum ReceiverState {
    Open,
    /// The message that ended reading was returned.
    ReadFailed,
    /// The end of input was returned.
    HalfClosed,
    Closed,
}

type PolledEvent = Option<Result<TransportEvent, TransportError>>;

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> WebSocketReceiver<S> {
    pub(super) fn new(inner: Arc<LinkInner<S>>, options: &LinkOptions, expires: Option<Instant>) -> Self {
        Self {
            inner,
            keepalive: options.ping_every.map(Keepalive::new),
            expiry: expires.map(Expiry::new),
            binary: options.binary.clone(),
            max_frame: options.max_frame,
            unflushed_ping: false,
            state: ReceiverState::Open,
        }
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<PolledEvent> {
        let inner = Arc::clone(&self.inner);
        let mut state = inner.lock();
        match &state.close_state {
            CloseState::Open => {}
            CloseState::Broken(error) => {
                self.state = ReceiverState::Closed;
                return Poll::Ready(Some(Err(error.clone())));
            }
            CloseState::Closed | CloseState::ClosedByPeer | CloseState::ReadFailed(_) => {
                self.state = ReceiverState::Closed;
                return Poll::Ready(None);
            }
        }
        if self.expiry.as_mut().is_some_and(|expiry| expiry.poll(cx).is_ready()) {
            self.state = ReceiverState::Closed;
            return Poll::Ready(Some(Err(expire(&inner, &mut state))));
        }
        if failpoint::active(Failpoint::ReadingWaitsForWriting) && state.writer.is_some() {
            return Poll::Pending;
        }
        for _ in 0..MAX_MESSAGES_PER_POLL {
            let Poll::Ready(next) = Pin::new(&mut state.stream).poll_next(cx) else {
                return self.poll_keepalive(&mut state, cx);
            };
            let reported = match next {
                Some(Ok(message)) => self.recv(&mut state, message, cx),
                Some(Err(error)) => Some(Some(self.fail(&mut state, &error))),
                None => {
                    self.close(&mut state);
                    Some(None)
                }
            };
            if let Some(reported) = reported {
                return Poll::Ready(reported);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// `None`: there is nothing for the driver.
    fn recv(
        &mut self,
        state: &mut LinkState<S>,
        message: Message,
        cx: &mut Context<'_>,
    ) -> Option<PolledEvent> {
        let stream = state.stream.get_mut();
        match &message {
            Message::Text(_) | Message::Binary(_) => stream.message_came(),
            Message::Ping(bytes) | Message::Pong(bytes) => stream.control_came(bytes.len()),
            Message::Close(_) | Message::Frame(_) => {}
        }
        match message {
            Message::Text(text) => Some(Some(Ok(TransportEvent::Message(Inbound::new(text.into()))))),
            Message::Binary(sent) => match &self.binary {
                BinaryMessages::Refuse => Some(Some(Ok(self.refuse_frame(state, BadFrame::Binary)))),
                BinaryMessages::Ignore(ignored) => {
                    ignored.count();
                    let deviation = Deviation::Dropped(BadMessage::Frame(BadFrame::Binary));
                    Some(Some(Ok(TransportEvent::Deviation { deviation, sent })))
                }
            },
            Message::Ping(_) => {
                state.owed_pongs += 1;
                if state.owed_pongs > MAX_PENDING_PONGS && state.poll_flush(cx).is_pending() {
                    self.state = ReceiverState::Closed;
                    let text = format!("it sent {MAX_PENDING_PONGS} pings and reads no answer");
                    return Some(Some(Err(
                        state.fail(TransportError::new(TransportErrorKind::Framing, text))
                    )));
                }
                None
            }
            Message::Pong(_) | Message::Frame(_) => None,
            Message::Close(frame) => Some(self.closed_by_peer(state, frame.as_ref(), cx)),
        }
    }

    /// The peer closes. The answer is written as far as the socket accepts it without waiting.
    fn closed_by_peer(
        &mut self,
        state: &mut LinkState<S>,
        frame: Option<&CloseFrame>,
        cx: &mut Context<'_>,
    ) -> PolledEvent {
        state.close_state = CloseState::ClosedByPeer;
        let _ = state.poll_flush(cx);
        state.wake();
        self.state = ReceiverState::Closed;
        match close_reason_of(frame) {
            CloseReason::Violation(text) => Some(Err(TransportError::new(TransportErrorKind::Closed, text))),
            _ => None,
        }
    }

    fn fail(&mut self, state: &mut LinkState<S>, error: &Error) -> Result<TransportEvent, TransportError> {
        if let Some(why) = bad_frame_of(error, self.max_frame) {
            return Ok(self.refuse_frame(state, why));
        }
        self.state = ReceiverState::Closed;
        Err(state.broke(error))
    }

    fn refuse_frame(&mut self, state: &mut LinkState<S>, why: BadFrame) -> TransportEvent {
        state.close_state = CloseState::ReadFailed(why);
        self.state = ReceiverState::ReadFailed;
        TransportEvent::Rejected { exchange: ExchangeId::NONE, why, head: bytes::Bytes::new() }
    }

    fn close(&mut self, state: &mut LinkState<S>) {
        self.state = ReceiverState::Closed;
        state.close_state = CloseState::ClosedByPeer;
        state.wake();
    }

    /// No message was received. Pings a silent peer. A peer that stays silent counts as disconnected.
    fn poll_keepalive(&mut self, state: &mut LinkState<S>, cx: &mut Context<'_>) -> Poll<PolledEvent> {
        state.reader = Some(cx.waker().clone());
        while let Some(keepalive) = &mut self.keepalive {
            match keepalive.poll_beat(state.stream.get_ref().carried(), cx) {
                Poll::Pending => break,
                Poll::Ready(KeepaliveEvent::Ping) => {
                    if let Err(error) = state.send(Message::Ping(bytes::Bytes::new())) {
                        self.state = ReceiverState::Closed;
                        return Poll::Ready(Some(Err(error)));
                    }
                    self.unflushed_ping = true;
                }
                Poll::Ready(KeepaliveEvent::Dead) => {
                    self.state = ReceiverState::Closed;
                    let error =
                        TransportError::new(TransportErrorKind::Closed, "it answers no ping any more");
                    return Poll::Ready(Some(Err(state.fail(error))));
                }
            }
        }
        if self.unflushed_ping {
            match state.poll_flush(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => {
                    self.unflushed_ping = false;
                    // The stream stores the waker of one writer only, which was that of this half.
                    if let Some(writer) = state.writer.take() {
                        writer.wake();
                    }
                }
                Poll::Ready(Err(error)) => {
                    self.state = ReceiverState::Closed;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
        Poll::Pending
    }

    /// Reads and drops input until the sending half is done or the peer has disconnected.
    fn poll_half_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let inner = Arc::clone(&self.inner);
        let mut state = inner.lock();
        match state.close_state {
            CloseState::Open | CloseState::ReadFailed(_) => {
                state.reader = Some(cx.waker().clone());
                poll_drained(state.stream.get_mut(), cx)
            }
            CloseState::ClosedByPeer | CloseState::Closed | CloseState::Broken(_) => Poll::Ready(()),
        }
    }
}

/// Reads and drops input until it ends.
pub(super) fn poll_drained(io: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<()> {
    let mut room = [0; 4096];
    for _ in 0..MAX_MESSAGES_PER_POLL {
        let mut buffer = ReadBuf::new(&mut room);
        match ready!(Pin::new(&mut *io).poll_read(cx, &mut buffer)) {
            Ok(()) if !buffer.filled().is_empty() => {}
            Ok(()) | Err(_) => return Poll::Ready(()),
        }
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Receiver for WebSocketReceiver<S> {
    fn poll_event(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledEvent> {
        match self.state {
            ReceiverState::Open => self.poll_open(cx),
            ReceiverState::ReadFailed => {
                let failed = self.inner.lock().failed_server();
                self.state = if failed.is_some() { ReceiverState::Closed } else { ReceiverState::HalfClosed };
                Poll::Ready(Some(failed.map_or(Ok(TransportEvent::HalfClosed), Err)))
            }
            ReceiverState::HalfClosed => {
                ready!(self.poll_half_closed(cx));
                self.state = ReceiverState::Closed;
                Poll::Ready(None)
            }
            ReceiverState::Closed => Poll::Ready(None),
        }
    }
}

/// Decides when to ping, and when the peer counts as disconnected.
#[derive(Debug)]
struct Keepalive {
    every: Duration,
    timer: Pin<Box<Sleep>>,
    /// What the stream had carried at the last ping.
    carried: Carried,
    /// Pings that were sent since the last sign of life.
    missed: Option<u32>,
}

/// The action that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeepaliveEvent {
    Ping,
    Dead,
}

impl Keepalive {
    fn new(every: Duration) -> Self {
        let timer = Box::pin(tokio::time::sleep(every));
        Self { every, timer, carried: Carried::default(), missed: None }
    }

    /// Waits for the next action.
    fn poll_beat(&mut self, carried: Carried, cx: &mut Context<'_>) -> Poll<KeepaliveEvent> {
        if self.timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.timer.as_mut().reset(tokio::time::Instant::now() + self.every);
        let before = std::mem::replace(&mut self.carried, carried);
        let alive = carried.messages != before.messages
            || carried.bytes.wrapping_sub(before.bytes) >= MIN_PROGRESS_BYTES;
        let missed = match self.missed {
            Some(missed) if !alive => missed + 1,
            Some(_) | None => 0,
        };
        self.missed = Some(missed);
        Poll::Ready(if missed >= MAX_MISSED_PINGS && !failpoint::active(Failpoint::PongDeadlineIgnored) {
            KeepaliveEvent::Dead
        } else {
            KeepaliveEvent::Ping
        })
    }
}

/// The timer of the credential.
struct Expiry(Pin<Box<Sleep>>);

impl Expiry {
    fn new(at: Instant) -> Self {
        Self(Box::pin(tokio::time::sleep_until(at.into())))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

/// Ends the connection, whose credential has expired (W4). Both halves get the error.
fn expire<S>(inner: &Arc<LinkInner<S>>, state: &mut LinkState<S>) -> TransportError
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let closing = state.send(Message::Close(Some(close_frame_of_expiry()))).is_ok();
    let error = TransportError::new(TransportErrorKind::Closed, "the credential of the client has expired");
    let error = state.fail(error);
    if closing {
        tokio::spawn(close_expired(Arc::clone(inner)));
    }
    error
}

async fn close_expired<S: AsyncRead + AsyncWrite + Unpin>(inner: Arc<LinkInner<S>>) {
    let closed = poll_fn(|cx| {
        let mut state = inner.lock();
        let stream = &mut state.stream;
        if Sink::poll_flush(Pin::new(&mut *stream), cx)?.is_pending() {
            return Poll::Pending;
        }
        // The peer's close frame, or the end of its input, is the last input.
        let _ = Pin::new(stream.get_mut()).poll_shutdown(cx);
        poll_drained(stream.get_mut(), cx).map(Ok::<_, Error>)
    });
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, closed).await;
    inner.lock().close_state = CloseState::Closed;
}
