use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rescind_core::{AuthHook, Client, Clients, HostPolicy, OriginPolicy, Principal};

use super::cors::PageSettings;
use super::counts::HttpCounts;
use super::replay_buffer::Retention;

/// What it means that a client of HTTP/1.1 closes its half of the connection before its answer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HalfClose {
    /// It has left: its requests are given up at once. A client that closes all of its connection looks the same until
    /// something is written to it, and leaving has to be noticed where it is a cancel (MCP 2026-07-28).
    #[default]
    Leaves,
    /// It waits for its answer and gets it. That a client has left is noticed when something is written, at the latest
    /// with the second [keep-alive comment](super::HttpServer::keep_alive) of its stream, and of a request without a
    /// stream not before its answer.
    Waits,
}

/// What holds for every binding of a server.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) hosts: HostPolicy,
    pub(crate) origins: OriginPolicy,
    pub(crate) pages: PageSettings,
    pub(crate) auth: Option<AuthHook>,
    /// The largest message either way, in bytes.
    pub(crate) max_frame: usize,
    /// For a request's head, and for a new connection's first.
    pub(crate) header_timeout: Duration,
    pub(crate) body_timeout: Duration,
    /// A TCP connection without a request for so long is closed.
    pub(crate) idle_timeout: Duration,
    pub(crate) half_close: HalfClose,
    /// An event stream gets a comment after so long a silence.
    pub(crate) keep_alive: Duration,
    /// TCP connections at a time.
    pub(crate) connections: usize,
    /// Sessions at a time, in bindings that have them.
    pub(crate) sessions: usize,
    /// A session nobody uses for so long is ended.
    pub(crate) session_idle: Duration,
    /// What waits for a stream that nobody reads, in messages and bytes.
    pub(crate) mailbox: (usize, usize),
    /// An event stream whose reader takes nothing for so long is cut.
    pub(crate) stall_timeout: Duration,
    pub(crate) kept: Retention,
    pub(crate) counts: HttpCounts,
    pub(crate) clients: Served,
}

/// The clients of the server that accepts, once there is one; until then with the defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Served(Arc<RwLock<Clients>>);

impl Served {
    pub(crate) fn are(&self, clients: &Clients) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = clients.clone();
    }

    pub(crate) fn client(&self, principal: Option<&Principal>, address: Option<IpAddr>) -> Arc<Client> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).client(principal, address)
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
            session_idle: Duration::from_secs(300),
            mailbox: (1024, 1024 * 1024),
            stall_timeout: Duration::from_secs(30),
            kept: Retention { events: 256, bytes: 64 * 1024 },
            counts: HttpCounts::default(),
            clients: Served::default(),
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
