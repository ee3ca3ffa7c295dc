//! The server side: how each HTTP method is handled.

use std::future::ready;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use rescind_core::{
    BadMessage, BoxFuture, ByteBudget, ExchangeId, HeldBytes, Principal, TraceContext, TransportEvent,
    members,
};

use super::session::{NotResumed, Serves, SessionState};
use super::sessionless::{Sessionless, Taken};
use super::{SecondStream, Streamable};
use crate::envelope::{Envelope, MCP_PROTOCOL_VERSION, MCP_SESSION_ID, has_messages};
use crate::inbound_queue::SendRefused;
use crate::server::body::{self, ResponseBody};
use crate::server::checks::{self, HeadFields, PageAccess, Parameters, Refused};
use crate::server::exchange_table::OWN;
use crate::server::json_or_event_stream::{self, ResponseKind, StreamDelay, TimeFrom};
use crate::server::sessions::{Linked, Sessions};
use crate::server::{AcceptQueue, Caller, RequestBody, Responder, Settings, replay_buffer};
use crate::streamable::session;
use crate::streamable::session::{PendingResponse, StreamFeed};

const ALLOWED: &str = "GET, POST, DELETE";
/// The methods and headers that web pages may use.
const PAGE_ACCESS: PageAccess = PageAccess {
    methods: ALLOWED,
    headers: "Accept, Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, Mcp-Session-Id, traceparent, tracestate",
    exposed: "Mcp-Session-Id, WWW-Authenticate, Retry-After",
    parameters: Parameters::Ignored,
};
/// The same for a server without sessions.
const SESSIONLESS_PAGE_ACCESS: PageAccess = PageAccess {
    methods: "POST",
    headers: "Accept, Authorization, Content-Type, MCP-Protocol-Version, traceparent, tracestate",
    exposed: "WWW-Authenticate, Retry-After",
    parameters: Parameters::Ignored,
};
/// The revision that has batches.
const BATCH_REVISION: &str = "2025-03-26";
/// The first revision whose clients understand an event without data.
const PRIMED_SINCE: &str = "2025-11-25";

pub(super) struct StreamableServer {
    config: Streamable,
    settings: Arc<Settings>,
    table: Arc<Sessions<SessionState>>,
    accept_queue: AcceptQueue,
    stream_delay: StreamDelay,
    /// `None`: the server has sessions.
    sessionless: Option<Sessionless>,
}

impl StreamableServer {
    pub(super) fn new(config: Streamable, settings: &Arc<Settings>, accept_queue: AcceptQueue) -> Self {
        let stream_delay = StreamDelay::new(config.stream_after);
        let sessionless = config.sessionless.map(Sessionless::new);
        let (settings, table) = (Arc::clone(settings), Arc::default());
        Self { config, settings, table, accept_queue, stream_delay, sessionless }
    }

    /// Checks the head of a request. A POST is complete only with its body, which is read later.
    fn begin(&self, request: Request<RequestBody>, caller: Caller) -> Result<Begun, Refused> {
        if self.table.is_shut() {
            return Err(Refused::unavailable("this server has ended"));
        }
        match *request.method() {
            Method::POST => self.begin_post(request, caller).map(Begun::Post),
            _ if self.sessionless.is_some() => Err(Refused::method("POST")),
            Method::GET => self.get(request.headers(), caller.principal.as_ref()).map(Begun::Answered),
            Method::DELETE => self.delete(request.headers(), caller.principal.as_ref()).map(Begun::Answered),
            _ => Err(Refused::method(ALLOWED)),
        }
    }

