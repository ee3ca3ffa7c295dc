//! One connection on the server side: its streams, and which message is sent on which stream.
//!
//! - D1 The exchange of a request is the stream of its answer. A stream that loses its reader, or that has no reader
//!   when a request arrives, is reported as closed. With its next reader it is reported as resumed. The protocol
//!   defines what that means for the request.
//! - D2 Messages and the events of their streams are pushed under one lock, so that the driver receives them in the
//!   order in which they happened.
//!
//! # The link
//!
//! How a connection sends the driver's frames, and how it ends.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::StatusCode;
use rescind_core::{
    ByteBudget, ExchangeEnd, ExchangeId, FrameKind, HeldBytes, Inbound, Link, Outbound, PeerInfo, Principal,
    RequestId, SessionBodies, TraceContext, TransportError, TransportErrorKind, TransportEvent,
};
use tokio::time::Instant;

use crate::acp::UnknownSessions;
use crate::acp::server::Connections;
use crate::acp::sessions::{Found, Lanes, Message, NoStream, Sessions, most_kept};
use crate::inbound_queue::{InboundQueue, SendRefused, WakeList};
use crate::server::json_or_event_stream::{ResponseKind, ResponseState};
use crate::server::replay_buffer::ReplayBuffer;
use crate::server::sessions::{IdleSession, IdlingReceiver, Linked, OwnedSession, ServerLink};
use crate::server::{HttpCounts, Settings};
use crate::sync::{Mutex, MutexGuard};

/// The exchange of `initialize`, the only request that is answered on its own POST (A1).
pub(super) const OPENING: ExchangeId = ExchangeId(1);
/// The exchange of the connection's own stream. Those of the sessions follow in order (D1).
const FIRST: u64 = OPENING.0 + 1;
/// The stream of the connection itself.
pub(super) const OWN: u64 = 0;
/// The most outgoing requests whose stream is remembered.
const ROUTES: usize = 65_536;

/// Where a reader of a stream starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// With what no reader has taken.
    Waiting,
    /// With the first event: the client has received none.
    First,
    /// After this event.
    After { stream: u64, number: u64 },
}

pub(super) struct Connection {
    pub(super) id: Arc<str>,
    pub(super) principal: Option<Principal>,
    /// The address that opened it.
    pub(super) address: Option<IpAddr>,
    pub(super) inbound_queue: Arc<InboundQueue>,
    pub(super) settings: Arc<Settings>,
    /// The budget for the bytes that are held for this connection.
    pub(super) budget: ByteBudget,
    table: Weak<Connections>,
    pub(super) bodies: &'static SessionBodies,
    /// Whether a request has arrived other than its handshake.
    used: AtomicBool,
    state: Mutex<AcpConnectionState>,
}

pub(super) struct AcpConnectionState {
    pub(super) lanes: Lanes,
    /// The sessions that a message from either side has named.
    pub(super) sessions: Sessions,
    /// The streams on which our own requests were sent.
    pub(super) asked: HashMap<RequestId, u64>,
    /// The response to the POST of `initialize`.
    pub(super) opening: ResponseState,
    pub(super) closed: bool,
    pub(super) used: Instant,
    pub(super) driver: Option<Waker>,
    pub(super) counts: HttpCounts,
}

