//! What a wire is: two halves that move whole frames and tell what happened to them.
//!
//! A wire knows neither machine nor dialect and never parses a body. Polling a [`Receiver`] or a [`Sender`] and then
//! dropping the caller loses nothing: there is no future that holds a half-read frame, and
//! [`Sender::start_send`] takes the whole frame or nothing.

#[cfg(feature = "tokio")]
mod byte_stream;
#[cfg(feature = "tokio")]
mod closing;
#[cfg(feature = "tokio")]
mod frames;
#[cfg(feature = "tokio")]
mod memory;
#[cfg(feature = "tokio")]
mod staging;

#[cfg(feature = "tokio")]
pub use byte_stream::ByteStream;
#[cfg(feature = "tokio")]
pub use frames::FrameStream;
#[cfg(feature = "tokio")]
pub use memory::{MemoryListener, MemoryTransport, memory_listener, memory_pair};

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::framing::BadFrame;
use crate::id::{ExchangeId, Principal, RequestId};

/// A boxed future that can cross threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Opens one connection.
pub trait Transport: Send + 'static {
    /// The wire's name in reports: `stdio`, `websocket`, ...
    fn name(&self) -> &'static str;

    /// Opens the connection.
    ///
    /// # Errors
    /// Says what could not be opened and why.
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempt up; nothing stays open.
    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>>;
}

/// Accepts connections.
pub trait Listener: Send + 'static {
    /// The next connection. `Err`: one connection failed, go on. `None`: the listener has ended.
    fn poll_accept(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Link, TransportError>>>;

    /// Where it listens, with the real port.
    fn endpoint(&self) -> Endpoint;
}

/// Where a listener listens, as the command line spells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(pub String);

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One open connection.
#[non_exhaustive]
pub struct Link {
    /// What comes in.
    pub rx: Pin<Box<dyn Receiver>>,
    /// What goes out.
    pub tx: Pin<Box<dyn Sender>>,
    /// What the wire can and cannot do.
    pub traits: LinkTraits,
    /// What is known of the peer.
    pub meta: Meta,
}

impl Link {
    /// An open connection of these parts.
    pub fn new(
        rx: impl Receiver + 'static,
        tx: impl Sender + 'static,
        traits: LinkTraits,
        meta: Meta,
    ) -> Self {
        Self { rx: Box::pin(rx), tx: Box::pin(tx), traits, meta }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("traits", &self.traits).field("meta", &self.meta).finish_non_exhaustive()
    }
}

/// What a wire can and cannot do. There is no default: a wrapper must state each, so none can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an ability of its own that a wire must state")]
pub struct LinkTraits {
    /// Frames arrive in the order they were sent. Only where they do not may an early cancel be parked.
    pub ordered: bool,
    /// An exchange we opened can be given up ([`Sender::abort_exchange`]).
    pub exchanges_abortable: bool,
    /// The exchange is the space of ids, not the session (stateless HTTP).
    pub exchange_scoped: bool,
    /// The peer can ask requests of us.
    pub peer_can_request: bool,
    /// A lost connection may be taken up again.
    pub resumable: bool,
    /// Batches may be received (every wire but HTTP).
    pub batches: bool,
    /// The largest frame, in bytes.
    pub max_frame: usize,
}

/// What is known of a peer or a message.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Meta {
    /// A name for logs, such as a process id or an address.
    pub peer: Option<Arc<str>>,
    /// Who the auth hook says it is.
    pub principal: Option<Principal>,
}

impl Meta {
    /// Nothing is known but a name for logs.
    #[must_use]
    pub fn of_peer(peer: &str) -> Self {
        Self { peer: Some(peer.into()), principal: None }
    }
}

/// The half that frames come in by.
pub trait Receiver: Send {
    /// The next event. `None`: the connection is closed. After `None` or an error without an exchange it is not
    /// polled again.
    fn poll_event(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>>;
}

/// What a wire tells.
#[derive(Debug)]
#[non_exhaustive]
pub enum TransportEvent {
    /// A whole frame.
    Message(Inbound),
    /// Something that is no frame. The connection goes on.
    Rejected {
        /// Where it came on.
        exchange: ExchangeId,
        /// What was wrong.
        why: BadFrame,
    },
    /// No more input; output is still open.
    HalfClosed,
    /// The peer gave up an exchange it had opened.
    ExchangeClosed {
        /// Which.
        exchange: ExchangeId,
    },
    /// The peer took a lost exchange up again.
    ExchangeResumed {
        /// Which.
        exchange: ExchangeId,
    },
    /// An exchange we opened failed.
    ExchangeFailed {
        /// Which.
        exchange: ExchangeId,
        /// The request had reached the wire.
        sent: bool,
        /// What happened.
        error: TransportError,
    },
}

/// A frame that came in.
#[derive(Debug)]
pub struct Inbound {
    /// The message, without framing.
    pub body: Bytes,
    /// What it came on.
    pub exchange: ExchangeId,
    /// Who sent it, where messages of one connection can differ.
    pub principal: Option<Principal>,
}

impl Inbound {
    /// A frame of a byte stream.
    #[must_use]
    pub const fn new(body: Bytes) -> Self {
        Self { body, exchange: ExchangeId::NONE, principal: None }
    }
}

/// The half that frames go out by. It holds at most 64 KiB, or one larger frame, unflushed, so that control frames
/// and the taking back of a request stay quick.
pub trait Sender: Send {
    /// Whether a frame of this lane can be taken now. Control may be ready while bulk is not.
    ///
    /// # Errors
    /// The connection is broken.
    fn poll_ready(self: Pin<&mut Self>, lane: Lane, cx: &mut Context<'_>)
    -> Poll<Result<(), TransportError>>;

    /// Takes the whole frame, or nothing. From here on the frame counts as written.
    ///
    /// # Errors
    /// The frame was not taken; if the error names no exchange the connection is broken.
    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError>;

    /// Hands everything taken to the operating system.
    ///
    /// # Errors
    /// The connection is broken.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>>;

    /// The request on this exchange, which the peer opened, has a handler that runs: its answer may take long, and a
    /// refusal that a wire would spell in a way of its own no longer comes. A wrapper hands it on; a wire without
    /// exchanges has nothing to do.
    fn begin_exchange(self: Pin<&mut Self>, exchange: ExchangeId) {
        let _ = exchange;
    }

    /// The answer sent next on this exchange is a refusal, for this reason: for wires that say so outside of the body,
    /// as HTTP does with a status. Other wires do nothing.
    fn note_fault(self: Pin<&mut Self>, exchange: ExchangeId, fault: Fault) {
        let _ = (exchange, fault);
    }

    /// Ends an exchange the peer opened, without a frame. Each of them is ended once: by this or by a frame that is
    /// its last, also when the peer has closed it before. A wrapper hands it on; a wire without exchanges has nothing
    /// to do.
    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: Finish) {
        let _ = (exchange, how);
    }

