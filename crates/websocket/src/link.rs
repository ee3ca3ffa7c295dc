//! An open WebSocket as a link: two halves over one stream.
//!
//! - W1 The stream is behind one lock, held for one poll of it and never over foreign code. One task drives both
//!   halves, so nobody waits for it.
//! - W2 A write that is blocked never stops a read: what reading must write (pongs, the answer to a close) is put behind
//!   what waits, and a peer that makes us owe more than [`OWED_PONGS`] of them while it reads nothing is cut off.
//! - W3 After a message that ends reading (binary, too large, no UTF-8, broken framing) nothing more is understood, but
//!   what was accepted before is answered; then the close frame says why. Meanwhile what comes in is read and dropped:
//!   closing a socket over unread bytes would destroy, on its way to the peer, what was written last.

mod codes;
mod keepalive;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;
mod watched;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::Sink;
use rescind_core::{BadFrame, CloseReason, Link, LinkTraits, Meta, TransportError, TransportErrorKind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::{WebSocketStream, tungstenite};

use self::receiver::WebSocketReceiver;
use self::sender::WebSocketSender;
pub(crate) use self::watched::Watched;
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
pub(crate) async fn served<S>(io: S, options: &LinkOptions, meta: Meta, on_close: Option<OnClose>) -> Link
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream =
        WebSocketStream::from_raw_socket(Watched::new(io), Role::Server, Some(config(options))).await;
    link(stream, options, meta, on_close)
}

/// The link of a stream whose handshake is done.
pub(crate) fn link<S>(
    stream: WebSocketStream<Watched<S>>,
    options: &LinkOptions,
    meta: Meta,
    on_close: Option<OnClose>,
) -> Link
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let traits = LinkTraits {
        ordered: true,
        exchanges_abortable: false,
        exchange_scoped: false,
        peer_can_request: true,
        resumable: false,
        batches: true,
        max_frame: options.max_frame,
    };
    let shared = Arc::new(Shared {
        state: Mutex::new(Conversation {
            stream,
            fate: Fate::Open,
            owed_pongs: 0,
            reader: None,
            writer: None,
        }),
        on_close: Mutex::new(on_close),
    });
    let receiver = WebSocketReceiver::new(Arc::clone(&shared), options);
    let sender = WebSocketSender::new(shared, options.max_frame);
    Link::new(receiver, sender, traits, meta)
}

/// What the two halves share.
struct Shared<S: AsyncRead + AsyncWrite + Unpin> {
    state: Mutex<Conversation<S>>,
    on_close: Mutex<Option<OnClose>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Shared<S> {
    fn lock(&self) -> MutexGuard<'_, Conversation<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Drop for Shared<S> {
    /// Says good-bye as far as the socket takes it without waiting, where nobody closed.
    fn drop(&mut self) {
        let conversation = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let frame = match &conversation.fate {
            Fate::Open => Some(codes::frame_of(&CloseReason::Shutdown)),
            Fate::Torn(why) => Some(codes::frame_after(*why)),
            Fate::ClosedByPeer | Fate::Closed | Fate::Broken(_) => None,
        };
        if let Some(frame) = frame {
            let _ = conversation.send(Message::Close(Some(frame)));
        }
        let hook = self.on_close.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hook) = hook {
            hook();
        }
    }
}

/// One conversation over one stream.
struct Conversation<S> {
    stream: WebSocketStream<Watched<S>>,
    fate: Fate,
    /// Pings that came since the stream was last seen flushed.
    owed_pongs: u32,
    /// Wakes the receiving half, if another task polls it than the sending half.
    reader: Option<Waker>,
    /// Wakes the sending half.
    writer: Option<Waker>,
}

/// What has become of a conversation.
#[derive(Clone, Debug)]
enum Fate {
    Open,
    /// The peer sent what reading cannot go on after; the close frame will say so.
    Torn(BadFrame),
    /// The peer sent a close frame.
    ClosedByPeer,
    /// We closed; the stream is of no more use.
    Closed,
    Broken(TransportError),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Conversation<S> {
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
            Fate::ClosedByPeer => TransportError::new(TransportErrorKind::Closed, "the peer closed it"),
            Fate::Broken(error) => return error.clone(),
            Fate::Open | Fate::Torn(_) | Fate::Closed => codes::error_of(error),
        };
        self.fail(error)
    }

    fn fail(&mut self, error: TransportError) -> TransportError {
        self.fate = Fate::Broken(error.clone());
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
