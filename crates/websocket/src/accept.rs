//! One accepted socket, from its first byte to the open connection.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rescind_core::{Link, PeerAddress, PeerCertificates, TransportError, TransportErrorKind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::handshake::{Refusal, UpgradeOptions, Upgrading, upgrade_within};

/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Whether there is room for one more handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandshakeSlot {
    Free,
    /// The request is answered with 503.
    Taken,
}

/// The result of the connection's only request.
type Outcome = Option<Result<Upgrading, Refusal>>;

/// The time that replaces a timeout too long for the clock.
const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
/// The extra time for the answer to a client whose auth hook did not answer in time.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(500);

/// Does the handshake on a socket, after TLS if the listener uses it, within the time of the handshake.
pub(crate) async fn accept(
    socket: TcpStream,
    peer: SocketAddr,
    options: Arc<UpgradeOptions>,
    tls: Option<crate::tls::Server>,
    slot: HandshakeSlot,
) -> Result<Link, TransportError> {
    let asked = Handshake::new(&options, Some(peer), slot);
    let handshake = async {
        // Small frames must not wait for the acknowledgement of earlier ones.
        socket.set_nodelay(true)?;
        match tls {
            None => asked.serve(socket, PeerCertificates::default()).await,
            Some(tls) => {
                let stream = crate::tls::accept(tls, socket).await?;
                let certificates = crate::tls::certificates_of(&stream);
                asked.serve(stream, certificates).await
            }
        }
    };
    asked.in_time(handshake).await.map_err(|error| failed(format!("{peer}: {error}")))
}

/// Does the handshake on a stream, within the time of the handshake.
#[cfg(feature = "verify")]
pub(crate) async fn accept_stream<S>(io: S, options: Arc<UpgradeOptions>) -> Result<Link, TransportError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let asked = Handshake::new(&options, None, HandshakeSlot::Free);
    asked.in_time(asked.serve(io, PeerCertificates::default())).await
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
