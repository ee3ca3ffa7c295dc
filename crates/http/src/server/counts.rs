//! Counts of what a server drops or ends because of its limits. A protocol's own statistics do not include these.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of what a server has dropped or ended since it was created. They stay readable after the listener has ended.
#[derive(Clone, Debug, Default)]
pub struct HttpCounts(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    dropped_notifications: AtomicU64,
    idle_sessions: AtomicU64,
    forgotten_sessions: AtomicU64,
    displaced_sessions: AtomicU64,
    ignored_cancels: AtomicU64,
}

impl HttpCounts {
    /// Notifications that were dropped because a stream was not read, or not fast enough, and had reached its limit
    /// ([`HttpServer::unread_limit`](crate::HttpServer::unread_limit)).
    #[must_use]
    pub fn dropped_notifications(&self) -> u64 {
        self.0.dropped_notifications.load(Ordering::Relaxed)
    }

    /// Sessions and connections that were ended because no client used them for
    /// [`HttpServer::session_idle`](crate::HttpServer::session_idle).
    #[must_use]
    pub fn idle_sessions(&self) -> u64 {
        self.0.idle_sessions.load(Ordering::Relaxed)
    }

    /// Binding `acp`: sessions whose stream was removed because their connection named further sessions and they were
    /// idle.
    #[must_use]
    pub fn forgotten_sessions(&self) -> u64 {
        self.0.forgotten_sessions.load(Ordering::Relaxed)
    }

    pub(crate) fn session_forgotten(&self) {
        self.0.forgotten_sessions.fetch_add(1, Ordering::Relaxed);
    }

    /// Sessions and connections that received no request except the one that opened them, and that were ended to make
    /// room for others ([`HttpServer::sessions`](crate::HttpServer::sessions)).
    #[must_use]
    pub fn displaced_sessions(&self) -> u64 {
        self.0.displaced_sessions.load(Ordering::Relaxed)
    }

    /// Servers without sessions ([`Streamable::sessionless`](crate::Streamable::sessionless)): cancels that had no effect in
    /// this process, because there is no auth hook and so nobody knows whose request they name, or because too many
    /// cancels waited for their requests.
    #[must_use]
    pub fn ignored_cancels(&self) -> u64 {
        self.0.ignored_cancels.load(Ordering::Relaxed)
    }

    pub(crate) fn cancel_ignored(&self) {
        self.0.ignored_cancels.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn session_displaced(&self) {
        self.0.displaced_sessions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn notification_dropped(&self) {
        self.0.dropped_notifications.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn session_idled(&self) {
        self.0.idle_sessions.fetch_add(1, Ordering::Relaxed);
    }
}
