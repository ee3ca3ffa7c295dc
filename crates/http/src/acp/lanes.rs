//! Which sessions a connection knows, as far as their streams may be read.

use memchr::memmem;
use rescind_core::SessionBodies;

use super::UnknownSessions;
use super::connection::{OWN, State};
use super::message::Message;

/// Why a stream is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotHeard {
    /// No message has named the session, or it was forgotten.
    Unknown,
    /// The connection has as many sessions as it may.
    TooMany,
}

impl State {
    /// The stream of a session that is to be read.
    pub(super) fn lane_to_read(&mut self, name: &str, unknown: UnknownSessions) -> Result<u64, NotHeard> {
        match (self.sessions.lane(name), unknown) {
            (None, UnknownSessions::Refused) => Err(NotHeard::Unknown),
            (Some(_), _) | (None, UnknownSessions::Opened) => match self.lane(name) {
                OWN => Err(NotHeard::TooMany),
                lane => Ok(lane),
            },
        }
    }

    /// The session that an answer made is known from now on.
    pub(super) fn learn(&mut self, answer: &[u8], bodies: &'static SessionBodies) {
        // Most answers name none, and are not read for it.
        if memmem::find(answer, bodies.session.as_bytes()).is_some() {
            if let Some(name) = Message::of(answer, bodies).made() {
                self.lane(&name);
            }
        }
    }
}
