//! The sessions there are, by ids that cannot be guessed.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, PoisonError};

use rescind_core::Principal;

use super::conversation::Conversation;
use crate::server::Settings;
use crate::sync::{Mutex, MutexGuard};

/// The sessions of one server.
#[derive(Debug, Default)]
pub(super) struct Table {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: HashMap<Arc<str>, Arc<Conversation>>,
    shut: bool,
}

/// Why no session was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotOpened {
    /// There are as many as there may be.
    TooMany,
    /// The listener is gone.
    Shut,
    /// The operating system gave no random bytes.
    NoRandomness,
}

impl Table {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session.
    pub(super) fn open(
        self: &Arc<Self>,
        principal: Option<Principal>,
        settings: &Arc<Settings>,
    ) -> Result<Arc<Conversation>, NotOpened> {
        let id = random_id().ok_or(NotOpened::NoRandomness)?;
        let mut state = self.state();
        if state.shut {
            return Err(NotOpened::Shut);
        }
        if state.open.len() >= settings.sessions {
            return Err(NotOpened::TooMany);
        }
        let conversation = Conversation::new(Arc::clone(&id), principal, settings, Arc::downgrade(self));
        state.open.insert(id, Arc::clone(&conversation));
        Ok(conversation)
    }

    /// The session of this id, to the one who opened it.
    pub(super) fn find(&self, id: &str, principal: Option<&Principal>) -> Option<Arc<Conversation>> {
        let found = self.state().open.get(id).cloned()?;
        (found.principal.as_ref() == principal).then_some(found)
    }

    pub(super) fn remove(&self, id: &str) {
        let removed = self.state().open.remove(id);
        drop(removed);
    }

    pub(super) fn is_shut(&self) -> bool {
        self.state().shut
    }

    /// Sessions, and the exchanges in them.
    #[cfg(feature = "verify")]
    pub(super) fn held(&self) -> (usize, usize) {
        let open: Vec<_> = self.state().open.values().cloned().collect();
        (open.len(), open.iter().map(|conversation| conversation.state().exchanges.len()).sum())
    }

    /// Ends all sessions; no more are opened.
    pub(super) fn shut(&self) {
        let open = {
            let mut state = self.state();
            state.shut = true;
            std::mem::take(&mut state.open)
        };
        for conversation in open.into_values() {
            conversation.end();
        }
    }
}

/// 128 random bits of the operating system, in hexadecimal.
pub(crate) fn random_id() -> Option<Arc<str>> {
    #[cfg(feature = "verify")]
    if let Some(counted) = crate::given::counted_id() {
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
