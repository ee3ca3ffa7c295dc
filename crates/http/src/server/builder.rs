//! The settings of a server, and how it is bound or mounted.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::header::InvalidHeaderName;
use rescind_core::{Client, Clients, Endpoint, Principal, TransportError, TransportErrorKind};
use rescind_net::{
    AuthHook, AuthRefusal, AuthRequest, Credential, HostPolicy, InvalidAllowEntry, OriginPolicy,
};
use tokio::net::TcpListener;

use crate::server::checks::{Credentials, PageSettings};
use crate::server::connection::{Serving, Source};
use crate::server::listener::{HttpCounts, ShutdownSignal, shutdown_pair};
use crate::server::replay_buffer::Retention;
use crate::server::service::Beside;
use crate::server::sessions::{SessionRouter, random_id};
use crate::server::{AcceptQueue, HttpListener, HttpService, Responder, ServerBinding};

type MakeResponder = dyn FnOnce(&Arc<Settings>, AcceptQueue) -> Arc<dyn Responder> + Send + Sync;

/// Makes the binding that a server has beside its own.
struct MakeBeside {
    paths: [String; 2],
    responder: Box<MakeResponder>,
}

impl fmt::Debug for MakeBeside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MakeBeside").field(&self.paths).finish()
    }
}

/// A server of one binding, before it serves. [`bind`](Self::bind) listens on an address; [`mount`](Self::mount) makes
/// a service for an existing HTTP server.
///
/// By default only requests for loopback hosts are served. [`bind`](Self::bind) on an address that is not loopback also
/// accepts IP addresses as host. Only pages of loopback origins and of the host itself may call the server. Other hosts
/// and origins must be allowed.
///
/// ```
/// use rescind_core::Listener;
/// use rescind_http::{HttpServer, Streamable};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = HttpServer::new(Streamable::new()).path("/mcp").allow_origin("https://app.example")?;
/// let listener = server.bind("127.0.0.1:0").await?;
/// println!("listening on {}", listener.endpoint());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a server serves once it is bound or mounted"]
pub struct HttpServer<B> {
    binding: B,
    beside: Option<MakeBeside>,
    settings: Settings,
    path: String,
    #[cfg(feature = "rustls")]
    tls: Option<crate::ServerTls>,
}

impl<B: ServerBinding> HttpServer<B> {
    /// A server with this binding.
    pub fn new(binding: B) -> Self {
        Self {
            binding,
            beside: None,
            settings: Settings::default(),
            path: "/".to_owned(),
            #[cfg(feature = "rustls")]
            tls: None,
        }
    }

    /// Changes the binding.
    pub(crate) fn map_binding(self, change: impl FnOnce(B) -> B) -> Self {
        Self { binding: change(self.binding), ..self }
    }

    /// The path that [`bind`](Self::bind) serves, with or without a slash at its end. Other paths get 404. Default: `/`, which serves every path.
    pub fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// Also serves another binding, which answers requests for these paths.
    pub(crate) fn beside(
        mut self,
        paths: [String; 2],
        responder: impl FnOnce(&Arc<Settings>, AcceptQueue) -> Arc<dyn Responder> + Send + Sync + 'static,
    ) -> Self {
        self.beside = Some(MakeBeside { paths, responder: Box::new(responder) });
        self
    }

    /// Allows this host name, on any port, or `name:port`. Hosts that are not allowed get 421.
    ///
    /// # Errors
    /// It is neither of the two, such as a URL.
    pub fn allow_host(mut self, host: &str) -> Result<Self, InvalidAllowEntry> {
        self.settings.hosts.allow(host)?;
        Ok(self)
    }

    /// Sets what the refusal of a host says besides the reason, for the operator of this server, such as
    /// `allow it with --allow-host NAME`. Default: nothing.
    pub fn host_advice(mut self, advice: &str) -> Self {
        self.settings.hosts.set_advice(advice);
        self
    }

    /// Allows every host. Use it only behind a proxy that checks the host.
    pub fn allow_any_host(mut self) -> Self {
        self.settings.hosts.allow_any();
        self
    }

    /// Allows pages of this origin, such as `https://app.example`. Pages of other origins get 403.
    ///
    /// An allowed page can call this server from a browser and read its answers (CORS): a preflight is answered with
    /// the methods and headers of the binding, and every answer names the origin and exposes the headers of sessions.
    /// Pages of loopback origins are allowed by default.
    ///
    /// # Errors
    /// It is not an origin: it has a path or a trailing slash, it has no scheme, or it is `null`.
    pub fn allow_origin(mut self, origin: &str) -> Result<Self, InvalidAllowEntry> {
        self.settings.origins.allow(origin)?;
        Ok(self)
    }

