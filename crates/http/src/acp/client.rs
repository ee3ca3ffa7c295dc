//! The client side: POSTs in order, and one event stream for the connection and for each session.
//!
//! - B1 POSTs are sent one at a time: each one starts after the server has taken the one before it, so messages keep
//!   their order. A cancel is sent beside them, as soon as the server has taken the request that it names. So it cannot
//!   overtake that request.
//! - B2 The client reopens a stream that ends, and the server keeps the messages that arrive in between. If its events
//!   have ids, the client sends the last one (`Last-Event-ID`, empty if none has arrived) and gets the events that were
//!   lost with the stream. If the server does not keep them any more, the client opens the stream without the header.
//! - B3 Cookies are kept for the connection and sent with each request.
//! - B4 When the link's sending half ends, everything ends: tasks, streams, and the connection, which a DELETE closes.
//!
//! # What this file holds
//!
//! The transport, the state that the tasks of a client share, the event streams (B2), and the cookies (B3). The POSTs
//! are in `posts.rs`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use rescind_core::{
    ACP_BODIES, BoxFuture, Inbound, Link, RequestId, SessionBodies, Transport, TransportError,
};
use tokio::sync::{Notify, mpsc};

use crate::acp::posts::ClientSender;
use crate::acp::sessions::Message;
use crate::client::{
    ClientCore, EventStream, Failed, HttpClient, InFlightTasks, Requester, ResponseBody, is_of_another_origin,
};
use crate::envelope::{ACP_CONNECTION_ID, ACP_SESSION_ID, EVENT_STREAM, LAST_EVENT_ID};
use crate::sync::{JoinSet, spawn};

/// The most POSTs that wait for the one before them.
const WAITING: usize = 64;

/// The client side of the binding `acp`: a transport to one URL, over HTTP/2.
#[derive(Clone, Debug)]
#[must_use = "a transport does nothing until it is opened"]
pub struct AcpTransport {
    client: HttpClient,
    bodies: &'static SessionBodies,
}

impl AcpTransport {
    /// A transport to this client's URL, over HTTP/2 as ACP's draft requires.
    pub const fn new(client: HttpClient) -> Self {
        Self { client: client.http2(), bodies: &ACP_BODIES }
    }

    /// Sets which messages belong to a session, for a protocol of your own. Default: [`ACP_BODIES`].
    pub const fn bodies(mut self, bodies: &'static SessionBodies) -> Self {
        self.bodies = bodies;
        self
    }

    /// Uses HTTP/1.1, for servers that support nothing newer.
    pub const fn http1(mut self) -> Self {
        self.client.http2 = false;
        self
    }
}

impl Transport for AcpTransport {
    fn name(&self) -> &'static str {
        "http-acp"
    }

    fn open(self: Box<Self>) -> BoxFuture<'static, Result<Link, TransportError>> {
        Box::pin(async move {
            let client = Arc::new(Client::new(&self.client, self.bodies));
            let peer = client.requester.reach().await?;
            let (queue, frames) = mpsc::channel(WAITING);
            let posting = spawn(Arc::clone(&client).post_all(frames));
            let sender = ClientSender::new(Arc::clone(&client), queue, posting);
            Ok(client.link(sender, false, peer))
        })
    }
}

pub(super) struct Client {
    core: ClientCore<AcpClientState>,
    pub(super) bodies: &'static SessionBodies,
    /// Notified when the server has taken a request, and when a request is no longer tracked.
    pub(super) moved: Notify,
}

#[derive(Default)]
pub(super) struct AcpClientState {
    pub(super) connection: Option<HeaderValue>,
    pub(super) cookies: CookieStore,
    /// Sessions whose stream is open or is being opened.
    pub(super) sessions: HashSet<String>,
    pub(super) streams: JoinSet<()>,
    /// Cancels that are being sent.
    pub(super) cancels: JoinSet<()>,
    /// Our requests that are not answered yet.
    pub(super) asked: HashMap<RequestId, Asked>,
    /// Whether the link closes: nothing is sent again.
    pub(super) closing: bool,
    /// For each request from the server, the session on whose stream it came. Its answer needs that session.
    pub(super) asked_in: HashMap<RequestId, String>,
}

