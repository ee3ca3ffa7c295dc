//! Whether a request is cancelled, for code that has only its session and its id.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, PoisonError};

use crate::id::RequestId;
use crate::sync::RwLock;

const SHARDS: usize = 16;

/// Names a session among all that share a [`Registry`].
///
/// Where the space of ids is one exchange and not the session (stateless HTTP), each exchange is named apart, so
/// that a session and a request id together always name one request.
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
        write!(f, "{}", crate::cause::Escaped(&self.0))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({})", crate::cause::Escaped(&self.0))
    }
}

/// The cancelled requests of any number of sessions that have not ended yet. Cheap to clone; clones are one registry.
///
/// A request stands here from its cancel signal to the end of its handler, whatever that end is (002-17), so an id
/// used again is never found cancelled for its predecessor's sake. A request nobody cancels costs nothing.
///
/// [`is_cancelled`](Self::is_cancelled) is one hash and one look-up (002-14), under the read lock of one shard of
/// sixteen. No code but the look-up itself runs under that lock.
///
/// ```
/// use rescind_core::{Registry, RequestId, SessionId};
///
/// let registry = Registry::new();
/// assert!(!registry.is_cancelled(&SessionId::from("s-1"), &RequestId::number(7)));
/// ```
#[derive(Clone, Default)]
pub struct Registry(Arc<[Shard; SHARDS]>);

type Shard = RwLock<HashMap<SessionId, HashSet<RequestId>>>;

impl Registry {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the request is cancelled and its handler has not ended (002-12).
    #[must_use]
    pub fn is_cancelled(&self, session: &SessionId, request: &RequestId) -> bool {
        let shard = self.shard(session, request).read().unwrap_or_else(PoisonError::into_inner);
        shard.get(session).is_some_and(|requests| requests.contains(request))
    }

    /// How many cancelled requests have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        let count = |shard: &Shard| {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.values().map(HashSet::len).sum::<usize>()
        };
        self.0.iter().map(count).sum()
    }

    /// No cancelled request is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[cfg_attr(
        not(any(feature = "tokio", test)),
        expect(dead_code, reason = "only a driver writes to a registry")
    )]
    pub(crate) fn record(&self, session: &SessionId, request: &RequestId) {
        let mut shard = self.shard(session, request).write().unwrap_or_else(PoisonError::into_inner);
        shard.entry(session.clone()).or_default().insert(request.clone());
    }

    #[cfg_attr(
        not(any(feature = "tokio", test)),
        expect(dead_code, reason = "only a driver writes to a registry")
    )]
    pub(crate) fn clear(&self, session: &SessionId, request: &RequestId) {
        let mut shard = self.shard(session, request).write().unwrap_or_else(PoisonError::into_inner);
        if let Some(requests) = shard.get_mut(session) {
            requests.remove(request);
            if requests.is_empty() {
                shard.remove(session);
            }
        }
    }

    fn shard(&self, session: &SessionId, request: &RequestId) -> &Shard {
        let mut hasher = DefaultHasher::new();
        (session, request).hash(&mut hasher);
        let place = usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or(0);
        let [first, ..] = &*self.0;
        // The place is below SHARDS; the first stands in only to spare a panic.
        self.0.get(place).unwrap_or(first)
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

    // covers: 002-12, 002-14, 002-16
    #[test]
    fn the_same_id_in_two_sessions_is_two_records() {
        let registry = Registry::new();
        let (one, two) = (SessionId::from("one"), SessionId::from("two"));
        let id = RequestId::number(1);
        registry.record(&one, &id);
        assert!(registry.is_cancelled(&one, &id));
        assert!(!registry.is_cancelled(&two, &id));
        assert!(!registry.is_cancelled(&one, &RequestId::text("1").unwrap()));
        registry.clear(&one, &id);
        assert!(!registry.is_cancelled(&one, &id), "I3: a request that ended is still recorded");
        assert!(registry.is_empty());
    }
}
