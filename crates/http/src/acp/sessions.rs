//! The sessions of a connection that have a stream of their own, by their names. The names are the peer's, so they are
//! bounded in length and in number; where there is no room the one that was not used for longest goes, if nothing of it
//! is under way.

use std::collections::HashMap;

use super::connection::OWN;
use crate::int_map::Numbered;

/// The most sessions with a stream of their own; messages of more go by the connection's.
const LANES: usize = 1024;
/// The longest name, in bytes.
pub(super) const MAX_NAME_BYTES: usize = 256;

/// The streams of sessions, by the sessions' names.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    names: HashMap<Box<str>, NamedSession>,
    /// Requests whose answers go by a stream, where there are some.
    open: Numbered<usize>,
    /// As many streams were made.
    made: u64,
    /// As often a session was named.
    named: u64,
}

#[derive(Debug)]
struct NamedSession {
    lane: u64,
    /// When it was named last, as a number.
    used: u64,
}

/// What a new name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A stream that has to be made, and the one that goes for it.
    New { lane: u64, gone: Option<u64> },
    /// The connection's own: there are as many as may be, or it is no name.
    Own,
}

impl Sessions {
    /// The stream of a session that has one.
    pub(super) fn lane(&self, name: &str) -> Option<u64> {
        self.names.get(name).map(|session| session.lane)
    }

    /// The same, for a message that uses it.
    pub(super) fn used(&mut self, name: &str) -> Option<u64> {
        let session = self.names.get_mut(name)?;
        self.named += 1;
        session.used = self.named;
        Some(session.lane)
    }

    /// Whether another name takes the place of one.
    pub(super) fn is_full(&self) -> bool {
        self.names.len() >= LANES
    }

    /// A stream for a session that has none. `is_idle`: neither a reader nor a message is there for a stream, and no
    /// request of ours went by it.
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

    /// Forgets the one that was not named for longest, of those of which nothing is under way.
    fn forget_one(&mut self, is_idle: impl Fn(u64) -> bool) -> Option<u64> {
        let is_idle =
            |session: &NamedSession| !self.open.contains_key(&session.lane) && is_idle(session.lane);
        let idle = self.names.iter().filter(|(_, session)| is_idle(session));
        let name = idle.min_by_key(|(_, session)| session.used).map(|(name, _)| name.clone())?;
        self.names.remove(&name).map(|session| session.lane)
    }

    /// A request came whose answer goes by this stream.
    pub(super) fn begun(&mut self, lane: u64) {
        *self.open.entry(lane).or_default() += 1;
    }

    /// An answer went by this stream.
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
    fn the_idle_session_that_was_named_first_goes_when_the_table_is_full() {
        let mut sessions = full();
        // The first is used again; of the second a request is open; the third has a reader.
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
    fn where_all_are_in_use_a_further_session_goes_by_the_connections_stream() {
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
