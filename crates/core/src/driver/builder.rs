//! The options of a connection, and how it opens.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::clients::Clients;
use crate::dialect::{Dialect, Role};
use crate::driver::admission::connection_slots::OpenConnection;
use crate::driver::admission::{Admission, SessionPermit};
use crate::driver::call_table::{Setting, Timeouts};
use crate::driver::connection::{ConnectionTask, PendingNegotiation};
use crate::driver::peer::Peer;
use crate::driver::request_log::RequestLog;
use crate::driver::requests::{ClusterKeys, TracePropagator};
use crate::driver::router::Router;
use crate::driver::state::{Config, ConnectionInner, DeviationHook, EventHook, FailureHook};
use crate::error::{ApiMisuse, ConnectionError};
use crate::machine::{Event, Limits, Session, SessionConfig};
use crate::message::DeviationReport;
use crate::registry::{Registry, SessionId};
use crate::sync::Handle;
use crate::transport::{Inbound, Link, Transport, TransportError};

/// Whether this side declares that it handles cancels, in dialects with such a declaration (ACP's draft).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Declaration {
    /// It declares it.
    #[default]
    Declared,
    /// It does not declare it. Cancels of the peer are ignored.
    Withheld,
}

/// A connection before it is open.
///
/// ```
/// use std::time::Duration;
///
/// use rescind_core::{Limits, Peer, dialect, memory_pair};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (link, _other_end) = memory_pair();
/// let limits = Limits::default().max_calls(64).cancel_response_timeout(Duration::from_secs(1));
/// let peer = Peer::builder(dialect::LSP).limits(limits).attach(link)?;
/// # drop(peer);
/// # Ok(())
/// # }
/// ```
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
    on_call_failure: Option<FailureHook>,
    on_deviation: Option<DeviationHook>,
    admission: Option<Arc<Admission>>,
    request_log: Option<RequestLog>,
    propagator: Option<Arc<dyn TracePropagator>>,
    cluster_keys: Option<Arc<dyn ClusterKeys>>,
}

impl Peer {
    /// A builder of a connection in this dialect, or in one of several: the first listed dialect that recognises the
    /// peer's first message is used, and the connection opens only when that message has arrived.
    pub fn builder(dialects: impl IntoIterator<Item = Dialect>) -> PeerBuilder {
        PeerBuilder::new(dialects)
    }
}