    fn begin_post(&self, request: Request<RequestBody>, caller: Caller) -> Result<Posted, Refused> {
        let fields = HeadFields::of(request.headers());
        checks::content_encoding(&fields)?;
        checks::content_type(&fields)?;
        checks::accepts_both(&fields)?;
        // Before the body is read: an upload to an unknown session is refused early.
        let known = match session_id(&fields)? {
            _ if self.sessionless.is_some() => None,
            Some(id) => Some(self.find(id, caller.principal.as_ref())?),
            None => None,
        };
        let version = self.check_version(&fields, known.as_deref());
        let is_primed = |version: &&str| self.sessionless.is_none() && *version >= PRIMED_SINCE;
        let primed = version.as_ref().is_ok_and(|version| version.as_ref().is_some_and(is_primed));
        let wrong_version = version.err().map(Box::new);
        let limit = self.limit(known.is_some());
        body::check_length(request.version(), &fields, limit)?;
        let budget = match &known {
            Some(session) => {
                body::check_room(&fields, &session.budget)?;
                session.budget.parent().cloned().unwrap_or_default()
            }
            None => caller.client(&self.settings).budget().clone(),
        };
        let trace = fields.trace().map(Arc::new);
        let Caller { principal, address: from, .. } = caller;
        let body = request.into_body();
        Ok(Posted { body, known, principal, from, budget, primed, wrong_version, trace })
    }

    /// The largest body, in bytes. A body that opens a session for a client is small.
    fn limit(&self, is_known: bool) -> usize {
        let limit = self.settings.max_frame;
        if is_known || self.sessionless.is_some() { limit } else { limit.min(body::OPENING) }
    }

    async fn post(self: Arc<Self>, posted: Posted) -> Result<Response<ResponseBody>, Refused> {
        let Posted { body, known, principal, from, budget, primed, wrong_version, trace } = posted;
        let limit = self.limit(known.is_some());
        let (mut body, held) = body::read(body, limit, self.settings.body_timeout, &budget).await?;
        let mark = body::drop_mark(&mut body);
        if body.is_empty() {
            return Err(Refused::bad("the body is empty"));
        }
        // The handshake negotiates in its body.
        if let Some(refused) = wrong_version.filter(|_| !self.config.opening.is_handshake(&body)) {
            return Err(*refused);
        }
        if let Some(sessionless) = &self.sessionless {
            let (id, held) = match sessionless.take(&self.settings, principal.as_ref(), &body, held).await? {
                Taken::Request(id, held) => (id, held),
                Taken::Accepted => return Ok(body::plain(StatusCode::ACCEPTED)),
            };
            let session = self.open(principal.as_ref(), from, Serves::OneRequest)?;
            if let Some(id) = id {
                sessionless.begin(&self.settings, &session, id);
            }
            return self.pass(session, Entry::Alone, (body, held), primed, (mark, trace)).await;
        }
        let (session, entry) = match known {
            Some(session) => {
                if body.first() == Some(&b'[') && session.revision() == Some(BATCH_REVISION) {
                    if let Some(batch) = Batch::read(&body, &budget)? {
                        drop((body, held));
                        // Boxed, because otherwise the future of each POST would reserve its space.
                        return Box::pin(self.pass_batch(session, batch, primed, (mark, trace))).await;
                    }
                }
                session.note_use(&body);
                (session, Entry::Known)
            }
            None if self.config.opening.is_begun_by(&body) => {
                (self.open(principal.as_ref(), from, Serves::Client)?, Entry::Opened)
            }
            None if has_messages(&body) && Envelope::read(&body).is_err() => {
                return Err(Refused::shared_body());
            }
            None => {
                return Err(Refused::bad("the header Mcp-Session-Id is required: this message opens none"));
            }
        };
        self.pass(session, entry, (body, held), primed, (mark, trace)).await
    }

    /// Passes a message to its session and waits for the response.
    async fn pass(
        &self,
        session: Arc<SessionState>,
        entry: Entry,
        (body, held): (Bytes, HeldBytes),
        primed: bool,
        (mark, trace): Arrival,
    ) -> Result<Response<ResponseBody>, Refused> {
        let posted = session.post(body.clone(), held, trace);
        let (exchange, token) = posted.map_err(|why| entry.refused(why))?;
        if let Some(mark) = mark {
            session.inbound_queue.push_event(mark);
        }
        let stream = exchange.0;
        let waiting = PendingResponse { feed: StreamFeed { session, stream }, token, left: false };
        self.answer_post(waiting, primed, &body, entry).await
    }

