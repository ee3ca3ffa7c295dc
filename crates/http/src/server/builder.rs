use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use rescind_core::{Endpoint, Principal, TransportError, TransportErrorKind};
use tokio::net::TcpListener;

use super::checks::Names;
use super::connection::Serving;
use super::mailbox::Kept;
use super::open::{Open, open};
use super::settings::HalfClose;
use super::{Door, HttpListener, HttpService, ServerBinding, Settings};
use crate::given::Source;

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

    /// The same server with its binding set up like this.
    pub(crate) fn with_binding(mut self, binding: B) -> Self {
        self.binding = binding;
        self
    }

    /// The path served by [`bind`](Self::bind); any other gets 404. `/` unless said: then every path is served.
    pub fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// Serves this host name too, or `name:port`. Any other host gets 421.
    pub fn allow_host(mut self, host: &str) -> Self {
        self.settings.hosts.names.add(host);
        self
    }

    /// Serves whatever host is asked for. Only behind something that checks it.
    pub fn allow_any_host(mut self) -> Self {
        self.settings.hosts.names = Names::Any;
        self
    }

    /// Serves pages of this origin too, as in `https://app.example`. Pages of any other get 403.
    pub fn allow_origin(mut self, origin: &str) -> Self {
        self.settings.origins.add(origin);
        self
    }

    /// Serves pages of any origin.
    pub fn allow_any_origin(mut self) -> Self {
        self.settings.origins = Names::Any;
        self
    }

    /// Asks who sends each request, by its headers; `None` is answered with 401. A session belongs to who opened it:
    /// to anyone else it is unknown. The hook must not block.
    pub fn auth(mut self, hook: impl Fn(&HeaderMap) -> Option<Principal> + Send + Sync + 'static) -> Self {
        self.settings.auth = Some(Arc::new(hook));
        self
    }

    /// The largest message either way, in bytes; 16 MiB unless said. A larger body gets 413.
    pub const fn max_frame(mut self, bytes: usize) -> Self {
        self.settings.max_frame = bytes;
        self
    }

    /// The time for a request's head, and for a new connection to send its first; 10 s unless said.
    pub const fn header_timeout(mut self, timeout: Duration) -> Self {
        self.settings.header_timeout = timeout;
        self
    }

    /// The time for a request's body; 30 s unless said. A slower one gets 408.
    pub const fn body_timeout(mut self, timeout: Duration) -> Self {
        self.settings.body_timeout = timeout;
        self
    }

    /// A TCP connection without a request for so long is closed; 120 s unless said. One of HTTP/1.1 is closed after
    /// [`header_timeout`](Self::header_timeout) if that is shorter: hyper begins to wait for a head where the last request ends.
    pub const fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.settings.idle_timeout = timeout;
        self
    }

    /// What it means that a client of HTTP/1.1 closes its half of the connection early; that it has left, unless said.
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

    /// The most TCP connections at a time; 10,000 unless said. More wait to be accepted.
    pub const fn connections(mut self, most: usize) -> Self {
        self.settings.connections = most;
        self
    }

    /// The most sessions at a time; 1024 unless said. One more gets 429.
    pub const fn sessions(mut self, most: usize) -> Self {
        self.settings.sessions = most;
        self
    }

    /// A session nobody uses for so long is ended; 5 min unless said.
    pub const fn session_idle(mut self, timeout: Duration) -> Self {
        self.settings.session_idle = timeout;
        self
    }

    /// What is held for an event stream that nobody reads; 1024 messages and 1 MiB unless said. Beyond it the oldest
    /// notifications are given up, and requests of ours fail.
    pub const fn mailbox(mut self, messages: usize, bytes: usize) -> Self {
        self.settings.mailbox = (messages, bytes);
        self
    }

    /// An event stream whose reader takes nothing for so long, though there is something, is cut; 30 s unless said. A
    /// connection of [`bind`](Self::bind) on which nothing can be written for so long is closed.
    pub const fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.settings.stall_timeout = timeout;
        self
    }

    /// What is kept of each event stream for a client that comes back after a cut; 256 events and 64 KiB unless said.
    pub const fn resume_buffer(mut self, events: usize, bytes: usize) -> Self {
        self.settings.kept = Kept { events, bytes };
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

    /// A service to be mounted beside routes of yours, and the listener its links come out of.
    #[must_use]
    pub fn mount(self) -> (HttpService, HttpListener) {
        let (service, listener, _) = self.build(Endpoint("http (mounted)".to_owned()));
        (service, listener)
    }

    /// Listens on this address, as in `127.0.0.1:0`, and serves HTTP/1.1 and HTTP/2. On an address that is not loopback it
    /// goes by any address too, but by no name that was not allowed: none can be led to it unseen.
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

    fn build(self, endpoint: Endpoint) -> (HttpService, HttpListener, Open) {
        let settings = Arc::new(self.settings);
        let (door, links) = Door::new();
        let responder = self.binding.responder(&settings, door);
        let (opener, open) = open();
        let counts = settings.counts.clone();
        let service = HttpService::new(Arc::clone(&responder), settings);
        (service, HttpListener::new(links, endpoint, responder, counts, opener), open)
    }
}