/// One of our requests, for a later cancel that names it.
#[derive(Default)]
pub(super) struct Asked {
    /// Whether the server has taken it.
    pub(super) is_taken: bool,
    pub(super) session: Option<String>,
    /// Whether its cancel was sent: it is not sent again.
    pub(super) is_cancelled: bool,
}

impl Client {
    pub(super) fn new(client: &HttpClient, bodies: &'static SessionBodies) -> Self {
        Self { core: ClientCore::new(client, AcpClientState::default()), bodies, moved: Notify::new() }
    }

    pub(super) fn headers(&self, session: Option<&str>) -> HeaderMap {
        let state = self.state();
        let session = session.and_then(|session| HeaderValue::from_str(session).ok());
        let mut headers = HeaderMap::with_capacity(6);
        let values = [
            (ACP_CONNECTION_ID, state.connection.clone()),
            (ACP_SESSION_ID, session),
            (COOKIE, state.cookies.header()),
        ];
        for (name, value) in values {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
        headers
    }

    /// Whether the server has named the connection. If it has, the client must tell it that the connection ends.
    pub(super) fn is_named(&self) -> bool {
        self.state().connection.is_some()
    }

    /// Keeps the cookies of a response, unless it came from another server, to which the request was redirected.
    pub(super) fn take_cookies(&self, response: &Response<ResponseBody>) {
        if !is_of_another_origin(response.extensions()) {
            self.state().cookies.take(response.headers());
        }
    }

    /// The values for the DELETE that ends the connection.
    pub(super) fn delete(&self) -> (Requester, HeaderMap) {
        (self.requester.clone(), self.headers(None))
    }

    pub(super) async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<ResponseBody>, Failed> {
        let response = self.requester.send(method, headers, body).await?;
        self.take_cookies(&response);
        Ok(response)
    }
}

impl Deref for Client {
    type Target = ClientCore<AcpClientState>;

    fn deref(&self) -> &ClientCore<AcpClientState> {
        &self.core
    }
}

impl InFlightTasks for AcpClientState {
    /// All tasks except the one that posts.
    type Tasks = [JoinSet<()>; 2];

    fn take_tasks(&mut self) -> Self::Tasks {
        [std::mem::take(&mut self.streams), std::mem::take(&mut self.cancels)]
    }
}

/// How much of a stream has been received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Position {
    /// The stream was never opened.
    #[default]
    Unopened,
    /// The stream may have been opened, and no event has been received. An empty id says so to the server: it is the id
    /// before the first event (WHATWG HTML, 9.2.6).
    BeforeFirst,
    /// The last event that was received has this id. One that no header can have resumes nothing.
    After(String),
    /// Events have no ids, or the server has refused to resume the stream.
    Unknown,
}

impl Position {
    /// The value of `Last-Event-ID`, if the stream is resumed.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        match self {
            Self::Unopened | Self::Unknown => None,
            Self::BeforeFirst => Some(HeaderValue::from_static("")),
            Self::After(id) => HeaderValue::from_bytes(id.as_bytes()).ok(),
        }
    }

    /// The server may have begun to send events.
    pub(super) fn opened(&mut self) {
        if *self == Self::Unopened {
            *self = Self::BeforeFirst;
        }
    }

    /// An event was received, with its id.
    pub(super) fn received(&mut self, id: Option<String>) {
        match (id, &*self) {
            (Some(id), _) if !id.is_empty() => *self = Self::After(id),
            // An event without an id leaves the last one as it is.
            (None, Self::After(_)) => {}
            (Some(_), _) | (None, Self::Unopened | Self::BeforeFirst | Self::Unknown) => {
                *self = Self::Unknown;
            }
        }
    }

    /// The server refused the stream with this status. Returns whether it refused to resume it: with 400 as our server
    /// and that of MCP's streamable HTTP, or with 409 as a proposal for ACP.
    pub(super) fn was_refused(&mut self, status: StatusCode) -> bool {
        let resumes = self.header().is_some();
        let is_refused = resumes && matches!(status, StatusCode::BAD_REQUEST | StatusCode::CONFLICT);
        if is_refused {
            *self = Self::Unknown;
        }
        is_refused
    }
}

