//! What the handshake decides: whether the session is open, whether cancels are declared, and the rest. Also how a client
//! opens and closes the session of a server, in dialects with a [`ServerLifecycle`].

use std::time::{Duration, Instant};

use super::Session;
use super::output::Event;
use crate::dialect::{CapabilityGate, Handshake, HandshakePart, Role, Rules, ServerLifecycle};

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
    /// it has received it (ACPDRAFT-20).
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

/// Which of these messages the client has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExitState {
    /// The request of the handshake.
    pub(super) begun: bool,
    /// The request of the shutdown.
    pub(super) shut_down: bool,
    /// The notification that ends the process, with this exit code.
    pub(super) exit: Option<u8>,
}

impl Session {
    /// Whether a notification of the peer is accepted. `false`: it arrived before the session was open, and is dropped
    /// and counted.
    #[must_use]
    pub fn hears_notification(&mut self, method: &str) -> bool {
        let Some(lifecycle) = self.server_lifecycle() else { return true };
        let is_heard = self.exit_state.begun || method == lifecycle.exit;
        if !is_heard {
            self.emit(Event::EarlyNotification);
        }
        is_heard
    }

    /// Receives a notification of the peer. The one that ends a server's process shuts the connection down: requests
    /// that run are cancelled at once, and answers that wait are still written.
    pub fn recv_notification(&mut self, now: Instant, method: &str) {
        let Some(lifecycle) = self.server_lifecycle() else { return };
        if method == lifecycle.exit {
            let code = u8::from(!self.exit_state.shut_down);
            self.exit_state.exit.get_or_insert(code);
            self.local_shutdown(now, Duration::ZERO);
        }
    }

    /// The exit code of this process, once the peer has requested its end: 0 after a shutdown, else 1.
    #[must_use]
    pub const fn exit_code(&self) -> Option<u8> {
        self.exit_state.exit
    }

    /// Whether requests and cancels are served yet.
    pub(super) fn serves(&self) -> bool {
        let is_open = !self.rules().session_required || self.agreement.is_over();
        is_open && (self.exit_state.begun || self.server_lifecycle().is_none())
    }

    /// A request was admitted: before the handshake no other request is, and after a shutdown none is.
    pub(super) fn note_request(&mut self, method: &str) {
        self.exit_state.begun |= self.rules().handshake == Some(method);
        if self.server_lifecycle().is_some_and(|lifecycle| lifecycle.shutdown == method) {
            self.exit_state.shut_down = true;
        }
    }

    fn server_lifecycle(&self) -> Option<ServerLifecycle> {
        self.rules().lifecycle.filter(|_| self.config.role == Role::Server)
    }
}
