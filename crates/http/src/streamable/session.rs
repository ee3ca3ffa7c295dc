//! One session on the server side: what its client does in it, how it sends the driver's frames, and how it ends.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use rescind_core::failpoint::{self, Failpoint};
use rescind_core::{
    ByteBudget, ExchangeEnd, ExchangeId, FrameKind, HeldBytes, Inbound, Link, MCP_RENEWAL, Outbound,
    PeerInfo, Principal, RejectReason, TraceContext, TransportError, TransportErrorKind, TransportEvent,
    UseMark,
};
use tokio::time::Instant;

use crate::envelope::Envelope;
use crate::inbound_queue::{InboundQueue, SendRefused, WakeList};
use crate::server::Settings;
use crate::server::body::EventSource;
use crate::server::exchange_table::{ExchangeList, ExchangeRules, ExchangeTable, Exchanges, OWN, Unrelated};
use crate::server::json_or_event_stream::ResponseState;
use crate::server::replay_buffer::{Forgotten, ReplayBuffer};
use crate::server::sessions::{IdleSession, IdlingReceiver, Linked, OwnedSession, ServerLink, Sessions};
use crate::streamable::sessionless::Running;
use crate::sync::Mutex;

/// The longest name of a revision that is kept, in bytes.
const MAX_REVISION: usize = 64;
/// The exchange of the message that opened the session: its first.
pub(super) const OPENING: ExchangeId = ExchangeId(OWN + 1);

/// One session.
pub(super) struct SessionState {
    pub(super) id: Arc<str>,
    pub(super) principal: Option<Principal>,
    /// The address that opened it.
    pub(super) address: Option<IpAddr>,
    pub(super) inbound_queue: Arc<InboundQueue>,
    pub(super) settings: Arc<Settings>,
    /// The budget for the bytes that are held for this session.
    pub(super) budget: ByteBudget,
    sessions: Weak<Sessions<Self>>,
    /// Whether a request has arrived other than the one that opened it.
    used: AtomicBool,
    pub(super) exchanges: Exchanges<()>,
    used_at: Mutex<Instant>,
    /// Until when it counts as used, also without its client.
    use_mark: UseMark,
    /// The revision that the answer to the opening message names.
    revision: OnceLock<Box<str>>,
    /// Whether messages of this side may wait for a stream.
    pub(super) has_parked: AtomicBool,
    pub(super) serves: Serves,
    /// The place of its request among those that cancels reach, if the server has no sessions.
    running: Mutex<Option<Running>>,
}

/// What a session serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serves {
    /// A client, until it ends the session.
    Client,
    /// One request of a server without sessions.
    OneRequest,
}

/// Why a stream cannot be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotResumed {
    /// It is not known, or its events are not kept any more.
    Forgotten,
    /// It has ended, and nothing was missed.
    Over,
}

impl From<Forgotten> for NotResumed {
    fn from(_: Forgotten) -> Self {
        Self::Forgotten
    }
}

impl SessionState {
    pub(super) fn new(
        id: Arc<str>,
        principal: Option<Principal>,
        address: Option<IpAddr>,
        settings: &Arc<Settings>,
        sessions: Weak<Sessions<Self>>,
        serves: Serves,
    ) -> Arc<Self> {
        let exchanges = Exchanges::new(&RULES, Some(ReplayBuffer::new(OWN, settings.kept)));
        let inbound_queue = InboundQueue::new(settings.max_frame);
        let budget = settings.clients.client(principal.as_ref(), address).budget().child(usize::MAX);
        let settings = Arc::clone(settings);
        Arc::new(Self {
            id,
            principal,
            address,
            inbound_queue,
            settings,
            budget,
            sessions,
            used: AtomicBool::new(false),
            exchanges,
            used_at: Mutex::new(Instant::now()),
            use_mark: UseMark::default(),
            revision: OnceLock::new(),
            has_parked: AtomicBool::new(false),
            serves,
            running: Mutex::default(),
        })
    }

    /// Notes that a client has used the session.
    pub(super) fn touch(&self) {
        self.touch_at(Instant::now());
    }

    fn touch_at(&self, now: Instant) {
        let mut used_at = self.used_at.lock().unwrap_or_else(PoisonError::into_inner);
        *used_at = now.max(*used_at);
    }

