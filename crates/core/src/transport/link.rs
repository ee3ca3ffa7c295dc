//! A link: one connection's two halves, and what the wire says of it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use super::{Receiver, Sender};
use crate::id::Principal;

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
    /// Frames arrive in the order they were sent. Only where they do not may an early cancel be parked; and only there do more than a
    /// row of cancels pass a frame of bulk that finds no room.
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
