//! A listener on an address of its own, and each accepted socket, from its first byte to the open connection.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rescind_core::{
    BoxFuture, Clients, Endpoint, Link, Listener, Resource, TransportError, TransportErrorKind,
};
use rescind_net::{PeerAddress, PeerCertificates};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep};

use crate::handshake::{Refusal, Upgrading, upgrade_within};
use crate::options::UpgradeOptions;

/// How long nothing is accepted after the system had no room for a socket.
const ACCEPT_BACKOFF: Duration = Duration::from_secs(1);
/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// The time that replaces a timeout too long for the clock.
const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
/// The extra time for the answer to a client whose auth hook did not answer in time.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(500);

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
    tls: Option<tls::Server>,
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
    tls: Option<tls::Server>,
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

/// Does the handshake of a server on a stream that was accepted elsewhere.
///
/// # Errors
/// The client was refused, or sent no request in time.
///
/// # Cancel safety
/// Dropping the future drops the stream.
#[cfg(feature = "verify")]
pub async fn accept_given<S>(options: UpgradeOptions, io: S) -> Result<Link, TransportError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let asked = Handshake::new(&options, None, HandshakeSlot::Free);
    asked.in_time(asked.serve(io, PeerCertificates::default())).await
}

/// Whether there is room for one more handshake.
#[derive(Clone, Copy, Debug)]
enum HandshakeSlot {
    Free,
    /// The request is answered with 503.
    Taken,
}

/// The result of the connection's only request.
type Outcome = Option<Result<Upgrading, Refusal>>;

/// Does the handshake on a socket, after TLS if the listener uses it, within the time of the handshake.
async fn accept(
    socket: TcpStream,
    peer: SocketAddr,
    options: Arc<UpgradeOptions>,
    tls: Option<tls::Server>,
    slot: HandshakeSlot,
) -> Result<Link, TransportError> {
    let asked = Handshake::new(&options, Some(peer), slot);
    let handshake = async {
        // Small frames must not wait for the acknowledgement of earlier ones.
        socket.set_nodelay(true)?;
        match tls {
            None => asked.serve(socket, PeerCertificates::default()).await,
            Some(tls) => {
                let stream = tls::accept(tls, socket).await?;
                let certificates = tls::certificates_of(&stream);
                asked.serve(stream, certificates).await
            }
        }
    };
    asked.in_time(handshake).await.map_err(|error| failed(format!("{peer}: {error}")))
}

/// One handshake, from the first byte of its socket.
struct Handshake<'a> {
    options: &'a UpgradeOptions,
    peer: Option<SocketAddr>,
    slot: HandshakeSlot,
    /// The end of its time.
    deadline: Instant,
    /// The request was received, and the auth hook is running.
    asking: AtomicBool,
    outcome: Mutex<Outcome>,
}

impl<'a> Handshake<'a> {
    fn new(options: &'a UpgradeOptions, peer: Option<SocketAddr>, slot: HandshakeSlot) -> Self {
        let now = Instant::now();
        let deadline = now.checked_add(options.handshake_timeout).unwrap_or(now + FAR_FUTURE);
        Self { options, peer, slot, deadline, asking: AtomicBool::new(false), outcome: Mutex::default() }
    }

    /// Fails the handshake at the end of its time. A client whose auth hook is still running is answered first.
    async fn in_time(
        &self,
        handshake: impl Future<Output = Result<Link, TransportError>>,
    ) -> Result<Link, TransportError> {
        let mut handshake = pin!(handshake);
        let mut done = tokio::time::timeout_at(self.deadline, handshake.as_mut()).await;
        if done.is_err() && self.asking.load(Ordering::Relaxed) {
            done = tokio::time::timeout(REFUSAL_TIMEOUT, handshake).await;
        }
        done.unwrap_or_else(|_| Err(failed("the handshake took too long")))
    }

    async fn serve<S>(&self, io: S, certificates: PeerCertificates) -> Result<Link, TransportError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let answer = |request| {
            let answer = self.answer(request, certificates.clone());
            async { Ok::<_, Infallible>(answer.await) }
        };
        let served = http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(io), service_fn(answer))
            .with_upgrades()
            .await;
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (outcome, served) {
            (Some(Ok(upgrading)), Ok(())) => upgrading.link().await,
            (Some(Err(refusal)), _) => Err(failed(refusal)),
            (_, Err(error)) => Err(failed(error)),
            (None, Ok(())) => Err(failed("it went away without a request")),
        }
    }

    async fn answer(
        &self,
        mut request: Request<Incoming>,
        certificates: PeerCertificates,
    ) -> Response<String> {
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(PeerAddress(peer.ip()));
        }
        request.extensions_mut().insert(certificates);
        let asked = match self.slot {
            HandshakeSlot::Free => {
                self.asking.store(true, Ordering::Relaxed);
                let left = self.deadline.saturating_duration_since(Instant::now());
                let asked = upgrade_within(&mut request, self.options, left).await;
                self.asking.store(asked.is_err(), Ordering::Relaxed);
                asked
            }
            HandshakeSlot::Taken => Err(Refusal::busy()),
        };
        let (response, outcome) = match asked {
            Ok((response, upgrading)) => {
                let peer = self.peer.map_or_else(|| "given".to_owned(), |peer| peer.to_string());
                (response, Ok(upgrading.peer(&peer)))
            }
            Err(refusal) => {
                let mut response = refusal.clone().into_response();
                // One request for each socket: a refused client needs a new connection to try again.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                (response, Err(refusal))
            }
        };
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        response
    }
}

fn failed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TransportError {
    TransportError::new(TransportErrorKind::Open, why)
}

/// `wss`.
#[cfg(feature = "rustls")]
mod tls {
    use rescind_net::PeerCertificates;
    pub(super) use rescind_net::ServerTls as Server;
    use tokio::net::TcpStream;
    use tokio_rustls::server::TlsStream;

    use crate::options::PROTOCOLS;

    pub(super) async fn accept(tls: Server, socket: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        tls.accept(socket, PROTOCOLS).await
    }

    pub(super) fn certificates_of(stream: &TlsStream<TcpStream>) -> PeerCertificates {
        PeerCertificates::of(stream)
    }
}

/// Without the feature there is no TLS server: its type has no values.
#[cfg(not(feature = "rustls"))]
mod tls {
    use rescind_net::PeerCertificates;
    use tokio::net::TcpStream;

    #[derive(Clone, Debug)]
    pub(super) enum Server {}

    #[expect(clippy::unused_async, reason = "its twin with the feature waits")]
    pub(super) async fn accept(tls: Server, _: TcpStream) -> std::io::Result<TcpStream> {
        match tls {}
    }

    /// Without TLS a client shows no certificate.
    pub(super) fn certificates_of(_: &TcpStream) -> PeerCertificates {
        PeerCertificates::default()
    }
}
