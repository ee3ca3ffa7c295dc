//! The server side: how each HTTP method is handled.
//!
//! # Sessions
//!
//! A session is its event stream (L1), with the messages that wait for its reader (L4).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use bytes::{BufMut, Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, Uri};
use rescind_core::{
    BoxFuture, ByteBudget, ExchangeEnd, ExchangeId, FrameKind, HeldBytes, Inbound, Link, Outbound, PeerInfo,
    Principal, TraceContext, TransportError,
};
use tokio::time::Instant;

use crate::envelope::Envelope;
use crate::inbound_queue::{InboundQueue, InboundReceiver, SendRefused, WakeList};
use crate::legacy_sse::LegacySse;
use crate::server::body::{self, EventSource, ResponseBody};
use crate::server::checks::{self, HeadFields, PageAccess, Parameters, Refused};
use crate::server::json_or_event_stream::{ResponseKind, ResponseState};
use crate::server::sessions::{Linked, OwnedSession, ServerLink, Sessions};
use crate::server::{AcceptQueue, Caller, RequestBody, Responder, Settings, is_at};
use crate::sync::{IntMap, Mutex, MutexGuard};

/// The methods and headers that web pages may use.
const PAGE_ACCESS: PageAccess = PageAccess {
    methods: "GET, POST",
    headers: "Accept, Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, traceparent, tracestate",
    exposed: "WWW-Authenticate, Retry-After",
    parameters: Parameters::Ignored,
};
/// The parameter of the query that names the session.
const SESSION: &str = "sessionId";

pub(super) struct LegacySseServer {
    /// The paths beside another binding. `None`: one path serves everything.
    paths: Option<LegacySse>,
    settings: Arc<Settings>,
    sessions: Arc<Sessions<SseSession>>,
    accept_queue: AcceptQueue,
}

impl LegacySseServer {
    pub(super) fn new(paths: Option<LegacySse>, settings: &Arc<Settings>, accept_queue: AcceptQueue) -> Self {
        Self { paths, settings: Arc::clone(settings), sessions: Arc::default(), accept_queue }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> Result<Response<ResponseBody>, Refused> {
        if self.sessions.is_shut() {
            return Err(Refused::unavailable("this server has ended"));
        }
        let (streams, posts) = match &self.paths {
            Some(paths) => (is_at(&paths.stream, &request), is_at(&paths.messages, &request)),
            None => (true, true),
        };
        match *request.method() {
            Method::GET if streams => self.open(&request, caller),
            Method::POST if posts => self.post(request, caller).await,
            _ => Err(Refused::method(match (streams, posts) {
                (true, true) => "GET, POST",
                (true, false) => "GET",
                (false, _) => "POST",
            })),
        }
    }

    /// Opens a session and its stream (L1).
    fn open(
        &self,
        request: &Request<RequestBody>,
        caller: Caller,
    ) -> Result<Response<ResponseBody>, Refused> {
        checks::accepts_events(&HeadFields::of(request.headers()))?;
        let messages = self.paths.as_ref().map_or(request.uri().path(), |paths| paths.messages.as_str());
        let client = caller.client(&self.settings);
        let Caller { principal, address, .. } = caller;
        let opened = self.sessions.open(&client, &self.settings, |id| {
            let sessions = Arc::downgrade(&self.sessions);
            SseSession::new(Arc::clone(id), principal.clone(), address, &self.settings, sessions, messages)
        });
        let session = opened?;
        if let Err(link) = self.accept_queue.hand(session.link()) {
            // The session ends with its link.
            drop(link);
            return Err(Refused::unavailable("the server accepts no session now"));
        }
        Ok(body::events(session, 0, self.settings.keep_alive, None))
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
        let id = session_named(&head.uri)
            .ok_or_else(|| Refused::bad("the query must name a session: open one with a GET"))?;
        // Before the body is read: an upload to an unknown session is refused early.
        let session = self.sessions.by_id(id).ok_or_else(ended)?;
        if session.principal != caller.principal {
            return Err(Refused::new(StatusCode::FORBIDDEN, "this session belongs to another principal"));
        }
        body::check_room(&fields, &session.budget)?;
        body::check_length(head.version, &fields, self.settings.max_frame)?;
        let budget = session.budget.parent().cloned().unwrap_or_default();
        let (mut body, bytes) =
            body::read(body, self.settings.max_frame, self.settings.body_timeout, &budget).await?;
        if let Some(mark) = body::drop_mark(&mut body) {
            session.inbound_queue.push_event(mark);
        }
        if body.is_empty() {
            return Err(Refused::bad("the body is empty"));
        }
        let not_taken = |why| match why {
            SendRefused::Full => Refused::too_many("too many messages of this session wait"),
            SendRefused::Closed => ended(),
        };
        if Envelope::read(&body).is_ok() {
            let trace = fields.trace().map(Arc::new);
            session.post((body, bytes), ExchangeId::NONE, trace).map_err(not_taken)?;
            return Ok(body::plain(StatusCode::ACCEPTED));
        }
        match session.judge((body, bytes)).await.map_err(not_taken)? {
            ResponseKind::Json(status, refusal) => Ok(body::json(status, refusal)),
            ResponseKind::Refused(_) => Err(Refused::bad("the body is not a message")),
            ResponseKind::Ended => Err(ended()),
            ResponseKind::Accepted | ResponseKind::EventStream => Ok(body::plain(StatusCode::ACCEPTED)),
        }
    }
}

/// The session that the query names. Its id needs no encoding.
fn session_named(uri: &Uri) -> Option<&str> {
    let mut named = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    named.find(|(name, _)| *name == SESSION).map(|(_, id)| id).filter(|id| !id.is_empty())
}

fn ended() -> Refused {
    Refused::not_found("this session is not known, or has ended with its stream")
}

impl Responder for LegacySseServer {
    fn respond(
        self: Arc<Self>,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> BoxFuture<'static, Response<ResponseBody>> {
        Box::pin(async move { self.answer(request, caller).await.unwrap_or_else(Refused::into_response) })
    }

