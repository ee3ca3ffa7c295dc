use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri};
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
    client: Client<Connector, Full<Bytes>>,
    uri: Uri,
    headers: HeaderMap,
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
        let mut request = Request::new(Full::new(body));
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
