//! The session of a server as its client begins and ends it, where the dialect has a [`ServerLifecycle`].

use std::time::{Duration, Instant};

use super::Session;
use super::output::Event;
use crate::dialect::{Role, ServerLifecycle};

/// What the client has said of the beginning and the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leaving {
    /// It asked for the handshake.
    pub(super) begun: bool,
    /// It asked for the shutdown.
    pub(super) shut_down: bool,
    /// It told the process to end, which owes this exit code.
    pub(super) exit: Option<u8>,
}

impl Session {
    /// Whether a notification of the peer is heard. `false`: it came before the session was open, and is dropped and counted.
    #[must_use]
    pub fn hears_notification(&mut self, method: &str) -> bool {
        let Some(lifecycle) = self.server_lifecycle() else { return true };
        let is_heard = self.leaving.begun || method == lifecycle.exit;
        if !is_heard {
            self.emit(Event::EarlyNotification);
        }
        is_heard
    }

    /// A notification of the peer was heard. If it is the one that ends a server's process, the connection is shut down: what runs is
    /// cancelled at once, and what was answered before still goes out.
    pub fn recv_notification(&mut self, now: Instant, method: &str) {
        let Some(lifecycle) = self.server_lifecycle() else { return };
        if method == lifecycle.exit {
            let code = u8::from(!self.leaving.shut_down);
            self.leaving.exit.get_or_insert(code);
            self.local_shutdown(now, Duration::ZERO);
        }
    }

    /// The exit code this process owes, once the peer has told it to end: 0 after a shutdown, else 1.
    #[must_use]
    pub const fn exit_code(&self) -> Option<u8> {
        self.leaving.exit
    }

    /// Whether requests and cancels are served yet.
    pub(super) fn serves(&self) -> bool {
        let is_open = !self.rules().session_required || self.agreement.is_over();
        is_open && (self.leaving.begun || self.server_lifecycle().is_none())
    }

    /// A request was let in: before the handshake no other is, and none after a shutdown.
    pub(super) fn note_request(&mut self, method: &str) {
        self.leaving.begun |= self.rules().handshake == Some(method);
        if self.server_lifecycle().is_some_and(|lifecycle| lifecycle.shutdown == method) {
            self.leaving.shut_down = true;
        }
    }

    fn server_lifecycle(&self) -> Option<ServerLifecycle> {
        self.rules().lifecycle.filter(|_| self.config.role == Role::Server)
    }
}