impl Connection {
    pub(super) fn new(
        id: Arc<str>,
        principal: Option<Principal>,
        address: Option<IpAddr>,
        settings: &Arc<Settings>,
        table: Weak<Connections>,
        bodies: &'static SessionBodies,
    ) -> Arc<Self> {
        let state = AcpConnectionState {
            lanes: Lanes::new(settings.kept),
            sessions: Sessions::default(),
            asked: HashMap::new(),
            opening: ResponseState::Undecided(None),
            closed: false,
            used: Instant::now(),
            driver: None,
            counts: settings.counts.clone(),
        };
        let (inbound_queue, settings) = (InboundQueue::new(settings.max_frame), Arc::clone(settings));
        let budget = settings.clients.client(principal.as_ref(), address).budget().child(usize::MAX);
        Arc::new(Self {
            id,
            principal,
            address,
            inbound_queue,
            settings,
            budget,
            table,
            bodies,
            used: AtomicBool::new(false),
            state: Mutex::new(state),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, AcpConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one step under the lock. Wakers are called after the lock is released.
    pub(super) fn step<T>(&self, step: impl FnOnce(&mut AcpConnectionState, &mut WakeList) -> T) -> T {
        let mut wakes = WakeList::default();
        let result = {
            let mut state = self.state();
            state.used = Instant::now();
            step(&mut state, &mut wakes)
        };
        wakes.wake();
        result
    }

    /// Takes the request that opened the connection.
    pub(super) fn open(
        &self,
        (body, held): (Bytes, HeldBytes),
        principal: Option<Principal>,
    ) -> Result<(), SendRefused> {
        let mut inbound = Inbound::new(body);
        inbound.exchange = OPENING;
        inbound.principal = principal;
        self.inbound_queue.push(inbound, held)
    }

    /// Takes any other message. `session`: the session that its header or its params name.
    pub(super) fn post(
        &self,
        (body, held): (Bytes, HeldBytes),
        message: &Message<'_>,
        principal: Option<Principal>,
        trace: Option<Arc<TraceContext>>,
        session: Option<&str>,
    ) -> Result<(), SendRefused> {
        if message.is_request() {
            self.used.store(true, Ordering::Relaxed);
        }
        self.step(|state, wakes| {
            // The session is known from now on, whichever stream carries the answer.
            let named = session.map_or(OWN, |name| state.lane(name));
            let lane = if message.is_answered_apart() { OWN } else { named };
            let mut inbound = Inbound::new(body);
            inbound.exchange = if message.is_request() { exchange_of(lane) } else { ExchangeId::NONE };
            inbound.principal = principal;
            inbound.trace = trace;
            wakes.add(self.inbound_queue.push_under_lock(inbound, held)?);
            if message.is_request() {
                state.sessions.begun(lane);
            }
            if let (true, Some(id)) = (message.is_answer(), message.id()) {
                state.asked.remove(&id);
            }
            // D1: no reader could receive an answer.
            if message.is_request() && state.lanes.get(lane).is_some_and(|buffer| !buffer.has_reader()) {
                wakes.add(self.inbound_queue.push_event_under_lock(closed(lane)));
            }
            Ok(())
        })
    }

    /// Whether an answer belongs to this session (`Some(true)`), to another one (`Some(false)`), or to none (`None`).
    pub(super) fn asked_by(&self, answer: &RequestId, session: Option<&str>) -> Option<bool> {
        let state = self.state();
        let lane = state.asked.get(answer).filter(|lane| **lane != OWN)?;
        Some(session.and_then(|name| state.sessions.lane(name)) == Some(*lane))
    }

    /// The response to `initialize`.
    pub(super) fn poll_opening(&self, cx: &mut Context<'_>) -> Poll<ResponseKind> {
        self.state().opening.poll(cx)
    }

    /// Attaches a reader to a stream: the one of this session, or the connection's own.
    pub(super) fn listen(
        &self,
        session: Option<&str>,
        unknown: UnknownSessions,
        start: Start,
    ) -> Result<(u64, u64), NoStream> {
        self.step(|state, wakes| {
            let lane = match session {
                None => OWN,
                Some(name) => state.lane_to_read(name, unknown)?,
            };
            match start {
                Start::Waiting => {}
                Start::First => state.lanes.rewind(lane, 0)?,
                Start::After { stream, number } if stream == lane => state.lanes.rewind(lane, number)?,
                Start::After { .. } => return Err(NoStream::Foreign),
            }
            let attached = state.lanes.step(lane, |buffer| {
                let was_lost = !buffer.has_reader();
                let reader = match start {
                    Start::Waiting | Start::First => buffer.attach_without_id(),
                    Start::After { .. } => buffer.attach(),
                };
                (was_lost, reader)
            });
            let (was_lost, (token, displaced)) = attached.ok_or(NoStream::Unknown)?;
            wakes.add(displaced);
            if was_lost {
                let resumed = TransportEvent::ExchangeResumed { exchange: exchange_of(lane) };
                wakes.add(self.inbound_queue.push_event_under_lock(resumed));
            }
            Ok((lane, token))
        })
    }

    pub(super) fn poll_event(&self, lane: u64, token: u64, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.step(|state, wakes| {
            // After the end no client finds the connection, so nothing is kept for one.
            let most = if state.closed { 0 } else { most_kept(self.budget.limit()) };
            let event = state.lanes.poll_next(lane, token, most, cx);
            if event.is_ready() {
                wakes.add(state.driver.take());
            }
            event
        })
    }

    /// Called when the response of a stream is dropped. The connection continues. The protocol decides how long the
    /// requests on that stream continue (D1).
    pub(super) fn left(&self, lane: u64, token: u64) {
        self.step(|state, wakes| {
            if state.lanes.step(lane, |buffer| buffer.detach(token)) == Some(true) {
                wakes.add(self.inbound_queue.push_event_under_lock(closed(lane)));
            }
            wakes.add(state.driver.take());
        });
    }

    /// Removes it from the table, so that no request finds it any more.
    pub(super) fn forget(&self) {
        if let Some(table) = self.table.upgrade() {
            table.remove(&self.id);
        }
    }

    /// The client left during the handshake, before its answer.
    pub(super) fn give_up_opening(&self) {
        self.inbound_queue.push_event(TransportEvent::ExchangeClosed { exchange: OPENING });
        self.end();
    }
}

impl OwnedSession for Connection {
    fn principal(&self) -> Option<&Principal> {
        self.principal.as_ref()
    }

    fn is_unused(&self) -> bool {
        !self.used.load(Ordering::Relaxed) && !self.state().opening.is_undecided()
    }
}

/// The exchange of the requests whose answers are sent on this stream.
const fn exchange_of(lane: u64) -> ExchangeId {
    ExchangeId(FIRST + lane)
}

/// The event for a stream that has no reader any more.
pub(super) const fn closed(lane: u64) -> TransportEvent {
    TransportEvent::ExchangeClosed { exchange: exchange_of(lane) }
}

impl AcpConnectionState {
    /// The stream of a session. It is created if the session is new; if there are too many, it is the connection's own.
    /// A stream is removed for a new one only if it is idle: it has no reader, no message, and no request of either
    /// side.
    pub(super) fn lane(&mut self, name: &str) -> u64 {
        if let Some(lane) = self.sessions.used(name) {
            return lane;
        }
        let asked = self.sessions.is_full().then(|| self.asked.values().copied().collect::<HashSet<_>>());
        let is_idle = |lane: u64| {
            let is_quiet = |buffer: &ReplayBuffer| !buffer.has_reader() && buffer.waiting().0 == 0;
            self.lanes.get(lane).is_none_or(is_quiet)
                && asked.as_ref().is_none_or(|asked| !asked.contains(&lane))
        };
        let (lane, gone) = match self.sessions.add(name, is_idle) {
            Found::Own => return OWN,
            Found::New { lane, gone } => (lane, gone),
        };
        if let Some(gone) = gone {
            self.lanes.remove(gone);
            self.counts.session_forgotten();
        }
        self.lanes.add(lane);
        if self.closed {
            self.lanes.step(lane, ReplayBuffer::end);
        }
        lane
    }

    pub(super) fn lane_of(&mut self, out: &Outbound, bodies: &'static SessionBodies) -> u64 {
        let id = out.head.id.as_ref();
        let stream = out.exchange.0.checked_sub(FIRST).unwrap_or(OWN);
        match out.head.kind {
            FrameKind::Answer => {
                self.sessions.answered(stream);
                stream
            }
            FrameKind::Cancel => id.and_then(|id| self.asked.get(id).copied()).unwrap_or(OWN),
            FrameKind::Request | FrameKind::Notification => {
                let lane = Message::of(&out.body, bodies).session().map_or(stream, |name| self.lane(&name));
                if let (FrameKind::Request, Some(id), true) = (out.head.kind, id, self.asked.len() < ROUTES) {
                    self.asked.insert(id.clone(), lane);
                }
                lane
            }
        }
    }
}

/// The most bytes that wait on all streams together. Above it the connection ends.
const MOST: usize = 64 * 1024 * 1024;

/// The link of a connection.
pub(super) fn link(connection: &Arc<Connection>) -> Link {
    let mut peer = PeerInfo::default();
    peer.principal.clone_from(&connection.principal);
    peer.address = connection.address;
    let link = ServerLink::open(connection, IdlingReceiver::new(connection), peer);
    link.with_budget(connection.budget.clone())
}

impl Linked for Connection {
    const ENDED: &'static str = "the connection has ended";

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn inbound_queue(&self) -> &Arc<InboundQueue> {
        &self.inbound_queue
    }

    fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Whether every stream that has a reader has room (A3).
    fn has_room(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.state();
        let most = self.settings.unread_limit;
        let has_room = !state.lanes.all().any(|buffer| is_full(buffer, most));
        if !has_room {
            state.driver = Some(cx.waker().clone());
        }
        has_room
    }

    /// Cuts the streams that hold data frames back and whose readers have taken nothing since then.
    fn cut_stalled(&self, since: Instant) {
        let most = self.settings.unread_limit;
        self.step(|state, wakes| {
            let is_cut = |buffer: &ReplayBuffer| is_full(buffer, most) && buffer.is_stalled(since);
            for lane in state.lanes.which(is_cut) {
                tracing::debug!(lane, "an event stream was cut, because its client does not read it");
                wakes.add(state.lanes.step(lane, ReplayBuffer::cut).flatten());
                wakes.add(self.inbound_queue.push_event_under_lock(closed(lane)));
            }
        });
    }

    /// Sends a frame on its stream (A2).
    fn send(&self, mut out: Outbound) -> Result<(), TransportError> {
        // The bytes count until the last one is written, or until the client leaves the stream.
        out.body = self.budget.hold_frame(out.body);
        self.step(|state, wakes| {
            if state.closed {
                return Err(Self::ended());
            }
            if out.exchange == OPENING && out.last {
                wakes.add(state.opening.decide(ResponseKind::Json(StatusCode::OK, out.body)));
                return Ok(());
            }
            let lane = state.lane_of(&out, self.bodies);
            if out.head.kind == FrameKind::Answer && lane == OWN {
                state.learn(&out.body, self.bodies);
            }
            let droppable = out.head.kind == FrameKind::Notification;
            let pushed = state.lanes.step(lane, |buffer| {
                let waker = buffer.push(out.body, droppable);
                let (messages, bytes) = self.settings.unread_limit;
                while buffer.waiting().0 > messages || buffer.waiting().1 > bytes {
                    if buffer.has_reader() || !buffer.drop_oldest() {
                        break;
                    }
                    self.settings.counts.notification_dropped();
                }
                waker
            });
            wakes.add(pushed.flatten());
            let waiting: usize = state.lanes.all().map(|buffer| buffer.waiting().1).sum();
            if waiting > MOST {
                let text = "the client reads none of what waits for it";
                return Err(TransportError::new(TransportErrorKind::Closed, text));
            }
            Ok(())
        })
    }

    fn finish(&self, exchange: ExchangeId, _: ExchangeEnd) {
        if exchange == OPENING {
            let refused = ResponseKind::Refused(StatusCode::BAD_REQUEST);
            self.step(|state, wakes| wakes.add(state.opening.decide(refused)));
        }
    }

    /// Nothing more is taken in. Streams end after their waiting messages. The id is unknown from now on, so no stream
    /// can be resumed and nothing is kept.
    fn end(&self) {
        self.forget();
        self.step(|state, wakes| {
            state.closed = true;
            wakes.add(state.driver.take());
            wakes.add(state.opening.decide(ResponseKind::Ended));
            state.lanes.forget_kept();
            for lane in state.lanes.which(|_| true) {
                wakes.add(state.lanes.step(lane, ReplayBuffer::end).flatten());
            }
        });
        self.inbound_queue.end();
    }
}

impl IdleSession for Connection {
    fn idle_at(&self) -> Option<Instant> {
        let state = self.state();
        let busy = state.lanes.all().any(ReplayBuffer::has_reader) || state.opening.is_undecided();
        (!busy).then(|| state.used + self.settings.session_idle)
    }

    fn idled(&self) {
        self.end();
    }
}

/// Whether a stream that has a reader holds more waiting messages or bytes than its limit.
fn is_full(buffer: &ReplayBuffer, (messages, bytes): (usize, usize)) -> bool {
    let waiting = buffer.waiting();
    buffer.has_reader() && (waiting.0 > messages || waiting.1 > bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rescind_core::{ACP_BODIES, FrameInfo, Lane};

    use super::*;
    use crate::server::replay_buffer::Retention;

    /// Puts a notification on a session's stream, and returns its size.
    fn say(connection: &Connection, session: &str) -> usize {
        let body = Bytes::from(format!(r#"{{"method":"said","params":{{"sessionId":"{session}"}}}}"#));
        let size = body.len();
        let head = FrameInfo { kind: FrameKind::Notification, id: None, method: None, trace: None };
        let (exchange, lane) = (ExchangeId::NONE, Lane::Data);
        connection.send(Outbound { body, exchange, lane, head, last: false }).unwrap();
        size
    }

    /// Puts more messages on a session's stream than its limit.
    fn fill(connection: &Connection, session: &str) {
        for _ in 0..=connection.settings.unread_limit.0 {
            say(connection, session);
        }
    }

    fn is_read(connection: &Connection, (lane, token): (u64, u64)) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(connection.poll_event(lane, token, &mut cx), Poll::Ready(Some(_)))
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_stream_that_was_full_all_the_time_is_cut() {
        let connection = Connection::new("c".into(), None, None, &Arc::default(), Weak::new(), &ACP_BODIES);
        let wait = Duration::from_secs(30);
        let [stalled, late] = ["stalled", "late"].map(|session| {
            connection.listen(Some(session), UnknownSessions::Opened, Start::Waiting).unwrap()
        });
        fill(&connection, "stalled");
        let since = Instant::now();
        tokio::time::advance(wait).await;
        fill(&connection, "late");
        connection.cut_stalled(since);
        assert_eq!((is_read(&connection, stalled), is_read(&connection, late)), (false, true));
    }

    #[tokio::test]
    async fn kept_events_count_in_the_budget_until_the_connection_ends() {
        let settings = Settings { kept: Retention { events: 2, bytes: 1024 }, ..Settings::default() };
        let connection =
            Connection::new("c".into(), None, None, &Arc::new(settings), Weak::new(), &ACP_BODIES);
        let reader = connection.listen(Some("s1"), UnknownSessions::Opened, Start::Waiting).unwrap();
        assert!(is_read(&connection, reader), "the event with only an id");
        let size = say(&connection, "s1");
        for _ in 0..2 {
            say(&connection, "s1");
        }
        assert_eq!(connection.budget.used(), 3 * size, "they wait");
        for _ in 0..3 {
            assert!(is_read(&connection, reader));
        }
        assert_eq!(connection.budget.used(), 2 * size, "two are kept");
        say(&connection, "s1");
        connection.end();
        assert_eq!(connection.budget.used(), size, "what waits can still be read");
        assert!(is_read(&connection, reader));
        assert_eq!(connection.budget.used(), 0);
    }

    #[tokio::test]
    async fn what_all_streams_keep_is_a_part_of_the_connections_memory() {
        let connection = Connection::new("c".into(), None, None, &Arc::default(), Weak::new(), &ACP_BODIES);
        connection.budget.set_limit(64 * 1024);
        for n in 0..100 {
            let session = format!("s{n}");
            let reader = connection.listen(Some(&session), UnknownSessions::Opened, Start::Waiting).unwrap();
            assert!(is_read(&connection, reader), "the event with only an id");
            for _ in 0..10 {
                say(&connection, &session);
                assert!(is_read(&connection, reader));
            }
        }
        let used = connection.budget.used();
        assert!(used > 0 && used <= 16 * 1024, "a quarter at most: {used}");
    }

    #[tokio::test]
    async fn only_an_id_of_the_same_stream_resumes_it() {
        let connection = Connection::new("c".into(), None, None, &Arc::default(), Weak::new(), &ACP_BODIES);
        let listen = |session: &str, start| connection.listen(Some(session), UnknownSessions::Opened, start);
        let after = |stream, number| Start::After { stream, number };
        let [(one, _), (two, _)] = ["s1", "s2"].map(|session| listen(session, Start::Waiting).unwrap());
        let size = say(&connection, "s1");
        assert_eq!(listen("s1", after(two, 0)), Err(NoStream::Foreign));
        assert_eq!(listen("s2", after(one, 0)), Err(NoStream::Foreign));
        assert_eq!(listen("s1", after(OWN, 0)), Err(NoStream::Foreign));
        assert_eq!(listen("s1", after(one, 2)), Err(NoStream::Forgotten), "it was never sent");
        let reader = listen("s1", after(one, 0)).unwrap();
        assert!(is_read(&connection, reader));
        assert_eq!(connection.budget.used(), size, "it was not doubled");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_session_names_are_replaced_by_new_ones() {
        let settings = Arc::<Settings>::default();
        let connection = Connection::new("c".into(), None, None, &settings, Weak::new(), &ACP_BODIES);
        let named = |n: usize| format!("s{n}");
        let (_read, _) = connection.listen(Some(&named(0)), UnknownSessions::Opened, Start::Waiting).unwrap();
        let body =
            Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"sessionId":"s1"}}"#);
        let message = Message::of(&body, &ACP_BODIES);
        connection
            .post((body.clone(), connection.budget.hold(0)), &message, None, None, Some(&named(1)))
            .unwrap();
        for n in 2..5000 {
            let body =
                Bytes::from(format!(r#"{{"jsonrpc":"2.0","method":"m","params":{{"sessionId":"s{n}"}}}}"#));
            let _ = connection.post(
                (body.clone(), connection.budget.hold(0)),
                &Message::of(&body, &ACP_BODIES),
                None,
                None,
                Some(&named(n)),
            );
        }
        let state = connection.state();
        let is_kept = |n: usize| state.sessions.lane(&named(n)).is_some();
        assert_eq!((is_kept(0), is_kept(1), is_kept(2), is_kept(4999)), (true, true, false, true), "I11");
        assert_eq!(state.lanes.all().count(), 1024 + 1, "I11");
        assert_eq!(settings.counts.forgotten_sessions(), 5000 - 1024);
    }
}
