//! The traits of a transport: two halves that move whole frames and report what happened to them.
//!
//! A transport knows neither machine nor dialect, and it does not parse bodies. HTTP reads the few members on which its
//! headers and statuses depend; the dialect hands it their names as data. Polling a [`Receiver`] or a [`Sender`] and
//! then dropping the caller loses nothing: no future holds a half-read frame, and [`Sender::start_send`] takes a whole
//! frame or nothing.
//!
//! A [`Link`], at the end of the file, is both halves of one connection.

#[cfg(feature = "tokio")]
mod byte_stream;
#[cfg(feature = "tokio")]
mod frames;
#[cfg(feature = "tokio")]
mod memory;

use std::fmt;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::ops::DerefMut;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;

use crate::byte_budget::ByteBudget;
use crate::clients::Clients;
use crate::framing::{BadFrame, Framing};
use crate::id::{ExchangeId, Principal, RequestId};
use crate::message::Deviation;
use crate::sync::Mutex;
use crate::trace_context::TraceContext;

#[cfg(feature = "tokio")]
pub use crate::transport::byte_stream::{ByteStream, MemoryFull, PartialFrame};
#[cfg(feature = "tokio")]
pub use crate::transport::frames::{FrameStream, WriteQueue};
#[cfg(feature = "tokio")]
pub use crate::transport::memory::{MemoryListener, MemoryTransport, memory_listener, memory_pair};

/// A boxed future that can cross threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Opens one connection.
pub trait Transport: Send + 'static {
    /// The name of the transport in reports: `stdio`, `websocket`, ...
    fn name(&self) -> &'static str;

    /// Opens the connection.
    ///
    /// # Errors
    /// What could not be opened, and why.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt; nothing stays open.
    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>>;
}

/// Accepts connections.
pub trait Listener: Send + 'static {
    /// Polls for the next connection. `Err`: one connection failed, and the listener continues. `None`: the listener has
    /// ended.
    fn poll_accept(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Link, TransportError>>>;

    /// Sets the clients of the server that accepts here. It is called once, before the first poll. A transport that
    /// limits what happens before a connection is accepted (sockets, handshakes) counts it for these clients, so that
    /// one client cannot use all of it. Default: ignored. A listener that wraps another passes the call on.
    fn share_among(self: Pin<&mut Self>, _clients: &Clients) {}

    /// Refuses new connections from now on. Returns whether open connections need the listener: the server then keeps
    /// it until they have ended, else it drops it at once. It is called once, when the server drains; the listener is
    /// not polled after it. Default: `false`. A listener that wraps another passes the call on.
    #[must_use]
    fn stop_accepting(self: Pin<&mut Self>) -> bool {
        false
    }

    /// Completes when the listener was dropped and what it still had to send is sent, or dropped after a time limit. A program waits for it
    /// before it exits, so that its last answers are not lost. Default: at once. A listener that wraps another passes
    /// the call on.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    fn finished(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The address on which it listens, with the actual port.
    fn endpoint(&self) -> Endpoint;

    /// Waits for the next connection. `Err`: one connection failed, and the listener continues. `None`: the listener has
    /// ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses no connection.
    fn accept(&mut self) -> impl Future<Output = Option<Result<Link, TransportError>>> + Send
    where
        Self: Sized + Unpin,
    {
        poll_fn(|cx| Pin::new(&mut *self).poll_accept(cx))
    }
}

impl<P> Listener for Pin<P>
where
    P: DerefMut<Target: Listener> + Unpin + Send + 'static,
{
    fn poll_accept(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Link, TransportError>>> {
        self.get_mut().as_mut().poll_accept(cx)
    }

    fn share_among(self: Pin<&mut Self>, clients: &Clients) {
        self.get_mut().as_mut().share_among(clients);
    }

    fn stop_accepting(self: Pin<&mut Self>) -> bool {
        self.get_mut().as_mut().stop_accepting()
    }

    fn finished(&self) -> BoxFuture<'static, ()> {
        self.as_ref().get_ref().finished()
    }

    fn endpoint(&self) -> Endpoint {
        self.as_ref().endpoint()
    }
}

