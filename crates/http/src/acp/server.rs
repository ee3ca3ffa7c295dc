//! The serving side: what each method does.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::UPGRADE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use rescind_core::{BoxFuture, Principal};

use super::connection::Connection;
use super::peek::{Message, Unfit, naming};
use super::{UpgradeHook, link};
use crate::intake::NotTaken;
use crate::names::{ACP_CONNECTION_ID, ACP_SESSION_ID};
use crate::server::refusal::Refused;
use crate::server::reply::{self, Feed, ReplyBody};
use crate::server::{Door, RequestBody, Responder, Settings, body, checks};
use crate::streamable::table::random_id;
use crate::sync::{Mutex, MutexGuard};

const ALLOWED: &str = "GET, POST, DELETE";

/// The connections there are, by ids that cannot be guessed.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// `None` once the listener is gone.
    open: Mutex<Option<HashMap<Arc<str>, Arc<Connection>>>>,
}

impl Connections {
    fn new() -> Arc<Self> {
        Arc::new(Self { open: Mutex::new(Some(HashMap::new())) })
    }

    fn open(&self) -> MutexGuard<'_, Option<HashMap<Arc<str>, Arc<Connection>>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: &str, principal: Option<&Principal>) -> Option<Arc<Connection>> {
        let found = self.open().as_ref()?.get(id).cloned()?;
        (found.principal.as_ref() == principal).then_some(found)
    }

    pub(super) fn remove(&self, id: &str) {
        let removed = self.open().as_mut().and_then(|open| open.remove(id));
        drop(removed);
    }
}

pub(super) struct AcpServer {
    settings: Arc<Settings>,
    table: Arc<Connections>,
    door: Door,
    upgrade: Option<UpgradeHook>,
}

impl AcpServer {
    pub(super) fn new(upgrade: Option<UpgradeHook>, settings: &Arc<Settings>, door: Door) -> Self {
        Self { settings: Arc::clone(settings), table: Connections::new(), door, upgrade }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<RequestBody>,
        principal: Option<Principal>,
    ) -> Result<Response<ReplyBody>, Refused> {
        match *request.method() {
            Method::POST => self.post(request, principal).await,
            Method::GET => match &self.upgrade {
                Some(hook) if asks_for_a_websocket(request.headers()) => {
                    upgraded(hook, request, principal.as_ref())
                }
                Some(_) | None => self.get(request.headers(), principal.as_ref()),
            },
            Method::DELETE => {
                self.required(request.headers(), principal.as_ref())?.end();
                Ok(reply::plain(StatusCode::ACCEPTED))
            }
            _ => Err(Refused::method(ALLOWED)),
        }
    }

    async fn post(
        &self,
        request: Request<RequestBody>,
        principal: Option<Principal>,
    ) -> Result<Response<ReplyBody>, Refused> {
        let (head, body) = request.into_parts();
        checks::content_type(&head.headers)?;
        body::check_length(head.version, &head.headers, self.settings.max_frame)?;
        let known = match single(&head.headers, &ACP_CONNECTION_ID)? {
            Some(id) => Some(self.table.find(id, principal.as_ref()).ok_or_else(unknown)?),
            None => None,
        };
        let body = body::read(body, self.settings.max_frame, self.settings.body_timeout).await?;
        let message = Message::read(&body).map_err(unfit)?;
        let Some(connection) = known else {
            if message.opens() {
                return self.open(body, principal).await;
            }
            return Err(Refused::bad("Acp-Connection-Id is required: only initialize goes without"));
        };
        if message.opens() {
            return Err(Refused::bad("this connection is initialized: without Acp-Connection-Id another is"));
        }
        let told = single(&head.headers, &ACP_SESSION_ID)?;
        let named = message.session();
        match (told, named.as_deref()) {
            (None, _) if message.needs_session() => {
                return Err(Refused::bad("Acp-Session-Id is required: this message belongs to a session"));
            }
            (Some(told), Some(named)) if told != named => {
                return Err(Refused::bad("Acp-Session-Id differs from what the message names"));
            }
            (_, _) => {}
        }
        let answers = message.id().filter(|_| message.is_answer());
        if answers.and_then(|id| connection.asked_by(&id, told)) == Some(false) {
            return Err(Refused::bad("Acp-Session-Id must name the session that asked"));
        }
        connection.post(body.clone(), &message, principal, told).map_err(not_taken)?;
        Ok(reply::plain(StatusCode::ACCEPTED))
    }

