//! A connection before it is open.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clients::Clients;
use crate::dialect::{Dialect, Role};
use crate::driver::admission::Admission;
use crate::driver::admission::seats::Occupant;
use crate::driver::admission::session_permit::SessionPermit;
use crate::driver::connection::ConnectionTask;
use crate::driver::connection::negotiate::PendingNegotiation;
use crate::driver::peer::Peer;
use crate::driver::router::Router;
use crate::driver::state::{Config, ConnectionInner, EventHook};
use crate::driver::timeouts::{Setting, Timeouts};
use crate::error::{ApiMisuse, ConnectionError};
use crate::machine::{Event, Limits, Session, SessionConfig};
use crate::registry::{Registry, SessionId};
use crate::sync::Handle;
use crate::transport::{Inbound, Link, Transport};

/// Whether this side declares that it handles cancels, where a dialect asks for that (ACP's draft).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Declaration {
    /// It does.
    #[default]
    Declared,
    /// It does not; cancels of the peer are then ignored.
    Withheld,
}

/// A connection before it is open.
#[derive(Clone)]
#[must_use = "a connection opens when `connect` or `attach` is awaited"]
pub struct PeerBuilder {
    dialects: Vec<Dialect>,
    router: Option<Arc<Router>>,
    limits: Limits,
    role: Option<Role>,
    declare: Declaration,
    timeouts: Timeouts,
    registry: Registry,
    session: Option<SessionId>,
    on_event: Option<EventHook>,
    admission: Option<Arc<Admission>>,
}

impl Peer {
    /// Begins a connection in this dialect.
    pub fn builder(dialect: Dialect) -> PeerBuilder {
        PeerBuilder::new(dialect)
    }
}

