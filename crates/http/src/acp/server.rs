//! The server side: how each HTTP method is handled.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::UPGRADE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use rescind_core::{BoxFuture, HeldBytes, Principal};
use rescind_net::PeerAddress;

use super::connection::{Connection, Start};
use super::sessions::MAX_NAME_BYTES;
use super::{Acp, UpgradeHook};
use crate::acp::connection;
use crate::acp::sessions::{Message, NoStream, naming};
use crate::envelope::{
    ACP_CONNECTION_ID, ACP_SESSION_ID, Envelope, EnvelopeError, LAST_EVENT_ID, has_messages,
};
use crate::inbound_queue::SendRefused;
use crate::server::body::{self, EventSource, ResponseBody};
use crate::server::checks::{self, HeadFields, PageAccess, Parameters, Refused};
use crate::server::json_or_event_stream::ResponseKind;
use crate::server::sessions::{Linked, NotOpened, Sessions, random_id};
use crate::server::{AcceptQueue, Caller, RequestBody, Responder, Settings, replay_buffer};

const ALLOWED: &str = "GET, POST, DELETE";
/// The methods and headers that web pages may use.
const PAGE_ACCESS: PageAccess = PageAccess {
    methods: ALLOWED,
    headers: "Acp-Connection-Id, Acp-Session-Id, Accept, Authorization, Content-Type, Last-Event-ID, traceparent, tracestate",
    exposed: "Acp-Connection-Id, Acp-Session-Id, WWW-Authenticate, Retry-After",
    parameters: Parameters::Ignored,
};

/// The open connections.
pub(super) type Connections = Sessions<Connection>;

pub(super) struct AcpServer {
    settings: Arc<Settings>,
    table: Arc<Connections>,
    accept_queue: AcceptQueue,
    config: Acp,
}