    async fn open(&self, body: Bytes, principal: Option<Principal>) -> Result<Response<ReplyBody>, Refused> {
        let id = random_id().ok_or_else(no_randomness)?;
        let connection = {
            let mut open = self.table.open();
            let open = open.as_mut().ok_or_else(|| Refused::unavailable("this server has ended"))?;
            if open.len() >= self.settings.sessions {
                return Err(Refused::too_many("there are as many connections as there may be"));
            }
            let table = Arc::downgrade(&self.table);
            let connection = Connection::new(Arc::clone(&id), principal.clone(), &self.settings, table);
            open.insert(Arc::clone(&id), Arc::clone(&connection));
            connection
        };
        let opening = Opens(Some(Arc::clone(&connection)));
        self.door
            .hand(link::link(&connection))
            .map_err(|_| Refused::unavailable("too many connections wait to be accepted"))?;
        connection.open(body, principal).map_err(not_taken)?;
        let answer = poll_fn(|cx| connection.poll_opening(cx)).await;
        let answer = answer.ok_or_else(|| {
            if connection.is_closed() {
                return Refused::unavailable("the connection was not accepted");
            }
            Refused::bad("the initialize was refused")
        })?;
        if Message::of(&answer).is_refusal() {
            return Ok(reply::json(StatusCode::OK, answer));
        }
        opening.succeeded();
        let mut response = reply::json(StatusCode::OK, naming(&answer, &id));
        let id = HeaderValue::from_str(&id).map_err(|_| unknown())?;
        response.headers_mut().insert(ACP_CONNECTION_ID, id);
        Ok(response)
    }

    fn get(
        &self,
        headers: &HeaderMap,
        principal: Option<&Principal>,
    ) -> Result<Response<ReplyBody>, Refused> {
        checks::accepts_events(headers)?;
        let connection = self.required(headers, principal)?;
        let session = single(headers, &ACP_SESSION_ID)?;
        let (lane, token) = connection
            .listen(session)
            .ok_or_else(|| Refused::too_many("this connection has as many sessions as it may"))?;
        let told = [(ACP_CONNECTION_ID, Some(&*connection.id)), (ACP_SESSION_ID, session)]
            .map(|(name, value)| (name, value.and_then(|value| HeaderValue::from_str(value).ok())));
        let feed = Arc::new(LaneFeed { connection, lane });
        let mut response = reply::events(feed, token, self.settings.keep_alive, None);
        for (name, value) in told {
            response.headers_mut().extend(value.map(|value| (name, value)));
        }
        Ok(response)
    }

    fn required(
        &self,
        headers: &HeaderMap,
        principal: Option<&Principal>,
    ) -> Result<Arc<Connection>, Refused> {
        let id = single(headers, &ACP_CONNECTION_ID)?;
        let id = id.ok_or_else(|| Refused::bad("Acp-Connection-Id is required"))?;
        self.table.find(id, principal).ok_or_else(unknown)
    }
}

/// In the words a connection would have for it.
fn unfit(why: Unfit) -> Refused {
    match why {
        Unfit::Empty => Refused::bad("the body is empty"),
        Unfit::NotUtf8 => Refused::unreadable("Invalid message: the frame is not UTF-8"),
        Unfit::NotJson => Refused::unreadable("Invalid message: the frame is not JSON"),
        Unfit::NotAnObject => Refused::bad("Invalid message: a message is a JSON object"),
        Unfit::Batch => Refused::batch(),
    }
}

fn asks_for_a_websocket(headers: &HeaderMap) -> bool {
    let values = headers.get_all(UPGRADE).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("websocket"))
}

/// Lets the hook answer. A connection that comes of it has an id like any other.
fn upgraded(
    hook: &UpgradeHook,
    request: Request<RequestBody>,
    principal: Option<&Principal>,
) -> Result<Response<ReplyBody>, Refused> {
    let id = random_id().ok_or_else(no_randomness)?;
    let mut response = hook(&mut request.map(drop), principal).map(|text| ReplyBody::full(Bytes::from(text)));
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

fn not_taken(why: NotTaken) -> Refused {
    match why {
        NotTaken::Full => Refused::too_many("too many messages of this connection wait"),
        NotTaken::Closed => unknown(),
    }
}

/// A header that may be there once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refused> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match (value.to_str(), values.next()) {
        (Ok(value), None) => Ok(Some(value)),
        _ => Err(Refused::bad(format!("the header {name} is unreadable"))),
    }
}

impl Responder for AcpServer {
    fn respond(
        self: Arc<Self>,
        request: Request<RequestBody>,
        principal: Option<Principal>,
    ) -> BoxFuture<'static, Response<ReplyBody>> {
        Box::pin(async move {
            let refused = |refused| self.refuse(refused);
            Arc::clone(&self).answer(request, principal).await.unwrap_or_else(refused)
        })
    }

    fn refuse(&self, refused: Refused) -> Response<ReplyBody> {
        refused.with_null_id().into_response()
    }

    fn shut(&self) {
        let open = self.table.open().take();
        for connection in open.into_iter().flat_map(HashMap::into_values) {
            connection.end();
        }
    }

    /// Requests are answered on streams that outlive them: there is nothing a POST leaves.
    #[cfg(feature = "verify")]
    fn held(&self) -> (usize, usize) {
        (self.table.open().as_ref().map_or(0, HashMap::len), 0)
    }
}

impl fmt::Debug for AcpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcpServer").finish_non_exhaustive()
    }
}

/// One stream of a connection.
struct LaneFeed {
    connection: Arc<Connection>,
    lane: u64,
}

impl Feed for LaneFeed {
    fn poll_next(&self, reader: u64, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.connection.poll_event(self.lane, reader, cx)
    }

    fn left(&self, reader: u64) {
        self.connection.left(self.lane, reader);
    }
}

/// A connection that is being opened. Dropped before that succeeded, it ends (S3).
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
