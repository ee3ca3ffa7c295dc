use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures_util::Stream;
use rescind_core::failpoint::{self, Failpoint};
use rescind_core::{
    BadFrame, CloseReason, ExchangeId, Inbound, Receiver, TransportError, TransportErrorKind, TransportEvent,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::expiry::{self, Expiry};
use super::keepalive::{Keepalive, KeepaliveEvent};
use super::{CloseState, LinkInner, LinkState, MAX_PENDING_PONGS, codes};
use crate::options::{BinaryMessages, LinkOptions};

/// After this many messages without a frame for the driver the other tasks get their turn.
const MAX_MESSAGES_PER_POLL: usize = 32;

/// The receiving half.
pub(super) struct WebSocketReceiver<S: AsyncRead + AsyncWrite + Unpin> {
    inner: Arc<LinkInner<S>>,
    keepalive: Option<Keepalive>,
    expiry: Option<Expiry>,
    binary: BinaryMessages,
    max_frame: usize,
    /// A ping is queued and not flushed yet.
    unflushed_ping: bool,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
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
            state: State::Open,
        }
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<PolledEvent> {
        let inner = Arc::clone(&self.inner);
        let mut state = inner.lock();
        match &state.close_state {
            CloseState::Open => {}
            CloseState::Broken(error) => {
                self.state = State::Closed;
                return Poll::Ready(Some(Err(error.clone())));
            }
            CloseState::Closed | CloseState::ClosedByPeer | CloseState::ReadFailed(_) => {
                self.state = State::Closed;
                return Poll::Ready(None);
            }
        }
        if self.expiry.as_mut().is_some_and(|expiry| expiry.poll(cx).is_ready()) {
            self.state = State::Closed;
            return Poll::Ready(Some(Err(expiry::expire(&inner, &mut state))));
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
            Message::Binary(_) => match &self.binary {
                BinaryMessages::Refuse => Some(Some(Ok(self.refuse_frame(state, BadFrame::Binary)))),
                BinaryMessages::Ignore(ignored) => {
                    ignored.count();
                    tracing::debug!("a binary message was ignored");
                    None
                }
            },
            Message::Ping(_) => {
                state.owed_pongs += 1;
                if state.owed_pongs > MAX_PENDING_PONGS && state.poll_flush(cx).is_pending() {
                    self.state = State::Closed;
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
        self.state = State::Closed;
        match codes::reason_of(frame) {
            CloseReason::Violation(text) => Some(Err(TransportError::new(TransportErrorKind::Closed, text))),
            _ => None,
        }
    }

    fn fail(&mut self, state: &mut LinkState<S>, error: &Error) -> Result<TransportEvent, TransportError> {
        if let Some(why) = codes::bad_frame_of(error, self.max_frame) {
            return Ok(self.refuse_frame(state, why));
        }
        self.state = State::Closed;
        Err(state.broke(error))
    }

    fn refuse_frame(&mut self, state: &mut LinkState<S>, why: BadFrame) -> TransportEvent {
        state.close_state = CloseState::ReadFailed(why);
        self.state = State::ReadFailed;
        TransportEvent::Rejected { exchange: ExchangeId::NONE, why, head: bytes::Bytes::new() }
    }

    fn close(&mut self, state: &mut LinkState<S>) {
        self.state = State::Closed;
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
                        self.state = State::Closed;
                        return Poll::Ready(Some(Err(error)));
                    }
                    self.unflushed_ping = true;
                }
                Poll::Ready(KeepaliveEvent::Dead) => {
                    self.state = State::Closed;
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
                    self.state = State::Closed;
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
            State::Open => self.poll_open(cx),
            State::ReadFailed => {
                self.state = State::HalfClosed;
                Poll::Ready(Some(Ok(TransportEvent::HalfClosed)))
            }
            State::HalfClosed => {
                ready!(self.poll_half_closed(cx));
                self.state = State::Closed;
                Poll::Ready(None)
            }
            State::Closed => Poll::Ready(None),
        }
    }
}