impl AcpServer {
    pub(super) fn new(config: Acp, settings: &Arc<Settings>, accept_queue: AcceptQueue) -> Self {
        Self { settings: Arc::clone(settings), table: Arc::default(), accept_queue, config }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> Result<Response<ResponseBody>, Refused> {
        match *request.method() {
            Method::POST => self.post(request, caller).await,
            Method::GET => match &self.config.upgrade {
                Some(hook) if asks_for_a_websocket(request.version(), request.headers()) => {
                    upgraded(hook, request, caller).await
                }
                Some(_) | None => self.get(request.headers(), caller.principal.as_ref()),
            },
            Method::DELETE => {
                self.required(&HeadFields::of(request.headers()), caller.principal.as_ref())?.end();
                Ok(body::plain(StatusCode::ACCEPTED))
            }
            _ => Err(Refused::method(ALLOWED)),
        }
    }

    async fn post(
        &self,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> Result<Response<ResponseBody>, Refused> {
        let (head, body) = request.into_parts();
        let fields = HeadFields::of(&head.headers);
        checks::content_encoding(&fields)?;
        checks::content_type(&fields)?;
        let reported = session_named(&fields)?;
        let known = match connection_named(&fields)? {
            Some(id) => Some(self.table.find(id, caller.principal.as_ref()).ok_or_else(unknown)?),
            None => None,
        };
        let (limit, budget) = if let Some(connection) = &known {
            body::check_room(&fields, &connection.budget)?;
            (self.settings.max_frame, connection.budget.parent().cloned().unwrap_or_default())
        } else {
            // A body that opens a connection is small.
            (self.settings.max_frame.min(body::OPENING), caller.client(&self.settings).budget().clone())
        };
        body::check_length(head.version, &fields, limit)?;
        let (mut body, bytes) = body::read(body, limit, self.settings.body_timeout, &budget).await?;
        let mark = body::drop_mark(&mut body);
        let message = Message::read(&body, self.config.bodies).map_err(|why| unfit(why, &body))?;
        let Some(connection) = known else {
            if message.opens() {
                return self.open((body, bytes), caller).await;
            }
            return Err(Refused::bad("Acp-Connection-Id is required: only initialize goes without"));
        };
        if message.opens() {
            return Err(Refused::bad("this connection is initialized: without Acp-Connection-Id another is"));
        }
        let named = message.session();
        match (reported, named.as_deref()) {
            (None, _) if message.needs_session() => {
                return Err(Refused::bad("Acp-Session-Id is required: this message belongs to a session"));
            }
            (Some(reported), Some(named)) if reported != named => {
                return Err(Refused::bad("Acp-Session-Id differs from what the message names"));
            }
            (_, _) => {}
        }
        let answers = message.id().filter(|_| message.is_answer());
        if answers.and_then(|id| connection.asked_by(&id, reported)) == Some(false) {
            return Err(Refused::bad("Acp-Session-Id must name the session that asked"));
        }
        let trace = fields.trace().map(Arc::new);
        connection
            .post((body.clone(), bytes), &message, caller.principal, trace, reported)
            .map_err(not_taken)?;
        if let Some(mark) = mark {
            connection.inbound_queue().push_event(mark);
        }
        Ok(body::plain(StatusCode::ACCEPTED))
    }

    async fn open(
        &self,
        body: (Bytes, HeldBytes),
        caller: Caller,
    ) -> Result<Response<ResponseBody>, Refused> {
        let client = caller.client(&self.settings);
        let Caller { principal, address: from, .. } = caller;
        let opened = self.table.open(&client, &self.settings, |id| {
            let table = Arc::downgrade(&self.table);
            Connection::new(
                Arc::clone(id),
                principal.clone(),
                from,
                &self.settings,
                table,
                self.config.bodies,
            )
        });
        let connection = opened.map_err(|why| match why {
            NotOpened::TooMany => Refused::too_many("there are as many connections as there may be"),
            NotOpened::TooManyOfOne => Refused::too_many("this client has reached its limit of connections"),
            NotOpened::Shut => Refused::unavailable("this server has ended"),
            NotOpened::NoRandomness => no_randomness(),
        })?;
        let id = Arc::clone(&connection.id);
        let opening = Opens(Some(Arc::clone(&connection)));
        self.accept_queue
            .hand(connection::link(&connection))
            .map_err(|_| Refused::unavailable("too many connections wait to be accepted"))?;
        connection.open(body, principal).map_err(not_taken)?;
        let answer = match poll_fn(|cx| connection.poll_opening(cx)).await {
            ResponseKind::Json(_, answer) => answer,
            ResponseKind::Refused(_) => return Err(Refused::bad("the initialize was refused")),
            ResponseKind::Ended | ResponseKind::Accepted | ResponseKind::EventStream => {
                return Err(Refused::unavailable("the connection was not accepted"));
            }
        };
        if Envelope::of(&answer).error.is_some() {
            return Ok(body::json(StatusCode::OK, answer));
        }
        opening.succeeded();
        let mut response = body::json(StatusCode::OK, naming(&answer, &id, self.config.bodies));
        let id = HeaderValue::from_str(&id).map_err(|_| unknown())?;
        response.headers_mut().insert(ACP_CONNECTION_ID, id);
        Ok(response)
    }

    fn get(
        &self,
        headers: &HeaderMap,
        principal: Option<&Principal>,
    ) -> Result<Response<ResponseBody>, Refused> {
        let fields = HeadFields::of(headers);
        checks::accepts_events(&fields)?;
        let connection = self.required(&fields, principal)?;
        let session = session_named(&fields)?;
        let start = start_of(headers)?;
        let (lane, token) =
            connection.listen(session, self.config.unknown_sessions, start).map_err(|why| match why {
                NoStream::TooMany => Refused::too_many("this connection has as many sessions as it may"),
                NoStream::Unknown => Refused::not_found("this connection does not know that session"),
                NoStream::Foreign => Refused::foreign_event(),
                NoStream::Forgotten => Refused::forgotten_events(),
            })?;
        let reported = [(ACP_CONNECTION_ID, Some(&*connection.id)), (ACP_SESSION_ID, session)]
            .map(|(name, value)| (name, value.and_then(|value| HeaderValue::from_str(value).ok())));
        let feed = Arc::new(LaneFeed { connection, lane });
        let mut response = body::events(feed, token, self.settings.keep_alive, None);
        for (name, value) in reported {
            response.headers_mut().extend(value.map(|value| (name, value)));
        }
        Ok(response)
    }

    fn required(
        &self,
        fields: &HeadFields<'_>,
        principal: Option<&Principal>,
    ) -> Result<Arc<Connection>, Refused> {
        let id = connection_named(fields)?;
        let id = id.ok_or_else(|| Refused::bad("Acp-Connection-Id is required"))?;
        self.table.find(id, principal).ok_or_else(unknown)
    }
}

/// The refusal of a body that cannot be read, with the same text that a connection uses.
fn unfit(why: EnvelopeError, body: &[u8]) -> Refused {
    match why {
        EnvelopeError::NotJson if has_messages(body) => Refused::shared_body(),
        EnvelopeError::Empty => Refused::bad("the body is empty"),
        EnvelopeError::NotUtf8 => Refused::unreadable("Invalid message: the frame is not UTF-8"),
        EnvelopeError::NotJson => Refused::unreadable("Invalid message: the frame is not JSON"),
        EnvelopeError::NotAnObject => Refused::bad("Invalid message: a message must be a JSON object"),
        EnvelopeError::Batch => Refused::batch(),
    }
}

/// An HTTP/1.0 server must ignore `Upgrade` (RFC 9110, 7.8).
fn asks_for_a_websocket(version: Version, headers: &HeaderMap) -> bool {
    if version < Version::HTTP_11 {
        return false;
    }
    let values = headers.get_all(UPGRADE).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("websocket"))
}

/// Passes the request to the hook. An upgraded connection gets an id like any other.
async fn upgraded(
    hook: &UpgradeHook,
    mut request: Request<RequestBody>,
    caller: Caller,
) -> Result<Response<ResponseBody>, Refused> {
    let id = random_id().ok_or_else(no_randomness)?;
    if let Some(address) = caller.address {
        request.extensions_mut().insert(PeerAddress(address));
    }
    let credential = checks::credential(&request, caller.principal);
    let answer = hook(request.map(drop), credential);
    let mut response = answer.await.map(|text| ResponseBody::full(Bytes::from(text)));
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let id = HeaderValue::from_str(&id).map_err(|_| unknown())?;
        response.headers_mut().insert(ACP_CONNECTION_ID, id);
    }
    Ok(response)
}