/// The address of a listener, as the command line writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(pub String);

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The half that receives frames.
pub trait Receiver: Send {
    /// Polls for the next event. `None`: the connection is closed. It is not polled again after `None`, nor after an
    /// error without an exchange.
    fn poll_event(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>>;
}

/// An event of a transport.
#[derive(Debug)]
#[non_exhaustive]
pub enum TransportEvent {
    /// A whole frame.
    Message(Inbound),
    /// Input that is not a frame. The connection continues.
    Rejected {
        /// The exchange on which it arrived.
        exchange: ExchangeId,
        /// What was wrong.
        why: BadFrame,
        /// The beginning of the input, if it is known. At most some hundred bytes of it are looked at.
        head: Bytes,
    },
    /// A frame has begun, and for 5 to 10 s nothing more of it has come. It is not dropped: its end may still come.
    Stalled {
        /// The beginning of the frame: at most 1 KiB.
        head: Bytes,
    },
    /// A call gets no answer, which its peer has said in no form of the protocol: on a stream of all calls, a text as an error, or
    /// an answer that is not whole. The call that is named in it fails, or the only one that waits; without one it is dropped.
    Unanswered {
        /// The beginning of what the peer sent.
        sent: Bytes,
        /// Why the call fails.
        error: TransportError,
    },
    /// Input against the protocol that was dropped or changed, and that needs no answer.
    Deviation {
        /// What the peer did.
        deviation: Deviation,
        /// What it sent.
        sent: Bytes,
    },
    /// The end of input. Output is still open.
    HalfClosed,
    /// The peer closed an exchange that it had opened.
    ExchangeClosed {
        /// Which.
        exchange: ExchangeId,
    },
    /// The peer resumed an exchange that it had lost.
    ExchangeResumed {
        /// Which.
        exchange: ExchangeId,
    },
    /// An exchange that this side opened failed.
    ExchangeFailed {
        /// Which.
        exchange: ExchangeId,
        /// The request had been sent.
        sent: bool,
        /// Why it failed.
        error: TransportError,
    },
}

/// A received frame.
#[derive(Debug)]
pub struct Inbound {
    /// The message, without framing.
    pub body: Bytes,
    /// The exchange on which it arrived.
    pub exchange: ExchangeId,
    /// Who sent it, on transports where one connection carries several clients.
    pub principal: Option<Principal>,
    /// The address of the sender, on transports where one connection carries several clients.
    pub address: Option<IpAddr>,
    /// The trace that the request belongs to, on transports with headers for each message.
    pub trace: Option<Arc<TraceContext>>,
}

impl Inbound {
    /// A frame of a byte stream.
    #[must_use]
    pub const fn new(body: Bytes) -> Self {
        Self { body, exchange: ExchangeId::NONE, principal: None, address: None, trace: None }
    }
}

/// The half that sends frames. It buffers at most 64 KiB, or one larger frame, without a flush: so control frames are
/// not delayed, and a request that waits can still be taken back.
pub trait Sender: Send {
    /// Whether a frame of this lane can be taken now. The control lane may be ready while the data lane is not.
    ///
    /// # Errors
    /// The connection is broken.
    fn poll_ready(self: Pin<&mut Self>, lane: Lane, cx: &mut Context<'_>)
    -> Poll<Result<(), TransportError>>;

    /// Takes the whole frame, or nothing. After it the frame counts as written.
    ///
    /// # Errors
    /// The frame was not taken. If the error names no exchange, the connection is broken.
    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError>;

    /// Passes all frames that were taken to the operating system.
    ///
    /// # Errors
    /// The connection is broken.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>>;

    /// The handler of the request on this exchange, which the peer opened, has started. Its answer may take long, and
    /// no refusal follows for which the transport has a form of its own (an HTTP status). A wrapper passes the call on.
    /// A transport without exchanges ignores it.
    fn begin_exchange(self: Pin<&mut Self>, exchange: ExchangeId) {
        let _ = exchange;
    }

    /// The handler of the request on this exchange, which the peer opened, awaits something: its future has returned
    /// `Pending` once. It is not called for a handler whose future is ready at its first poll, or that runs on a
    /// thread. A transport whose response can begin before the answer begins it soon after. A wrapper passes the call
    /// on. Other transports ignore it.
    fn note_waiting(self: Pin<&mut Self>, exchange: ExchangeId) {
        let _ = exchange;
    }

    /// The next answer on this exchange is a refusal with this reason. It is for transports that express a refusal
    /// outside of the body, such as HTTP with its status. Other transports ignore it.
    fn note_rejection(self: Pin<&mut Self>, exchange: ExchangeId, reason: RejectReason) {
        let _ = (exchange, reason);
    }

    /// Ends an exchange that the peer opened, without a frame. Each exchange is ended exactly once, by this call or by
    /// its last frame, also if the peer has closed it before. A wrapper passes the call on. A transport without
    /// exchanges ignores it.
    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        let _ = (exchange, how);
    }

