//! An open WebSocket as a link: two halves over one stream.
//!
//! - W1 The stream is behind one lock. The lock is held for one poll of the stream, and never while other code runs.
//!   One task polls both halves, so nothing waits for the lock.
//! - W2 A blocked write never stops a read. Messages that a read must write (pongs, the answer to a close) are queued
//!   behind the others. A peer that requires more than [`MAX_PENDING_PONGS`] of them while it reads nothing is disconnected.
//! - W3 After a message that ends reading (binary, too large, not UTF-8, broken framing) no further message is read,
//!   but requests that were accepted before are answered. Then the close frame gives the reason. Until then input is
//!   read and dropped: closing a socket with unread bytes would destroy the last output on its way to the peer. At a
//!   client the message is the error of every open call.
//! - W4 When the credential of the connection expires, both halves fail at once. A task of its own writes the close
//!   frame, 1008, and waits for the peer's close frame for at most one second.

mod counting_io;
mod receiver;
mod sender;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use futures_util::Sink;
use rescind_core::{
    BadFrame, Capabilities, CloseReason, Link, PeerInfo, TransportError, TransportErrorKind, WriteQueue,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

pub(crate) use self::counting_io::CountingIo;
use self::receiver::WebSocketReceiver;
use self::sender::WebSocketSender;
use crate::options::LinkOptions;

/// The size of a read, in bytes. tungstenite fills it with zeros before each read, so an idle connection holds all of it.
/// Its default is 128 KiB.
const READ_BUFFER: usize = 12 * 1024;
/// The bytes that are collected before a write without a flush: as much as a sender may hold.
const WRITE_BUFFER: usize = 64 * 1024;
/// The most pongs that wait for a peer that does not read.
const MAX_PENDING_PONGS: u32 = 64;
/// A control frame has at most 125 bytes. Two of them are the code.
const MAX_REASON: usize = 123;

/// A function that runs when a link is dropped.
pub(crate) type OnClose = Box<dyn FnOnce() + Send>;

/// The configuration of tungstenite for a link.
pub(crate) fn config(options: &LinkOptions) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(WRITE_BUFFER)
        .max_message_size(Some(options.max_frame))
        .max_frame_size(Some(options.max_frame))
}

/// The link of a server, after the handshake.
pub(crate) async fn served<S>(
    io: S,
    options: &LinkOptions,
    meta: PeerInfo,
    expires: Option<Instant>,
    on_close: Option<OnClose>,
) -> Link
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream =
        WebSocketStream::from_raw_socket(CountingIo::new(io), Role::Server, Some(config(options))).await;
    link(stream, Role::Server, options, meta, expires, on_close)
}

/// The link of a stream whose handshake is done.
pub(crate) fn link<S>(
    stream: WebSocketStream<CountingIo<S>>,
    role: Role,
    options: &LinkOptions,
    meta: PeerInfo,
    expires: Option<Instant>,
    on_close: Option<OnClose>,
) -> Link
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let traits = Capabilities::of_stream(options.max_frame);
    let inner = Arc::new(LinkInner {
        state: Mutex::new(LinkState {
            stream,
            role,
            close_state: CloseState::Open,
            owed_pongs: 0,
            reader: None,
            writer: None,
        }),
        on_close: Mutex::new(on_close),
    });
    let receiver = WebSocketReceiver::new(Arc::clone(&inner), options, expires);
    let budget = inner.lock().stream.get_ref().budget().clone();
    let sender = WebSocketSender::new(inner, options.max_frame);
    Link::new(receiver, sender, traits, meta).with_budget(budget)
}

/// The data that the two halves share.
struct LinkInner<S: AsyncRead + AsyncWrite + Unpin> {
    state: Mutex<LinkState<S>>,
    on_close: Mutex<Option<OnClose>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> LinkInner<S> {
    fn lock(&self) -> MutexGuard<'_, LinkState<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Drop for LinkInner<S> {
    /// If no side has closed, sends a close frame, as far as the socket accepts it without waiting.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let frame = match &state.close_state {
            CloseState::Open => Some(close_frame_of(&CloseReason::Shutdown)),
            CloseState::ReadFailed(why) => Some(close_frame_after(*why)),
            CloseState::ClosedByPeer | CloseState::Closed | CloseState::Broken(_) => None,
        };
        if let Some(frame) = frame {
            let _ = state.send(Message::Close(Some(frame)));
        }
        let hook = self.on_close.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hook) = hook {
            hook();
        }
    }
}

/// The stream of a link and its state.
struct LinkState<S> {
    stream: WebSocketStream<CountingIo<S>>,
    /// Messages of a client are masked.
    role: Role,
    close_state: CloseState,
    /// Pings that were received since the stream was last flushed.
    owed_pongs: u32,
    /// Wakes the receiving half, if another task polls it than the sending half.
    reader: Option<Waker>,
    /// Wakes the sending half.
    writer: Option<Waker>,
}

/// Whether and how a link was closed.
#[derive(Clone, Debug)]
enum CloseState {
    Open,
    /// The peer sent a message after which reading cannot continue. The close frame will give the reason.
    ReadFailed(BadFrame),
    /// The peer sent a close frame.
    ClosedByPeer,
    /// This side closed. The stream is not used any more.
    Closed,
    Broken(TransportError),
}

impl<S: AsyncRead + AsyncWrite + Unpin> LinkState<S> {
    /// Passes a message to the stream's buffer. A full socket is not an error: the message is accepted and waits.
    fn send(&mut self, message: Message) -> Result<(), TransportError> {
        let taken = Pin::new(&mut self.stream).start_send(message);
        taken.map_err(|error| self.broke(&error))
    }