    /// The same for a batch: each of its messages is passed on alone.
    async fn pass_batch(
        &self,
        session: Arc<SessionState>,
        batch: Batch,
        primed: bool,
        (mark, trace): Arrival,
    ) -> Result<Response<ResponseBody>, Refused> {
        let posted = session.post_batch(batch.messages, batch.asks, trace.as_ref());
        let (exchange, token) = posted.map_err(|why| Entry::Known.refused(why))?;
        if let Some(mark) = mark {
            session.inbound_queue.push_event(mark);
        }
        let stream = exchange.0;
        let waiting = PendingResponse { feed: StreamFeed { session, stream }, token, left: false };
        // Without a body: nothing but the end of its messages decides the response.
        self.answer_post(waiting, primed, &Bytes::new(), Entry::Known).await
    }

    async fn answer_post(
        &self,
        mut waiting: PendingResponse,
        primed: bool,
        body: &Bytes,
        entry: Entry,
    ) -> Result<Response<ResponseBody>, Refused> {
        let session = Arc::clone(&waiting.feed.session);
        let exchange = ExchangeId(waiting.feed.stream);
        let kind = self.response_kind(&session, exchange, body).await;
        if !matches!(kind, ResponseKind::EventStream) {
            waiting.answered();
        }
        let mut response = match kind {
            ResponseKind::Json(status, body) => {
                body::json(status, body).map(|body| body.cut_after(self.settings.stall_timeout))
            }
            ResponseKind::Accepted => body::plain(StatusCode::ACCEPTED),
            // The protocol defines no body for it.
            ResponseKind::Refused(status) => body::plain(status),
            ResponseKind::Ended => {
                return Err(match entry {
                    Entry::Opened => entry.ended(),
                    // It has not begun, and will not.
                    Entry::Known if session.inbound_queue.take_back(exchange) => entry.ended(),
                    Entry::Known | Entry::Alone => Refused::unanswered(),
                });
            }
            ResponseKind::EventStream => {
                if primed {
                    session.prime(exchange, Some(self.config.retry));
                }
                waiting.left = true;
                let feed = Arc::new(StreamFeed { session: Arc::clone(&session), stream: exchange.0 });
                self.events(feed, waiting.token, primed)
            }
        };
        // The session that the message opened can be used, whatever the result of the message is.
        if entry == Entry::Opened {
            let id = HeaderValue::from_str(&session.id).map_err(|_| ended())?;
            response.headers_mut().insert(MCP_SESSION_ID, id);
        }
        Ok(response)
    }

