//! ACP's remote endpoint: streamable HTTP and WebSocket under one path.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use rescind_core::{BoxFuture, Clients, Endpoint, Link, Listener, TransportError, dialect};
use rescind_http::{Acp, HttpCounts, HttpListener, HttpServer, HttpService};
use rescind_websocket::{BinaryMessages, LinkOptions, MountedListener, UpgradeOptions, mount};

/// ACP's endpoint, as its draft of remote transports defines it: POST, GET and DELETE are HTTP, and a GET with an
/// upgrade opens a WebSocket. Each of the two has an `Acp-Connection-Id` and a connection of its own.
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
/// The hosts, the origins and the auth hook of the HTTP server apply to both transports.
#[derive(Debug)]
#[must_use = "an endpoint serves once it is bound or mounted"]
pub struct AcpEndpoint {
    server: HttpServer<Acp>,
    options: UpgradeOptions,
}

impl AcpEndpoint {
    /// The endpoint of this server. Binary messages on a WebSocket are ignored, as the draft requires, and the
    /// subprotocols of ACP are known.
    pub fn new(server: HttpServer<Acp>) -> Self {
        let link =
            LinkOptions::new().binary(BinaryMessages::Ignore(rescind_websocket::IgnoredCounter::new()));
        let names = dialect::ACP.rules().subprotocols.iter();
        let options = names.fold(UpgradeOptions::new(), |options, name| options.subprotocol(name));
        Self { server, options: options.link(link) }
    }

    /// Sets the options of WebSocket connections. Their path, hosts and origins have no effect: those of the server
    /// apply. The principal that their auth hook returns replaces the one that the server's hook returned. A connection
    /// ends when the credential of either hook expires. By default new options refuse binary messages, which the draft
    /// ignores.
    pub fn websocket(mut self, options: UpgradeOptions) -> Self {
        self.options = options;
        self
    }

    /// Listens on this address, for example `127.0.0.1:0`.
    ///
    /// # Errors
    /// The address cannot be listened on.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt; nothing stays open.
    pub async fn bind(self, address: &str) -> Result<AcpListener, TransportError> {
        let (server, upgraded) = self.join();
        let http = server.bind(address).await?;
        Ok(AcpListener { http, upgraded, next: Wire::Http })
    }

    /// A service to mount beside your own routes, in a hyper server that allows upgrades, as axum's does; and the
    /// listener that yields its connections.
    #[must_use]
    pub fn mount(self) -> (HttpService, AcpListener) {
        let (server, upgraded) = self.join();
        let (service, http) = server.mount();
        (service, AcpListener { http, upgraded, next: Wire::Http })
    }

    fn join(self) -> (HttpServer<Acp>, MountedListener) {
        // The server has checked the path, the host and the origin before it passes a request on.
        let (upgrades, listener) = mount(self.options.any_path().allow_any_host().allow_any_origin());
        let server = self.server.upgrades(move |mut request, credential| {
            let upgrades = upgrades.clone();
            async move { upgrades.answer_for(&mut request, &credential).await }
        });
        (server, listener)
    }
}

/// The connections of an [`AcpEndpoint`], over HTTP and over WebSocket.
///
/// Dropping it closes the port, the connections over HTTP and the handshakes in progress. Open WebSocket connections
/// stay open.
pub struct AcpListener {
    http: HttpListener,
    upgraded: MountedListener,
    /// The transport that is polled first. It alternates, so that many connections on one do not delay the other.
    next: Wire,
}

#[derive(Clone, Copy, Debug)]
enum Wire {
    Http,
    WebSocket,
}

impl AcpListener {
    /// The counts of notifications and sessions that the server dropped over HTTP. A WebSocket drops neither: its peer
    /// waits, or its connection ends.
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

    fn finished(&self) -> BoxFuture<'static, ()> {
        self.http.finished()
    }

    fn stop_accepting(mut self: Pin<&mut Self>) -> bool {
        let upgraded = Pin::new(&mut self.upgraded).stop_accepting();
        Pin::new(&mut self.http).stop_accepting() || upgraded
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
