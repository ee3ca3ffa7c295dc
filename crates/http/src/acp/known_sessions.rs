//! The sessions that a connection knows, and whether their streams may be read.

use memchr::memmem;
use rescind_core::SessionBodies;

use crate::acp::UnknownSessions;
use crate::acp::connection::{OWN, State};
use crate::acp::message::Message;
use crate::server::replay_buffer::Forgotten;

/// Why a stream is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoStream {
    /// No message has named the session, or it was forgotten.
    Unknown,
    /// The connection has reached its limit of sessions.
    TooMany,
    /// The event after which the client resumes is none of this stream.
    Foreign,
    /// Events after the one that the client names are not kept any more.
    Forgotten,
}

impl From<Forgotten> for NoStream {
    fn from(_: Forgotten) -> Self {
        Self::Forgotten
    }
}

impl State {
    /// The stream of a session that a client wants to read.
    pub(super) fn lane_to_read(&mut self, name: &str, unknown: UnknownSessions) -> Result<u64, NoStream> {
        match (self.sessions.lane(name), unknown) {
            (None, UnknownSessions::Refused) => Err(NoStream::Unknown),
            (Some(_), _) | (None, UnknownSessions::Opened) => match self.lane(name) {
                OWN => Err(NoStream::TooMany),
                lane => Ok(lane),
            },
        }
    }

    /// Stores the session that an answer created. From now on it is known.
    pub(super) fn learn(&mut self, answer: &[u8], bodies: &'static SessionBodies) {
        // Most answers do not contain the name of the member, and are not parsed.
        if memmem::find(answer, bodies.session.as_bytes()).is_some() {
            if let Some(name) = Message::of(answer, bodies).made() {
                self.lane(&name);
            }
        }
    }
}
