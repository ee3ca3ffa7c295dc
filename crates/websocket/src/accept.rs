//! One accepted socket, from its first byte to the open connection.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::sync::{Arc, Mutex, PoisonError};

use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rescind_core::{Link, TransportError, TransportErrorKind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::handshake::{Refusal, UpgradeOptions, Upgrading, upgrade};

/// The most of a request's head that is held, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Whether there is room for one more handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Room {
    Free,
    /// The request is answered with 503.
    Taken,
}

/// What becomes of the connection's only request.
type Verdict = Option<Result<Upgrading, Refusal>>;

/// Does the handshake on a socket, TLS first where it is asked for, within the handshake's time.
pub(crate) async fn accept(
    socket: TcpStream,
    peer: Arc<str>,
    options: Arc<UpgradeOptions>,
    tls: Option<crate::tls::Server>,
    room: Room,
) -> Result<Link, TransportError> {
    let handshake = async {
        // Small frames are not to wait for the answer to earlier ones.
        socket.set_nodelay(true)?;
        match tls {
            None => serve(socket, &peer, &options, room).await,
            Some(tls) => serve(tls.accept(socket).await?, &peer, &options, room).await,
        }
    };
    in_time(&options, handshake).await.map_err(|error| failed(format!("{peer}: {error}")))
}

/// A handshake within its time.
pub(crate) async fn in_time(
    options: &UpgradeOptions,
    handshake: impl Future<Output = Result<Link, TransportError>>,
) -> Result<Link, TransportError> {
    let done = tokio::time::timeout(options.handshake_timeout, handshake).await;
    done.unwrap_or_else(|_| Err(failed("the handshake took too long")))
}

pub(crate) async fn serve<S>(
    io: S,
    peer: &str,
    options: &Arc<UpgradeOptions>,
    room: Room,
) -> Result<Link, TransportError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let verdict = Arc::<Mutex<Verdict>>::default();
    let answer = |request| ready(Ok::<_, Infallible>(answer(request, peer, options, room, &verdict)));
    let served = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(io), service_fn(answer))
        .with_upgrades()
        .await;
    let verdict = verdict.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (verdict, served) {
        (Some(Ok(upgrading)), Ok(())) => upgrading.link().await,
        (Some(Err(refusal)), _) => Err(failed(refusal)),
        (_, Err(error)) => Err(failed(error)),
        (None, Ok(())) => Err(failed("it went away without a request")),
    }
}

fn answer(
    mut request: Request<Incoming>,
    peer: &str,
    options: &UpgradeOptions,
    room: Room,
    verdict: &Mutex<Verdict>,
) -> Response<String> {
    let asked = match room {
        Room::Free => upgrade(&mut request, options),
        Room::Taken => Err(Refusal::busy()),
    };
    let (response, outcome) = match asked {
        Ok((response, upgrading)) => (response, Ok(upgrading.peer(peer))),
        Err(refusal) => {
            let mut response = refusal.clone().into_response();
            // One request a socket: a refused client that means to try again comes anew.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            (response, Err(refusal))
        }
    };
    *verdict.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    response
}

fn failed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TransportError {
    TransportError::new(TransportErrorKind::Open, why)
}
