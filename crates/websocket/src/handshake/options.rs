use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use rescind_core::Principal;

use super::hosts::{Hosts, Origins, OtherHosts};
use super::{Refusal, RequestHead};
use crate::options::LinkOptions;

pub(super) type MakeValue = Arc<dyn Fn() -> String + Send + Sync>;
pub(super) type Authorize = Arc<dyn Fn(&RequestHead<'_>) -> Result<Option<Principal>, Refusal> + Send + Sync>;

/// What a server asks of a request, and what the connection is then like.
///
/// Unless said otherwise a page may connect if it is of the host it asks for or of loopback, and only `localhost` and
/// the addresses of loopback are hosts (a [`WebSocketListener`](crate::WebSocketListener) bound to another address
/// also takes any address, but no name).
#[derive(Clone)]
#[must_use]
pub struct UpgradeOptions {
    pub(super) path: Option<String>,
    pub(super) hosts: Hosts,
    pub(super) origins: Origins,
    pub(super) subprotocols: Vec<String>,
    pub(super) answered_with: Vec<(HeaderName, MakeValue)>,
    pub(super) authorize: Option<Authorize>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) handshakes: usize,
    pub(crate) link: LinkOptions,
}

impl UpgradeOptions {
    /// The defaults: any path, no subprotocol, nobody authorized by name, 10 s and 256 handshakes at once.
    pub fn new() -> Self {
        Self {
            path: None,
            hosts: Hosts { names: Vec::new(), others: OtherHosts::Loopback },
            origins: Origins::default(),
            subprotocols: Vec::new(),
            answered_with: Vec::new(),
            authorize: None,
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

    /// Goes by this name too: a host, with or without a port.
    pub fn allow_host(mut self, host: &str) -> Self {
        self.hosts.names.push(host.to_owned());
        self
    }

    /// Goes by any name, as behind a proxy that checks it.
    pub fn allow_any_host(mut self) -> Self {
        self.hosts.others = OtherHosts::Any;
        self
    }

    /// Lets pages of this origin connect too, such as `https://app.example`.
    pub fn allow_origin(mut self, origin: &str) -> Self {
        self.origins.listed.push(origin.to_owned());
        self
    }

    /// Lets any page connect. Any page a user visits can then speak to this server with what the user's browser knows.
    pub fn allow_any_origin(mut self) -> Self {
        self.origins.any = true;
        self
    }

    /// Speaks this subprotocol. Of several, the first the client offers too is taken. A client that offers none, or
    /// others, is connected without one; it may then give up.
    pub fn subprotocol(mut self, name: &str) -> Self {
        self.subprotocols.push(name.to_owned());
        self
    }

    /// Adds this header to each answer that upgrades, with a value made anew for each, such as a connection's id. A name or a
    /// value that is none for a header is left out, and so is one of the handshake's own. The hook must not block.
    pub fn answer_with(mut self, name: &str, value: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.answered_with.extend(name.parse().ok().map(|name| (name, Arc::new(value) as MakeValue)));
        self
    }

    /// Asks this hook last, once all else is well. Whom it names is the principal of the connection's messages; its
    /// refusal is the answer. It must not block.
    pub fn authorize(
        mut self,
        hook: impl Fn(&RequestHead<'_>) -> Result<Option<Principal>, Refusal> + Send + Sync + 'static,
    ) -> Self {
        self.authorize = Some(Arc::new(hook));
        self
    }

    /// How long a handshake may take, from the accepted socket to the open connection; 10 s unless said.
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.handshake_timeout = limit;
        self
    }

    /// How many handshakes may be under way at once, 256 unless said; at least one. Over it a request gets 503.
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
        if self.hosts.others == OtherHosts::Loopback && !address.is_loopback() {
            self.hosts.others = OtherHosts::Addresses;
        }
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
            .field("authorizes", &self.authorize.is_some())
            .field("handshake_timeout", &self.handshake_timeout)
            .field("handshakes", &self.handshakes)
            .field("link", &self.link)
            .finish()
    }
}
