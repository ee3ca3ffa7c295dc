use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rescind_core::{AuthHook, Client, Clients, HostPolicy, OriginPolicy, Principal};

use super::cors::PageSettings;
use super::counts::HttpCounts;
use super::replay_buffer::Retention;
use super::session_router::SessionRouter;
use super::sessions::random_id;

/// The meaning of an HTTP/1.1 client that closes its half of the connection before the response arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HalfClose {
    /// The client has disconnected: this takes effect on its requests at once. A client that closes the whole
    /// connection looks the same until the server writes to it, and a disconnect must be detected early if it is a
    /// cancel (MCP 2026-07-28).
    #[default]
    Leaves,
    /// The client waits for its answer and gets it. The server detects a disconnect only when it writes: at the latest
    /// with the second [keep-alive comment](super::HttpServer::keep_alive) of the stream, and for a request without a
    /// stream not before its answer.
    Waits,
}

/// The settings that apply to every binding of a server.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) hosts: HostPolicy,
    pub(crate) origins: OriginPolicy,
    pub(crate) pages: PageSettings,
    pub(crate) auth: Option<AuthHook>,
    /// The largest message in both directions, in bytes.
    pub(crate) max_frame: usize,
    /// For the head of a request, and for the first head on a new connection.
    pub(crate) header_timeout: Duration,
    pub(crate) body_timeout: Duration,
    /// A TCP connection without a request for this time is closed.
    pub(crate) idle_timeout: Duration,
    pub(crate) half_close: HalfClose,
    /// An event stream without events for this time gets a comment.
    pub(crate) keep_alive: Duration,
    /// The most TCP connections.
    pub(crate) connections: usize,
    /// The most sessions, in bindings that have them.
    pub(crate) sessions: usize,
    /// A session that no client uses for this time is ended.
    pub(crate) session_idle: Duration,
    /// The most messages and bytes that wait for a stream without a reader.
    pub(crate) unread_limit: (usize, usize),
    /// How long a message that no stream can carry waits for one.
    pub(crate) stream_wait: Duration,
    /// An event stream whose reader takes nothing for this time is cut.
    pub(crate) stall_timeout: Duration,
    pub(crate) kept: Retention,
    pub(crate) counts: HttpCounts,
    pub(crate) clients: Served,
    /// For servers that share their sessions.
    pub(crate) session_router: Option<Arc<dyn SessionRouter>>,
}

impl Settings {
    /// The id of a new session. `None`: the operating system gave no random bytes.
    pub(crate) fn new_session_id(&self) -> Option<Arc<str>> {
        match &self.session_router {
            Some(router) => router.new_session_id().map(Into::into),
            None => random_id(),
        }
    }
}

/// The clients of the server that accepts the links. Before there is such a server, the defaults apply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Served(Arc<ServedClients>);

#[derive(Debug, Default)]
struct ServedClients {
    clients: RwLock<Clients>,
    /// How often the table was replaced.
    table: AtomicUsize,
}

impl Served {
    pub(crate) fn are(&self, clients: &Clients) {
        *self.0.clients.write().unwrap_or_else(PoisonError::into_inner) = clients.clone();
        self.0.table.fetch_add(1, Ordering::Release);
    }

    /// The number of the table in which clients are found now. Read it before the client is looked up.
    pub(crate) fn table(&self) -> usize {
        self.0.table.load(Ordering::Acquire)
    }

    pub(crate) fn client(&self, principal: Option<&Principal>, address: Option<IpAddr>) -> Arc<Client> {
        self.0.clients.read().unwrap_or_else(PoisonError::into_inner).client(principal, address)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            hosts: HostPolicy::default(),
            origins: OriginPolicy::default(),
            pages: PageSettings::default(),
            auth: None,
            max_frame: 16 * 1024 * 1024,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(120),
            half_close: HalfClose::default(),
            keep_alive: Duration::from_secs(15),
            connections: 10_000,
            sessions: 1024,
            session_idle: Duration::from_secs(30 * 60),
            unread_limit: (1024, 1024 * 1024),
            stream_wait: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            kept: Retention { events: 256, bytes: 64 * 1024 },
            counts: HttpCounts::default(),
            clients: Served::default(),
            session_router: None,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("hosts", &self.hosts)
            .field("origins", &self.origins)
            .field("max_frame", &self.max_frame)
            .finish_non_exhaustive()
    }
}
