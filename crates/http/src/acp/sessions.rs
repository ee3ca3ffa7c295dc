//! The sessions of a connection that have their own stream, by name. The peer chooses the names, so their length and
//! number are bounded. When there is no room, the session that was unused for longest is removed, if it is idle.

use std::collections::HashMap;

use super::connection::OWN;
use crate::int_map::IntMap;

/// The most sessions with their own stream. Messages of other sessions use the connection's stream.
const LANES: usize = 1024;
/// The longest name, in bytes.
pub(super) const MAX_NAME_BYTES: usize = 256;

/// The streams of sessions, by the sessions' names.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    names: HashMap<Box<str>, NamedSession>,
    /// The number of open requests whose answers use a stream, for streams that have such requests.
    open: IntMap<usize>,
    /// The number of streams that were created.
    made: u64,
    /// How often a session was named.
    named: u64,
}

#[derive(Debug)]
struct NamedSession {
    lane: u64,
    /// When it was last named, as the value of the counter `named`.
    used: u64,
}

/// The stream for a new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A stream that has to be created, and the stream that is removed for it.
    New { lane: u64, gone: Option<u64> },
    /// The connection's own stream: the limit is reached, or the name is not valid.
    Own,
}

impl Sessions {
    /// The stream of a session that has one.
    pub(super) fn lane(&self, name: &str) -> Option<u64> {
        self.names.get(name).map(|session| session.lane)
    }

    /// The same, for a message that uses the stream.
    pub(super) fn used(&mut self, name: &str) -> Option<u64> {
        let session = self.names.get_mut(name)?;
        self.named += 1;
        session.used = self.named;
        Some(session.lane)
    }

    /// Whether a new name needs the place of another.
    pub(super) fn is_full(&self) -> bool {
        self.names.len() >= LANES
    }

    /// Adds a stream for a session that has none. `is_idle`: whether a stream has no reader and no waiting message, and
    /// none of our requests was sent on it.
    pub(super) fn add(&mut self, name: &str, is_idle: impl Fn(u64) -> bool) -> Found {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Found::Own;
        }
        let gone = if self.is_full() { self.forget_one(is_idle) } else { None };
        if self.is_full() {
            return Found::Own;
        }
        self.made += 1;
        self.named += 1;
        let lane = OWN + self.made;
        self.names.insert(name.into(), NamedSession { lane, used: self.named });
        Found::New { lane, gone }
    }

    /// Removes the idle session that was not named for longest.
    fn forget_one(&mut self, is_idle: impl Fn(u64) -> bool) -> Option<u64> {
        let is_idle =
            |session: &NamedSession| !self.open.contains_key(&session.lane) && is_idle(session.lane);
        let idle = self.names.iter().filter(|(_, session)| is_idle(session));
        let name = idle.min_by_key(|(_, session)| session.used).map(|(name, _)| name.clone())?;
        self.names.remove(&name).map(|session| session.lane)
    }

    /// A request arrived whose answer is sent on this stream.
    pub(super) fn begun(&mut self, lane: u64) {
        *self.open.entry(lane).or_default() += 1;
    }

    /// An answer was sent on this stream.
    pub(super) fn answered(&mut self, lane: u64) {
        if let Some(open) = self.open.get_mut(&lane) {
            *open = open.saturating_sub(1);
            if *open == 0 {
                self.open.remove(&lane);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Sessions {
        let mut sessions = Sessions::default();
        for n in 1..=LANES as u64 {
            assert_eq!(sessions.add(&n.to_string(), |_| true), Found::New { lane: n, gone: None });
        }
        sessions
    }

    #[test]
    fn a_full_table_forgets_its_oldest_idle_session() {
        let mut sessions = full();
        // The first session is used again, the second has an open request, and the third has a reader.
        assert_eq!(sessions.used("1"), Some(1));
        sessions.begun(2);
        let next = LANES as u64 + 1;
        assert_eq!(sessions.add("new", |lane| lane != 3), Found::New { lane: next, gone: Some(4) });
        assert_eq!((sessions.lane("4"), sessions.lane("2")), (None, Some(2)), "I11");
        sessions.answered(2);
        assert_eq!(sessions.add("newer", |_| true), Found::New { lane: next + 1, gone: Some(2) });
        assert!(sessions.is_full() && sessions.open.is_empty(), "I11");
    }

    #[test]
    fn with_all_sessions_in_use_a_further_one_uses_the_stream_of_the_connection() {
        let mut sessions = full();
        assert_eq!(sessions.add("new", |_| false), Found::Own);
        assert_eq!((sessions.lane("1"), sessions.names.len()), (Some(1), LANES), "I11");
    }

    #[test]
    fn a_name_that_is_too_long_is_never_kept() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.add(&"s".repeat(MAX_NAME_BYTES + 1), |_| true), Found::Own);
        assert_eq!(sessions.add("", |_| true), Found::Own);
        let longest = sessions.add(&"s".repeat(MAX_NAME_BYTES), |_| true);
        assert_eq!(longest, Found::New { lane: 1, gone: None });
    }
}
