use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use rescind_core::{
    BoxFuture, Clients, Endpoint, Link, Listener, Resource, TransportError, TransportErrorKind,
};
use tokio::net::TcpListener;
use tokio::time::Sleep;

use crate::accept::{HandshakeSlot, accept};
use crate::handshake::UpgradeOptions;

/// How long nothing is accepted after the system had no room for a socket.
const ACCEPT_BACKOFF: Duration = Duration::from_secs(1);

/// Listens on this address, such as `127.0.0.1:0`, with default options.
///
/// # Errors
/// The address cannot be listened on.
///
/// # Panics
/// Outside a tokio runtime whose I/O driver is enabled.
///
/// # Cancel safety
/// Dropping the future abandons the attempt; nothing stays open.
pub async fn bind(address: &str) -> Result<WebSocketListener, TransportError> {
    WebSocketListener::builder().bind(address).await
}

/// A listener that accepts WebSocket connections on its own address.
///
/// Handshakes run concurrently while it is polled, so a slow handshake delays no other. Above the
/// [limit](UpgradeOptions::handshakes) a client is answered with 503; at twice the limit it waits to be accepted. One
/// address may use the server's share of both limits; above its share of the second its connections are closed.
/// Dropping the listener ends handshakes in progress; open connections stay open.
pub struct WebSocketListener {
    tcp: TcpListener,
    address: SocketAddr,
    options: Arc<UpgradeOptions>,
    tls: Option<crate::tls::Server>,
    handshakes: FuturesUnordered<BoxFuture<'static, Result<Link, TransportError>>>,
    pause: Option<Pin<Box<Sleep>>>,
    clients: Clients,
    /// Each handshake that is not answered with 503 holds a clone.
    free: Arc<()>,
}

impl WebSocketListener {
    /// A builder of a listener.
    pub fn builder() -> ListenerBuilder {
        ListenerBuilder { options: UpgradeOptions::new(), tls: None }
    }

    /// The address on which it listens, with the actual port.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether one more handshake may start, and how.
    fn slot(&self) -> Option<HandshakeSlot> {
        let (under_way, limit) = (self.handshakes.len(), self.options.handshakes);
        if Arc::strong_count(&self.free) <= limit {
            Some(HandshakeSlot::Free)
        } else if under_way < limit.saturating_mul(2) {
            Some(HandshakeSlot::Taken)
        } else {
            None
        }
    }

    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            std::task::ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(())
    }
}

impl Listener for WebSocketListener {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        loop {
            if let Poll::Ready(Some(done)) = Pin::new(&mut self.handshakes).poll_next(cx) {
                return Poll::Ready(Some(done));
            }
            if self.poll_pause(cx).is_pending() {
                return Poll::Pending;
            }
            let Some(slot) = self.slot() else { return Poll::Pending };
            match self.tcp.poll_accept(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok((socket, peer))) => {
                    let client = self.clients.client(None, Some(peer.ip()));
                    let most = self.clients.share().of(self.options.handshakes);
                    let held = client.held(Resource::Handshakes);
                    if held >= most.saturating_mul(2) {
                        tracing::debug!(%peer, "a client has reached its limit of handshakes");
                        continue;
                    }
                    let place = client.acquire_over_limit(Resource::Handshakes);
                    let is_over = held >= most;
                    let slot = if is_over { HandshakeSlot::Taken } else { slot };
                    let handshake = accept(socket, peer, Arc::clone(&self.options), self.tls.clone(), slot);
                    let free = matches!(slot, HandshakeSlot::Free).then(|| Arc::clone(&self.free));
                    self.handshakes.push(Box::pin(async move {
                        let _place = (place, free);
                        handshake.await
                    }));
                }
                Poll::Ready(Err(error)) => {
                    if !is_connection_error(&error) {
                        self.pause = Some(Box::pin(tokio::time::sleep(ACCEPT_BACKOFF)));
                    }
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
        }
    }

    fn share_among(mut self: Pin<&mut Self>, clients: &Clients) {
        self.clients = clients.clone();
    }

    fn endpoint(&self) -> Endpoint {
        let scheme = if self.tls.is_some() { "wss" } else { "ws" };
        Endpoint(format!("{scheme}://{}{}", self.address, self.options.served_path()))
    }
}

/// Whether the client disconnected before it was accepted. Any other error, such as a lack of descriptors, would repeat
/// at once.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

impl fmt::Debug for WebSocketListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocketListener")
            .field("endpoint", &self.endpoint())
            .field("handshakes", &self.handshakes.len())
            .finish_non_exhaustive()
    }
}

/// A listener before it listens.
#[derive(Debug)]
#[must_use = "it listens once it is bound"]
pub struct ListenerBuilder {
    options: UpgradeOptions,
    tls: Option<crate::tls::Server>,
}

impl ListenerBuilder {
    /// The options of handshakes and connections.
    pub fn options(mut self, options: UpgradeOptions) -> Self {
        self.options = options;
        self
    }

    /// Serves `wss` with this certificate, and requests client certificates if `tls` is set to. Default: `ws`.
    #[cfg(feature = "rustls")]
    pub fn tls(mut self, tls: crate::ServerTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Listens on this address. Port 0 selects a free port.
    ///
    /// # Errors
    /// The address cannot be listened on.
    ///
    /// # Panics
    /// Outside a tokio runtime whose I/O driver is enabled.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt; nothing stays open.
    pub async fn bind(self, address: &str) -> Result<WebSocketListener, TransportError> {
        match TcpListener::bind(address).await {
            Ok(tcp) => self.on(tcp),
            Err(error) => {
                let text = format!("cannot listen on {address}: {error}");
                Err(TransportError::new(TransportErrorKind::Open, text))
            }
        }
    }

    /// Listens on a socket that is bound already, for example one that a supervisor passed.
    ///
    /// # Errors
    /// The socket cannot be used.
    ///
    /// # Panics
    /// Outside a tokio runtime whose I/O driver is enabled.
    pub fn listen_on(self, socket: std::net::TcpListener) -> Result<WebSocketListener, TransportError> {
        socket.set_nonblocking(true)?;
        self.on(TcpListener::from_std(socket)?)
    }

    fn on(mut self, tcp: TcpListener) -> Result<WebSocketListener, TransportError> {
        let address = tcp.local_addr()?;
        self.options.bound_to(address.ip());
        Ok(WebSocketListener {
            tcp,
            address,
            options: Arc::new(self.options),
            tls: self.tls,
            handshakes: FuturesUnordered::new(),
            pause: None,
            clients: Clients::default(),
            free: Arc::default(),
        })
    }
}
