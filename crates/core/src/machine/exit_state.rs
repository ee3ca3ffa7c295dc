//! How a client opens and closes the session of a server, in dialects with a [`ServerLifecycle`].

use std::time::{Duration, Instant};

use super::Session;
use super::output::Event;
use crate::dialect::{Role, ServerLifecycle};

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