    pub(super) fn used_at(&self) -> Instant {
        *self.used_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the message of a POST. The token identifies the reader if the response becomes a stream.
    pub(super) fn post(
        &self,
        body: Bytes,
        held: HeldBytes,
        trace: Option<Arc<TraceContext>>,
    ) -> Result<(ExchangeId, u64), SendRefused> {
        let now = Instant::now();
        let (exchange, token) =
            self.exchanges.step(|table, _| table.begin_post(now, self.settings.kept, ()))?;
        self.touch_at(now);
        let inbound = Inbound { body, exchange, principal: self.principal.clone(), address: None, trace };
        self.inbound_queue
            .push(inbound, held)
            .inspect_err(|_| drop(self.exchanges.lock().open.remove(&exchange.0)))?;
        Ok((exchange, token))
    }

    /// Takes the messages of a batch, each an exchange of its own. The exchange and the token are those of the stream of
    /// their answers.
    pub(super) fn post_batch(
        &self,
        messages: Vec<(Bytes, HeldBytes)>,
        asks: bool,
        trace: Option<&Arc<TraceContext>>,
    ) -> Result<(ExchangeId, u64), SendRefused> {
        let now = Instant::now();
        let kept = self.settings.kept;
        let batch = self.exchanges.step(|table, _| table.begin_batch(now, kept, (), messages.len(), asks))?;
        self.touch_at(now);
        if asks {
            self.used.store(true, Ordering::Relaxed);
        }
        let inbound = (batch.first..).zip(messages).map(|(exchange, (body, held))| {
            let (exchange, principal) = (ExchangeId(exchange), self.principal.clone());
            (Inbound { body, exchange, principal, address: None, trace: trace.cloned() }, held)
        });
        self.inbound_queue
            .push_all(inbound.collect())
            .inspect_err(|_| self.exchanges.lock().drop_batch(batch))?;
        Ok((ExchangeId(batch.stream), batch.token))
    }

    /// The revision of the session, once the answer to its opening message has named one.
    pub(super) fn revision(&self) -> Option<&str> {
        self.revision.get().map(AsRef::as_ref)
    }

    /// Reads the revision in the answer to the opening message.
    pub(super) fn note_revision(&self, answer: &[u8]) {
        if let Some(revision) = Envelope::of(answer).result_text(MCP_RENEWAL.revision) {
            if revision.len() <= MAX_REVISION {
                let _ = self.revision.set(revision.into());
            }
        }
    }

    /// Informs the driver of exchanges whose client has left.
    pub(super) fn report_closed(&self, closed: ExchangeList, wakes: &mut WakeList) {
        for exchange in closed {
            wakes.add(self.inbound_queue.push_event_under_lock(TransportEvent::ExchangeClosed { exchange }));
        }
    }

    /// Sends the first event on a POST's stream. Its id allows the client to resume the stream.
    pub(super) fn prime(&self, exchange: ExchangeId, retry: Option<Duration>) {
        self.exchanges.step(|table, wakes| {
            if let Some(open) = table.open.get_mut(&exchange.0) {
                wakes.add(open.buffer.prime_first(retry));
            }
        });
    }

    /// Attaches a reader to the session's own stream. `None`: the session has ended, or there is a reader already and
    /// `displace` is not set.
    pub(super) fn listen(&self, displace: bool) -> Option<u64> {
        self.touch();
        self.exchanges.step(|table, wakes| {
            let is_read = table.own.as_ref().is_some_and(ReplayBuffer::has_reader);
            if table.closed || (is_read && !displace) {
                return None;
            }
            let token = table.attach(OWN, wakes);
            table.carry_parked(OWN, &self.settings, wakes);
            Some(token)
        })
    }

    /// Attaches a reader to a stream that was cut after event `last`.
    pub(super) fn resume(&self, stream: u64, last: u64) -> Result<u64, NotResumed> {
        self.touch();
        self.exchanges.step(|table, wakes| {
            if table.closed {
                return Err(NotResumed::Forgotten);
            }
            let held = table.held_of(stream).ok_or(NotResumed::Forgotten)?;
            let buffer = table.buffer(stream).ok_or(NotResumed::Forgotten)?;
            buffer.rewind(last)?;
            if buffer.is_ended() && buffer.waiting().0 == 0 {
                return Err(NotResumed::Over);
            }
            table.update_held(stream, held);
            let token = table.attach(stream, wakes);
            if table.open.contains_key(&stream) {
                for exchange in table.exchanges_of(stream) {
                    let resumed = TransportEvent::ExchangeResumed { exchange };
                    wakes.add(self.inbound_queue.push_event_under_lock(resumed));
                }
            }
            if stream == OWN {
                table.carry_parked(OWN, &self.settings, wakes);
            } else {
                table.carry_parked_if_running(stream, &self.settings, wakes);
            }
            Ok(token)
        })
    }

    /// Called when a response, or the future of a response, is dropped.
    pub(super) fn left(&self, stream: u64, token: u64) {
        self.touch();
        self.exchanges.step(|table, wakes| {
            let closed = table.reader_dropped(stream, token, &self.settings, wakes);
            self.report_closed(closed, wakes);
        });
    }

    /// Notes a message that arrived after the one that opened the session.
    pub(super) fn note_use(&self, body: &[u8]) {
        if !self.used.load(Ordering::Relaxed) && Envelope::of(body).is_request() {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Removes it from the table, so that no request finds it any more.
    pub(super) fn forget(&self) {
        if let Some(table) = self.sessions.upgrade() {
            table.remove(&self.id);
        }
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(running);
    }

    /// Keeps this place until the session ends.
    pub(super) fn runs_as(&self, running: Running) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
    }

    /// Passes a cancel of its request to the driver, as if the client had sent it in this session.
    pub(super) fn cancelled_by(&self, frame: Bytes) {
        let held = self.budget.hold(frame.len());
        let principal = self.principal.clone();
        let inbound =
            Inbound { body: frame, exchange: ExchangeId::NONE, principal, address: None, trace: None };
        // A session that has ended has nothing to cancel.
        let _ = self.inbound_queue.push(inbound, held);
    }

    /// Called when the driver ends an exchange. The session of a single request ends after the response, and has left the
    /// table before its client can have that.
    pub(super) fn completed(&self, exchange: ExchangeId) {
        if self.serves == Serves::OneRequest && exchange != ExchangeId::NONE {
            self.forget();
            self.inbound_queue.end();
        }
    }
}

impl OwnedSession for SessionState {
    fn principal(&self) -> Option<&Principal> {
        self.principal.as_ref()
    }

    fn is_unused(&self) -> bool {
        // That of a single request is empty only for a moment, before its message.
        self.serves == Serves::Client
            && !self.used.load(Ordering::Relaxed)
            && self.exchanges.lock().open.is_empty()
    }
}

/// One stream of a session.
pub(super) struct StreamFeed {
    pub(super) session: Arc<SessionState>,
    pub(super) stream: u64,
}

impl EventSource for StreamFeed {
    fn poll_next(&self, reader: u64, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let event = self.session.exchanges.step(|table, _| table.poll_event(self.stream, reader, cx));
        event.map(|event| event.map(|event| self.session.budget.hold_frame(event)))
    }

    fn left(&self, reader: u64) {
        self.session.left(self.stream, reader);
    }
}

/// A POST that waits for the head of its response. If it is dropped before that, it reports that the client has left
/// the exchange (S3).
pub(super) struct PendingResponse {
    pub(super) feed: StreamFeed,
    pub(super) token: u64,
    /// Whether nothing is to be reported: the exchange is over, or the body of the response reports its end.
    pub(super) left: bool,
}

impl PendingResponse {
    /// The response is taken, and is not a stream: the exchange is over.
    pub(super) fn answered(&mut self) {
        self.left = true;
        self.feed.session.touch();
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        if !self.left {
            self.feed.left(self.token);
        }
    }
}

/// The most open exchanges, including detached ones.
const EXCHANGES: usize = 4096;
/// Data frames are accepted while at most this number of bytes waits on streams that have a reader.
const HELD_FOR_BULK: usize = 32 * 1024;

/// A POST that may legally get no answer gets an event stream that ends.
pub(super) static RULES: ExchangeRules = ExchangeRules {
    most: EXCHANGES,
    room: HELD_FOR_BULK,
    resumable: true,
    silence_is_a_stream: true,
    status,
};

/// The link of a session.
pub(super) fn link(session: &Arc<SessionState>) -> Link {
    let mut peer = PeerInfo::default();
    peer.principal.clone_from(&session.principal);
    peer.address = session.address;
    let mut link = ServerLink::open(session, IdlingReceiver::new(session), peer);
    link.traits.ordered = failpoint::active(Failpoint::PostsCountAsOrdered);
    link.with_budget(session.budget.clone()).with_use_mark(session.use_mark.clone())
}

impl Linked for SessionState {
    const ENDED: &'static str = "the session has ended";

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn inbound_queue(&self) -> &Arc<InboundQueue> {
        &self.inbound_queue
    }

    fn is_closed(&self) -> bool {
        self.exchanges.lock().closed
    }

    fn has_room(&self, cx: &mut Context<'_>) -> bool {
        self.exchanges.lock().has_room(cx)
    }

    /// Cuts the streams whose readers have taken nothing although messages wait for them.
    fn cut_stalled(&self, since: Instant) {
        self.exchanges.step(|table, wakes| {
            let mut stalled: Vec<u64> = table
                .open
                .iter()
                .filter(|(_, open)| open.buffer.is_stalled(since))
                .map(|(n, _)| *n)
                .collect();
            stalled.extend(table.own.as_ref().filter(|own| own.is_stalled(since)).map(|_| OWN));
            for stream in stalled {
                tracing::debug!(stream, "an event stream was cut, because its client does not read it");
                let closed = table.cut(stream, &self.settings, wakes);
                self.report_closed(closed, wakes);
            }
        });
    }

    fn note_waiting(&self, exchange: ExchangeId) {
        self.exchanges.step(|table, wakes| table.note_waiting(exchange, &self.settings, wakes));
    }

    fn note_rejection(&self, exchange: ExchangeId, reason: RejectReason) {
        if reason == RejectReason::Closing && self.serves == Serves::OneRequest {
            // Its client knows of no session that could have ended.
            return;
        }
        self.exchanges.lock().note_rejection(exchange, reason);
    }

    /// A request or cancel whose exchange has lost its client belongs to no running request any more, and neither does a
    /// frame without an exchange.
    fn send(&self, mut out: Outbound) -> Result<(), TransportError> {
        if self.serves == Serves::OneRequest && out.head.kind == FrameKind::Request {
            return Err(unanswerable(out.exchange));
        }
        if out.last {
            if out.exchange == OPENING && out.head.kind == FrameKind::Answer {
                self.note_revision(&out.body);
            }
            self.completed(out.exchange);
        }
        // The bytes count until the last one is written, or until the client leaves the stream.
        out.body = self.budget.hold_frame(out.body);
        self.exchanges.step(|table, wakes| {
            if table.closed {
                return Err(Self::ended());
            }
            let open = table.open.get(&table.stream_of(out.exchange));
            let is_related = match (out.head.kind, open) {
                // The answer to an exchange that is over cannot be sent.
                (FrameKind::Answer, None) => return Ok(()),
                (FrameKind::Answer | FrameKind::Notification, Some(_)) => true,
                (FrameKind::Request | FrameKind::Cancel, Some(open)) => match open.response {
                    ResponseState::Gone => false,
                    ResponseState::Undecided(_) | ResponseState::Decided(_) | ResponseState::Sent => true,
                },
                (FrameKind::Request | FrameKind::Cancel | FrameKind::Notification, None) => false,
            };
            if is_related {
                return table.send(out.exchange.0, out, &self.settings, wakes);
            }
            match table.send_unrelated(out, &self.settings, wakes)? {
                Unrelated::Sent => {}
                Unrelated::Waits => {
                    // The driver polls the receiver again, which has the timer.
                    self.has_parked.store(true, Ordering::Relaxed);
                    wakes.add(self.inbound_queue.take_reader());
                }
            }
            Ok(())
        })
    }

    fn finish(&self, exchange: ExchangeId, how: ExchangeEnd) {
        self.completed(exchange);
        self.exchanges.step(|table, wakes| table.finish(exchange, how, &self.settings, wakes));
    }

    /// Ends every stream after its waiting messages, and refuses the undecided responses. Completes when the decided
    /// responses are taken and no reader has messages left to read.
    fn poll_close(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Once: a step on a closed table wakes the driver, which is the caller.
        if !self.is_closed() {
            self.forget();
            self.exchanges.step(ExchangeTable::close);
            self.inbound_queue.end();
        }
        let mut table = self.exchanges.lock();
        let is_read = |buffer: &ReplayBuffer| buffer.has_reader() && buffer.waiting().0 > 0;
        let busy = table.own.as_ref().is_some_and(is_read)
            || table.open.values().any(|open| match open.response {
                ResponseState::Decided(_) => true,
                ResponseState::Sent => is_read(&open.buffer),
                ResponseState::Undecided(_) | ResponseState::Gone => false,
            });
        if !busy {
            return Poll::Ready(());
        }
        table.driver = Some(cx.waker().clone());
        Poll::Pending
    }

    fn end(&self) {
        let _ = self.poll_close(&mut Context::from_waker(Waker::noop()));
    }
}

impl IdleSession for SessionState {
    /// A request whose client has disconnected does not keep the session open: that client may never return.
    fn idle_at(&self) -> Option<Instant> {
        let table = self.exchanges.lock();
        let in_use = table.own.as_ref().is_some_and(ReplayBuffer::has_reader)
            || table.open.values().any(|open| open.buffer.has_reader());
        drop(table);
        if in_use {
            return None;
        }
        let marked = self.use_mark.until().map(Instant::from_std);
        let used_at = marked.map_or(self.used_at(), |until| until.min(Instant::now()).max(self.used_at()));
        Some(used_at + self.settings.session_idle)
    }

    fn parked_until(&self) -> Option<Instant> {
        if !self.has_parked.load(Ordering::Relaxed) {
            return None;
        }
        let table = self.exchanges.lock();
        let until = table.parked_until(self.settings.stream_wait);
        // Only the driver adds such messages, and it is the caller.
        self.has_parked.store(until.is_some(), Ordering::Relaxed);
        until
    }

    fn expire_parked(&self) {
        self.exchanges.step(|table, wakes| {
            for failure in table.expire_parked(Instant::now(), &self.settings) {
                wakes.add(self.inbound_queue.push_event_under_lock(failure));
            }
        });
    }
}

/// A request of this side whose answer could not come back: the client's next POST may reach another process.
fn unanswerable(exchange: ExchangeId) -> TransportError {
    let text = "a server without sessions cannot send requests to its clients: no answer could reach it";
    TransportError { exchange: Some(exchange), ..TransportError::new(TransportErrorKind::Closed, text) }
}

/// The HTTP status of an answer. An answer with an id gets 200, unless its session ended before its request could begin.
fn status(reason: Option<RejectReason>, _: &[u8]) -> StatusCode {
    match reason {
        Some(RejectReason::BadMessage) => StatusCode::BAD_REQUEST,
        Some(RejectReason::DuplicateId) => StatusCode::CONFLICT,
        // The client may send it again in a new session.
        Some(RejectReason::Closing) => StatusCode::NOT_FOUND,
        Some(_) | None => StatusCode::OK,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Context;

    use rescind_core::{ExchangeEnd, FrameKind, Lane, Outbound, RequestId};

    use super::*;
    use crate::server::sessions::{IdleSession, Linked};

    fn answer(exchange: ExchangeId) -> Outbound {
        let head = rescind_core::FrameInfo {
            kind: FrameKind::Answer,
            id: Some(RequestId::number(1)),
            method: None,
            trace: None,
        };
        Outbound { body: Bytes::from_static(b"{}"), exchange, lane: Lane::Data, head, last: true }
    }

    #[tokio::test]
    async fn a_client_that_leaves_while_it_is_answered_leaves_nothing_behind() {
        let answers: [fn(&SessionState, ExchangeId); 3] = [
            |session, exchange| session.send(answer(exchange)).unwrap(),
            |session, exchange| session.finish(exchange, ExchangeEnd::Accepted),
            |session, exchange| session.finish(exchange, ExchangeEnd::Refused),
        ];
        for answer in answers {
            let session =
                SessionState::new("session".into(), None, None, &Arc::default(), Weak::new(), Serves::Client);
            let (exchange, token) =
                session.post(Bytes::from_static(b"{}"), session.budget.hold(2), None).unwrap();
            answer(&session, exchange);
            session.left(exchange.0, token);
            assert!(session.exchanges.lock().open.is_empty());
            assert!(session.idle_at().is_some(), "the session would never idle");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_mark_of_use_delays_the_idle_time_and_can_be_set_back() {
        let session =
            SessionState::new("session".into(), None, None, &Arc::default(), Weak::new(), Serves::Client);
        let (begun, idle) = (Instant::now(), session.settings.session_idle);
        let mark = link(&session).use_mark.expect("the link has it");
        let (hour, second) = (Duration::from_secs(3600), Duration::from_secs(1));
        mark.set((begun + 24 * hour).into_std());
        tokio::time::advance(hour).await;
        assert_eq!(session.idle_at(), Some(begun + hour + idle), "it is in use now");
        mark.set((begun + hour + second).into_std());
        tokio::time::advance(idle).await;
        assert_eq!(session.idle_at(), Some(begun + hour + second + idle));
        session.touch();
        assert_eq!(session.idle_at(), Some(begun + hour + 2 * idle), "its client was there later");
    }

    /// A session of a client, and its batch of so many messages.
    fn with_batch(messages: usize, asks: bool) -> (Arc<SessionState>, u64, u64) {
        let session =
            SessionState::new("session".into(), None, None, &Arc::default(), Weak::new(), Serves::Client);
        let all = (0..messages).map(|_| (Bytes::from_static(b"{}"), session.budget.hold(2))).collect();
        let (ExchangeId(stream), token) = session.post_batch(all, asks, None).unwrap();
        (session, stream, token)
    }

    /// The exchanges of the messages that the driver gets, and those that are reported as closed.
    fn received(session: &SessionState) -> (Vec<u64>, Vec<u64>) {
        use rescind_core::Receiver as _;
        let mut receiver = crate::inbound_queue::InboundReceiver(Arc::clone(&session.inbound_queue));
        let (mut messages, mut closed) = (Vec::new(), Vec::new());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while let std::task::Poll::Ready(Some(Ok(event))) =
            std::pin::Pin::new(&mut receiver).poll_event(&mut cx)
        {
            match event {
                TransportEvent::Message(inbound) => messages.push(inbound.exchange.0),
                TransportEvent::ExchangeClosed { exchange } => closed.push(exchange.0),
                other => panic!("{other:?}"),
            }
        }
        (messages, closed)
    }

    #[tokio::test]
    async fn each_message_of_a_batch_is_an_exchange_and_is_closed_with_the_stream() {
        let (session, stream, token) = with_batch(4, true);
        let part = |n: u64| ExchangeId(stream + n);
        session.send(answer(part(2))).unwrap();
        session.finish(part(3), ExchangeEnd::Silent);
        session.left(stream, token);
        assert_eq!(received(&session), (vec![2, 3, 4, 5], vec![2, 5]), "only those that are open");
        session.send(answer(part(1))).unwrap();
        session.finish(part(4), ExchangeEnd::Accepted);
        assert!(session.exchanges.lock().open.is_empty());
        assert!(session.idle_at().is_some(), "the session would never idle");
        // What ends twice, or is not of the batch, changes nothing.
        session.finish(part(1), ExchangeEnd::Accepted);
        session.finish(ExchangeId(99), ExchangeEnd::Accepted);
    }

    #[tokio::test]
    async fn a_batch_whose_client_left_before_the_head_leaves_nothing_behind() {
        for asks in [true, false] {
            let (session, stream, token) = with_batch(3, asks);
            session.left(stream, token);
            for n in 1..=3 {
                session.finish(ExchangeId(stream + n), ExchangeEnd::Accepted);
            }
            assert!(session.exchanges.lock().open.is_empty(), "a request in it: {asks}");
            assert!(session.idle_at().is_some());
        }
    }

    #[tokio::test]
    async fn the_messages_of_batches_are_bounded_together_and_taken_whole() {
        let (session, ..) = with_batch(1024, true);
        let more = || (0..1024).map(|_| (Bytes::from_static(b"{}"), session.budget.hold(2))).collect();
        for _ in 0..2 {
            session.post_batch(more(), true, None).unwrap();
        }
        assert_eq!(session.post_batch(more(), true, None).err(), Some(SendRefused::Full), "P2");
        assert_eq!(received(&session).0.len(), 3 * 1024);
        assert_eq!(session.budget.used(), 0, "the driver counts what it took");
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn a_close_that_waits_for_a_reader_does_not_wake_itself() {
        let session =
            SessionState::new("session".into(), None, None, &Arc::default(), Weak::new(), Serves::Client);
        let (exchange, _) = session.post(Bytes::from_static(b"{}"), session.budget.hold(2), None).unwrap();
        session.send(answer(exchange)).unwrap();
        let count = Arc::new(Wakes::default());
        let waker = std::task::Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        assert!(session.poll_close(&mut cx).is_pending(), "its answer is not taken yet");
        assert!(session.poll_close(&mut cx).is_pending());
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        let taken = |cx: &mut Context<'_>| {
            session.exchanges.step(|table, wakes| table.poll_response(exchange, wakes, cx))
        };
        assert!(taken(&mut Context::from_waker(std::task::Waker::noop())).is_ok());
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "the reader has taken it");
        assert!(session.poll_close(&mut cx).is_ready());
    }
}
