//! A link: the two halves of one connection, and what the transport knows about it.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use crate::byte_budget::ByteBudget;
use crate::framing::Framing;
use crate::id::Principal;
use crate::transport::{BoxFuture, Receiver, Sender, Transport, TransportError};

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
        Self { rx: Box::pin(rx), tx: Box::pin(tx), traits, meta, budget, framed: None }
    }

    /// Sets the budget in which the halves count the bytes that they hold.
    #[must_use]
    pub fn with_budget(mut self, budget: ByteBudget) -> Self {
        self.budget = budget;
        self
    }

    /// Marks the link as a byte stream whose framing is not decided.
    #[cfg(feature = "tokio")]
    pub(super) fn unframed(mut self, framed: Framed) -> Self {
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
        let Self { rx, tx, traits, meta, budget, framed } = self;
        let (rx, tx) = wrap(rx, tx);
        Self { rx: Box::pin(rx), tx: Box::pin(tx), traits, meta, budget, framed }
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
    /// Frames may be batches (every transport except HTTP, which takes a batch apart itself).
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

/// How frames are delimited in a stream, for both of its halves. It is decided once: by the code that makes the stream,
/// by the driver, or by the first byte that is read or written.
#[derive(Clone, Debug, Default)]
pub(super) struct Framed(Arc<OnceLock<Framing>>);

impl Framed {
    #[cfg(feature = "tokio")]
    pub(super) fn decided(&self) -> Option<Framing> {
        self.0.get().copied()
    }

    /// Decides the framing. It has no effect if the framing is decided already.
    pub(super) fn decide(&self, framing: Framing) {
        let _ = self.0.set(framing);
    }

    #[cfg(feature = "tokio")]
    /// The framing for a frame that this side writes. If it is not decided, frames are lines.
    pub(super) fn to_write(&self) -> Framing {
        *self.0.get_or_init(|| Framing::Newline)
    }

    #[cfg(feature = "tokio")]
    /// The framing for the first byte of the peer. If it is not decided, this byte decides: a `Content-Length` or
    /// `Content-Type` header begins with a letter with which no JSON text begins.
    pub(super) fn to_read(&self, first: u8) -> Framing {
        *self.0.get_or_init(|| match first {
            b'C' | b'c' => Framing::ContentLength,
            _ => Framing::Newline,
        })
    }
}