/// The most streams of one client: those of its sessions and the connection's own.
const STREAMS: usize = 1024;
/// The most requests from the server whose session is remembered.
const ASKED: usize = 65_536;
/// The wait before a stream that ended is opened again.
const RETRY: Duration = Duration::from_millis(50);
/// The longest wait before a stream that was refused is requested again.
const REFUSED: Duration = Duration::from_secs(2);
/// After this many failed attempts in a row, the connection counts as lost.
const ATTEMPTS: usize = 20;

impl Client {
    /// Opens the stream of a session, or of the connection, if it is not open.
    pub(super) fn listen(self: &Arc<Self>, session: Option<&str>) {
        let mut state = self.state();
        let name = session.unwrap_or_default();
        if state.closed || state.sessions.len() >= STREAMS || !state.sessions.insert(name.to_owned()) {
            return;
        }
        let (client, session) = (Arc::clone(self), session.map(ToOwned::to_owned));
        state.streams.spawn(async move { client.read_stream(session).await });
    }

    /// Reads a stream until the connection ends (B2).
    async fn read_stream(self: Arc<Self>, session: Option<String>) {
        let mut position = Position::default();
        let mut failed_attempts = 0;
        let mut refused_wait = RETRY;
        loop {
            // This wait starts before the stream is requested: the message that names the session may be sent at the
            // same time.
            let mut taken = pin!(self.moved.notified());
            taken.as_mut().enable();
            let mut headers = self.headers(session.as_deref());
            headers.insert(ACCEPT, HeaderValue::from_static(EVENT_STREAM));
            headers.extend(position.header().map(|last| (LAST_EVENT_ID, last)));
            match self.send(Method::GET, headers, Bytes::new()).await {
                Ok(response) if response.status() == StatusCode::OK => {
                    failed_attempts = 0;
                    refused_wait = RETRY;
                    position.opened();
                    self.read(response.into_body(), session.as_deref(), &mut position).await;
                }
                // The missed events are lost, but new ones can still be read.
                Ok(response) if position.was_refused(response.status()) => {
                    tracing::debug!(status = %response.status(), "a stream could not be resumed");
                    continue;
                }
                // For a session's stream, 404 may mean that the server knows the session only after it is loaded. The
                // connection's own stream reports a connection that has ended.
                Ok(response) if response.status() == StatusCode::NOT_FOUND && session.is_none() => {
                    self.lose("the server does not know the connection any more");
                    return;
                }
                Ok(response) => {
                    tracing::debug!(status = %response.status(), "a stream was refused");
                    let wait = tokio::time::timeout(refused_wait, taken);
                    refused_wait = (refused_wait * 2).min(REFUSED);
                    if wait.await.is_ok() && response.status() == StatusCode::NOT_FOUND {
                        continue;
                    }
                }
                Err(failed) => {
                    tracing::debug!(error = %rescind_core::LogText::text(&failed.error), "a stream could not be opened");
                    if failed.sent {
                        position.opened();
                    }
                    failed_attempts += 1;
                    if failed_attempts >= ATTEMPTS {
                        self.inbound_queue.fail(failed.error);
                        return;
                    }
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Reads events until the response ends.
    async fn read(self: &Arc<Self>, body: ResponseBody, session: Option<&str>, position: &mut Position) {
        let mut events = EventStream::new(body, self.max_frame, &self.inbound_queue).of_all_calls();
        while let Some(event) = events.next().await {
            position.received(event.id);
            if !event.data.is_empty() {
                self.take(event.data, session).await;
            }
        }
    }

    /// Handles a message that came on the stream of this session.
    async fn take(self: &Arc<Self>, body: Bytes, session: Option<&str>) {
        let message = Message::of(&body, self.bodies);
        if let (true, Some(session), Some(id)) = (message.is_request(), session, message.id()) {
            let mut state = self.state();
            if state.asked_in.len() < ASKED {
                state.asked_in.insert(id, session.to_owned());
            }
        }
        if message.is_answer() {
            if let Some(id) = message.id() {
                self.forget(&id);
            }
            if let Some(made) = message.made() {
                self.listen(Some(&made));
            }
        }
        let _ = self.inbound_queue.send(Inbound::new(body)).await;
    }
}

/// The most cookies that are stored, and the most bytes of each.
const MOST: usize = 64;
const MOST_BYTES: usize = 4096;

/// Names and values. There is only one server, so domains and paths are ignored.
#[derive(Default)]
pub(super) struct CookieStore(BTreeMap<String, String>);

impl CookieStore {
    /// Stores the cookies that a response sets.
    pub(super) fn take(&mut self, headers: &HeaderMap) {
        for cookie in headers.get_all(SET_COOKIE).iter().filter_map(|value| value.to_str().ok()) {
            let mut parts = cookie.split(';').map(str::trim);
            let Some((name, value)) = parts.next().and_then(|pair| pair.split_once('=')) else { continue };
            let is_gone = parts.any(|part| {
                part.split_once('=').is_some_and(|(name, age)| {
                    name.eq_ignore_ascii_case("max-age") && age.parse::<i64>().is_ok_and(|age| age <= 0)
                })
            });
            if is_gone {
                self.0.remove(name);
            } else if cookie.len() <= MOST_BYTES && (self.0.len() < MOST || self.0.contains_key(name)) {
                self.0.insert(name.to_owned(), value.to_owned());
            }
        }
    }

    /// The `Cookie` header of a request.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        if self.0.is_empty() {
            return None;
        }
        let pairs: Vec<String> = self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut value = HeaderValue::from_str(&pairs.join("; ")).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(position: &Position) -> Option<String> {
        position.header().map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_stream_is_resumed_after_its_last_id() {
        let mut position = Position::default();
        assert_eq!(header(&position), None, "the first request resumes nothing");
        position.opened();
        assert_eq!(header(&position).as_deref(), Some(""), "lost before its first event");
        for (id, expected) in [
            (Some("1-0"), Some("1-0")),
            (None, Some("1-0")),
            (Some("1-1"), Some("1-1")),
            (Some(""), None),
            (None, None),
            (Some("a\u{e9}"), Some("a\u{e9}")),
            (Some("a\u{7f}"), None),
            (Some("1-2"), Some("1-2")),
        ] {
            position.received(id.map(str::to_owned));
            let value = position.header();
            assert_eq!(value.as_ref().map(HeaderValue::as_bytes), expected.map(str::as_bytes), "{id:?}");
            position.opened();
            assert_eq!(position.header(), value, "opening it again changes nothing");
        }
    }

    #[test]
    fn a_stream_without_ids_is_never_resumed() {
        let mut position = Position::default();
        position.opened();
        position.received(None);
        position.opened();
        assert_eq!(header(&position), None);
    }

    #[test]
    fn after_a_refusal_a_stream_is_not_resumed_until_there_is_an_id() {
        for status in [StatusCode::BAD_REQUEST, StatusCode::CONFLICT] {
            let mut position = Position::default();
            assert!(!position.was_refused(status), "nothing was resumed");
            position.opened();
            for other in [StatusCode::NOT_FOUND, StatusCode::TOO_MANY_REQUESTS, StatusCode::BAD_GATEWAY] {
                assert!(!position.was_refused(other), "{other}");
            }
            assert!(position.was_refused(status));
            position.opened();
            assert_eq!(header(&position), None, "it would get events again that it has had");
            position.received(Some("1-7".to_owned()));
            assert_eq!(header(&position).as_deref(), Some("1-7"));
        }
    }

    #[test]
    fn a_cookie_is_sent_back_until_it_is_removed() {
        let mut cookies = CookieStore::default();
        let set = |cookies: &mut CookieStore, value: &'static str| {
            cookies.take(&HeaderMap::from_iter([(SET_COOKIE, HeaderValue::from_static(value))]));
            cookies.header().map(|value| value.to_str().map(ToOwned::to_owned).unwrap_or_default())
        };
        assert_eq!(set(&mut cookies, "node=a; Path=/acp; HttpOnly").as_deref(), Some("node=a"));
        assert_eq!(set(&mut cookies, "x=1=2; Max-Age=60").as_deref(), Some("node=a; x=1=2"));
        assert_eq!(set(&mut cookies, "node=b").as_deref(), Some("node=b; x=1=2"));
        assert_eq!(set(&mut cookies, "node=; Max-Age=0").as_deref(), Some("x=1=2"));
        assert_eq!(set(&mut cookies, "nonsense").as_deref(), Some("x=1=2"));
        assert_eq!(set(&mut cookies, "x=; max-age=-1"), None);
    }
}