    /// Gives up an exchange we opened. Nothing more is told of it. A wrapper hands it on.
    ///
    /// # Errors
    /// The wire cannot; so is it with wires without exchanges.
    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        let _ = exchange;
        Err(Unsupported)
    }

    /// Flushes and closes.
    ///
    /// # Errors
    /// The connection broke while closing.
    fn poll_close(
        self: Pin<&mut Self>,
        why: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>>;
}

/// A frame to be sent.
#[derive(Debug)]
pub struct Outbound {
    /// The message, without framing and without a raw newline.
    pub body: Bytes,
    /// What it goes out on; chosen by the driver. An exchange of ours ([`ExchangeId::call`]) is opened by this frame,
    /// a request or a cancel. On one of the peer's that has ended there is no way any more: the frame goes by the
    /// connection's own stream, if it has one. [`ExchangeId::NONE`]: the wire's choice.
    pub exchange: ExchangeId,
    /// Its lane.
    pub lane: Lane,
    /// What it is.
    pub head: Head,
    /// It is the last of an exchange the peer opened.
    pub last: bool,
}

/// The two lanes out: control overtakes bulk that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Cancels, acknowledgements, refusals.
    Control,
    /// All else.
    Bulk,
}

/// What a frame is, filled in by the dialect's codec so that no wire parses a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The kind.
    pub kind: FrameKind,
    /// Its id, or the id it answers or cancels.
    pub id: Option<RequestId>,
    /// Its method.
    pub method: Option<Arc<str>>,
}

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// A request.
    Request,
    /// An answer, a refusal or an acknowledgement.
    Answer,
    /// A notification.
    Notification,
    /// A cancel.
    Cancel,
}

/// How an exchange the peer opened ends without a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// What it carried was taken and is owed nothing.
    Accepted,
    /// Its request was cancelled and is owed silence.
    Silent,
    /// It was refused.
    Refused,
}

/// What a refusal is about, for wires that say so outside of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// What came is no message.
    BadMessage,
    /// Its id belongs to a request that has no answer yet.
    DuplicateId,
    /// A limit was reached.
    Overloaded,
    /// Nobody serves its method.
    MethodNotFound,
    /// The session is not open yet.
    NotInitialized,
    /// Something failed on this side.
    Internal,
}

/// Why a connection closes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// In good order.
    Normal,
    /// This side shuts down.
    Shutdown,
    /// The peer broke the protocol or a limit; the text says how.
    Violation(String),
}

/// The wire cannot do this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this wire cannot give up an exchange")]
pub struct Unsupported;

/// What went wrong with a wire.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{kind}: {source}")]
pub struct TransportError {
    /// What kind of thing went wrong.
    pub kind: TransportErrorKind,
    /// The exchange it is about; `None`: the whole connection.
    pub exchange: Option<ExchangeId>,
    /// The cause, shared by everyone who waits for it.
    pub source: Arc<dyn std::error::Error + Send + Sync>,
}

impl TransportError {
    /// An error of the whole connection.
    pub fn new(
        kind: TransportErrorKind,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, exchange: None, source: Arc::from(source.into()) }
    }
}

impl From<std::io::Error> for TransportError {
    fn from(error: std::io::Error) -> Self {
        Self::new(TransportErrorKind::Io, error)
    }
}

/// The kinds of [`TransportError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TransportErrorKind {
    /// The connection could not be opened.
    #[error("could not open the connection")]
    Open,
    /// Reading or writing failed.
    #[error("the connection broke")]
    Io,
    /// The peer sent what the wire cannot go on after.
    #[error("the peer broke the framing")]
    Framing,
    /// The frame is over the wire's limit.
    #[error("the frame is too large")]
    TooLarge,
    /// The wire is closed.
    #[error("the connection is closed")]
    Closed,
}