    /// Allows pages to send this request header, for example one that the [auth hook](Self::auth) reads.
    /// `Authorization` and the headers of the binding are allowed by default.
    ///
    /// # Errors
    /// The name is not a valid header name.
    pub fn allow_header(mut self, name: &str) -> Result<Self, TransportError> {
        let name = name
            .parse()
            .map_err(|error: InvalidHeaderName| TransportError::new(TransportErrorKind::Open, error))?;
        self.settings.pages.headers.push(name);
        Ok(self)
    }

    /// Allows pages of allowed origins to send cookies and other credentials that the browser keeps for this server.
    /// Default: not allowed; a page can still set `Authorization` itself. It has no effect after
    /// [`allow_any_origin`](Self::allow_any_origin).
    ///
    /// Every loopback origin is an allowed origin.
    pub const fn allow_credentials(mut self) -> Self {
        self.settings.pages.credentials = Credentials::Allowed;
        self
    }

    /// Allows pages of every origin.
    pub fn allow_any_origin(mut self) -> Self {
        self.settings.origins.allow_any();
        self
    }

    /// Sets a hook that authenticates each request. A session belongs to the principal that opened it, and is unknown
    /// to every other principal. If the hook refuses, its refusal is the response. When the credential of a request
    /// expires, its event stream is cut as if the client had lost it, and a request without a response gets 401. The
    /// hook is called for each later request.
    ///
    /// If the hook does not answer within [`header_timeout`](Self::header_timeout), the request gets 503. If it panics,
    /// the request gets 500. It must not block.
    pub fn auth<F, A>(mut self, hook: F) -> Self
    where
        F: Fn(AuthRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Credential, AuthRefusal>> + Send + 'static,
    {
        self.settings.auth = Some(AuthHook::new(hook));
        self
    }

    /// Sets the router of sessions, for servers that share their sessions among several processes. Default: none; every
    /// session is served by the process that opened it.
    pub fn session_router(mut self, router: Arc<dyn SessionRouter>) -> Self {
        self.settings.session_router = Some(router);
        self
    }

    /// The largest message in both directions, in bytes. Default: 16 MiB. A larger body gets 413.
    pub const fn max_frame(mut self, bytes: usize) -> Self {
        self.settings.max_frame = bytes;
        self
    }

    /// The time in which the head of a request must arrive, and in which a new connection must send its first request.
    /// Default: 10 s.
    pub const fn header_timeout(mut self, timeout: Duration) -> Self {
        self.settings.header_timeout = timeout;
        self
    }

    /// The time in which the body of a request must arrive. Default: 30 s. A slower body gets 408.
    pub const fn body_timeout(mut self, timeout: Duration) -> Self {
        self.settings.body_timeout = timeout;
        self
    }

    /// The longest time without a request, after which a TCP connection is closed. Default: 120 s. An HTTP/1.1
    /// connection is closed after [`header_timeout`](Self::header_timeout) if that is shorter: hyper starts to wait for
    /// the next head when a request ends.
    pub const fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.settings.idle_timeout = timeout;
        self
    }

    /// The meaning of an HTTP/1.1 client that closes its half of the connection before the response. Default: the
    /// client has disconnected. It applies to [`bind`](Self::bind).
    pub const fn half_close(mut self, meaning: HalfClose) -> Self {
        self.settings.half_close = meaning;
        self
    }

    /// The interval of comments on an event stream without events. They show both sides a dead connection. Default: 15
    /// s.
    pub const fn keep_alive(mut self, interval: Duration) -> Self {
        self.settings.keep_alive = interval;
        self
    }

    /// The most TCP connections at once. Default: 10,000. Further connections wait to be accepted, and the oldest
    /// connection without a request is closed to make room. One address may use the share that
    /// [`ServerLimits`](rescind_core::ServerLimits) sets. Above its share the oldest of its own connections without a
    /// request is closed, or, if it has none, the new connection.
    pub const fn connections(mut self, most: usize) -> Self {
        self.settings.connections = most;
        self
    }

    /// The most sessions at once. Default: 1024. One client may use the share that
    /// [`ServerLimits`](rescind_core::ServerLimits) sets. At the limit the oldest session without a request, except the
    /// one that opened it, ends to make room. If there is none, the new session gets 429.
    pub const fn sessions(mut self, most: usize) -> Self {
        self.settings.sessions = most;
        self
    }

    /// The longest time for which an unused session is kept. Default: 30 min. A session is in use while its own event
    /// stream is read, while a client waits for one of its requests, and until its [`UseMark`](rescind_core::UseMark).
    pub const fn session_idle(mut self, timeout: Duration) -> Self {
        self.settings.session_idle = timeout;
        self
    }

    /// How much is held for an event stream that no client reads. Default: 1024 messages and 1 MiB. Above it the oldest
    /// notifications are dropped, and requests of this side fail.
    pub const fn unread_limit(mut self, messages: usize, bytes: usize) -> Self {
        self.settings.unread_limit = (messages, bytes);
        self
    }

