//! Sends requests to the server of a client, and to those that it redirects to.
//!
//! # Refusals
//!
//! The error of a response that does not answer its request has the status, the address and the beginning of the body.

use std::any::Any;
use std::convert::Infallible;
use std::fmt::{self, Write as _};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST,
};
use http::response::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use rescind_core::{FrameKind, PeerInfo, TransportError, TransportErrorKind};

use crate::client::connector::Connector;
use crate::client::events::{Media, media_of};
use crate::client::pool::{Pool, PooledConnection, ResponseBody, Urgency};
use crate::client::resend::{asks_for_more, is_same_origin, kept, retry_after, sent_once};
use crate::client::{HttpClient, peer_of};
use crate::envelope::{ACP_CONNECTION_ID, ACP_SESSION_ID, MCP_SESSION_ID, SILENCE};
use crate::inbound_queue::InboundQueue;
use crate::sync::Mutex;

/// How often an answer or a cancel is sent again if a connection may have lost it.
const REPEATS: usize = 3;

/// Sends requests, each on its own connection, or all on one connection with HTTP/2. A response that is dropped, or the
/// future of one, aborts the exchange: in HTTP/2 its stream is reset, in HTTP/1.1 its connection is closed.
#[derive(Clone)]
pub(crate) struct Requester(pub(super) Arc<Shared>);

/// What the clones of a requester share.
pub(super) struct Shared {
    pub(super) client: HttpClient,
    /// The address that the client was given.
    pub(super) base: Arc<Target>,
    /// The address to which the server moved it for good.
    pub(super) moved: Mutex<Option<Arc<Target>>>,
    /// The connections to other servers that it redirected to, the newest last.
    pub(super) others: Mutex<Vec<Arc<Target>>>,
    /// The server that opened the session. Unset or `None`: the one that the client was given.
    session_server: OnceLock<Mutex<Option<Uri>>>,
    /// Gets the deviations of the server.
    pub(super) inbound_queue: Arc<InboundQueue>,
}

/// An address, with the connections to its server.
pub(super) struct Target {
    pub(super) pool: Arc<Pool>,
    /// The address in the form that HTTP/2 uses.
    pub(super) uri: Uri,
    /// The address in the form that HTTP/1.1 uses, which also needs the host.
    path: Uri,
    host: HeaderValue,
    may_be_http2: bool,
    /// Whether it is of the server that the client was given, which gets the client's credentials.
    pub(super) is_own: bool,
}

impl Target {
    pub(super) fn new(pool: Arc<Pool>, uri: Uri, http2: bool, is_own: bool) -> Self {
        let path = uri.path_and_query().cloned().map_or_else(|| Uri::from_static("/"), Uri::from);
        let usual = default_port(&uri);
        let name = uri.host().unwrap_or_default();
        let port = uri.port_u16().filter(|port| *port != usual);
        let host = port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
        // A header can contain any host of a URI.
        let host = HeaderValue::from_str(&host).unwrap_or_else(|_| HeaderValue::from_static(""));
        let may_be_http2 = http2 || uri.scheme_str() == Some("https");
        Self { pool, uri, path, host, may_be_http2, is_own }
    }
}

/// The port of a URL without one.
pub(super) fn default_port(uri: &Uri) -> u16 {
    if uri.scheme_str() == Some("https") { 443 } else { 80 }
}

/// The headers of a request for each time that it is sent, and whether it may still be sent.
pub(crate) trait Attempts: Sync {
    /// The headers of the next attempt.
    fn headers(&self) -> HeaderMap;

    /// Completes when the request must not be sent again: its call was cancelled, or its client closes.
    fn stopped(&self) -> impl Future<Output = ()> + Send;
}

/// Headers that are the same each time, for a request that is not cancelled.
impl Attempts for HeaderMap {
    fn headers(&self) -> HeaderMap {
        self.clone()
    }