    fn page_access(&self) -> &'static PageAccess {
        &PAGE_ACCESS
    }

    fn session_of(&self, request: &Request<RequestBody>) -> Result<Option<String>, Refused> {
        Ok(session_named(request.uri()).map(str::to_owned))
    }

    fn shut(&self) {
        self.sessions.shut();
    }

    /// Always zero for the POSTs: each is answered at once.
    #[cfg(feature = "verify")]
    fn held(&self) -> (usize, usize) {
        (self.sessions.all().len(), 0)
    }
}

/// Data frames are accepted while at most this number of bytes waits for the reader.
const HELD_FOR_DATA: usize = 32 * 1024;
/// The size that is counted for a waiting message in addition to its bytes.
const MESSAGE: usize = 64;
/// The most control frames that wait for the reader besides the messages of the limit.
const CONTROL_FRAMES: usize = 1024;
/// The most POSTs that wait for the driver's verdict.
const VERDICTS: usize = 64;

/// One session: a stream, and the POSTs that name it.
pub(super) struct SseSession {
    pub(super) id: Arc<str>,
    pub(super) principal: Option<Principal>,
    address: Option<IpAddr>,
    pub(super) inbound_queue: Arc<InboundQueue>,
    settings: Arc<Settings>,
    /// The budget for the bytes that are held for this session.
    pub(super) budget: ByteBudget,
    sessions: Weak<Sessions<Self>>,
    /// The requests that have arrived. The first is its handshake.
    requests: AtomicUsize,
    mailbox: Mutex<Mailbox>,
}

/// What waits for the reader of the stream.
struct Mailbox {
    /// The data of the event `endpoint`, until it is sent.
    endpoint: Option<String>,
    waiting: VecDeque<Bytes>,
    /// The size of the waiting messages.
    size: usize,
    /// When the reader last took a message, or when one arrived after all were taken.
    moved: Instant,
    reader: Option<Waker>,
    driver: Option<Waker>,
    /// The responses to POSTs whose body is not a JSON object, by their exchanges.
    verdicts: IntMap<ResponseState>,
    next: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing more is taken in. The stream ends after the waiting messages.
    Closing,
    /// The stream has ended.
    Ended,
}

impl SseSession {
    /// `messages`: the path for POSTs.
    pub(super) fn new(
        id: Arc<str>,
        principal: Option<Principal>,
        address: Option<IpAddr>,
        settings: &Arc<Settings>,
        sessions: Weak<Sessions<Self>>,
        messages: &str,
    ) -> Arc<Self> {
        let budget = settings.clients.client(principal.as_ref(), address).budget().child(usize::MAX);
        let mailbox = Mailbox {
            endpoint: Some(format!("{messages}?sessionId={id}")),
            waiting: VecDeque::new(),
            size: 0,
            moved: Instant::now(),
            reader: None,
            driver: None,
            verdicts: IntMap::default(),
            next: 1,
            phase: Phase::Open,
        };
        Arc::new(Self {
            id,
            principal,
            address,
            inbound_queue: InboundQueue::new(settings.max_frame),
            settings: Arc::clone(settings),
            budget,
            sessions,
            requests: AtomicUsize::new(0),
            mailbox: Mutex::new(mailbox),
        })
    }