impl PeerBuilder {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self::of([dialect])
    }

    pub(crate) fn of(dialects: impl IntoIterator<Item = Dialect>) -> Self {
        Self {
            dialects: dialects.into_iter().collect(),
            router: None,
            limits: Limits::default(),
            role: None,
            declare: Declaration::Declared,
            timeouts: Timeouts { call: Setting::Default, max: Setting::Default },
            registry: Registry::new(),
            session: None,
            on_event: None,
            admission: None,
        }
    }

    /// Serves the peer's requests and handles its notifications.
    pub fn serve(mut self, router: impl Into<Arc<Router>>) -> Self {
        self.router = Some(router.into());
        self
    }

    /// The bounds of the connection.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Which side this is in its dialect's handshake. Default: `Server` if a router is set, else `Client`.
    pub const fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }

    /// Whether this side declares that it handles cancels. It does by default.
    pub const fn declare_cancellation(mut self, declare: Declaration) -> Self {
        self.declare = declare;
        self
    }

    /// The timeout of calls that set none by [`CallBuilder::timeout`](crate::CallBuilder::timeout); `None` for no timeout. A call that
    /// times out is cancelled with the cause `Deadline`: the peer is sent a cancel, except for the handshake. Default: 60 s for
    /// clients of MCP, but for `subscriptions/listen`; none for servers and in other dialects.
    ///
    /// MCP, "Timeouts": implementations should establish timeouts for all sent requests.
    pub fn call_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeouts.call = Setting::of(timeout.into());
        self
    }

    /// The most time a call has whose timeout begins anew with progress; `None` for no bound. A longer timeout of the call itself is
    /// kept. Default: 10 minutes for clients of MCP; none for servers and in other dialects.
    pub fn max_call_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeouts.max = Setting::of(timeout.into());
        self
    }

    /// Shares a registry of cancelled requests with other connections.
    pub fn registry(mut self, registry: &Registry) -> Self {
        self.registry = registry.clone();
        self
    }

    /// Names the session in the registry. Unless it is named it has a name of its own in this process.
    pub fn session(mut self, session: impl Into<SessionId>) -> Self {
        self.session = Some(session.into());
        self
    }

    /// Offers these dialects: the first listed that recognises the peer's first message is spoken. With several, the
    /// connection is open only once that message has come.
    pub fn dialects(mut self, dialects: impl IntoIterator<Item = Dialect>) -> Self {
        self.dialects = dialects.into_iter().collect();
        self
    }

    /// Is called for each of the connection's events, after the step that had it, on the task or thread it happened on.
    /// It must not block. It lives as long as its connection: one that holds a [`Peer`] of that same connection keeps both for
    /// ever.
    pub fn on_event(mut self, hook: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(hook));
        self
    }

    /// The clients among which this connection counts, for a program that accepts connections without a [`Server`](crate::Server) and bounds
    /// the bytes that all of them hold. Give the same to the listener
    /// ([`Listener::share_among`](crate::Listener::share_among)). Where the connection is many clients' (stateless HTTP) each has its share
    /// of [`Limits::running`], [`blocking`](Limits::blocking) and [`queued`](Limits::queued). The limits over several connections, such as those
    /// of sessions and draining handlers, are a `Server`'s alone.
    pub fn clients(mut self, clients: &Clients) -> Self {
        self.admission = Some(Arc::new(Admission::among(clients.clone())));
        self
    }

    pub(crate) fn admission(mut self, admission: &Arc<Admission>) -> Self {
        self.admission = Some(Arc::clone(admission));
        self
    }

    /// Opens the wire and the connection on it. A stream of bytes that was not told its framing takes the dialect's.
    ///
    /// # Errors
    /// [`ConnectionError::Transport`] if the wire cannot be opened, else as for [`attach`](Self::attach), or, where
    /// several dialects are offered, for [`negotiate`](Self::negotiate).
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempt up; nothing stays open.
    pub async fn connect(self, transport: impl Transport) -> Result<Peer, ConnectionError> {
        let link = Box::new(transport).open().await?;
        self.negotiate(link).await
    }

    /// Opens the connection on a wire that is open, in the one dialect offered. It is driven by a task of its own.
    ///
    /// # Errors
    /// [`ConnectionError::Misuse`] outside a runtime, without a dialect, or with several.
    pub fn attach(self, link: Link) -> Result<Peer, ConnectionError> {
        match self.dialects.as_slice() {
            [] => Err(ApiMisuse::NoDialect.into()),
            [dialect] => {
                let dialect = dialect.clone();
                self.open(dialect, link, VecDeque::new(), None)
            }
            _ => Err(ApiMisuse::SeveralDialects.into()),
        }
    }

    /// The same where several dialects may be offered: waits for the peer's first message and speaks the first listed
    /// that recognises it.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach) but for several dialects; [`ConnectionError::Protocol`] if the peer speaks none
    /// of them, and [`ConnectionError::Transport`] if the wire ends before that is known.
    ///
    /// # Cancel safety
    /// Dropping the future drops the wire.
    pub async fn negotiate(self, link: Link) -> Result<Peer, ConnectionError> {
        self.negotiate_at(link, None).await
    }

    pub(crate) async fn negotiate_at(
        self,
        mut link: Link,
        place: Option<SessionPermit>,
    ) -> Result<Peer, ConnectionError> {
        let mut pending = VecDeque::new();
        let dialect = match self.dialects.as_slice() {
            [] => return Err(ApiMisuse::NoDialect.into()),
            [dialect] => dialect.clone(),
            offered => {
                let mut framings = offered.iter().map(|dialect| dialect.rules().framing);
                // Where they differ, the peer's first byte tells.
                if let Some(framing) = framings.next().filter(|first| framings.all(|next| next == *first)) {
                    link.default_framing(framing);
                }
                let mut negotiation = PendingNegotiation::new(offered);
                let (dialect, first) = poll_fn(|cx| negotiation.poll(&mut link, cx)).await?;
                pending.push_back(first);
                dialect
            }
        };
        self.open(dialect, link, pending, place)
    }

    fn open(
        self,
        dialect: Dialect,
        link: Link,
        pending: VecDeque<Inbound>,
        place: Option<SessionPermit>,
    ) -> Result<Peer, ConnectionError> {
        let runtime = Handle::try_current().map_err(|_| ApiMisuse::NoRuntime)?;
        link.default_framing(dialect.rules().framing);
        let serves = self.router.as_ref().is_some_and(|router| !router.serves_nothing());
        let role = self.role.unwrap_or(if serves { Role::Server } else { Role::Client });
        let handles_cancels = self.declare == Declaration::Declared;
        let mut config = SessionConfig::new(dialect.clone(), role);
        let limits = self.limits;
        let admission = self.admission.unwrap_or_else(|| Arc::new(Admission::unbounded()));
        config.client_limits = admission.limits_of_one(&limits).filter(|_| link.traits.exchange_scoped);
        config.limits = limits.clone();
        config.ordered = link.traits.ordered;
        config.exchange_scoped = link.traits.exchange_scoped;
        config.handles_cancels = handles_cancels;
        let client = match &place {
            Some(place) => Arc::clone(place.client()),
            None => admission.clients.client(link.meta.principal.as_ref(), link.meta.address),
        };
        // A link that is all clients of its listener has no bound of its own: each of them has one.
        let memory = if link.traits.exchange_scoped { usize::MAX } else { limits.memory.max(limits.frame) };
        link.budget.set_limit(memory);
        link.budget.set_parent(client.budget());
        let parts = Config {
            dialect,
            role,
            registry: self.registry,
            session_id: self.session.unwrap_or_else(next_session),
            admission,
            client,
            runtime: runtime.clone(),
            traits: link.traits,
            meta: link.meta.clone(),
            budget: link.budget.clone(),
            handles_cancels,
            timeouts: self.timeouts,
            serves,
            on_event: self.on_event,
        };
        let shared = Arc::new(ConnectionInner::new(parts, Session::new(config)));
        if let Some(place) = &place {
            place.opened(&shared);
        }
        let peer = Peer::new(&shared);
        let router = self.router.unwrap_or_default();
        runtime.spawn(ConnectionTask::new(shared, router, link, pending, place));
        Ok(peer)
    }
}

impl Occupant for ConnectionInner {
    fn is_busy(&self) -> bool {
        self.lock().session.has_requests_or_calls()
    }

    fn leave(self: Arc<Self>) {
        self.step(|state, now, _| state.session.local_idle(now));
    }
}

impl fmt::Debug for PeerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerBuilder")
            .field("dialects", &self.dialects)
            .field("router", &self.router)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

fn next_session() -> SessionId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    SessionId::from(format!("session-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}
