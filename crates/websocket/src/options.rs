use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderName;
use rescind_net::{
    AuthHook, AuthRefusal, AuthRequest, Credential, HostPolicy, InvalidAllowEntry, OriginPolicy,
};

/// The protocol that TLS negotiates: a WebSocket begins with HTTP/1.1.
#[cfg(feature = "rustls")]
pub(crate) const PROTOCOLS: &[&[u8]] = &[b"http/1.1"];

/// The options of a connection, for both sides.
///
/// ```
/// use std::time::Duration;
///
/// use rescind_websocket::{LinkOptions, UpgradeOptions};
///
/// // The same for a client: `rescind_websocket::connect(url).link(..)`.
/// let options = LinkOptions::new().max_frame(1024 * 1024).ping_every(Duration::from_secs(60));
/// let server = UpgradeOptions::new().link(options);
/// # drop(server);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct LinkOptions {
    pub(crate) max_frame: usize,
    pub(crate) ping_every: Option<Duration>,
    pub(crate) binary: BinaryMessages,
}

impl LinkOptions {
    /// The defaults: messages of at most 16 MiB, a ping every 20 s, binary messages are refused.
    pub fn new() -> Self {
        Self {
            max_frame: 16 * 1024 * 1024,
            ping_every: Some(Duration::from_secs(20)),
            binary: BinaryMessages::Refuse,
        }
    }

    /// The largest message in both directions, in bytes, with all its fragments. A larger message is refused with an
    /// error, and the connection closes with code 1009: the WebSocket library cannot skip a message.
    pub fn max_frame(mut self, bytes: usize) -> Self {
        self.max_frame = bytes;
        self
    }

    /// The interval of pings. The peer is considered lost if nothing arrives after two pings in a row.
    pub fn ping_every(mut self, every: Duration) -> Self {
        self.ping_every = Some(every.max(Duration::from_millis(1)));
        self
    }

    /// Disables pings. A lost peer is then noticed only when a write fails.
    pub fn no_pings(mut self) -> Self {
        self.ping_every = None;
        self
    }

    /// Sets how binary messages are handled.
    pub fn binary(mut self, binary: BinaryMessages) -> Self {
        self.binary = binary;
        self
    }
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// How a binary message is handled. All frames of this library are text messages.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum BinaryMessages {
    /// It is refused with an error, and the connection closes with code 1003.
    #[default]
    Refuse,
    /// It is dropped and counted, as ACP's draft of its HTTP binding requires.
    Ignore(IgnoredCounter),
}

/// A counter of ignored messages. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct IgnoredCounter(Arc<AtomicU64>);

impl IgnoredCounter {
    /// A counter at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of ignored messages.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type MakeValue = Arc<dyn Fn() -> String + Send + Sync>;

/// The requirements of a server for a request, and the options of its connections.
///
/// Default: a page may connect if it belongs to the host and port of the request, or to loopback. The hosts are
/// `localhost` and the addresses of loopback. A [`WebSocketListener`](crate::WebSocketListener) on another address also
/// serves any IP address, but no other name.
///
/// ```
/// use rescind_websocket::UpgradeOptions;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = UpgradeOptions::new()
///     .path("/agent")
///     .allow_host("agent.example")?
///     .allow_origin("https://app.example")?;
/// # drop(options);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct UpgradeOptions {
    pub(crate) path: Option<String>,
    pub(crate) hosts: HostPolicy,
    pub(crate) origins: OriginPolicy,
    pub(crate) subprotocols: Vec<String>,
    pub(crate) answered_with: Vec<(HeaderName, MakeValue)>,
    pub(crate) auth: Option<AuthHook>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) handshakes: usize,
    pub(crate) link: LinkOptions,
}

impl UpgradeOptions {
    /// The defaults: any path, no subprotocol, no auth hook, 10 s for a handshake, and 256 handshakes at once.
    pub fn new() -> Self {
        Self {
            path: None,
            hosts: HostPolicy::default(),
            origins: OriginPolicy::default(),
            subprotocols: Vec::new(),
            answered_with: Vec::new(),
            auth: None,
            handshake_timeout: Duration::from_secs(10),
            handshakes: 256,
            link: LinkOptions::new(),
        }
    }

