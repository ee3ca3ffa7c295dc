//! The live page: the requests of a server as they run, in a browser, with a button that stops each.
//!
//! ```
//! use rescind_core::{Router, Server, dialect, memory_listener};
//! use rescind_page::Page;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (listener, _transport) = memory_listener();
//! let server = Server::builder([dialect::ACP]).serve(Router::new()).listen(listener);
//! let page = Page::of_server(&server.handle())?.bind("127.0.0.1:0").await?;
//! println!("page on {}", page.url());
//! tokio::spawn(page.run());
//! # Ok(())
//! # }
//! ```
//!
//! # What guards it
//! - It listens on loopback only, unless [`Page::beyond_loopback`] is called.
//! - Its URL has a token of 256 random bits, which is compared in constant time. A wrong token is answered as any unknown
//!   path. The token is new with each start.
//! - `Host` is checked, so that no other name leads a browser to it (DNS rebinding).
//! - A request is stopped by a POST with the token from a page of the same origin.
//! - A peer's texts (methods, ids, reasons, names) are cut, made printable, and shown as text. A content security policy
//!   forbids everything else.
//! - At most 64 connections and 32 viewers are served. A viewer that does not read holds one view.
//!
//! `/metrics`, `/healthz` and `/readyz` need no token: they have numbers and no texts.

mod guard;
mod metrics;
mod routes;
mod view;

use std::fmt;
use std::io;
use std::net::SocketAddr;

use axum::Router;
use rescind_core::{RequestLog, ServerHandle};
use rescind_net::{HostPolicy, InvalidAllowEntry};
use tokio::net::{TcpListener, ToSocketAddrs};

use crate::guard::Token;
pub use crate::routes::PageServer;
use crate::routes::{Feed, Shared};

/// The live page of a server, or of any connections that one [`RequestLog`] records.
#[must_use = "a page is served by `bind` or by the router that it becomes"]
pub struct Page {
    log: RequestLog,
    title: String,
    is_draining: Box<dyn Fn() -> bool + Send + Sync>,
    hosts: HostPolicy,
    token: Token,
    is_public: bool,
}

/// Why the page cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The address is not loopback, and [`Page::beyond_loopback`] was not called.
    #[error("{0} is not a loopback address: all that is needed to stop requests is the URL of the page")]
    NotLoopback(SocketAddr),
    /// The address cannot be used, or the system returned no random bytes.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Page {
    /// The page of the connections that this log records.
    ///
    /// # Errors
    /// The system returns no random bytes for the token.
    pub fn new(log: &RequestLog) -> io::Result<Self> {
        Ok(Self {
            log: log.clone(),
            title: "Rescind".to_owned(),
            is_draining: Box::new(|| false),
            hosts: HostPolicy::default(),
            token: Token::random()?,
            is_public: false,
        })
    }

    /// The page of all connections of this server, which are recorded from now on. It is not ready while the server
    /// drains.
    ///
    /// # Errors
    /// The system returns no random bytes for the token.
    pub fn of_server(server: &ServerHandle) -> io::Result<Self> {
        let handle = server.clone();
        Ok(Self::new(&server.request_log())?.draining_if(move || handle.is_draining()))
    }

    /// The title. Default: `Rescind`.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// While this is true, `/readyz` answers 503 and the page says so. It must not block.
    pub fn draining_if(mut self, is_draining: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.is_draining = Box::new(is_draining);
        self
    }

    /// Serves requests for this host too, for a proxy in front of the page. Default: loopback names.
    ///
    /// # Errors
    /// The host is neither a name nor an address.
    pub fn allow_host(mut self, host: &str) -> Result<Self, InvalidAllowEntry> {
        self.hosts.allow(host)?;
        Ok(self)
    }

    /// Allows an address beyond loopback. The page has no TLS, so the token can be read from the network: put a proxy
    /// with TLS in front of it.
    pub const fn beyond_loopback(mut self) -> Self {
        self.is_public = true;
        self
    }

    /// The path of the page, with its token, which is all that is needed to see the page and to stop requests.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/{}/", self.token.as_str())
    }

    /// The page as routes of a server of your own, at [`path`](Self::path). It must be mounted at the root. `Host` is
    /// checked here too.
    pub fn router(self) -> Router {
        let feed = Feed::new(self.log, self.title, self.is_draining);
        routes::router(Shared::new(feed, self.token), self.hosts)
    }

    /// Listens on this address. Port 0 takes a free port.
    ///
    /// # Errors
    /// [`PageError::NotLoopback`]; [`PageError::Io`] if the address cannot be used.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt.
    pub async fn bind(mut self, address: impl ToSocketAddrs) -> Result<PageServer, PageError> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
        for address in tokio::net::lookup_host(address).await? {
            if !self.is_public && !address.ip().to_canonical().is_loopback() {
                return Err(PageError::NotLoopback(address));
            }
            match TcpListener::bind(address).await {
                Ok(listener) => {
                    let address = listener.local_addr()?;
                    self.hosts.bound_to(address.ip());
                    let path = self.path();
                    return Ok(PageServer::new(listener, address, path, self.router()));
                }
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("log", &self.log).field("title", &self.title).finish_non_exhaustive()
    }
}
