use std::any::Any;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::Either;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use rescind_core::{FrameKind, PeerInfo, TransportError, TransportErrorKind};

use super::connector::Connector;
use super::media_type::{Media, media_of};
use super::pool::{Line, Pool, Urgency};
use super::response_body::ResponseBody;
use super::{HttpClient, peer_of};

/// How often an answer or a cancel is sent again if a connection may have lost it.
const REPEATS: usize = 3;

/// Sends requests, each on its own connection, or all on one connection with HTTP/2. A response that is dropped, or the
/// future of one, aborts the exchange: in HTTP/2 its stream is reset, in HTTP/1.1 its connection is closed.
#[derive(Clone)]
pub(crate) struct Requester {
    pool: Arc<Pool>,
    /// The target in the form that HTTP/2 uses.
    uri: Uri,
    /// The target in the form that HTTP/1.1 uses, which also needs the host.
    path: Uri,
    host: HeaderValue,
    headers: HeaderMap,
    may_be_http2: bool,
}

/// A value that is dropped when a connection has taken the whole request, or never will.
pub(crate) type Leaving = Box<dyn Any + Send>;

/// The body of a request. A connection drops it after taking its last byte. At that time the connection is already
/// scheduled to write, before any task that the drop wakes.
pub(super) struct Posted {
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

/// The error of a request that got no response.
#[derive(Debug)]
pub(crate) struct Failed {
    /// Whether the request may have reached the server.
    pub(crate) sent: bool,
    pub(crate) error: TransportError,
}

impl Requester {
    pub(crate) fn new(client: &HttpClient) -> Self {
        let path = client.uri.path_and_query().cloned().map_or_else(|| Uri::from_static("/"), Uri::from);
        let usual = if client.uri.scheme_str() == Some("https") { 443 } else { 80 };
        let name = client.uri.host().unwrap_or_default();
        let port = client.uri.port_u16().filter(|port| *port != usual);
        let host = port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
        // A header can contain any host of a URI.
        let host = HeaderValue::from_str(&host).unwrap_or_else(|_| HeaderValue::from_static(""));
        Self {
            pool: Pool::new(Connector::new(client)),
            uri: client.uri.clone(),
            path,
            host,
            headers: client.headers.clone(),
            may_be_http2: client.http2 || client.uri.scheme_str() == Some("https"),
        }
    }

    /// Checks whether the server can be reached: opens the connection for the first request, including TLS. Returns the
    /// link's information about the peer.
    pub(crate) async fn reach(&self) -> Result<PeerInfo, TransportError> {
        let peer = peer_of(&self.uri);
        match self.pool.next(Urgency::Usual).await {
            Ok(Line::Own(sender)) => self.pool.give_back(sender),
            // The pool keeps it for all requests.
            Ok(Line::Shared(_)) => {}
            Err(error) => {
                let error = io::Error::new(error.kind(), format!("{peer}: {error}"));
                return Err(TransportError::new(TransportErrorKind::Open, error));
            }
        }
        Ok(PeerInfo::of_peer(&peer))
    }

    /// Sends one request. Completes when the head of its response has arrived.
    pub(crate) async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<ResponseBody>, Failed> {
        self.send_one(self.request(method, headers, body, None), Urgency::Usual).await
    }

