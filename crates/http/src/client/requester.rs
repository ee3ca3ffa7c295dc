use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rescind_core::{TransportError, TransportErrorKind};

use super::HttpClient;
use super::connector::Connector;

/// A connection that was not used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// Sends requests, each on a connection of a pool, or all on one in HTTP/2. Dropping a response, or the future of one,
/// gives the exchange up: in HTTP/2 its stream is reset, in HTTP/1.1 its connection closed.
#[derive(Clone)]
pub(crate) struct Requester {
    client: Client<Connector, Posted>,
    uri: Uri,
    headers: HeaderMap,
}

/// Is dropped once a connection has taken the whole of a request, or never will.
pub(crate) type Leaving = Box<dyn Any + Send>;

/// The body of a request. Connections drop it behind its last byte; by then they are due to write, ahead of whoever the
/// drop wakes.
struct Posted {
    body: Full<Bytes>,
    _leaving: Option<Leaving>,
}

impl Body for Posted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request got no response.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The request may have reached the server.
    pub(crate) sent: bool,
    pub(crate) error: TransportError,
}

impl Requester {
    pub(crate) fn new(config: &HttpClient) -> Self {
        let connector = Connector {
            timeout: config.connect_timeout,
            #[cfg(feature = "rustls")]
            tls: config.tls.clone(),
        };
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .http2_only(config.http2)
            .http2_keep_alive_interval(Duration::from_secs(20))
            .http2_keep_alive_timeout(Duration::from_secs(20))
            .build(connector);
        Self { client, uri: config.uri.clone(), headers: config.headers.clone() }
    }

    /// Sends one request; done when the head of its response is there.
    pub(crate) async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Failed> {
        self.send_watched(method, headers, body, None).await
    }

    /// The same, and drops `leaving` once a connection has taken the request.
    pub(crate) async fn send_watched(
        &self,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
        leaving: Option<Leaving>,
    ) -> Result<Response<Incoming>, Failed> {
        let mut request = Request::new(Posted { body: Full::new(body), _leaving: leaving });
        *request.method_mut() = method;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = headers;
        request.headers_mut().extend(self.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        self.client.request(request).await.map_err(|error| {
            let (sent, kind) = if error.is_connect() {
                (false, TransportErrorKind::Open)
            } else {
                (true, TransportErrorKind::Io)
            };
            Failed { sent, error: TransportError::new(kind, error) }
        })
    }
}

impl fmt::Debug for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requester").field("uri", &self.uri).finish_non_exhaustive()
    }
}