    /// Passes a text message to the stream. A large one is not copied into the stream's buffer.
    fn send_text(&mut self, text: Utf8Bytes) -> Result<(), TransportError> {
        let large = (text.len() >= WriteQueue::LARGE_BODY).then(|| counting_io::draw_mask(self.role));
        let Some(mask) = large.flatten() else { return self.send(Message::Text(text)) };
        // The stream writes the bytes that it holds before this message.
        self.stream.get_mut().cork();
        let mut cx = Context::from_waker(Waker::noop());
        let flushed = Pin::new(&mut self.stream).poll_flush(&mut cx);
        let (head, body) = counting_io::large_frame(text.into(), mask);
        self.stream.get_mut().uncork(&head, body);
        match flushed {
            Poll::Ready(Err(error)) => Err(self.broke(&error)),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let done = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        // A stream that has answered the peer's close frame does not flush what is below it.
        let done = match done {
            Ok(()) => ready!(Pin::new(self.stream.get_mut()).poll_flush(cx)).map_err(Error::Io),
            Err(error) => Err(error),
        };
        self.owed_pongs = 0;
        Poll::Ready(done.map_err(|error| self.broke(&error)))
    }

    /// The stream failed: both halves get the same error.
    fn broke(&mut self, error: &Error) -> TransportError {
        let error = match &self.close_state {
            CloseState::ClosedByPeer => TransportError::new(TransportErrorKind::Closed, "the peer closed it"),
            CloseState::Broken(error) => return error.clone(),
            CloseState::Open | CloseState::ReadFailed(_) | CloseState::Closed => transport_error_of(error),
        };
        self.fail(error)
    }

    /// Why a client ends the connection after a message that ended reading: its calls get this error. A server answers
    /// its requests first.
    fn failed_server(&self) -> Option<TransportError> {
        let (CloseState::ReadFailed(why), Role::Client) = (&self.close_state, self.role) else { return None };
        Some(TransportError::new(TransportErrorKind::Framing, why.to_string()))
    }

    fn fail(&mut self, error: TransportError) -> TransportError {
        self.close_state = CloseState::Broken(error.clone());
        self.wake();
        error
    }

    /// Wakes both halves after a change for which they may wait.
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

/// The close frame with the reason why this side closes.
fn close_frame_of(why: &CloseReason) -> CloseFrame {
    match why {
        CloseReason::Shutdown => close_frame(CloseCode::Away, "shutting down"),
        CloseReason::Violation(text) => close_frame(CloseCode::Policy, text),
        // `CloseReason` may get more variants. None of them will be a violation.
        _ => close_frame(CloseCode::Normal, ""),
    }
}

/// The close frame when the credential of the client has expired.
fn close_frame_of_expiry() -> CloseFrame {
    close_frame(CloseCode::Policy, "the credentials have expired")
}

/// The close frame after a message that ends reading.
fn close_frame_after(why: BadFrame) -> CloseFrame {
    let code = match why {
        BadFrame::TooLarge { .. } => CloseCode::Size,
        BadFrame::Binary => CloseCode::Unsupported,
        BadFrame::NotUtf8 => CloseCode::Invalid,
        BadFrame::MemoryFull => CloseCode::Again,
        _ => CloseCode::Protocol,
    };
    close_frame(code, &why.to_string())
}

fn close_frame(code: CloseCode, text: &str) -> CloseFrame {
    let mut end = text.len().min(MAX_REASON);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    CloseFrame { code, reason: Utf8Bytes::from(text.get(..end).unwrap_or_default()) }
}

/// Why the peer closed. Without a close frame, and after a normal one, it is `Normal`.
fn close_reason_of(frame: Option<&CloseFrame>) -> CloseReason {
    let Some(frame) = frame else { return CloseReason::Normal };
    match frame.code {
        CloseCode::Normal | CloseCode::Status => CloseReason::Normal,
        CloseCode::Away | CloseCode::Restart => CloseReason::Shutdown,
        code => {
            let reason = frame.reason.as_str().escape_debug();
            CloseReason::Violation(format!("the peer closed with code {}: {reason}", u16::from(code)))
        }
    }
}

/// The message that ended reading, if the error is about one.
fn bad_frame_of(error: &Error, limit: usize) -> Option<BadFrame> {
    match error {
        Error::Io(io) if io.kind() == std::io::ErrorKind::OutOfMemory => Some(BadFrame::MemoryFull),
        Error::Capacity(_) => Some(BadFrame::TooLarge { limit }),
        Error::Utf8(_) => Some(BadFrame::NotUtf8),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => None,
        Error::Protocol(_) => Some(BadFrame::Broken),
        _ => None,
    }
}

/// Converts an error of the stream into an error of the transport.
fn transport_error_of(error: &Error) -> TransportError {
    match error {
        Error::Io(io) => {
            TransportError::new(TransportErrorKind::Io, std::io::Error::new(io.kind(), io.to_string()))
        }
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
            TransportError::new(TransportErrorKind::Closed, "the peer went away without closing")
        }
        Error::ConnectionClosed | Error::AlreadyClosed | Error::Protocol(ProtocolError::SendAfterClosing) => {
            TransportError::new(TransportErrorKind::Closed, "it was closed")
        }
        Error::Protocol(_) | Error::Utf8(_) | Error::Capacity(_) => {
            TransportError::new(TransportErrorKind::Framing, error.to_string())
        }
        _ => TransportError::new(TransportErrorKind::Io, error.to_string()),
    }
}

#[cfg(test)]
mod tests;
