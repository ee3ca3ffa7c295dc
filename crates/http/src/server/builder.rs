use std::sync::Arc;
use std::time::Duration;

use http::header::InvalidHeaderName;
use rescind_core::{
    AuthHook, AuthRefusal, AuthRequest, Credential, Endpoint, NotAllowable, TransportError,
    TransportErrorKind,
};
use tokio::net::TcpListener;

use super::connection::Serving;
use super::cors::Credentials;
use super::replay_buffer::Retention;
use super::settings::HalfClose;
use super::shutdown::{ShutdownSignal, shutdown_pair};
use super::{AcceptQueue, HttpListener, HttpService, ServerBinding, Settings};
use crate::test_io::Source;

/// A server of one binding, before it serves: by itself with [`bind`](Self::bind), or mounted in a server of yours with
/// [`mount`](Self::mount).
///
/// Only loopback names are served (with [`bind`](Self::bind) to more than loopback also addresses) and only pages of
/// loopback origins and of the host itself, until others are allowed.
#[derive(Debug)]
#[must_use = "a server serves once it is bound or mounted"]
pub struct HttpServer<B> {
    binding: B,
    settings: Settings,
    path: String,
    #[cfg(feature = "rustls")]
    tls: Option<crate::tls::Acceptor>,
}

impl<B: ServerBinding> HttpServer<B> {
    /// A server of this binding.
    pub fn new(binding: B) -> Self {
        Self {
            binding,
            settings: Settings::default(),
            path: "/".to_owned(),
            #[cfg(feature = "rustls")]
            tls: None,
        }
    }

    /// The same server with its binding set up otherwise.
    pub(crate) fn map_binding(self, change: impl FnOnce(B) -> B) -> Self {
        Self { binding: change(self.binding), ..self }
    }

    /// The path served by [`bind`](Self::bind); any other gets 404. Default: `/`, which serves every path.
    pub fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// Serves this host name too, on any port, or `name:port`. Any other host gets 421.
    ///
    /// # Errors
    /// It is neither, such as a URL.
    pub fn allow_host(mut self, host: &str) -> Result<Self, NotAllowable> {
        self.settings.hosts.allow(host)?;
        Ok(self)
    }

    /// Serves whatever host is asked for. Only behind something that checks it.
    pub fn allow_any_host(mut self) -> Self {
        self.settings.hosts.allow_any();
        self
    }

    /// Serves pages of this origin too, as in `https://app.example`. Pages of any other get 403.
    ///
    /// Browsers let an allowed page call this server and read its answers (CORS): a preflight is answered with the methods and
    /// headers of the binding, and every answer names the origin and exposes the headers of sessions. Pages of loopback
    /// origins are allowed from the beginning.
    ///
    /// # Errors
    /// It is not an origin: it has a path or a trailing slash, it has no scheme, or it is `null`.
    pub fn allow_origin(mut self, origin: &str) -> Result<Self, NotAllowable> {
        self.settings.origins.allow(origin)?;
        Ok(self)
    }

    /// Lets pages send this request header too, such as one that the [auth hook](Self::auth) reads. `Authorization` and the
    /// headers of the binding are allowed already.
    ///
    /// # Errors
    /// The name is not the name of a header.
    pub fn allow_header(mut self, name: &str) -> Result<Self, TransportError> {
        let name = name
            .parse()
            .map_err(|error: InvalidHeaderName| TransportError::new(TransportErrorKind::Open, error))?;
        self.settings.pages.headers.push(name);
        Ok(self)
    }

    /// Lets pages of allowed origins send cookies and other credentials that the browser keeps for this server. Default: not
    /// allowed; a page can still set `Authorization` itself. No effect after [`allow_any_origin`](Self::allow_any_origin).
    ///
    /// Pages of every loopback origin are allowed origins.
    pub const fn allow_credentials(mut self) -> Self {
        self.settings.pages.credentials = Credentials::Allowed;
        self
    }

    /// Serves pages of any origin.
    pub fn allow_any_origin(mut self) -> Self {
        self.settings.origins.allow_any();
        self
    }

    /// Authenticates each request. A session belongs to the principal that opened it; for every other principal it is unknown. A
    /// refusal of the hook is the response. When the credential of a request expires, its event stream is cut as if the client had lost
    /// it, and a request without a response yet gets 401. The hook is called again for each later request.
    ///
    /// A hook that does not answer within [`header_timeout`](Self::header_timeout) is given up: 503. One that panics is 500. It
    /// must not block.
    pub fn auth<F, A>(mut self, hook: F) -> Self
    where
        F: Fn(AuthRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Credential, AuthRefusal>> + Send + 'static,
    {
        self.settings.auth = Some(AuthHook::new(hook));
        self
    }

    /// The largest message either way, in bytes. Default: 16 MiB. A larger body gets 413.
    pub const fn max_frame(mut self, bytes: usize) -> Self {
        self.settings.max_frame = bytes;
        self
    }

    /// The time for a request's head, and for a new connection to send its first. Default: 10 s.
    pub const fn header_timeout(mut self, timeout: Duration) -> Self {
        self.settings.header_timeout = timeout;
        self
    }

    /// The time for a request's body. Default: 30 s. A slower one gets 408.
    pub const fn body_timeout(mut self, timeout: Duration) -> Self {
        self.settings.body_timeout = timeout;
        self
    }

    /// A TCP connection without a request for so long is closed. Default: 120 s. One of HTTP/1.1 is closed after
    /// [`header_timeout`](Self::header_timeout) if that is shorter: hyper begins to wait for a head where the last request ends.
    pub const fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.settings.idle_timeout = timeout;
        self
    }