    /// Waits for the response to a POST. A request that is not answered soon gets the head of an event stream, so that
    /// the client knows that the request has arrived. The driver has read it then: if the session ends before, the client gets
    /// 404 and may send the request in a new session.
    async fn response_kind(&self, session: &SessionState, exchange: ExchangeId, body: &[u8]) -> ResponseKind {
        let table = &session.exchanges;
        let poll = |cx: &mut Context<'_>| table.step(|table, wakes| table.poll_response(exchange, wakes, cx));
        let mut is_request = None;
        let open_stream = |cx: &mut Context<'_>| {
            if *is_request.get_or_insert_with(|| Envelope::of(body).is_request()) {
                table.lock().note_due(exchange);
                ready!(session.inbound_queue.poll_processed(exchange, cx));
                table.step(|table, wakes| table.open_stream(exchange, &self.settings, wakes));
            }
            Poll::Ready(())
        };
        json_or_event_stream::decided(poll, self.stream_delay.timer(TimeFrom::Arrival), open_stream).await
    }

    fn get(
        &self,
        headers: &HeaderMap,
        principal: Option<&Principal>,
    ) -> Result<Response<ResponseBody>, Refused> {
        let fields = HeadFields::of(headers);
        checks::accepts_events(&fields)?;
        let session = self.required(&fields, principal)?;
        self.check_version(&fields, Some(&session))?;
        let Some((stream, last)) = replay_buffer::last_event(headers)? else {
            let displace = self.config.second_stream == SecondStream::Displaces;
            let Some(token) = session.listen(displace) else {
                return Err(Refused::conflict("this session has an event stream already"));
            };
            return Ok(self.events(Arc::new(StreamFeed { session, stream: OWN }), token, false));
        };
        match session.resume(stream, last) {
            Ok(token) => {
                let polled = stream != OWN;
                Ok(self.events(Arc::new(StreamFeed { session, stream }), token, polled))
            }
            // An event source does not reconnect after this status.
            Err(NotResumed::Over) => Ok(body::plain(StatusCode::NO_CONTENT)),
            Err(NotResumed::Forgotten) => Err(Refused::forgotten_events()),
        }
    }

    fn delete(
        &self,
        headers: &HeaderMap,
        principal: Option<&Principal>,
    ) -> Result<Response<ResponseBody>, Refused> {
        let fields = HeadFields::of(headers);
        let session = self.required(&fields, principal)?;
        self.check_version(&fields, Some(&session))?;
        session.end();
        Ok(body::plain(StatusCode::NO_CONTENT))
    }

    fn events(&self, feed: Arc<StreamFeed>, token: u64, polled: bool) -> Response<ResponseBody> {
        let until = self.config.poll_after.filter(|_| polled);
        body::events(feed, token, self.settings.keep_alive, until)
    }

    fn open(
        &self,
        principal: Option<&Principal>,
        from: Option<IpAddr>,
        serves: Serves,
    ) -> Result<Arc<SessionState>, Refused> {
        let client = self.settings.clients.client(principal, from);
        let opened = self.table.open(&client, &self.settings, |id| {
            let table = Arc::downgrade(&self.table);
            SessionState::new(Arc::clone(id), principal.cloned(), from, &self.settings, table, serves)
        });
        let session = opened?;
        match self.accept_queue.hand(session::link(&session)) {
            Ok(()) => Ok(session),
            Err(link) => {
                drop(link);
                Err(Refused::unavailable("the server accepts no session now"))
            }
        }
    }

    fn required(
        &self,
        fields: &HeadFields<'_>,
        principal: Option<&Principal>,
    ) -> Result<Arc<SessionState>, Refused> {
        let id = session_id(fields)?.ok_or_else(|| Refused::bad("Mcp-Session-Id is required"))?;
        self.find(id, principal)
    }

    fn find(&self, id: &str, principal: Option<&Principal>) -> Result<Arc<SessionState>, Refused> {
        self.table.find(id, principal).ok_or_else(ended)
    }

    /// Refuses a version other than that of the session. While the session has none, any supported one is right.
    fn check_version<'a>(
        &self,
        fields: &HeadFields<'a>,
        session: Option<&SessionState>,
    ) -> Result<Option<&'a str>, Refused> {
        let Some(version) = fields.mcp_version.single(MCP_PROTOCOL_VERSION.as_str())? else {
            return Ok(None);
        };
        let is_known = || self.config.versions.iter().any(|known| known == version);
        let spoken = session.and_then(SessionState::revision);
        if spoken.map_or_else(is_known, |spoken| spoken == version) {
            return Ok(Some(version));
        }
        let supported = self.config.versions.join(", ");
        Err(Refused::bad(match spoken {
            Some(spoken) if is_known() => format!(
                "this MCP-Protocol-Version is not that of the session, which is {spoken} (this server supports {supported})"
            ),
            Some(_) | None => {
                format!("this MCP-Protocol-Version is not supported (this server supports {supported})")
            }
        }))
    }
}