fn no_randomness() -> Refused {
    Refused::unavailable("there is no randomness for an id")
}

fn unknown() -> Refused {
    Refused::not_found("this connection is not known, or has ended")
}

fn not_taken(why: SendRefused) -> Refused {
    match why {
        SendRefused::Full => Refused::too_many("too many messages of this connection wait"),
        SendRefused::Closed => unknown(),
    }
}

/// The connection that the header of a request names.
fn connection_named<'a>(fields: &HeadFields<'a>) -> Result<Option<&'a str>, Refused> {
    fields.acp_connection.single(ACP_CONNECTION_ID.as_str())
}

/// The session that the header of a request names.
fn session_named<'a>(fields: &HeadFields<'a>) -> Result<Option<&'a str>, Refused> {
    let name = fields.acp_session.single(ACP_SESSION_ID.as_str())?;
    if name.is_some_and(|name| name.len() > MAX_NAME_BYTES) {
        return Err(Refused::bad(format!("Acp-Session-Id has more than {MAX_NAME_BYTES} bytes")));
    }
    Ok(name)
}

/// Where the reader of a stream starts (A6).
fn start_of(headers: &HeaderMap) -> Result<Start, Refused> {
    if headers.get(LAST_EVENT_ID).is_some_and(HeaderValue::is_empty) {
        return Ok(Start::First);
    }
    let last = replay_buffer::last_event(headers)?;
    Ok(last.map_or(Start::Waiting, |(stream, number)| Start::After { stream, number }))
}

impl Responder for AcpServer {
    fn respond(
        self: Arc<Self>,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> BoxFuture<'static, Response<ResponseBody>> {
        Box::pin(async move {
            let refused = |refused| self.refuse(refused);
            Arc::clone(&self).answer(request, caller).await.unwrap_or_else(refused)
        })
    }

    fn refuse(&self, refused: Refused) -> Response<ResponseBody> {
        refused.with_null_id().into_response()
    }

    fn page_access(&self) -> &'static PageAccess {
        &PAGE_ACCESS
    }

    fn session_header(&self) -> Option<HeaderName> {
        Some(ACP_CONNECTION_ID)
    }

    fn shut(&self) {
        self.table.shut();
    }

    /// Always zero for the POSTs: requests are answered on streams that outlive them, so a POST leaves nothing behind.
    #[cfg(feature = "verify")]
    fn held(&self) -> (usize, usize) {
        (self.table.all().len(), 0)
    }
}

/// One stream of a connection.
struct LaneFeed {
    connection: Arc<Connection>,
    lane: u64,
}

impl EventSource for LaneFeed {
    fn poll_next(&self, reader: u64, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let event = self.connection.poll_event(self.lane, reader, cx);
        event.map(|event| event.map(|event| self.connection.budget.hold_frame(event)))
    }

    fn left(&self, reader: u64) {
        self.connection.left(self.lane, reader);
    }
}

/// A connection that is being opened. If it is dropped before that succeeds, the connection ends (S3).
struct Opens(Option<Arc<Connection>>);

impl Opens {
    fn succeeded(mut self) {
        self.0 = None;
    }
}

impl Drop for Opens {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.give_up_opening();
        }
    }
}