    /// What it means that a client of HTTP/1.1 closes its half of the connection early. Default: it has left.
    /// Holds with [`bind`](Self::bind).
    pub const fn half_close(mut self, meaning: HalfClose) -> Self {
        self.settings.half_close = meaning;
        self
    }

    /// An event stream gets a comment after so long a silence, which shows either side a dead connection; 15 s unless
    /// said.
    pub const fn keep_alive(mut self, interval: Duration) -> Self {
        self.settings.keep_alive = interval;
        self
    }

    /// The most TCP connections at a time. Default: 10,000. More wait to be accepted, and the oldest on which nothing was asked is closed
    /// for the first of them. One address has the share that [`ServerLimits`](rescind_core::ServerLimits) say; over it its own oldest
    /// is closed on which nothing was asked, else the new one.
    pub const fn connections(mut self, most: usize) -> Self {
        self.settings.connections = most;
        self
    }

    /// The most sessions at a time. Default: 1024. Of one client the share that [`ServerLimits`](rescind_core::ServerLimits) say. For
    /// one more the oldest ends in which nothing was asked but its opening; where there is none it gets 429.
    pub const fn sessions(mut self, most: usize) -> Self {
        self.settings.sessions = most;
        self
    }

    /// A session nobody uses for so long is ended. Default: 5 min.
    pub const fn session_idle(mut self, timeout: Duration) -> Self {
        self.settings.session_idle = timeout;
        self
    }

    /// What is held for an event stream that nobody reads. Default: 1024 messages and 1 MiB. Beyond it the oldest
    /// notifications are given up, and requests of ours fail.
    pub const fn mailbox(mut self, messages: usize, bytes: usize) -> Self {
        self.settings.mailbox = (messages, bytes);
        self
    }

    /// An event stream whose reader takes nothing for so long, though there is something, is cut. Default: 30 s. A
    /// connection of [`bind`](Self::bind) on which nothing can be written for so long is closed.
    pub const fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.settings.stall_timeout = timeout;
        self
    }

    /// What is kept of each event stream for a client that comes back after a cut. Default: 256 events and 64 KiB.
    pub const fn resume_buffer(mut self, events: usize, bytes: usize) -> Self {
        self.settings.kept = Retention { events, bytes };
        self
    }

    /// Serves `https` with this certificate chain and key, both PEM.
    ///
    /// # Errors
    /// They are no PEM, or do not belong together.
    #[cfg(feature = "rustls")]
    pub fn tls(mut self, certificates: &[u8], key: &[u8]) -> Result<Self, TransportError> {
        self.tls = Some(crate::tls::Acceptor::new(certificates, key)?);
        Ok(self)
    }

    /// Asks clients for certificates of these authorities, PEM. The auth hook sees them
    /// ([`AuthRequest::certificates`]).
    ///
    /// # Errors
    /// There is no authority in the text, or [`tls`](Self::tls) was not called before.
    #[cfg(feature = "rustls")]
    pub fn client_certificates(
        mut self,
        authorities: &[u8],
        demand: rescind_core::ClientCertificates,
    ) -> Result<Self, TransportError> {
        let Some(tls) = self.tls.take() else {
            let text = "client certificates need TLS: call tls first";
            return Err(TransportError::new(TransportErrorKind::Open, text));
        };
        self.tls = Some(tls.client_certificates(authorities, demand)?);
        Ok(self)
    }

    /// A service to be mounted beside routes of yours, and the listener its links come out of.
    #[must_use]
    pub fn mount(self) -> (HttpService, HttpListener) {
        let (service, listener, _) = self.build(Endpoint("http (mounted)".to_owned()));
        (service, listener)
    }

    /// Listens on this address, as in `127.0.0.1:0`, and serves HTTP/1.1 and HTTP/2. On an address that is not loopback
    /// any IP address is accepted as `Host`; names must be allowed explicitly (DNS rebinding).
    ///
    /// # Errors
    /// The address cannot be listened on.
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempt up; nothing stays open.
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
        let (service, listener, open) = self.build(endpoint);
        tokio::spawn(serving.run(service, open));
        Ok(listener)
    }

    /// Serves the streams that are given, as those of a socket.
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
        let (service, listener, open) = self.build(Endpoint("http (given)".to_owned()));
        tokio::spawn(serving.run(service, open));
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
        let (door, links) = AcceptQueue::new();
        let responder = self.binding.responder(&settings, door);
        let (opener, open) = shutdown_pair();
        let watched = (settings.counts.clone(), settings.clients.clone());
        let service = HttpService::new(Arc::clone(&responder), settings);
        (service, HttpListener::new(links, endpoint, responder, watched, opener), open)
    }
}