/// What came with a message: the report of its byte order mark, and its trace.
type Arrival = (Option<TransportEvent>, Option<Arc<TraceContext>>);

/// The messages of a batch, each with the bytes that it holds.
struct Batch {
    messages: Vec<(Bytes, HeldBytes)>,
    /// Whether one of them is a request.
    asks: bool,
}

impl Batch {
    /// `None`: the body is no batch, and the session refuses it.
    fn read(body: &[u8], budget: &ByteBudget) -> Result<Option<Self>, Refused> {
        let Ok(text) = members::text(body) else { return Ok(None) };
        let found = match members::elements(text) {
            Ok(found) if found.is_empty() => return Ok(None),
            Ok(found) => found,
            Err(BadMessage::BatchNotAllowed) => return Err(Refused::large_batch(members::MAX_BATCH)),
            Err(_) => return Ok(None),
        };
        let asks = found.iter().any(|message| Envelope::of(message.get().as_bytes()).is_request());
        // Copied, so that one of them does not keep the memory of all.
        let copied = |text: &str| (Bytes::copy_from_slice(text.as_bytes()), budget.hold(text.len()));
        Ok(Some(Self { messages: found.into_iter().map(|message| copied(message.get())).collect(), asks }))
    }
}

/// The result of checking the head of a request.
enum Begun {
    Post(Posted),
    Answered(Response<ResponseBody>),
}

/// How a message came to its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// It named the session.
    Known,
    /// It opened the session.
    Opened,
    /// The session is for it alone.
    Alone,
}

impl Entry {
    /// The refusal of a message that its session did not take.
    fn refused(self, why: SendRefused) -> Refused {
        match why {
            SendRefused::Full => Refused::too_many("too many messages of this session wait"),
            SendRefused::Closed => self.ended(),
        }
    }

    /// The refusal of a message whose session has ended.
    fn ended(self) -> Refused {
        match self {
            Self::Known => ended(),
            Self::Opened => Refused::unavailable("the session was not accepted"),
            Self::Alone => Refused::unavailable("the request was not accepted, or ended without an answer"),
        }
    }
}

/// A POST whose head has passed the checks.
struct Posted {
    body: RequestBody,
    /// The session that it names.
    known: Option<Arc<SessionState>>,
    principal: Option<Principal>,
    from: Option<IpAddr>,
    /// The budget that counts its body while it is read.
    budget: ByteBudget,
    /// Whether its client understands an event without data.
    primed: bool,
    /// The refusal of its `MCP-Protocol-Version`, which does not count for a handshake.
    wrong_version: Option<Box<Refused>>,
    trace: Option<Arc<TraceContext>>,
}

impl Responder for StreamableServer {
    fn respond(
        self: Arc<Self>,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> BoxFuture<'static, Response<ResponseBody>> {
        match self.begin(request, caller) {
            // The mapped future itself, in place of a block around it that would keep another copy of what is posted.
            Ok(Begun::Post(posted)) => {
                Box::pin(self.post(posted).map(|answered| answered.unwrap_or_else(Refused::into_response)))
            }
            Ok(Begun::Answered(response)) => Box::pin(ready(response)),
            Err(refused) => Box::pin(ready(refused.into_response())),
        }
    }

    fn page_access(&self) -> &'static PageAccess {
        if self.sessionless.is_some() { &SESSIONLESS_PAGE_ACCESS } else { &PAGE_ACCESS }
    }

    fn session_header(&self) -> Option<HeaderName> {
        self.sessionless.is_none().then_some(MCP_SESSION_ID)
    }

    fn shut(&self) {
        self.table.shut();
    }

    #[cfg(feature = "verify")]
    fn held(&self) -> (usize, usize) {
        let open = self.table.all();
        (open.len(), open.iter().map(|session| session.exchanges.lock().open.len()).sum())
    }
}