    /// Aborts an exchange that this side opened. No event follows for it. A wrapper passes the call on.
    ///
    /// # Errors
    /// The transport cannot abort an exchange, or has no exchanges.
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
    /// The exchange on which it is sent. The driver chooses it. A frame on an exchange of this side
    /// ([`ExchangeId::call`]) opens it; the frame is a request or a cancel. A frame on an exchange of the peer that has
    /// ended is sent on the connection's own stream, if there is one. [`ExchangeId::NONE`]: the transport chooses.
    pub exchange: ExchangeId,
    /// Its lane.
    pub lane: Lane,
    /// What kind of frame it is.
    pub head: FrameInfo,
    /// It is the last frame of an exchange that the peer opened.
    pub last: bool,
}

/// The two lanes of outgoing frames. Control frames overtake data frames that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Cancels, acknowledgements, refusals.
    Control,
    /// All other frames.
    Data,
}

/// What a frame is. The driver fills it in, so that no transport parses a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameInfo {
    /// The kind.
    pub kind: FrameKind,
    /// Its id, or the id that it answers or cancels.
    pub id: Option<RequestId>,
    /// Its method.
    pub method: Option<Arc<str>>,
    /// The trace that a request belongs to, for transports with headers for each message.
    pub trace: Option<Arc<TraceContext>>,
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

/// How an exchange that the peer opened ends without a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeEnd {
    /// Its message was accepted and needs no answer.
    Accepted,
    /// Its request was cancelled and must not be answered.
    Silent,
    /// It was refused.
    Refused,
}

/// The reason of a refusal, for transports that express it outside of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// The input is not a message.
    BadMessage,
    /// Its id belongs to a request that is not answered yet.
    DuplicateId,
    /// A limit was reached.
    Overloaded,
    /// Its method is not served.
    MethodNotFound,
    /// The session is not open yet.
    NotInitialized,
    /// Something failed on this side.
    Internal,
    /// The connection was closing when it arrived. The answer says that it is cancelled, but it has not begun, and never will.
    Closing,
}

/// Why a connection closes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// Normally.
    Normal,
    /// This side is shutting down.
    Shutdown,
    /// The peer violated the protocol or a limit. The text says how.
    Violation(String),
}

/// The transport does not support the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this transport cannot abort an exchange")]
pub struct Unsupported;

/// An error of a transport.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{kind}: {source}")]
pub struct TransportError {
    /// The kind of the error.
    pub kind: TransportErrorKind,
    /// The exchange that failed. `None`: the whole connection failed.
    pub exchange: Option<ExchangeId>,
    /// The cause. All tasks that wait for the connection share it.
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
    /// The peer sent bytes after which the transport cannot continue.
    #[error("the peer broke the framing")]
    Framing,
    /// The frame exceeds the limit of the transport.
    #[error("the frame is too large")]
    TooLarge,
    /// The transport is closed.
    #[error("the connection is closed")]
    Closed,
}

// A link: the two halves of one connection, and what the transport knows about it.

/// One open connection.
#[non_exhaustive]
pub struct Link {
    /// The receiving half.
    pub rx: Pin<Box<dyn Receiver>>,
    /// The sending half.
    pub tx: Pin<Box<dyn Sender>>,
    /// The capabilities of the transport.
    pub traits: Capabilities,
    /// What the transport knows about the peer.
    pub meta: PeerInfo,
    /// The bytes that are held for this connection. A transport that holds frames counts them here.
    pub budget: ByteBudget,
    /// The mark of use that the transport reads. `None`: it ends no connection that is not used.
    pub use_mark: Option<UseMark>,
    /// The framing of a byte stream, while it is not decided.
    framed: Option<Framed>,
}

impl Link {
    /// A link of these two halves.
    pub fn new(
        rx: impl Receiver + 'static,
        tx: impl Sender + 'static,
        traits: Capabilities,
        meta: PeerInfo,
    ) -> Self {
        let budget = ByteBudget::default();
        Self { rx: Box::pin(rx), tx: Box::pin(tx), traits, meta, budget, use_mark: None, framed: None }
    }

    /// Sets the budget in which the halves count the bytes that they hold.
    #[must_use]
    pub fn with_budget(mut self, budget: ByteBudget) -> Self {
        self.budget = budget;
        self
    }

    /// Sets the mark of use that the transport reads before it ends a connection that is not used.
    #[must_use]
    pub fn with_use_mark(mut self, mark: UseMark) -> Self {
        self.use_mark = Some(mark);
        self
    }

    /// Marks the link as a byte stream whose framing is not decided.
    #[cfg(feature = "tokio")]
    fn unframed(mut self, framed: Framed) -> Self {
        self.framed = Some(framed);
        self
    }

    /// Sets the framing of a byte stream that has none of its own. [`PeerBuilder`](crate::PeerBuilder) sets the framing
    /// of its dialect. A program that polls the halves itself may set it before the first poll. Only the first call has
    /// an effect. Without a call the peer's first byte decides; if this side writes first, its frames are lines.
    pub fn default_framing(&self, framing: Framing) {
        if let Some(framed) = &self.framed {
            framed.decide(framing);
        }
    }