    /// How long a message of this side that belongs to no running request waits for a stream that can carry it: the own
    /// stream of its session, or that of the newest running request. Default: 30 s. After it a request fails without
    /// having been sent, and a notification is dropped, unless the client has had the own stream of its session before
    /// and may resume it. Only the binding [`Streamable`](crate::Streamable) uses it.
    pub const fn stream_wait(mut self, wait: Duration) -> Self {
        self.settings.stream_wait = wait;
        self
    }

    /// The longest time for which the reader of an event stream may take nothing while events wait. After it the stream
    /// is cut. Default: 30 s. A connection of [`bind`](Self::bind) on which nothing can be written for this time is
    /// closed.
    pub const fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.settings.stall_timeout = timeout;
        self
    }

    /// How much of each event stream is kept for a client that resumes it. Default: 256 events and 64 KiB. The newest
    /// event is kept whatever its size. In the binding [`Acp`](crate::Acp) all streams of a connection keep at most 8 MiB
    /// together, newest events included, and at most a quarter of its
    /// [`max_memory_bytes`](rescind_core::Limits::max_memory_bytes). With 0 events nothing is kept.
    pub const fn resume_buffer(mut self, events: usize, bytes: usize) -> Self {
        self.settings.kept = Retention { events, bytes };
        self
    }

    /// Serves `https` with this certificate, and requests client certificates if [`ServerTls`](crate::ServerTls) is set
    /// to do so. The auth hook receives them ([`AuthRequest::certificates`]). [`mount`](Self::mount) does not use it.
    /// Default: `http`.
    #[cfg(feature = "rustls")]
    pub fn tls(mut self, tls: crate::ServerTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// A service to be mounted in an existing HTTP server, and the listener that yields its connections.
    #[must_use]
    pub fn mount(self) -> (HttpService, HttpListener) {
        let (service, listener, _) = self.build(Endpoint("http (mounted)".to_owned()));
        (service, listener)
    }

    /// Listens on this address, such as `127.0.0.1:0`, and serves HTTP/1.1 and HTTP/2. On an address that is not
    /// loopback any IP address is accepted as `Host`; names must be allowed explicitly (DNS rebinding).
    ///
    /// # Errors
    /// The address cannot be bound.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt; nothing stays open.
    pub async fn bind(mut self, address: &str) -> Result<HttpListener, TransportError> {
        let socket = TcpListener::bind(address)
            .await
            .map_err(|error| TransportError::new(TransportErrorKind::Open, error))?;
        let local = socket.local_addr()?;
        self.settings.hosts.bound_to(local.ip());
        let scheme = self.scheme();
        let endpoint = Endpoint(format!("{scheme}://{local}{}", self.path));
        let serving = Serving {
            source: Source::Socket(socket),
            path: std::mem::take(&mut self.path),
            #[cfg(feature = "rustls")]
            tls: self.tls.take(),
        };
        let (service, mut listener, open) = self.build(endpoint);
        listener.serve_by(serving.run(service, open));
        Ok(listener)
    }

    /// Serves these streams as if they were sockets.
    #[cfg(feature = "verify")]
    pub fn serve_given(
        mut self,
        streams: tokio::sync::mpsc::UnboundedReceiver<Box<dyn crate::GivenStream>>,
    ) -> HttpListener {
        let serving = Serving {
            source: Source::Given(streams),
            path: std::mem::take(&mut self.path),
            #[cfg(feature = "rustls")]
            tls: self.tls.take(),
        };
        let (service, mut listener, open) = self.build(Endpoint("http (given)".to_owned()));
        listener.serve_by(serving.run(service, open));
        listener
    }

    #[cfg(feature = "rustls")]
    const fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    #[cfg(not(feature = "rustls"))]
    #[expect(clippy::unused_self, reason = "it decides where TLS is built in")]
    const fn scheme(&self) -> &'static str {
        "http"
    }

    fn build(self, endpoint: Endpoint) -> (HttpService, HttpListener, ShutdownSignal) {
        let settings = Arc::new(self.settings);
        let (accept_queue, links) = AcceptQueue::new();
        let beside = self.beside.map(|MakeBeside { paths, responder }| {
            Arc::new(Beside { paths, responder: responder(&settings, accept_queue.clone()) })
        });
        let responder = self.binding.responder(&settings, accept_queue);
        let mut responders = vec![Arc::clone(&responder)];
        responders.extend(beside.as_ref().map(|beside| Arc::clone(&beside.responder)));
        let (opener, open) = shutdown_pair();
        let watched = (settings.counts.clone(), settings.clients.clone());
        let service = HttpService::new(responder, beside, settings);
        (service, HttpListener::new(links, endpoint, responders, watched, opener), open)
    }
}

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
    /// with the second [keep-alive comment](crate::server::HttpServer::keep_alive) of the stream, and for a request without a
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
