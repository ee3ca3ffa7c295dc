//! ACP's remote endpoint: streamable HTTP and WebSocket under one path.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use rescind_core::{Clients, Endpoint, Link, Listener, TransportError};
use rescind_http::{Acp, HttpCounts, HttpListener, HttpServer, HttpService};
use rescind_websocket::{BinaryMessages, LinkOptions, MountedListener, UpgradeOptions, mount};

/// ACP's endpoint as its draft of remote transports has it: POST, GET and DELETE are HTTP, and a GET that asks for the
/// upgrade is a WebSocket. Either has an `Acp-Connection-Id`, and a connection of its own.
///
/// ```
/// use rescind::http::{Acp, HttpServer};
/// use rescind::{AcpEndpoint, Router, Server, dialect};
/// use rescind::transport::Listener;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = HttpServer::new(Acp::new()).path("/acp");
/// let listener = AcpEndpoint::new(server).bind("127.0.0.1:0").await?;
/// println!("listening on {}", listener.endpoint());
/// let serving = tokio::spawn(Server::builder([dialect::ACP]).serve(Router::new()).listen(listener).run());
/// # serving.abort();
/// # Ok(())
/// # }
/// ```
///
/// Whom it serves the HTTP server says: its hosts, origins and auth hook hold for both wires.
#[derive(Debug)]
#[must_use = "an endpoint serves once it is bound or mounted"]
pub struct AcpEndpoint {
    server: HttpServer<Acp>,
    options: UpgradeOptions,
}

impl AcpEndpoint {
    /// The endpoint of this server. Binary messages of a WebSocket are ignored, as the draft asks.
    pub fn new(server: HttpServer<Acp>) -> Self {
        let link =
            LinkOptions::new().binary(BinaryMessages::Ignore(rescind_websocket::IgnoredCounter::new()));
        Self { server, options: UpgradeOptions::new().link(link) }
    }

    /// How a WebSocket is made and what it is like. The path, hosts and origins named here do not count: those of the
    /// server do. Whom an auth hook named here names goes before whom the server's names; a connection ends when the credential of
    /// either expires. Options that say nothing of binary
    /// messages refuse them, where the draft has them ignored.
    pub fn websocket(mut self, options: UpgradeOptions) -> Self {
        self.options = options;
        self
    }

    /// Listens on this address, as in `127.0.0.1:0`.
    ///
    /// # Errors
    /// The address cannot be listened on.
    ///
    /// # Cancel safety
    /// Dropping the future gives the attempt up; nothing stays open.
    pub async fn bind(self, address: &str) -> Result<AcpListener, TransportError> {
        let (server, upgraded) = self.join();
        let http = server.bind(address).await?;
        Ok(AcpListener { http, upgraded, next: Wire::Http })
    }

    /// A service to be mounted beside routes of yours, in a hyper server that allows upgrades, as axum's does; and the
    /// listener its links come out of.
    #[must_use]
    pub fn mount(self) -> (HttpService, AcpListener) {
        let (server, upgraded) = self.join();
        let (service, http) = server.mount();
        (service, AcpListener { http, upgraded, next: Wire::Http })
    }

    fn join(self) -> (HttpServer<Acp>, MountedListener) {
        // The server has looked at the path, the host and the origin before it hands a request over.
        let (upgrades, listener) = mount(self.options.any_path().allow_any_host().allow_any_origin());
        let server = self.server.upgrades(move |mut request, credential| {
            let upgrades = upgrades.clone();
            async move { upgrades.answer_for(&mut request, &credential).await }
        });
        (server, listener)
    }
}

/// The connections of an [`AcpEndpoint`], of both wires.
///
/// Dropped, it ends the port, the connections over HTTP and the handshakes under way; a WebSocket that is open stays so.
pub struct AcpListener {
    http: HttpListener,
    upgraded: MountedListener,
    /// Which is asked first, in turns, so that a burst on one does not keep the other waiting.
    next: Wire,
}

#[derive(Clone, Copy, Debug)]
enum Wire {
    Http,
    WebSocket,
}

impl AcpListener {
    /// What the server has given up over HTTP. A WebSocket gives nothing up: its peer is kept waiting, or has to go.
    #[must_use]
    pub fn counts(&self) -> HttpCounts {
        self.http.counts()
    }

    fn poll(&mut self, wire: Wire, cx: &mut Context<'_>) -> Poll<Option<Result<Link, TransportError>>> {
        match wire {
            Wire::Http => Pin::new(&mut self.http).poll_accept(cx),
            Wire::WebSocket => Pin::new(&mut self.upgraded).poll_accept(cx),
        }
    }
}

impl Listener for AcpListener {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        let first = self.next;
        let second = match first {
            Wire::Http => Wire::WebSocket,
            Wire::WebSocket => Wire::Http,
        };
        let mut ended = 0;
        for (wire, after) in [(first, second), (second, first)] {
            match self.poll(wire, cx) {
                Poll::Ready(Some(accepted)) => {
                    self.next = after;
                    return Poll::Ready(Some(accepted));
                }
                Poll::Ready(None) => ended += 1,
                Poll::Pending => {}
            }
        }
        if ended == 2 { Poll::Ready(None) } else { Poll::Pending }
    }

    fn share_among(mut self: Pin<&mut Self>, clients: &Clients) {
        Pin::new(&mut self.http).share_among(clients);
        Pin::new(&mut self.upgraded).share_among(clients);
    }

    fn endpoint(&self) -> Endpoint {
        self.http.endpoint()
    }
}

impl fmt::Debug for AcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcpListener").field("endpoint", &self.endpoint()).finish_non_exhaustive()
    }
}
