//! Answers whether a request is cancelled, for code that knows only its session and its id.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError};

use hashbrown::HashTable;

use crate::id::RequestId;
use crate::sync::RwLock;

const SHARDS: usize = 16;

/// The most places that a shard keeps when it is empty.
const MAX_IDLE_CAPACITY: usize = 1024;

/// The name of a session in a [`Registry`].
///
/// A session and a request id together always identify one request. Where an id is unique only within an exchange
/// (stateless HTTP), each exchange has a session name of its own.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for SessionId {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<String> for SessionId {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", crate::log_text::LogText::reason(&self.0))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({})", crate::log_text::LogText::reason(&self.0))
    }
}

/// The cancelled requests whose handlers still run, of any number of sessions. A clone is the same registry, and cheap.
///
/// A request is listed from its cancel signal until its handler ends, however it ends (GETMCP-17). So a new request with
/// a reused id is never reported as cancelled because of an earlier one. A request that is not cancelled costs nothing.
///
/// [`is_cancelled`](Self::is_cancelled) computes one hash and does one look-up (GETMCP-14) under the read lock of one
/// of sixteen shards. No other code runs under that lock.
///
/// ```
/// use rescind_core::{Registry, RequestId, SessionId};
///
/// let registry = Registry::new();
/// assert!(!registry.is_cancelled(&SessionId::from("s-1"), &RequestId::number(7)));
/// ```
#[derive(Clone, Default)]
pub struct Registry(Arc<Shards>);

/// The peer chooses the ids, so the hash is the standard library's, with a random key for each registry.
#[derive(Default)]
struct Shards {
    hasher: RandomState,
    shards: [RwLock<Shard>; SHARDS],
}

type Shard = HashTable<(SessionId, RequestId)>;

/// The hash of a session's name in one registry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionHash(u64);

impl Registry {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the request is cancelled and its handler has not ended (GETMCP-12).
    #[must_use]
    pub fn is_cancelled(&self, session: &SessionId, request: &RequestId) -> bool {
        let (shard, hash) = self.0.of(self.hash(session), request);
        let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
        shard.find(hash, is(session, request)).is_some()
    }

    /// The hash of a session's name in this registry. A connection computes it once.
    pub(crate) fn hash(&self, session: &SessionId) -> SessionHash {
        SessionHash(self.0.hasher.hash_one(session))
    }

    /// The number of cancelled requests whose handlers still run.
    #[must_use]
    pub fn len(&self) -> usize {
        let count = |shard: &RwLock<Shard>| shard.read().unwrap_or_else(PoisonError::into_inner).len();
        self.0.shards.iter().map(count).sum()
    }

    /// Whether no cancelled request has a handler that still runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[cfg_attr(
        not(any(feature = "tokio", test)),
        expect(dead_code, reason = "only a driver writes to a registry")
    )]
    pub(crate) fn record(&self, named: SessionHash, session: &SessionId, request: &RequestId) {
        let (shard, hash) = self.0.of(named, request);
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        let rehash = |(session, request): &(SessionId, RequestId)| self.0.of(self.hash(session), request).1;
        shard.entry(hash, is(session, request), rehash).or_insert_with(|| (session.clone(), request.clone()));
    }

    #[cfg_attr(
        not(any(feature = "tokio", test)),
        expect(dead_code, reason = "only a driver writes to a registry")
    )]
    pub(crate) fn clear(&self, named: SessionHash, session: &SessionId, request: &RequestId) {
        let (shard, hash) = self.0.of(named, request);
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        if let Ok(found) = shard.find_entry(hash, is(session, request)) {
            found.remove();
        }
        if shard.is_empty() && shard.capacity() > MAX_IDLE_CAPACITY {
            *shard = HashTable::new();
        }
    }
}

fn is(session: &SessionId, request: &RequestId) -> impl Fn(&(SessionId, RequestId)) -> bool {
    move |(of, known)| known == request && of == session
}

impl Shards {
    /// The shard of a session and the hash of a request in it. All requests of a session are in one shard: they share
    /// the lock of its connection anyway.
    fn of(&self, session: SessionHash, request: &RequestId) -> (&RwLock<Shard>, u64) {
        let place = usize::try_from(session.0 % SHARDS as u64).unwrap_or(0);
        let [first, ..] = &self.shards;
        // The place is always below SHARDS. `first` is there only to avoid a panic.
        (self.shards.get(place).unwrap_or(first), self.hasher.hash_one((session.0, request)))
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("cancelled", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: GETMCP-12, GETMCP-14, GETMCP-16
    #[test]
    fn the_same_id_in_two_sessions_is_two_records() {
        let registry = Registry::new();
        let (one, two) = (SessionId::from("one"), SessionId::from("two"));
        let id = RequestId::number(1);
        assert!(registry.is_empty());
        registry.record(registry.hash(&one), &one, &id);
        assert!(!registry.is_empty());
        assert!(registry.is_cancelled(&one, &id));
        assert!(!registry.is_cancelled(&two, &id));
        assert!(!registry.is_cancelled(&one, &RequestId::text("1").unwrap()));
        registry.clear(registry.hash(&one), &one, &id);
        assert!(!registry.is_cancelled(&one, &id), "I3: a request that ended is still recorded");
        assert!(registry.is_empty());
    }

    #[test]
    fn a_registry_that_was_full_releases_its_memory_when_empty() {
        let registry = Registry::new();
        let session = SessionId::from("one");
        let ids: Vec<_> = (0..100_000).map(RequestId::number).collect();
        for id in ids.iter().chain(&ids) {
            registry.record(registry.hash(&session), &session, id);
        }
        assert_eq!(registry.len(), ids.len(), "a request is recorded once");
        assert!(ids.iter().all(|id| registry.is_cancelled(&session, id)));
        let kept = || {
            registry.0.shards.iter().map(|shard| shard.read().unwrap().capacity()).max().unwrap_or_default()
        };
        assert!(kept() > MAX_IDLE_CAPACITY);
        for (cleared, id) in ids.iter().enumerate() {
            assert_eq!(registry.len(), ids.len() - cleared, "the others are still recorded");
            registry.clear(registry.hash(&session), &session, id);
        }
        assert!(registry.is_empty());
        assert!(kept() <= MAX_IDLE_CAPACITY, "I11: {} places are left", kept());
    }

    #[test]
    fn sessions_use_different_locks() {
        let registry = Registry::new();
        for session in 0..64 {
            let session = SessionId::from(session.to_string());
            registry.record(registry.hash(&session), &session, &RequestId::number(1));
        }
        let taken = registry.0.shards.iter().filter(|shard| !shard.read().unwrap().is_empty()).count();
        assert!(taken > SHARDS / 2, "64 sessions stand in {taken} shards");
    }

    #[test]
    fn a_name_is_shown_without_control_characters() {
        assert_eq!(SessionId::from("a\nb").to_string(), r"a\u{a}b");
        assert_eq!(format!("{:?}", SessionId::from("a\nb")), r"SessionId(a\u{a}b)");
    }
}