    pub(super) fn link(self: &Arc<Self>) -> Link {
        let mut peer = PeerInfo::default();
        peer.principal.clone_from(&self.principal);
        peer.address = self.address;
        let receiver = InboundReceiver(Arc::clone(&self.inbound_queue));
        ServerLink::open(self, receiver, peer).with_budget(self.budget.clone())
    }

    /// Passes a message to the driver (L3).
    pub(super) fn post(
        &self,
        (body, held): (Bytes, HeldBytes),
        exchange: ExchangeId,
        trace: Option<Arc<TraceContext>>,
    ) -> Result<(), SendRefused> {
        if self.requests.load(Ordering::Relaxed) < 2 && Envelope::of(&body).is_request() {
            self.requests.fetch_add(1, Ordering::Relaxed);
        }
        let inbound = Inbound { body, exchange, principal: self.principal.clone(), address: None, trace };
        self.inbound_queue.push(inbound, held)
    }

    /// Passes a body that is not a JSON object to the driver, and waits for its verdict. Such a body may be an array of
    /// answers, or an answer that cannot be read, which ends its call with an error. Any other is refused: the refusal is the
    /// response, and nothing is sent on the stream.
    ///
    /// # Cancel safety
    /// Dropping the future drops the verdict.
    pub(super) async fn judge(&self, body: (Bytes, HeldBytes)) -> Result<ResponseKind, SendRefused> {
        let number = self.step(|mailbox, _| {
            if mailbox.verdicts.len() >= VERDICTS {
                return Err(SendRefused::Full);
            }
            let number = mailbox.next;
            mailbox.next += 1;
            mailbox.verdicts.insert(number, ResponseState::Undecided(None));
            Ok(number)
        })?;
        let waiting = Judged { session: self, number };
        self.post(body, ExchangeId(number), None)?;
        let verdict = poll_fn(|cx| match self.mailbox().verdicts.get_mut(&waiting.number) {
            Some(response) => response.poll(cx),
            None => Poll::Ready(ResponseKind::Ended),
        });
        Ok(verdict.await)
    }

    fn decide(&self, exchange: ExchangeId, kind: ResponseKind) {
        self.step(|mailbox, wakes| {
            if let Some(response) = mailbox.verdicts.get_mut(&exchange.0) {
                wakes.add(response.decide(kind));
            }
        });
    }

    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step<T>(&self, step: impl FnOnce(&mut Mailbox, &mut WakeList) -> T) -> T {
        let mut wakes = WakeList::default();
        let result = step(&mut self.mailbox(), &mut wakes);
        wakes.wake();
        result
    }

    /// Ends the session: no request finds it, and the driver gets the end of the input.
    fn end_in(&self, phase: Phase) {
        if let Some(sessions) = self.sessions.upgrade() {
            sessions.remove(&self.id);
        }
        self.step(|mailbox, wakes| {
            if mailbox.phase != Phase::Ended {
                mailbox.phase = phase;
            }
            if mailbox.phase == Phase::Ended {
                mailbox.waiting = VecDeque::new();
                mailbox.size = 0;
            }
            wakes.add(mailbox.reader.take());
            wakes.add(mailbox.driver.take());
            for response in mailbox.verdicts.values_mut() {
                wakes.add(response.decide(ResponseKind::Ended));
            }
        });
        self.inbound_queue.end();
    }
}

/// A POST that waits for its verdict.
struct Judged<'a> {
    session: &'a SseSession,
    number: u64,
}

impl Drop for Judged<'_> {
    fn drop(&mut self) {
        let removed = self.session.mailbox().verdicts.remove(&self.number);
        drop(removed);
    }
}

impl Mailbox {
    fn push(&mut self, body: Bytes, wakes: &mut WakeList) {
        if self.waiting.is_empty() {
            self.moved = Instant::now();
        }
        self.size += body.len() + MESSAGE;
        self.waiting.push_back(body);
        wakes.add(self.reader.take());
    }

