//! The sessions of a binding, with ids that cannot be guessed. To make room for a new session, one ends that received
//! no request except the one that opened it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, PoisonError};

use rescind_core::{Client, ClientPermit, Principal, Resource};

use super::Settings;
use super::link::Linked;
use super::refusal::Refused;
use crate::sync::{Mutex, MutexGuard};

/// A session, as its table uses it.
pub(crate) trait OwnedSession: Linked {
    /// The principal that opened it.
    fn principal(&self) -> Option<&Principal>;

    /// Whether it has received no request except the one that opened it, and that one is answered.
    fn is_unused(&self) -> bool;
}

/// The sessions of one server.
#[derive(Debug)]
pub(crate) struct Sessions<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    open: HashMap<Arc<str>, Entry<T>>,
    next: u64,
    shut: bool,
}

#[derive(Debug)]
struct Entry<T> {
    session: Arc<T>,
    number: u64,
    place: ClientPermit,
}

/// Why no session was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotOpened {
    /// The limit of all sessions is reached.
    TooMany,
    /// The limit of this client's sessions is reached.
    TooManyOfOne,
    /// The listener has ended.
    Shut,
    /// The operating system gave no random bytes.
    NoRandomness,
}

impl From<NotOpened> for Refused {
    fn from(why: NotOpened) -> Self {
        match why {
            NotOpened::TooMany => Self::too_many("there are as many sessions as there may be"),
            NotOpened::TooManyOfOne => Self::too_many("this client has as many sessions as one may"),
            NotOpened::Shut => Self::unavailable("this server has ended"),
            NotOpened::NoRandomness => Self::unavailable("there is no randomness for a session id"),
        }
    }
}

impl<T> Default for Sessions<T> {
    fn default() -> Self {
        Self { state: Mutex::new(State { open: HashMap::new(), next: 0, shut: false }) }
    }
}

impl<T: OwnedSession> Sessions<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session for this client. If there is no room, the oldest unused session ends: one of this client if it
    /// has used its share, else one of the client with the most sessions.
    pub(crate) fn open(
        &self,
        client: &Arc<Client>,
        settings: &Settings,
        make: impl Fn(&Arc<str>) -> Arc<T>,
    ) -> Result<Arc<T>, NotOpened> {
        let id = settings.new_session_id().ok_or(NotOpened::NoRandomness)?;
        match self.try_open(&id, client, settings, &make) {
            Err(full @ (NotOpened::TooMany | NotOpened::TooManyOfOne)) => {
                if !self.make_room(full, client, settings) {
                    return Err(full);
                }
                self.try_open(&id, client, settings, &make)
            }
            opened => opened,
        }
    }

    fn try_open(
        &self,
        id: &Arc<str>,
        client: &Arc<Client>,
        settings: &Settings,
        make: impl Fn(&Arc<str>) -> Arc<T>,
    ) -> Result<Arc<T>, NotOpened> {
        let mut state = self.state();
        if state.shut {
            return Err(NotOpened::Shut);
        }
        if state.open.len() >= settings.sessions {
            return Err(NotOpened::TooMany);
        }
        let place =
            client.try_acquire(Resource::WireSessions, settings.sessions).ok_or(NotOpened::TooManyOfOne)?;
        let session = make(id);
        let number = state.next;
        state.next += 1;
        state.open.insert(Arc::clone(id), Entry { session: Arc::clone(&session), number, place });
        Ok(session)
    }

    /// `true`: there is room now. Sessions are called without the lock, because they take it when they end.
    fn make_room(&self, full: NotOpened, client: &Arc<Client>, settings: &Settings) -> bool {
        let mut candidates: Vec<_> = {
            let state = self.state();
            let of_all = full == NotOpened::TooMany;
            let entries =
                state.open.iter().filter(|(_, entry)| of_all || Arc::ptr_eq(entry.place.client(), client));
            let order =
                |entry: &Entry<T>| (Reverse(entry.place.client().held(Resource::WireSessions)), entry.number);
            entries.map(|(id, entry)| (order(entry), Arc::clone(id), Arc::clone(&entry.session))).collect()
        };
        candidates.sort_unstable_by_key(|(order, ..)| *order);
        let Some((_, id, session)) = candidates.into_iter().find(|(.., session)| session.is_unused()) else {
            return false;
        };
        self.remove(&id);
        session.end();
        settings.counts.session_displaced();
        tracing::debug!("a session that was never used made room for another");
        true
    }

    /// The session with this id, if this principal opened it.
    pub(crate) fn find(&self, id: &str, principal: Option<&Principal>) -> Option<Arc<T>> {
        let found = Arc::clone(&self.state().open.get(id)?.session);
        (found.principal() == principal).then_some(found)
    }

    /// The session with this id, whoever opened it.
    pub(crate) fn by_id(&self, id: &str) -> Option<Arc<T>> {
        Some(Arc::clone(&self.state().open.get(id)?.session))
    }

    pub(crate) fn remove(&self, id: &str) {
        let removed = self.state().open.remove(id);
        drop(removed);
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.state().shut
    }

    /// All open sessions.
    #[cfg(feature = "verify")]
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.state().open.values().map(|entry| Arc::clone(&entry.session)).collect()
    }

    /// Ends all sessions. No more sessions are opened.
    pub(crate) fn shut(&self) {
        let open = {
            let mut state = self.state();
            state.shut = true;
            std::mem::take(&mut state.open)
        };
        for entry in open.into_values() {
            entry.session.end();
        }
    }
}

/// 128 random bits from the operating system, in hexadecimal.
pub(crate) fn random_id() -> Option<Arc<str>> {
    #[cfg(feature = "verify")]
    if let Some(counted) = crate::test_io::counted_id() {
        return Some(counted);
    }
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).ok()?;
    let mut id = String::with_capacity(32);
    for byte in bytes {
        let _ = write!(id, "{byte:02x}");
    }
    Some(id.into())
}
