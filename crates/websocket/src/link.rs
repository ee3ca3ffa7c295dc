//! An open WebSocket as a link: two halves over one stream.
//!
//! - W1 The stream is behind one lock, held for one poll of it and never over foreign code. One task drives both
//!   halves, so nobody waits for it.
//! - W2 A write that is blocked never stops a read: what reading must write (pongs, the answer to a close) is put behind
//!   what waits, and a peer that makes us owe more than [`OWED_PONGS`] of them while it reads nothing is cut off.
//! - W3 After a message that ends reading (binary, too large, no UTF-8, broken framing) nothing more is understood, but
//!   what was accepted before is answered; then the close frame says why. Meanwhile what comes in is read and dropped:
//!   closing a socket over unread bytes would destroy, on its way to the peer, what was written last.
//! - W4 When the credential it was opened with expires, both halves fail at once. A task of its own writes the close frame, 1008,
//!   and waits for the peer's, for a second at most.

mod codes;
mod counting_io;
mod expiry;
mod keepalive;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use futures_util::Sink;
use rescind_core::{BadFrame, Capabilities, CloseReason, Link, PeerInfo, TransportError, TransportErrorKind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::{WebSocketStream, tungstenite};

pub(crate) use self::counting_io::CountingIo;
use self::receiver::WebSocketReceiver;
use self::sender::WebSocketSender;
use crate::options::LinkOptions;

/// How much is read at once, in bytes; tungstenite's own default is 128 KiB a connection.
const READ_BUFFER: usize = 16 * 1024;
/// So much is gathered before it is written without a flush, in bytes: what a sender may hold.
const WRITE_BUFFER: usize = 64 * 1024;
/// The most pongs that wait for a peer that does not read.
const OWED_PONGS: u32 = 64;

/// What is run when a link is gone.
pub(crate) type OnClose = Box<dyn FnOnce() + Send>;

/// What tungstenite is told of a link.
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
    link(stream, options, meta, expires, on_close)
}

/// The link of a stream whose handshake is done.
pub(crate) fn link<S>(
    stream: WebSocketStream<CountingIo<S>>,
    options: &LinkOptions,
    meta: PeerInfo,
    expires: Option<Instant>,
    on_close: Option<OnClose>,
) -> Link
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let traits = Capabilities {
        ordered: true,
        opens_exchanges: false,
        exchange_scoped: false,
        batches: true,
        max_frame: options.max_frame,
    };
    let shared = Arc::new(Shared {
        state: Mutex::new(LinkState {
            stream,
            fate: CloseState::Open,
            owed_pongs: 0,
            reader: None,
            writer: None,
        }),
        on_close: Mutex::new(on_close),
    });
    let receiver = WebSocketReceiver::new(Arc::clone(&shared), options, expires);
    let budget = shared.lock().stream.get_ref().budget().clone();
    let sender = WebSocketSender::new(shared, options.max_frame);
    Link::new(receiver, sender, traits, meta).with_budget(budget)
}

/// What the two halves share.
struct Shared<S: AsyncRead + AsyncWrite + Unpin> {
    state: Mutex<LinkState<S>>,
    on_close: Mutex<Option<OnClose>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Shared<S> {
    fn lock(&self) -> MutexGuard<'_, LinkState<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Drop for Shared<S> {
    /// Says good-bye as far as the socket takes it without waiting, where nobody closed.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let frame = match &state.fate {
            CloseState::Open => Some(codes::frame_of(&CloseReason::Shutdown)),
            CloseState::ReadFailed(why) => Some(codes::frame_after(*why)),
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

/// One state over one stream.
struct LinkState<S> {
    stream: WebSocketStream<CountingIo<S>>,
    fate: CloseState,
    /// Pings that came since the stream was last seen flushed.
    owed_pongs: u32,
    /// Wakes the receiving half, if another task polls it than the sending half.
    reader: Option<Waker>,
    /// Wakes the sending half.
    writer: Option<Waker>,
}

/// What has become of a state.
#[derive(Clone, Debug)]
enum CloseState {
    Open,
    /// The peer sent what reading cannot go on after; the close frame will say so.
    ReadFailed(BadFrame),
    /// The peer sent a close frame.
    ClosedByPeer,
    /// We closed; the stream is of no more use.
    Closed,
    Broken(TransportError),
}

impl<S: AsyncRead + AsyncWrite + Unpin> LinkState<S> {
    /// Gives a message to the stream's buffer. A full socket is no error: the message is taken and waits.
    fn send(&mut self, message: Message) -> Result<(), TransportError> {
        let taken = std::pin::Pin::new(&mut self.stream).start_send(message);
        taken.map_err(|error| self.broke(&error))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let flushed = std::pin::Pin::new(&mut self.stream).poll_flush(cx);
        flushed.map(|done| {
            self.owed_pongs = 0;
            done.map_err(|error| self.broke(&error))
        })
    }

    /// The stream failed: both halves are told the same.
    fn broke(&mut self, error: &tungstenite::Error) -> TransportError {
        let error = match &self.fate {
            CloseState::ClosedByPeer => TransportError::new(TransportErrorKind::Closed, "the peer closed it"),
            CloseState::Broken(error) => return error.clone(),
            CloseState::Open | CloseState::ReadFailed(_) | CloseState::Closed => codes::error_of(error),
        };
        self.fail(error)
    }

    fn fail(&mut self, error: TransportError) -> TransportError {
        self.fate = CloseState::Broken(error.clone());
        self.wake();
        error
    }

    /// Something changed that either half may wait for.
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}