    /// Posts a frame of this kind, and drops `leaving` when a connection has taken it.
    ///
    /// A server may close a connection at the moment when it is used again. Then it is unknown whether the server read
    /// the request. A cancel or an answer has the same meaning when it is sent twice, so it is sent again: otherwise
    /// the server might wait forever for an answer that was lost.
    pub(crate) fn post(
        &self,
        kind: FrameKind,
        headers: HeaderMap,
        body: Bytes,
        leaving: Option<Leaving>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Failed>> {
        let urgency = match kind {
            FrameKind::Cancel => Urgency::Urgent,
            FrameKind::Answer => Urgency::Usual,
            FrameKind::Request | FrameKind::Notification => {
                let request = self.request(Method::POST, headers, body, leaving);
                return Either::Right(self.send_one(request, Urgency::Usual));
            }
        };
        // Boxed, because otherwise the future of each request would reserve space for the repeats.
        Either::Left(Box::pin(self.post_again(urgency, headers, body, leaving)))
    }

    async fn post_again(
        &self,
        urgency: Urgency,
        headers: HeaderMap,
        body: Bytes,
        mut leaving: Option<Leaving>,
    ) -> Result<Response<ResponseBody>, Failed> {
        for _ in 0..REPEATS {
            let request = self.request(Method::POST, headers.clone(), body.clone(), leaving.take());
            let sent = self.send_one(request, urgency).await;
            if !matches!(&sent, Err(failed) if failed.sent) {
                return sent;
            }
        }
        self.send_one(self.request(Method::POST, headers, body, leaving), urgency).await
    }

    fn request(
        &self,
        method: Method,
        mut headers: HeaderMap,
        body: Bytes,
        leaving: Option<Leaving>,
    ) -> Request<Posted> {
        if !self.headers.is_empty() {
            headers.extend(self.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        let mut request = Request::new(Posted { body: Full::new(body), _leaving: leaving });
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        request
    }

    async fn send_one(
        &self,
        mut request: Request<Posted>,
        urgency: Urgency,
    ) -> Result<Response<ResponseBody>, Failed> {
        let is_post = request.method() == Method::POST;
        loop {
            let (line, is_used) = match self.pool.free(urgency) {
                Some(line) => (line, true),
                None => (self.pool.next(urgency).await.map_err(unopened)?, false),
            };
            let mut unsent = match line {
                Line::Own(mut sender) => {
                    *request.uri_mut() = self.path.clone();
                    request.headers_mut().entry(HOST).or_insert_with(|| self.host.clone());
                    match sender.try_send_request(request).await {
                        Ok(response) => return Ok(self.own(response, sender, is_post)),
                        Err(unsent) => unsent,
                    }
                }
                Line::Shared(mut sender) => {
                    *request.uri_mut() = self.uri.clone();
                    match sender.try_send_request(request).await {
                        Ok(response) => return Ok(response.map(ResponseBody::shared)),
                        Err(unsent) => unsent,
                    }
                }
            };
            match unsent.take_message() {
                // The connection was closed while it was unused: another one can carry the request.
                Some(back) if is_used => request = back,
                back => {
                    return Err(self.unanswered(back.is_none(), unsent.into_error()));
                }
            }
        }
    }

    /// Adds the host to headers that are used for many requests, if the connection uses HTTP/1.1.
    pub(crate) fn name_host(&self, headers: &mut HeaderMap) {
        if !self.may_be_http2 && !self.headers.contains_key(HOST) {
            headers.entry(HOST).or_insert_with(|| self.host.clone());
        }
    }

    /// The error of a request without a response. A server that does not support HTTP/2 has not understood the request,
    /// so it counts as not sent.
    fn unanswered(&self, sent: bool, error: hyper::Error) -> Failed {
        if self.pool.was_misunderstood() {
            let error = TransportError::new(TransportErrorKind::Open, "the server does not speak HTTP/2");
            return Failed { sent: false, error };
        }
        Failed { sent, error: TransportError::new(TransportErrorKind::Io, error) }
    }

    fn own(
        &self,
        response: Response<Incoming>,
        sender: http1::SendRequest<Posted>,
        is_post: bool,
    ) -> Response<ResponseBody> {
        let media = response.headers().get(CONTENT_TYPE).filter(|_| is_post);
        let is_stream = media.is_some_and(|media| media_of(media) == Media::Events);
        response.map(|body| ResponseBody::own(body, &self.pool, sender, is_stream))
    }
}

fn unopened(error: Arc<io::Error>) -> Failed {
    let error = io::Error::new(error.kind(), error);
    Failed { sent: false, error: TransportError::new(TransportErrorKind::Open, error) }
}

impl fmt::Debug for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requester").field("peer", &peer_of(&self.uri)).finish_non_exhaustive()
    }
}
