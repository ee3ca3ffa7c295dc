//! A link: one connection's two halves, and what the wire says of it.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use super::framed::Framed;
use super::{Receiver, Sender};
use crate::byte_budget::ByteBudget;
use crate::framing::Framing;
use crate::id::Principal;

/// One open connection.
#[non_exhaustive]
pub struct Link {
    /// What comes in.
    pub rx: Pin<Box<dyn Receiver>>,
    /// What goes out.
    pub tx: Pin<Box<dyn Sender>>,
    /// What the wire can and cannot do.
    pub traits: Capabilities,
    /// What is known of the peer.
    pub meta: PeerInfo,
    /// The bytes that are held for this connection. A transport that holds frames counts them here.
    pub budget: ByteBudget,
    /// A stream of bytes that was not told its framing.
    framed: Option<Framed>,
}

impl Link {
    /// An open connection of these parts.
    pub fn new(
        rx: impl Receiver + 'static,
        tx: impl Sender + 'static,
        traits: Capabilities,
        meta: PeerInfo,
    ) -> Self {
        let budget = ByteBudget::default();
        Self { rx: Box::pin(rx), tx: Box::pin(tx), traits, meta, budget, framed: None }
    }

    /// The same, with the budget in which the halves count what they hold.
    #[must_use]
    pub fn with_budget(mut self, budget: ByteBudget) -> Self {
        self.budget = budget;
        self
    }

    /// The same of a stream of bytes that was not told its framing.
    #[cfg(feature = "tokio")]
    pub(super) fn unframed(mut self, framed: Framed) -> Self {
        self.framed = Some(framed);
        self
    }

    /// Says how frames stand in the bytes, where the wire is a stream of bytes and was not told. [`PeerBuilder`](crate::PeerBuilder)
    /// says here what its dialect demands; who polls the halves without one may say it too, before the first poll. What was
    /// said first stays. If nobody says it, the peer's first byte does, or else our first frame is a line.
    pub fn default_framing(&self, framing: Framing) {
        if let Some(framed) = &self.framed {
            framed.say(framing);
        }
    }

    /// The same connection with its halves in halves of yours; all else that is known of it stays.
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

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("traits", &self.traits).field("meta", &self.meta).finish_non_exhaustive()
    }
}

/// What a wire can and cannot do. There is no default: a wrapper must state each, so none can be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an ability of its own that a wire must state")]
pub struct Capabilities {
    /// Frames arrive in the order they were sent. Only where they do not may an early cancel be parked; and only there do more than a
    /// row of cancels pass a frame of bulk that finds no room.
    pub ordered: bool,
    /// Each request of ours opens an exchange of its own, of whose failure the wire tells (clients over HTTP).
    pub opens_exchanges: bool,
    /// The exchange is the space of ids, not the session (stateless HTTP). A request of ours is then cancelled by giving up its exchange
    /// ([`Sender::abort_exchange`]), which such a wire supports.
    pub exchange_scoped: bool,
    /// Batches may be received (every wire but HTTP).
    pub batches: bool,
    /// The largest frame, in bytes.
    pub max_frame: usize,
}

/// What is known of a peer or a message.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PeerInfo {
    /// A name for logs, such as a process id or an address.
    pub peer: Option<Arc<str>>,
    /// Who the auth hook says it is.
    pub principal: Option<Principal>,
    /// Where its connection came from, on a wire that has addresses. Of a session over HTTP: where it was opened from.
    pub address: Option<IpAddr>,
}

impl PeerInfo {
    /// Nothing is known but a name for logs.
    #[must_use]
    pub fn of_peer(peer: &str) -> Self {
        Self { peer: Some(peer.into()), ..Self::default() }
    }
}