    /// The next event, encoded. `None`: the stream ends.
    fn poll_next(&mut self, wakes: &mut WakeList, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.phase == Phase::Ended {
            return Poll::Ready(None);
        }
        if let Some(endpoint) = self.endpoint.take() {
            return Poll::Ready(Some(event("endpoint", endpoint.as_bytes())));
        }
        if let Some(body) = self.waiting.pop_front() {
            self.size -= body.len() + MESSAGE;
            self.moved = Instant::now();
            wakes.add(self.driver.take());
            return Poll::Ready(Some(event("message", &body)));
        }
        if self.phase == Phase::Closing {
            return Poll::Ready(None);
        }
        self.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// An event with a name and one line of data.
fn event(name: &str, data: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(data.len() + 32);
    for part in [b"event: ", name.as_bytes(), b"\ndata: ", data, b"\n\n"] {
        out.put_slice(part);
    }
    out.freeze()
}

impl EventSource for SseSession {
    fn poll_next(&self, _: u64, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let event = self.step(|mailbox, wakes| mailbox.poll_next(wakes, cx));
        event.map(|event| event.map(|event| self.budget.hold_frame(event)))
    }

    /// L1: the session ends with its stream.
    fn left(&self, _: u64) {
        self.end_in(Phase::Ended);
    }
}

impl OwnedSession for SseSession {
    fn principal(&self) -> Option<&Principal> {
        self.principal.as_ref()
    }

    fn is_unused(&self) -> bool {
        self.requests.load(Ordering::Relaxed) < 2
    }
}

impl Linked for SseSession {
    const ENDED: &'static str = "the session has ended with its event stream";

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn inbound_queue(&self) -> &Arc<InboundQueue> {
        &self.inbound_queue
    }

    fn is_closed(&self) -> bool {
        self.mailbox().phase != Phase::Open
    }

    fn has_room(&self, cx: &mut Context<'_>) -> bool {
        let mut mailbox = self.mailbox();
        let has_room = mailbox.size <= HELD_FOR_DATA && mailbox.waiting.len() <= self.settings.unread_limit.0;
        if !has_room {
            mailbox.driver = Some(cx.waker().clone());
        }
        has_room
    }

    fn cut_stalled(&self, since: Instant) {
        let is_stalled = {
            let mailbox = self.mailbox();
            !mailbox.waiting.is_empty() && mailbox.moved <= since
        };
        if is_stalled {
            tracing::debug!("a session is ended, because its client does not read its event stream");
            self.end_in(Phase::Ended);
        }
    }

    /// The bytes count until the last one is written, or until the client leaves the stream. Control frames are not held
    /// back, so they have the bound of a stream that is not read (L4).
    fn send(&self, mut out: Outbound) -> Result<(), TransportError> {
        if out.exchange.is_peers() && out.head.kind == FrameKind::Answer {
            self.decide(out.exchange, ResponseKind::Json(StatusCode::BAD_REQUEST, out.body));
            return Ok(());
        }
        out.body = self.budget.hold_frame(out.body);
        let (messages, bytes) = self.settings.unread_limit;
        let is_over = self.step(|mailbox, wakes| {
            if mailbox.phase != Phase::Open {
                return Err(Self::ended());
            }
            let is_over = mailbox.waiting.len() > messages.saturating_add(CONTROL_FRAMES)
                || mailbox.size > bytes.saturating_add(self.settings.max_frame);
            if !is_over {
                mailbox.push(out.body, wakes);
            }
            Ok(is_over)
        })?;
        if is_over {
            tracing::debug!("a session is ended, because too much waits for its event stream");
            self.end_in(Phase::Ended);
            return Err(Self::ended());
        }
        Ok(())
    }

    /// The POST of a message was answered when it was passed on.
    fn finish(&self, exchange: ExchangeId, how: ExchangeEnd) {
        let kind = match how {
            ExchangeEnd::Accepted | ExchangeEnd::Silent => ResponseKind::Accepted,
            ExchangeEnd::Refused => ResponseKind::Refused(StatusCode::BAD_REQUEST),
        };
        self.decide(exchange, kind);
    }

    /// Completes when the reader has taken what waits for it.
    fn poll_close(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Once: ending wakes the driver, which is the caller.
        if !self.is_closed() {
            self.end_in(Phase::Closing);
        }
        let mut mailbox = self.mailbox();
        if mailbox.waiting.is_empty() {
            return Poll::Ready(());
        }
        mailbox.driver = Some(cx.waker().clone());
        Poll::Pending
    }

    fn end(&self) {
        self.end_in(Phase::Closing);
    }
}

#[cfg(test)]
mod tests {
    use rescind_core::{FrameInfo, Lane};

    use super::*;

    #[test]
    fn the_query_names_a_session_once() {
        for (target, session) in [
            ("/messages?sessionId=ab", Some("ab")),
            ("/messages?x=1&sessionId=ab&y", Some("ab")),
            ("/messages?sessionId=ab&sessionId=cd", Some("ab")),
            ("/messages?sessionid=ab", None),
            ("/messages?sessionId=", None),
            ("/messages?sessionId", None),
            ("/messages", None),
        ] {
            assert_eq!(session_named(&target.parse().unwrap()), session, "{target}");
        }
    }

    fn session(settings: Settings) -> Arc<SseSession> {
        SseSession::new("7".into(), None, None, &Arc::new(settings), Weak::new(), "/messages")
    }

    fn frame(kind: FrameKind, exchange: ExchangeId) -> Outbound {
        let head = FrameInfo { kind, id: None, method: None, trace: None };
        Outbound { body: Bytes::from_static(b"{}"), exchange, lane: Lane::Control, head, last: false }
    }

    fn next(session: &SseSession) -> Poll<Option<String>> {
        let event = session.poll_next(0, &mut Context::from_waker(Waker::noop()));
        event.map(|event| event.map(|event| String::from_utf8(event.to_vec()).unwrap()))
    }

    #[tokio::test]
    async fn the_first_event_names_the_endpoint_and_the_others_are_messages() {
        let session = session(Settings::default());
        session.send(frame(FrameKind::Notification, ExchangeId::NONE)).unwrap();
        session.send(frame(FrameKind::Answer, ExchangeId(1))).unwrap();
        let named = "event: endpoint\ndata: /messages?sessionId=7\n\n";
        assert_eq!(next(&session), Poll::Ready(Some(named.to_owned())));
        assert_eq!(next(&session), Poll::Ready(Some("event: message\ndata: {}\n\n".to_owned())));
        assert_eq!(next(&session), Poll::Pending, "the other belongs to a POST that nobody waits for");
        session.end();
        assert_eq!(next(&session), Poll::Ready(None));
    }

    #[tokio::test]
    async fn what_waits_is_read_before_the_end_and_lost_with_the_reader() {
        let mut cx = Context::from_waker(Waker::noop());
        for leaves in [false, true] {
            let session = session(Settings::default());
            assert!(next(&session).is_ready());
            session.send(frame(FrameKind::Notification, ExchangeId::NONE)).unwrap();
            assert!(session.poll_close(&mut cx).is_pending());
            assert!(session.send(frame(FrameKind::Notification, ExchangeId::NONE)).is_err());
            if leaves {
                session.left(0);
            } else {
                assert!(matches!(next(&session), Poll::Ready(Some(_))));
            }
            assert!(session.poll_close(&mut cx).is_ready());
            assert_eq!((next(&session), session.budget.used()), (Poll::Ready(None), 0));
        }
    }

    #[tokio::test]
    async fn a_body_that_is_no_message_has_the_response_that_the_driver_gives() {
        let held = |session: &SseSession| (Bytes::from_static(b"{"), session.budget.hold(1));
        let session = session(Settings::default());
        for (n, act) in [
            |session: &SseSession| session.finish(ExchangeId(1), ExchangeEnd::Accepted),
            |session: &SseSession| session.send(frame(FrameKind::Answer, ExchangeId(2))).unwrap(),
            |session: &SseSession| session.finish(ExchangeId(3), ExchangeEnd::Refused),
            |session: &SseSession| session.end(),
        ]
        .into_iter()
        .enumerate()
        {
            let judged = session.judge(held(&session));
            let judging = async {
                tokio::task::yield_now().await;
                act(&session);
            };
            let (verdict, ()) = tokio::join!(judged, judging);
            let name = format!("{:?}", verdict.unwrap());
            let wanted = ["Accepted", "Json(400", "Refused(400", "Ended"][n];
            assert!(name.starts_with(wanted), "{name}");
        }
        assert!(session.mailbox().verdicts.is_empty());
    }

    #[tokio::test]
    async fn control_frames_that_nobody_reads_end_the_session() {
        let settings = Settings { unread_limit: (10, 1000), max_frame: 1000, ..Settings::default() };
        let session = session(settings);
        let sent =
            (0..10_000).take_while(|_| session.send(frame(FrameKind::Cancel, ExchangeId::NONE)).is_ok());
        assert_eq!(sent.count(), 2000 / (2 + MESSAGE) + 1, "the bytes of the limit, and one more message");
        assert!(session.is_closed() && session.budget.used() == 0);
    }
}