impl PeerBuilder {
    pub(crate) fn new(dialects: impl IntoIterator<Item = Dialect>) -> Self {
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
            on_call_failure: None,
            on_deviation: None,
            admission: None,
            request_log: None,
            propagator: None,
            cluster_keys: None,
        }
    }

    /// Serves the peer's requests and handles its notifications.
    pub fn serve(mut self, router: impl Into<Arc<Router>>) -> Self {
        self.router = Some(router.into());
        self
    }

    /// The limits of the connection.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The role of this side in the dialect's handshake. Default: `Server` if a router is set, else `Client`.
    pub const fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }

    /// Whether this side declares that it handles cancels. Default: it does.
    pub const fn declare_cancellation(mut self, declare: Declaration) -> Self {
        self.declare = declare;
        self
    }

    /// The timeout of calls without a [`CallBuilder::timeout`](crate::CallBuilder::timeout) of their own. `None`
    /// disables it. A call that times out is cancelled with the cause `Deadline`, and a cancel is sent to the peer,
    /// except for the handshake. Default: 60 s for clients of MCP, except for `subscriptions/listen`; no timeout for
    /// servers and in other dialects.
    ///
    /// MCP, "Timeouts": implementations should establish timeouts for all sent requests.
    pub fn call_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeouts.call = Setting::of(timeout.into());
        self
    }

    /// The longest time of a call whose timeout restarts with progress. `None` disables it. A longer timeout of the
    /// call itself is kept. Default: 10 minutes for clients of MCP; no maximum for servers and in other dialects.
    pub fn max_call_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeouts.max = Setting::of(timeout.into());
        self
    }

    /// Shares a registry of cancelled requests with other connections.
    pub fn registry(mut self, registry: &Registry) -> Self {
        self.registry = registry.clone();
        self
    }

    /// The name of the session in the registry. Default: a name that is unique in this process.
    pub fn session(mut self, session: impl Into<SessionId>) -> Self {
        self.session = Some(session.into());
        self
    }

    /// Calls this function for each event of the connection, on the task or thread where the event happened. It must
    /// not block. The function lives as long as its connection: if it holds a [`Peer`] of the same connection, neither
    /// is ever dropped.
    pub fn on_event(mut self, hook: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(hook));
        self
    }

    /// Calls this function when the transport could not carry one call, and the connection goes on (clients over HTTP).
    /// The call itself ends as [`Outcome::Disconnected`](crate::Outcome::Disconnected) afterwards, without the reason.
    /// It must not block.
    pub fn on_call_failure(mut self, hook: impl Fn(&TransportError) + Send + Sync + 'static) -> Self {
        self.on_call_failure = Some(Arc::new(hook));
        self
    }

    /// Calls this function each time that the peer does something against its protocol and the connection goes on. The log
    /// has a warning about the first of a kind, and then one a minute at most. It must not block.
    pub fn on_deviation(mut self, hook: impl Fn(&DeviationReport<'_>) + Send + Sync + 'static) -> Self {
        self.on_deviation = Some(Arc::new(hook));
        self
    }

    /// Reads the trace context of each request, and joins the spans of the connection with the traces of other programs.
    /// Without it, contexts are neither read nor sent.
    pub fn trace_propagator(mut self, propagator: impl TracePropagator + 'static) -> Self {
        self.propagator = Some(Arc::new(propagator));
        self
    }

    /// Makes the keys that [`CallContext::cluster_key`](crate::CallContext::cluster_key) returns.
    pub fn cluster_keys(mut self, keys: Arc<dyn ClusterKeys>) -> Self {
        self.cluster_keys = Some(keys);
        self
    }

    /// Records the connection in this log, from its first message.
    pub fn request_log(mut self, log: &RequestLog) -> Self {
        self.request_log = Some(log.clone());
        self
    }

    /// The clients with which this connection is counted. Use it in a program that accepts connections without a
    /// [`Server`](crate::Server) and limits the bytes of all of them. Pass the same clients to the listener
    /// ([`Listener::share_among`](crate::Listener::share_among)). If the connection carries several clients (stateless
    /// HTTP), each gets its share of [`Limits::max_running_handlers`],
    /// [`max_blocking_handlers`](Limits::max_blocking_handlers) and
    /// [`max_queued_requests`](Limits::max_queued_requests). Limits over several connections, such as those of sessions
    /// and draining handlers, need a `Server`.
    pub fn clients(mut self, clients: &Clients) -> Self {
        self.admission = Some(Arc::new(Admission::among(clients.clone())));
        self
    }

    pub(crate) fn admission(mut self, admission: &Arc<Admission>) -> Self {
        self.admission = Some(Arc::clone(admission));
        self
    }

    /// Opens the transport and the connection on it. A byte stream without a framing of its own uses the dialect's
    /// framing. An open [`Link`] is a transport, too.
    ///
    /// # Errors
    /// [`ConnectionError::Transport`] if the transport cannot be opened, or ends before the peer's first message;
    /// [`ConnectionError::Misuse`] outside a runtime or without a dialect; [`ConnectionError::Protocol`] if several
    /// dialects are offered and none recognises the peer's first message.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt; nothing stays open.
    pub async fn connect(self, transport: impl Transport) -> Result<Peer, ConnectionError> {
        let link = Box::new(transport).open().await?;
        self.connect_at(link, None).await
    }

    /// Opens the connection on an open link at once, in the one dialect that is offered. A task of its own drives it.
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

    pub(crate) async fn connect_at(
        self,
        mut link: Link,
        permit: Option<SessionPermit>,
    ) -> Result<Peer, ConnectionError> {
        let mut pending = VecDeque::new();
        let dialect = match self.dialects.as_slice() {
            [] => return Err(ApiMisuse::NoDialect.into()),
            [dialect] => dialect.clone(),
            offered => {
                let mut framings = offered.iter().map(|dialect| dialect.rules().framing);
                // If their framings differ, the peer's first byte decides.
                if let Some(framing) = framings.next().filter(|first| framings.all(|next| next == *first)) {
                    link.default_framing(framing);
                }
                let mut negotiation = PendingNegotiation::new(offered);
                let (dialect, first) = poll_fn(|cx| negotiation.poll(&mut link, cx)).await?;
                pending.push_back(first);
                dialect
            }
        };
        self.open(dialect, link, pending, permit)
    }

    fn open(
        self,
        dialect: Dialect,
        link: Link,
        pending: VecDeque<Inbound>,
        permit: Option<SessionPermit>,
    ) -> Result<Peer, ConnectionError> {
        let runtime = Handle::try_current().map_err(|_| ApiMisuse::NoRuntime)?;
        link.default_framing(dialect.rules().framing);
        let serves = self.router.as_ref().is_some_and(|router| !router.serves_nothing());
        let role = self.role.unwrap_or(if serves { Role::Server } else { Role::Client });
        let handles_cancels = self.declare == Declaration::Declared;
        // The clients that share a link do not wait for each other's notifications.
        let in_order = !link.traits.exchange_scoped
            && (dialect.rules().in_order || self.router.as_ref().is_some_and(|router| router.is_in_order()));
        let mut config = SessionConfig::new(dialect.clone(), role);
        let limits = self.limits;
        let admission = self.admission.unwrap_or_else(|| Arc::new(Admission::unbounded()));
        config.client_limits = admission.limits_of_one(&limits).filter(|_| link.traits.exchange_scoped);
        config.limits = limits.clone();
        config.ordered = link.traits.ordered;
        config.exchange_scoped = link.traits.exchange_scoped;
        config.handles_cancels = handles_cancels;
        let client = match &permit {
            Some(permit) => Arc::clone(permit.client()),
            None => admission.clients.client(link.meta.principal.as_ref(), link.meta.address),
        };
        // A link that carries all clients of its listener has no limit of its own: each client has one.
        let memory = if link.traits.exchange_scoped {
            usize::MAX
        } else {
            limits.max_memory_bytes.max(limits.max_frame_bytes)
        };
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
            framing: link.framing(),
            budget: link.budget.clone(),
            use_mark: link.use_mark.clone().map(OnceLock::from).unwrap_or_default(),
            handles_cancels,
            in_order,
            timeouts: self.timeouts,
            serves,
            tasks: self.router.as_ref().and_then(|router| router.kept_tasks().cloned()),
            on_event: self.on_event,
            on_call_failure: self.on_call_failure,
            on_deviation: self.on_deviation,
            propagator: self.propagator,
            cluster_keys: self.cluster_keys,
        };
        let connection = Arc::new(ConnectionInner::new(parts, Session::new(config)));
        if let Some(permit) = &permit {
            permit.opened(&connection);
        }
        // The server's log is read after the slot has the connection: whoever adds the log sees the slot, or it is seen
        // here.
        let server_log = connection.admission.request_log();
        for log in self.request_log.iter().chain(&server_log) {
            connection.record_into(log);
        }
        let peer = Peer::new(&connection);
        let router = self.router.unwrap_or_default();
        if router.reads_ahead().is_some() {
            connection.lock().notices.outlast = true;
        }
        runtime.spawn(ConnectionTask::new(connection, router, link, pending, permit));
        Ok(peer)
    }
}

impl OpenConnection for ConnectionInner {
    fn is_busy(&self) -> bool {
        self.lock().session.has_requests_or_calls()
    }

    fn shut_down_idle(self: Arc<Self>) {
        self.step(|state, now, _| state.session.local_idle(now));
    }

    fn shut_down(self: Arc<Self>, drain: Duration) {
        self.step(|state, now, _| state.session.local_shutdown(now, drain));
    }

    fn record_in(self: Arc<Self>, log: &RequestLog) {
        self.record_into(log);
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