    /// The framing of a byte stream, if it is decided.
    #[cfg(feature = "tokio")]
    pub(crate) fn framing(&self) -> Option<Framing> {
        self.framed.as_ref().and_then(Framed::decided)
    }

    /// Wraps the two halves. Everything else of the link stays.
    #[must_use]
    pub fn wrap<R, S>(self, wrap: impl FnOnce(Pin<Box<dyn Receiver>>, Pin<Box<dyn Sender>>) -> (R, S)) -> Self
    where
        R: Receiver + 'static,
        S: Sender + 'static,
    {
        let Self { rx, tx, traits, meta, budget, use_mark, framed } = self;
        let (rx, tx) = wrap(rx, tx);
        Self { rx: Box::pin(rx), tx: Box::pin(tx), traits, meta, budget, use_mark, framed }
    }
}

/// An open link is a transport that is open already: [`PeerBuilder::connect`](crate::PeerBuilder::connect) takes it.
impl Transport for Link {
    fn name(&self) -> &'static str {
        "link"
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(std::future::ready(Ok(*self)))
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("traits", &self.traits).field("meta", &self.meta).finish_non_exhaustive()
    }
}

/// The capabilities of a transport. There is no default, so that a wrapper states each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an ability of its own that a wire must state")]
pub struct Capabilities {
    /// Frames arrive in the order in which they were sent. Only on transports where they do not, an early cancel waits
    /// for its request, and many cancels in a row may overtake a data frame that waits for room.
    pub ordered: bool,
    /// Each request of this side opens an exchange of its own, and the transport reports the failure of an exchange
    /// (clients over HTTP).
    pub opens_exchanges: bool,
    /// Ids are unique within an exchange and not within the session (stateless HTTP). A request of this side is
    /// cancelled by aborting its exchange ([`Sender::abort_exchange`]), which such a transport supports.
    pub exchange_scoped: bool,
    /// Frames may be batches (every transport except servers over HTTP, which take a batch apart).
    pub batches: bool,
    /// The largest frame, in bytes.
    pub max_frame: usize,
}

impl Capabilities {
    /// Those of one ordered stream in each direction, without exchanges.
    #[must_use]
    pub const fn of_stream(max_frame: usize) -> Self {
        Self { ordered: true, opens_exchanges: false, exchange_scoped: false, batches: true, max_frame }
    }
}

/// What the transport knows about a peer.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PeerInfo {
    /// A name for logs, such as a process id or an address.
    pub peer: Option<Arc<str>>,
    /// The principal that the auth hook returned.
    pub principal: Option<Principal>,
    /// The address of the peer, on transports with addresses. Of an HTTP session: the address that opened it.
    pub address: Option<IpAddr>,
}

impl PeerInfo {
    /// Only a name for logs is known.
    #[must_use]
    pub fn of_peer(peer: &str) -> Self {
        Self { peer: Some(peer.into()), ..Self::default() }
    }
}

/// Until when a connection counts as used, also if no message passes. A rule that ends unused connections reads it:
/// [`ServerLimits::idle_timeout`](crate::ServerLimits), and the idle limit of HTTP sessions. A clone is the same mark.
#[derive(Clone, Debug, Default)]
pub struct UseMark(Arc<Mutex<Option<Instant>>>);

impl UseMark {
    /// The connection counts as used until then. This replaces the time that was set before.
    pub fn set(&self, until: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    /// The time that was set last.
    #[must_use]
    pub fn until(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How frames are delimited in a stream, for both of its halves. It is decided once: by the code that makes the stream,
/// by the driver, or by the first byte that is read or written.
#[derive(Clone, Debug, Default)]
struct Framed(Arc<OnceLock<Framing>>);

impl Framed {
    #[cfg(feature = "tokio")]
    fn decided(&self) -> Option<Framing> {
        self.0.get().copied()
    }

    /// Decides the framing. It has no effect if the framing is decided already.
    fn decide(&self, framing: Framing) {
        let _ = self.0.set(framing);
    }

    #[cfg(feature = "tokio")]
    /// The framing for a frame that this side writes. If it is not decided, frames are lines.
    fn to_write(&self) -> Framing {
        *self.0.get_or_init(|| Framing::Newline)
    }

    #[cfg(feature = "tokio")]
    /// The framing for the first byte of the peer. If it is not decided, this byte decides: a `Content-Length` or
    /// `Content-Type` header begins with a letter with which no JSON text begins.
    fn to_read(&self, first: u8) -> Framing {
        *self.0.get_or_init(|| match first {
            b'C' | b'c' => Framing::ContentLength,
            _ => Framing::Newline,
        })
    }
}
