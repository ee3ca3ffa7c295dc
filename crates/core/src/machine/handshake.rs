//! The results of the handshake: whether cancels are declared, and what else it decides.

use crate::dialect::{CapabilityGate, Handshake, HandshakePart, Role, Rules};

/// The declarations of both sides so far.
#[derive(Clone, Debug)]
pub(super) struct Agreement {
    role: Role,
    ours: bool,
    peers: bool,
    exchange: Exchange,
    batches: bool,
    /// [`Handshake::exempting`] of each side.
    ours_exempting: Option<Vec<String>>,
    peers_exempting: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchange {
    Before,
    Over,
}

impl Agreement {
    pub(super) const fn new(role: Role, handles_cancels: bool) -> Self {
        Self {
            role,
            ours: handles_cancels,
            peers: false,
            exchange: Exchange::Before,
            batches: false,
            ours_exempting: None,
            peers_exempting: None,
        }
    }

    /// Reads one part. The result ends the handshake: for the server when the machine accepts it, for the client when
    /// it has received it (000-20).
    pub(super) fn hear(&mut self, rules: &Rules, part: HandshakePart, said: &Handshake) {
        let ours = matches!(
            (part, self.role),
            (HandshakePart::Params, Role::Client) | (HandshakePart::Result, Role::Server)
        );
        if ours {
            self.ours = said.handles_cancels.unwrap_or(false);
            self.ours_exempting.clone_from(&said.exempting);
        } else {
            self.peers = said.handles_cancels.unwrap_or(false);
            self.peers_exempting.clone_from(&said.exempting);
        }
        match part {
            HandshakePart::Params => {}
            HandshakePart::Result => {
                self.exchange = Exchange::Over;
                self.batches =
                    rules.batch_revision.is_some() && said.revision.as_deref() == rules.batch_revision;
            }
        }
    }

    /// Whether the session is open.
    pub(super) fn is_over(&self) -> bool {
        self.exchange == Exchange::Over
    }

    /// Whether cancels of the peer are handled.
    pub(super) fn hears_cancels(&self, rules: &Rules) -> bool {
        match rules.gate {
            CapabilityGate::None => true,
            CapabilityGate::Declared => self.is_over() && self.ours,
        }
    }

    /// Whether a cancel may be sent to the peer.
    pub(super) fn may_send_cancels(&self, rules: &Rules) -> bool {
        match rules.gate {
            CapabilityGate::None => true,
            CapabilityGate::Declared => self.is_over() && self.peers,
        }
    }

    /// Whether the params of a request of the peer may make it uncancellable.
    pub(super) fn exempts(&self, method: &str) -> bool {
        lists(self.ours_exempting.as_deref(), method)
    }

    /// Whether the params of a call of this side may make it uncancellable.
    pub(super) fn peer_exempts(&self, method: &str) -> bool {
        lists(self.peers_exempting.as_deref(), method)
    }

    pub(super) const fn allows_batches(&self) -> bool {
        self.batches
    }

    #[cfg(feature = "verify")]
    pub(super) fn inspect(&self) -> (bool, bool, bool) {
        (self.ours, self.peers, self.is_over())
    }
}

fn lists(exempting: Option<&[String]>, method: &str) -> bool {
    exempting.is_none_or(|methods| methods.iter().any(|listed| listed == method))
}
