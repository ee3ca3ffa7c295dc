use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use rescind_core::{AuthHook, AuthRefusal, AuthRequest, Credential, HostPolicy, NotAllowable, OriginPolicy};

use crate::options::LinkOptions;

pub(super) type MakeValue = Arc<dyn Fn() -> String + Send + Sync>;

/// What a server asks of a request, and what the connection is then like.
///
/// Unless said otherwise a page may connect if it is of the host and port it asks for or of loopback, and only `localhost`
/// and the addresses of loopback are hosts (a [`WebSocketListener`](crate::WebSocketListener) bound to another address
/// also takes any address, but no name).
#[derive(Clone)]
#[must_use]
pub struct UpgradeOptions {
    pub(super) path: Option<String>,
    pub(super) hosts: HostPolicy,
    pub(super) origins: OriginPolicy,
    pub(super) subprotocols: Vec<String>,
    pub(super) answered_with: Vec<(HeaderName, MakeValue)>,
    pub(crate) auth: Option<AuthHook>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) handshakes: usize,
    pub(crate) link: LinkOptions,
}

impl UpgradeOptions {
    /// The defaults: any path, no subprotocol, no auth hook, 10 s and 256 handshakes at once.
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

    /// Serves this path only; others get 404.
    pub fn path(mut self, path: &str) -> Self {
        self.path = Some(if path.starts_with('/') { path.to_owned() } else { format!("/{path}") });
        self
    }

    /// Takes requests for any path, as where a server before this one has looked at it.
    pub fn any_path(mut self) -> Self {
        self.path = None;
        self
    }

    /// Goes by this name too: a host, on any port, or `host:port`.
    ///
    /// # Errors
    /// It is neither, such as a URL.
    pub fn allow_host(mut self, host: &str) -> Result<Self, NotAllowable> {
        self.hosts.allow(host)?;
        Ok(self)
    }

    /// Goes by any name, as behind a proxy that checks it.
    pub fn allow_any_host(mut self) -> Self {
        self.hosts.allow_any();
        self
    }

    /// Lets pages of this origin connect too, such as `https://app.example`.
    ///
    /// # Errors
    /// It is not an origin: it has a path or a trailing slash, it has no scheme, or it is `null`.
    pub fn allow_origin(mut self, origin: &str) -> Result<Self, NotAllowable> {
        self.origins.allow(origin)?;
        Ok(self)
    }

    /// Lets any page connect. Any page a user visits can then speak to this server with what the user's browser knows.
    pub fn allow_any_origin(mut self) -> Self {
        self.origins.allow_any();
        self
    }

    /// Speaks this subprotocol. Of several, the first the client offers too is taken. A client that offers none, or
    /// others, is connected without one; it may then give up.
    pub fn subprotocol(mut self, name: &str) -> Self {
        self.subprotocols.push(name.to_owned());
        self
    }

    /// Adds this header to each answer that upgrades, with a value made anew for each, such as a connection's id. A name or a
    /// value that is none for a header is left out, and so are an empty value and a header of the handshake's own. The hook must not block.
    pub fn answer_with(mut self, name: &str, value: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.answered_with.extend(name.parse().ok().map(|name| (name, Arc::new(value) as MakeValue)));
        self
    }

    /// Asks this hook who asks, last, once all else is well. Whom it names is the principal of the connection's messages; its
    /// refusal is the answer. When its credential expires the connection ends with close code 1008.
    ///
    /// A hook that does not answer within [`handshake_timeout`](Self::handshake_timeout) is given up: 503. One that panics is
    /// 500. It must not block.
    pub fn auth<F, A>(mut self, hook: F) -> Self
    where
        F: Fn(AuthRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Credential, AuthRefusal>> + Send + 'static,
    {
        self.auth = Some(AuthHook::new(hook));
        self
    }

    /// How long a handshake may take, from the accepted socket to the open connection. Default: 10 s.
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.handshake_timeout = limit;
        self
    }

    /// The most handshakes at a time, at least one. Default: 256. A request beyond that gets 503.
    pub fn handshakes(mut self, limit: usize) -> Self {
        self.handshakes = limit.max(1);
        self
    }

    /// What each connection is like.
    pub fn link(mut self, link: LinkOptions) -> Self {
        self.link = link;
        self
    }

    pub(crate) fn served_path(&self) -> &str {
        self.path.as_deref().unwrap_or("/")
    }

    /// What holds for hosts that are not listed, for a server at this address.
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