    fn stopped(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
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

impl Failed {
    /// An error of the connection or of a response.
    pub(crate) fn new(sent: bool, text: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { sent, error: TransportError::new(TransportErrorKind::Io, text) }
    }

    /// This side has stopped sending it.
    pub(crate) fn stopped(text: &'static str) -> Self {
        Self { sent: false, error: TransportError::new(TransportErrorKind::Closed, text) }
    }

    /// Whether it failed because this side stopped sending it, and not because of the server.
    pub(super) fn is_stopped(&self) -> bool {
        self.error.kind == TransportErrorKind::Closed
    }
}

impl Requester {
    pub(crate) fn new(client: &HttpClient, inbound_queue: &Arc<InboundQueue>) -> Self {
        let pool = Pool::new(Connector::new(client, &client.uri));
        Self(Arc::new(Shared {
            client: client.clone(),
            base: Arc::new(Target::new(pool, client.uri.clone(), client.http2, true)),
            moved: Mutex::default(),
            others: Mutex::default(),
            session_server: OnceLock::new(),
            inbound_queue: Arc::clone(inbound_queue),
        }))
    }

    /// The URL of the client.
    pub(crate) fn uri(&self) -> &Uri {
        &self.0.base.uri
    }

    /// The same with another target of the same origin, over the same connections.
    pub(crate) fn at(&self, target: PathAndQuery) -> Self {
        let Shared { client, base, inbound_queue, .. } = &*self.0;
        let mut parts = base.uri.clone().into_parts();
        parts.path_and_query = Some(target);
        // Only the path differs from that of a valid URL.
        let uri = Uri::from_parts(parts).unwrap_or_else(|_| base.uri.clone());
        Self(Arc::new(Shared {
            client: client.clone(),
            base: Arc::new(Target::new(Arc::clone(&base.pool), uri, client.http2, true)),
            moved: Mutex::default(),
            others: Mutex::default(),
            session_server: OnceLock::new(),
            inbound_queue: Arc::clone(inbound_queue),
        }))
    }

    /// Checks whether the server can be reached: opens the connection for the first request, including TLS. Returns the
    /// link's information about the peer.
    pub(crate) async fn reach(&self) -> Result<PeerInfo, TransportError> {
        let Target { pool, uri, .. } = &*self.0.base;
        let peer = peer_of(uri);
        match pool.next(Urgency::Usual).await {
            Ok(PooledConnection::Own(sender)) => pool.give_back(sender),
            // The pool keeps it for all requests.
            Ok(PooledConnection::Shared(_)) => {}
            Err(error) => {
                let error = io::Error::new(error.kind(), format!("{peer}: {error}"));
                return Err(TransportError::new(TransportErrorKind::Open, error));
            }
        }
        Ok(PeerInfo::of_peer(&peer))
    }

    /// The address of the client, without user, password and query, which may be secret.
    pub(crate) fn address(&self) -> String {
        address_of(&self.0.base.uri)
    }

    /// Sends one request. Completes when the head of its response has arrived.
    pub(crate) async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<ResponseBody>, Failed> {
        let target = self.target();
        let (request, shown) = self.request(&target, method.clone(), headers.clone(), body.clone(), None);
        let response = Self::send_one(&target, request, Urgency::Usual).await;
        let response = response.inspect_err(|failed| self.note_failure(&target, failed))?;
        if !asks_for_more(response.status()) && Arc::ptr_eq(&target, &self.0.base) {
            return Ok(response);
        }
        let sent = Sent { method, target, shown, urgency: Urgency::Usual };
        Box::pin(self.send_further(sent, response, &headers, body)).await
    }

    /// Posts a frame of this kind, and drops `leaving` when a connection has taken it.
    ///
    /// A server may close a connection at the moment when it is used again. Then it is unknown whether the server read
    /// the request. A cancel or an answer has the same meaning when it is sent twice, so it is sent again: otherwise
    /// the server might wait forever for an answer that was lost.
    ///
    /// Redirects are followed. A request that was refused for its credentials, or for now, is sent once more, with the
    /// headers of then (see [`send_further`](Self::send_further)).
    pub(crate) async fn post(
        &self,
        kind: FrameKind,
        attempts: &impl Attempts,
        body: Bytes,
        leaving: Option<Leaving>,
    ) -> Result<Response<ResponseBody>, Failed> {
        let target = self.target();
        let kept = kept(&body);
        let (urgency, shown, response) = match kind {
            FrameKind::Cancel | FrameKind::Answer => {
                let urgency = if kind == FrameKind::Cancel { Urgency::Urgent } else { Urgency::Usual };
                // Boxed, because otherwise the future of each request would reserve space for the repeats.
                let sent = Box::pin(self.post_again(&target, urgency, attempts, &body, leaving)).await;
                let (response, shown) = sent.inspect_err(|failed| self.note_failure(&target, failed))?;
                (urgency, shown, response)
            }
            FrameKind::Request | FrameKind::Notification => {
                let headers = attempts.headers();
                let (request, shown) = self.request(&target, Method::POST, headers, body, leaving);
                let sent = Self::send_one(&target, request, Urgency::Usual).await;
                (Urgency::Usual, shown, sent.inspect_err(|failed| self.note_failure(&target, failed))?)
            }
        };
        if !asks_for_more(response.status()) && Arc::ptr_eq(&target, &self.0.base) {
            return Ok(response);
        }
        let Some(body) = kept else { return sent_once(&target, response) };
        let sent = Sent { method: Method::POST, target, shown, urgency };
        Box::pin(self.send_further(sent, response, attempts, body)).await
    }

    async fn post_again(
        &self,
        target: &Arc<Target>,
        urgency: Urgency,
        attempts: &impl Attempts,
        body: &Bytes,
        mut leaving: Option<Leaving>,
    ) -> Result<(Response<ResponseBody>, Shown), Failed> {
        let mut left = REPEATS;
        loop {
            let headers = attempts.headers();
            let (request, shown) = self.request(target, Method::POST, headers, body.clone(), leaving.take());
            match Self::send_one(target, request, urgency).await {
                Err(failed) if failed.sent && left > 0 => left -= 1,
                sent => return sent.map(|response| (response, shown)),
            }
        }
    }

    /// A request to this address, and the number of the credentials that it shows. Another server gets none, nor the
    /// headers of the client, which may be credentials too. The id of a session goes only to the server that opened it.
    pub(super) fn request(
        &self,
        target: &Target,
        method: Method,
        mut headers: HeaderMap,
        body: Bytes,
        leaving: Option<Leaving>,
    ) -> (Request<Posted>, Shown) {
        let client = &self.0.client;
        let mut shown = None;
        if target.is_own {
            if !client.headers.is_empty() {
                headers.extend(client.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
            if let Some(authorization) = &client.authorization {
                let (value, number) = authorization.current();
                if let Some(value) = value {
                    headers.insert(AUTHORIZATION, value);
                }
                shown = Some(number);
            }
        } else {
            headers.remove(HOST);
            headers.remove(COOKIE);
        }
        if (!target.is_own || self.0.session_server.get().is_some()) && !self.opened_session(target) {
            for id in [MCP_SESSION_ID, ACP_CONNECTION_ID, ACP_SESSION_ID] {
                headers.remove(id);
            }
        }
        if !headers.contains_key(ACCEPT_ENCODING) {
            headers.insert(ACCEPT_ENCODING, IDENTITY);
        }
        if !body.is_empty() {
            // Hyper would need more allocations for it. Digits are a valid value.
            let length = HeaderValue::try_from(body.len().to_string());
            headers.insert(CONTENT_LENGTH, length.unwrap_or_else(|_| HeaderValue::from(body.len())));
        }
        let mut request = Request::new(Posted { body: Full::new(body), _leaving: leaving });
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        (request, shown)
    }

    #[expect(clippy::manual_async_fn, reason = "the future of an `async fn` has its arguments twice")]
    pub(super) fn send_one(
        target: &Target,
        mut request: Request<Posted>,
        urgency: Urgency,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Failed>> + Send {
        async move {
            let is_post = request.method() == Method::POST;
            let pool = &target.pool;
            loop {
                let (connection, is_used) = match pool.free(urgency) {
                    Some(connection) => (connection, true),
                    None => (pool.next(urgency).await.map_err(unopened)?, false),
                };
                let mut unsent = match connection {
                    PooledConnection::Own(mut sender) => {
                        *request.uri_mut() = target.path.clone();
                        request.headers_mut().entry(HOST).or_insert_with(|| target.host.clone());
                        match sender.try_send_request(request).await {
                            Ok(response) => return Ok(own(pool, response, sender, is_post)),
                            Err(unsent) => unsent,
                        }
                    }
                    PooledConnection::Shared(mut sender) => {
                        *request.uri_mut() = target.uri.clone();
                        match sender.try_send_request(request).await {
                            Ok(response) => return Ok(response.map(ResponseBody::shared)),
                            Err(unsent) => unsent,
                        }
                    }
                };
                match unsent.take_message() {
                    // The connection was closed while it was unused: another one can carry the request.
                    Some(back) if is_used => request = back,
                    back => return Err(no_response(target, back.is_none(), &unsent.into_error())),
                }
            }
        }
    }

    /// Adds the host to headers that are used for many requests, if the connection uses HTTP/1.1.
    pub(crate) fn name_host(&self, headers: &mut HeaderMap) {
        let base = &self.0.base;
        if !base.may_be_http2 && !self.0.client.headers.contains_key(HOST) {
            headers.entry(HOST).or_insert_with(|| base.host.clone());
        }
        headers.insert(ACCEPT_ENCODING, IDENTITY);
    }

    /// Notes that the server of this response has opened the session.
    pub(crate) fn note_session_server(&self, extensions: &http::Extensions) {
        let server = other_server(extensions).cloned();
        if server.is_some() || self.0.session_server.get().is_some() {
            let known = self.0.session_server.get_or_init(Mutex::default);
            *known.lock().unwrap_or_else(PoisonError::into_inner) = server;
        }
    }

    /// Whether a response came from the server that has opened the session.
    pub(crate) fn is_of_session_server(&self, extensions: &http::Extensions) -> bool {
        let own = &self.0.base.uri;
        is_same_origin(other_server(extensions).unwrap_or(own), self.session_server().as_ref().unwrap_or(own))
    }

    /// Whether the server that has opened the session has moved to the one that has answered, which does not know the session.
    pub(crate) fn has_moved(&self, extensions: &http::Extensions) -> bool {
        let is_permanent = extensions.get::<RedirectedTo>().is_some_and(|to| to.is_permanent);
        is_permanent && !self.is_of_session_server(extensions)
    }

    fn opened_session(&self, target: &Target) -> bool {
        self.session_server().map_or(target.is_own, |server| is_same_origin(&server, &target.uri))
    }

    /// The server that opened the session. `None`: the one that the client was given.
    fn session_server(&self) -> Option<Uri> {
        self.0.session_server.get()?.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where requests are sent.
    pub(super) fn target(&self) -> Arc<Target> {
        let moved = self.0.moved.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(moved.as_ref().unwrap_or(&self.0.base))
    }

    /// If an address to which the server moved cannot be reached, the next request goes to the first address again.
    fn note_failure(&self, target: &Target, failed: &Failed) {
        if !failed.sent && !std::ptr::eq(target, &raw const *self.0.base) {
            *self.0.moved.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

/// A request that was sent once.
pub(super) struct Sent {
    pub(super) method: Method,
    pub(super) target: Arc<Target>,
    pub(super) shown: Shown,
    pub(super) urgency: Urgency,
}

/// The number of the credentials that a request has shown. `None`: it has shown none that can change.
pub(super) type Shown = Option<u64>;

/// The only encoding that is accepted. Answers are read as they come.
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// An address without user, password and query.
pub(super) fn address_of(uri: &Uri) -> String {
    format!("{}://{}{}", uri.scheme_str().unwrap_or("http"), peer_of(uri), uri.path())
}

/// The error of a request without a response. A server that does not support HTTP/2 has not understood the request,
/// so it counts as not sent.
fn no_response(target: &Target, sent: bool, error: &hyper::Error) -> Failed {
    let Target { pool, uri, .. } = target;
    if pool.was_misunderstood() {
        let error = TransportError::new(TransportErrorKind::Open, "the server does not speak HTTP/2");
        return Failed { sent: false, error };
    }
    Failed::new(sent, format!("no response came from {}: {}", address_of(uri), with_source(error)))
}

fn own(
    pool: &Arc<Pool>,
    response: Response<Incoming>,
    sender: http1::SendRequest<Posted>,
    is_post: bool,
) -> Response<ResponseBody> {
    let media = response.headers().get(CONTENT_TYPE).filter(|_| is_post);
    let is_stream = media.is_some_and(|media| media_of(media) == Media::Events);
    response.map(|body| ResponseBody::own(body, pool, sender, is_stream))
}

fn unopened(error: Arc<io::Error>) -> Failed {
    let error = io::Error::new(error.kind(), error);
    Failed { sent: false, error: TransportError::new(TransportErrorKind::Open, error) }
}

impl fmt::Debug for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requester").field("peer", &peer_of(&self.0.base.uri)).finish_non_exhaustive()
    }
}

/// A longer text is not a media type, and would hide the rest of the message.
const LONGEST: usize = 100;
/// The most bytes of a body that an error shows.
const EXCERPT: usize = 200;
/// How long the body of a response that is not an answer is read.
const READING: Duration = Duration::from_secs(1);

/// The address that a response came from, if its request was redirected. An extension of the response.
#[derive(Clone, Debug)]
pub(super) struct RedirectedTo {
    pub(super) address: String,
    /// The same, if it is of another server than the one that the client was given.
    pub(super) other_server: Option<Uri>,
    /// The server has moved there for good.
    pub(super) is_permanent: bool,
}

/// Whether the response came from another server than the one that the client was given.
pub(crate) fn is_of_another_origin(extensions: &http::Extensions) -> bool {
    other_server(extensions).is_some()
}

fn other_server(extensions: &http::Extensions) -> Option<&Uri> {
    extensions.get::<RedirectedTo>()?.other_server.as_ref()
}

/// Names the status and the media type of the body, the address, and what the body begins with. The address is the one
/// that was asked first.
pub(crate) fn refusal(head: &Parts, address: &str, body: &[u8]) -> String {
    let (status, headers) = (head.status, &head.headers);
    let media = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media = media.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    let media = media.get(..LONGEST).unwrap_or(media);
    let mut text = match (status.is_success(), media) {
        (true, "") => format!("the server answered with {status} and no message"),
        (true, media) => {
            format!("the server answered with {status} and {media}, which does not answer the request")
        }
        (false, "") => format!("the server answered with {status}"),
        (false, media) => format!("the server answered with {status} and {media}"),
    };
    if let Some(wait) = retry_after(headers) {
        let _ = write!(text, ", to be asked again after {} s", wait.as_secs());
    }
    let redirected = head.extensions.get::<RedirectedTo>();
    let _ = write!(text, " ({})", redirected.map_or(address, |to| &to.address));
    if redirected.is_some_and(|to| to.other_server.is_some()) && status == http::StatusCode::UNAUTHORIZED {
        text.push_str(", to which no credentials are sent, because it is not the server that they are for");
    }
    let repeats = |shown: &Credentials| repeats(body, &shown.0);
    if head.extensions.get::<Credentials>().is_some_and(repeats) {
        text.push_str(": it repeats the credentials");
    } else {
        push_excerpt(&mut text, body);
    }
    text
}

/// The credentials that a response refuses, which must not be shown. An extension of the response.
#[derive(Clone)]
pub(super) struct Credentials(pub(super) HeaderValue);

/// Whether a body has the secret of these credentials, which follows the name of their scheme.
fn repeats(body: &[u8], shown: &HeaderValue) -> bool {
    let secret = shown.as_bytes().rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    !secret.is_empty() && body.windows(secret.len()).any(|part| part == secret)
}

/// The error of a stream that ended without the answer. `why` says more of its end, and `sent` is the last event that was dropped.
pub(crate) fn stream_refusal(head: &Parts, address: &str, why: Option<&str>, sent: &[u8]) -> String {
    let to = head.extensions.get::<RedirectedTo>().map_or(address, |to| &to.address);
    let why = why.unwrap_or("the event stream ended without the answer");
    let mut text = format!("{why} ({} from {to})", head.status);
    push_excerpt(&mut text, sent);
    text
}

/// The error of a body that is compressed, although the client asked for none of that. `None`: it is not.
pub(crate) fn encoded(head: &Parts, address: impl FnOnce() -> String) -> Option<Failed> {
    let encoding = encoding_of(&head.headers)?;
    let to = head.extensions.get::<RedirectedTo>().map_or_else(address, |to| to.address.clone());
    let encoding = rescind_core::LogText::name(encoding);
    let status = head.status;
    let text = format!(
        "the server answered with {status} and Content-Encoding: {encoding} ({to}), although the client accepts only identity"
    );
    Some(Failed::new(true, text))
}

/// The encoding of a body that is not as it is. `None`: it is.
pub(crate) fn encoding_of(headers: &HeaderMap) -> Option<String> {
    let encodings = headers.get_all(CONTENT_ENCODING).iter();
    let named = encodings.map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_owned());
    named.into_iter().find(|value| !value.is_empty() && !value.eq_ignore_ascii_case("identity"))
}

/// The error of a response that broke off after this part of its body.
pub(crate) fn error_cut_off(head: &Parts, address: &str, cause: &hyper::Error, body: &[u8]) -> Failed {
    incomplete(head, address, "broke off", &with_source(cause), body)
}

fn with_source(error: &hyper::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// The error of a response above this limit, in bytes, that begins with this.
pub(crate) fn error_too_large(head: &Parts, address: &str, limit: usize, body: &[u8]) -> Failed {
    let to = head.extensions.get::<RedirectedTo>().map_or(address, |to| &to.address);
    let mut text = format!("the response with {} is over the limit of {limit} bytes ({to})", head.status);
    push_excerpt(&mut text, body);
    Failed::new(true, text)
}

/// The error of a response of which nothing came after this part of its body.
pub(crate) fn silent(head: &Parts, address: &str, body: &[u8]) -> Failed {
    let cause = format!("and nothing more came within {} s", SILENCE.as_secs());
    incomplete(head, address, "stopped", &cause, body)
}

fn incomplete(head: &Parts, address: &str, how: &str, cause: &str, body: &[u8]) -> Failed {
    let to = head.extensions.get::<RedirectedTo>().map_or(address, |to| &to.address);
    let (status, bytes) = (head.status, body.len());
    let mut text = format!("the response with {status} {how} after {bytes} bytes ({to}), {cause}");
    push_excerpt(&mut text, body);
    Failed::new(true, text)
}

/// Adds the beginning of a body, on one line.
pub(crate) fn push_excerpt(text: &mut String, body: &[u8]) {
    let Some(shown) = body.get(..EXCERPT.min(body.len())).filter(|shown| !shown.is_empty()) else { return };
    text.push_str(": ");
    // A character that is cut in two is not shown.
    let shown = match std::str::from_utf8(shown) {
        Err(error) if error.error_len().is_none() => shown.get(..error.valid_up_to()).unwrap_or(shown),
        _ => shown,
    };
    for character in String::from_utf8_lossy(shown).chars() {
        if matches!(character, ' '..='~') || character.is_alphanumeric() {
            text.push(character);
        } else {
            text.extend(character.escape_default());
        }
    }
    if body.len() > EXCERPT {
        text.push_str("...");
    }
}

/// Reads the body of a response that may not be a message: up to `limit` bytes, and not for long. Returns what came, and
/// whether it is the whole body.
pub(crate) async fn beginning(mut body: ResponseBody, limit: usize) -> (Bytes, bool) {
    let (mut read, mut is_whole) = (BytesMut::new(), false);
    let reading = async {
        loop {
            match body.frame().await {
                None => break is_whole = true,
                Some(Err(_)) => break,
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    if read.len() + data.len() > limit {
                        read.extend_from_slice(data.get(..limit - read.len()).unwrap_or_default());
                        break;
                    }
                    read.extend_from_slice(&data);
                }
            }
        }
    };
    // If the time ends, what has come is enough.
    let _late = tokio::time::timeout(READING, reading).await;
    (read.freeze(), is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, headers: &[(&'static str, &'static str)]) -> Parts {
        let mut response = http::Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        response.body(()).unwrap().into_parts().0
    }

    #[test]
    fn an_error_has_the_status_the_address_and_the_beginning_of_the_body() {
        let json = head(200, &[("content-type", "application/json; charset=utf-8")]);
        assert_eq!(
            refusal(&json, "http://host/mcp", br#"{"detail":"Not authenticated"}"#),
            "the server answered with 200 OK and application/json, which does not answer the request \
             (http://host/mcp): {\"detail\":\"Not authenticated\"}"
        );
        let late = head(503, &[("retry-after", "120")]);
        assert_eq!(
            refusal(&late, "http://host/mcp", b""),
            "the server answered with 503 Service Unavailable, to be asked again after 120 s (http://host/mcp)"
        );
        let long =
            refusal(&head(500, &[]), "x", &[b"<\n\x1b[2J\xff".as_slice(), &b"x".repeat(1 << 20)].concat());
        assert!(
            long.contains(r"<\n\u{1b}[2J\u{fffd}xxx") && long.ends_with("x...") && long.len() < 300,
            "{long}"
        );
        let split = refusal(&head(500, &[]), "x", &[b"x", "é".repeat(100).as_bytes()].concat());
        assert!(split.ends_with("éé..."), "{split}");
    }

    #[test]
    fn a_body_that_repeats_the_credentials_is_not_shown() {
        let mut refused = head(401, &[]);
        refused.extensions.insert(Credentials(HeaderValue::from_static("Bearer a-token")));
        let text = refusal(&refused, "http://host/mcp", br#"{"error":"unknown token a-token"}"#);
        assert!(text.ends_with("(http://host/mcp): it repeats the credentials"), "{text}");
        assert!(refusal(&refused, "http://host/mcp", b"unknown").ends_with(": unknown"));
    }

    #[test]
    fn an_encoding_is_named() {
        for encoding in ["identity", "", "Identity"] {
            let head = head(200, &[("content-encoding", encoding)]);
            assert!(encoded(&head, || "x".to_owned()).is_none(), "{encoding}");
        }
        let failed =
            encoded(&head(200, &[("content-encoding", "identity"), ("content-encoding", "gzip")]), || {
                "x".to_owned()
            });
        assert!(failed.unwrap().error.source.to_string().contains("Content-Encoding: gzip (x)"));
    }
}