fn ended() -> Refused {
    Refused::not_found("this session is not known, or has ended")
}

fn session_id<'a>(fields: &HeadFields<'a>) -> Result<Option<&'a str>, Refused> {
    fields.mcp_session.single(MCP_SESSION_ID.as_str())
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::Waker;
    use std::time::Duration;

    use rescind_core::{FrameInfo, FrameKind, Lane, Link, Outbound, RejectReason};
    use tokio::sync::mpsc;

    use super::*;

    type Answered = Result<Response<ResponseBody>, Refused>;

    const REQUEST: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"work"}"#;
    /// Longer than a request waits for its stream.
    const LONG: Duration = Duration::from_secs(1);

    /// A server whose sessions the test drives.
    fn server(config: Streamable) -> (StreamableServer, mpsc::Receiver<Link>) {
        let (accept_queue, links) = AcceptQueue::new();
        (StreamableServer::new(config, &Arc::default(), accept_queue), links)
    }

    /// Posts a request in a new session.
    fn post(server: &StreamableServer, session: &Arc<SessionState>) -> impl Future<Output = Answered> {
        let (session, body) = (Arc::clone(session), Bytes::from_static(REQUEST));
        let held = session.budget.hold(body.len());
        server.pass(session, Entry::Known, (body, held), true, (None, None))
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// The request is not answered, and gets no event stream, which would end without an answer.
    async fn waits_long(mut posted: Pin<&mut impl Future<Output = Answered>>) {
        assert!(poll(posted.as_mut()).is_pending());
        tokio::time::advance(LONG).await;
        assert!(poll(posted).is_pending());
    }

    /// The driver asks for a message.
    fn asks(link: &mut Link) -> bool {
        link.rx.as_mut().poll_event(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn status_of(answered: Answered) -> u16 {
        answered.unwrap_or_else(Refused::into_response).status().as_u16()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_its_session_has_not_read_gets_404_however_long_it_waited() {
        for config in [Streamable::new(), Streamable::new().stream_after(Duration::ZERO)] {
            let (server, mut links) = server(config);
            let session = server.open(None, None, Serves::Client).unwrap();
            let mut posted = pin!(post(&server, &session));
            waits_long(posted.as_mut()).await;
            drop(links.recv().await);
            assert_eq!(status_of(posted.await), 404);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_gets_its_stream_when_its_session_has_read_it() {
        let (server, mut links) = server(Streamable::new());
        let session = server.open(None, None, Serves::Client).unwrap();
        let mut link = links.recv().await.unwrap();
        let mut posted = pin!(post(&server, &session));
        waits_long(posted.as_mut()).await;
        assert!(asks(&mut link));
        assert!(poll(posted.as_mut()).is_pending(), "it may still be refused");
        // The task that waits is woken: nothing else happens.
        let answered = tokio::join!(posted, async { assert!(!asks(&mut link)) }).0;
        assert_eq!(status_of(answered), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_came_while_its_session_closes_gets_404() {
        for config in [Streamable::new(), Streamable::new().stream_after(Duration::ZERO)] {
            let (server, mut links) = server(config);
            let session = server.open(None, None, Serves::Client).unwrap();
            let mut link = links.recv().await.unwrap();
            let mut posted = pin!(post(&server, &session));
            waits_long(posted.as_mut()).await;
            assert!(asks(&mut link));
            let exchange = ExchangeId(OWN + 1);
            link.tx.as_mut().note_rejection(exchange, RejectReason::Closing);
            let head = FrameInfo { kind: FrameKind::Answer, id: None, method: None, trace: None };
            let body = Bytes::from_static(b"{}");
            let answer = Outbound { body, exchange, lane: Lane::Control, head, last: true };
            link.tx.as_mut().start_send(answer).unwrap();
            drop(link);
            assert_eq!(status_of(posted.await), 404);
        }
    }
}