    /// Serves only this path, with or without a slash at its end. Requests for other paths get 404.
    pub fn path(mut self, path: &str) -> Self {
        self.path = Some(if path.starts_with('/') { path.to_owned() } else { format!("/{path}") });
        self
    }

    /// Accepts requests for any path, for example if a server before this one has checked the path.
    pub fn any_path(mut self) -> Self {
        self.path = None;
        self
    }

    /// Serves this host too: `host`, on any port, or `host:port`.
    ///
    /// # Errors
    /// The host is neither, for example a URL.
    pub fn allow_host(mut self, host: &str) -> Result<Self, InvalidAllowEntry> {
        self.hosts.allow(host)?;
        Ok(self)
    }

    /// Sets what the refusal of a host says besides the reason, for the operator of this server, such as
    /// `allow it with --allow-host NAME`. Default: nothing.
    pub fn host_advice(mut self, advice: &str) -> Self {
        self.hosts.set_advice(advice);
        self
    }

    /// Serves every host, for a server behind a proxy that checks the host.
    pub fn allow_any_host(mut self) -> Self {
        self.hosts.allow_any();
        self
    }

    /// Allows pages of this origin to connect too, for example `https://app.example`.
    ///
    /// # Errors
    /// It is not an origin: it has a path or a trailing slash, it has no scheme, or it is `null`.
    pub fn allow_origin(mut self, origin: &str) -> Result<Self, InvalidAllowEntry> {
        self.origins.allow(origin)?;
        Ok(self)
    }

    /// Allows all pages to connect. Any page that a user visits can then use this server with the credentials of the
    /// user's browser.
    pub fn allow_any_origin(mut self) -> Self {
        self.origins.allow_any();
        self
    }

    /// Adds a subprotocol that this server knows, such as one of a dialect's
    /// [`Rules::subprotocols`](rescind_core::dialect::Rules::subprotocols). The first known one that the client offers is
    /// selected. A client that offers none, or only others, is connected without a subprotocol. It may then close the
    /// connection.
    pub fn subprotocol(mut self, name: &str) -> Self {
        self.subprotocols.push(name.to_owned());
        self
    }

    /// Adds this header to every answer that upgrades. The function returns a new value for each answer, such as the id
    /// of a connection. A name or a value that is not valid, an empty value, and a header that the handshake sets
    /// itself are omitted. The function must not block.
    pub fn answer_with(mut self, name: &str, value: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.answered_with.extend(name.parse().ok().map(|name| (name, Arc::new(value) as MakeValue)));
        self
    }

    /// Authenticates each request with this hook, after all other checks. The principal that the hook returns is that
    /// of the connection's messages. Its refusal is the answer. When its credential expires, the connection ends with
    /// close code 1008.
    ///
    /// If the hook does not answer within [`handshake_timeout`](Self::handshake_timeout), the request gets 503. If it
    /// panics, the request gets 500. The hook must not block.
    pub fn auth<F, A>(mut self, hook: F) -> Self
    where
        F: Fn(AuthRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Credential, AuthRefusal>> + Send + 'static,
    {
        self.auth = Some(AuthHook::new(hook));
        self
    }

    /// Sets how long a handshake may take, from the accepted socket to the open connection. Default: 10 s.
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.handshake_timeout = limit;
        self
    }

    /// Sets the most handshakes at once, at least one. Default: 256. A request above that gets 503.
    pub fn handshakes(mut self, limit: usize) -> Self {
        self.handshakes = limit.max(1);
        self
    }

    /// Sets the options of each connection.
    pub fn link(mut self, link: LinkOptions) -> Self {
        self.link = link;
        self
    }

    pub(crate) fn served_path(&self) -> &str {
        self.path.as_deref().unwrap_or("/")
    }

    /// Sets the hosts that are served without being listed, for a server at this address.
    pub(crate) fn bound_to(&mut self, address: IpAddr) {
        self.hosts.bound_to(address);
    }
}

impl Default for UpgradeOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for UpgradeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpgradeOptions")
            .field("path", &self.path)
            .field("hosts", &self.hosts)
            .field("origins", &self.origins)
            .field("subprotocols", &self.subprotocols)
            .field("answered_with", &self.answered_with.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("auth", &self.auth.is_some())
            .field("handshake_timeout", &self.handshake_timeout)
            .field("handshakes", &self.handshakes)
            .field("link", &self.link)
            .finish()
    }
}
