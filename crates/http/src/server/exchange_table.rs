//! The exchanges of a link, behind one lock: the response to each POST, the event stream that it may become, and how
//! both end.
//!
//! - C1 An exchange is answered once: by its response, or on its stream.
//! - C2 A stream that loses its reader before its end is reported as closed, and one that gets a reader again as
//!   resumed. Both are reported under the lock: in another order, a stream that is read would count as lost.
//! - C3 The held bytes are bounded: for streams that are read by [`has_room`](ExchangeTable::has_room), for the others
//!   by `HttpServer::unread_limit`. For events that were sent and may be requested again, the settings of the resume
//!   buffer apply.

mod parked;

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use rescind_core::{
    ExchangeEnd, ExchangeId, FrameKind, Outbound, RejectReason, TransportError, TransportErrorKind,
};
use tokio::time::Instant;

use crate::inbound_queue::{SendRefused, WakeList};
use crate::server::Settings;
use crate::server::exchange_table::parked::Parked;
use crate::server::json_or_event_stream::{Progress, ResponseKind, ResponseState};
use crate::server::replay_buffer::{ReplayBuffer, Retention};
use crate::sync::{IntMap, Mutex, MutexGuard};

pub(crate) use crate::server::exchange_table::parked::ExchangeList;
pub(crate) use crate::server::exchange_table::parked::Unrelated;

/// The link's own stream, which no request of the peer opened.
pub(crate) const OWN: u64 = 0;

/// How the exchanges of one binding differ from those of another.
pub(crate) struct ExchangeRules {
    /// The most open exchanges, including those without a reader.
    pub(crate) most: usize,
    /// Data frames are accepted while at most this number of bytes waits on streams that are read.
    pub(crate) room: usize,
    /// Whether a stream that lost its reader is kept for a client that returns. If not, it does not hold back data
    /// frames: its notifications are dropped.
    pub(crate) resumable: bool,
    /// Whether a request that must not be answered gets an event stream that ends.
    pub(crate) silence_is_a_stream: bool,
    /// The status of an answer, or of a refusal with this reason.
    pub(crate) status: fn(Option<RejectReason>, &[u8]) -> StatusCode,
}

impl ExchangeRules {
    /// The bytes that an answer counts until its response is taken. If clients share the room, it counts as the events
    /// of a stream do.
    fn counted(&self, answer: &Bytes) -> usize {
        if self.resumable { 0 } else { answer.len() }
    }
}

/// The table behind its lock. Code under the lock must not wake, send or drop anything that could take the lock again.
pub(crate) struct Exchanges<X>(Mutex<ExchangeTable<X>>);

/// `X` is what a binding keeps for each exchange.
pub(crate) struct ExchangeTable<X> {
    rules: &'static ExchangeRules,
    /// Boxed, because the map keeps its capacity for some exchanges after they are removed.
    pub(crate) open: IntMap<Box<Exchange<X>>>,
    /// The stream of the link itself, if it has one.
    pub(crate) own: Option<ReplayBuffer>,
    ended: VecDeque<(u64, ReplayBuffer)>,
    /// The exchanges of the messages that came in batches, and their streams.
    parts: IntMap<u64>,
    parked: Parked,
    next: u64,
    /// Waiting bytes of the streams that are read.
    held: usize,
    /// Set while the driver waits for room, or for the end.
    pub(crate) driver: Option<Waker>,
    pub(crate) closed: bool,
}

pub(crate) struct Exchange<X> {
    pub(crate) response: ResponseState,
    came: Instant,
    progress: Progress,
    pub(crate) buffer: ReplayBuffer,
    reason: Option<RejectReason>,
    /// The messages of its batch that have not ended. 0: it is no batch.
    parts: usize,
    pub(crate) extra: X,
}

impl<X> Exchange<X> {
    /// Whether its request is to be answered on a stream. One that has not begun is not.
    fn is_due(&self) -> bool {
        self.progress.is_due && self.reason != Some(RejectReason::Closing)
    }

    /// The bytes that its client has not taken yet.
    pub(crate) fn waiting_bytes(&self) -> usize {
        let answer = match &self.response {
            ResponseState::Decided(ResponseKind::Json(_, body)) => body.len(),
            ResponseState::Decided(_)
            | ResponseState::Undecided(_)
            | ResponseState::Sent
            | ResponseState::Gone => 0,
        };
        answer + self.buffer.waiting().1
    }
}

impl<X> Exchanges<X> {
    pub(crate) fn new(rules: &'static ExchangeRules, own: Option<ReplayBuffer>) -> Self {
        Self(Mutex::new(ExchangeTable {
            rules,
            open: IntMap::default(),
            own,
            ended: VecDeque::new(),
            parts: IntMap::default(),
            parked: Parked::default(),
            next: OWN + 1,
            held: 0,
            driver: None,
            closed: false,
        }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ExchangeTable<X>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one step under the lock. Wakers are called after the lock is released.
    pub(crate) fn step<T>(&self, step: impl FnOnce(&mut ExchangeTable<X>, &mut WakeList) -> T) -> T {
        let mut wakes = WakeList::default();
        let result = {
            let mut table = self.lock();
            let result = step(&mut table, &mut wakes);
            if table.held <= table.rules.room || table.closed {
                wakes.add(table.driver.take());
            }
            result
        };
        wakes.wake();
        result
    }
}

// What the client does.
impl<X> ExchangeTable<X> {
    /// A new exchange, and the reader of its stream.
    pub(crate) fn begin_post(
        &mut self,
        now: Instant,
        kept: Retention,
        extra: X,
    ) -> Result<(ExchangeId, u64), SendRefused> {
        if self.closed {
            return Err(SendRefused::Closed);
        }
        if self.open_messages() >= self.rules.most {
            return Err(SendRefused::Full);
        }
        let stream = self.next;
        self.next += 1;
        let (buffer, token) = ReplayBuffer::with_reader(now, stream, kept);
        let exchange = Exchange {
            response: ResponseState::Undecided(None),
            came: now,
            progress: Progress::default(),
            buffer,
            reason: None,
            parts: 0,
            extra,
        };
        self.open.insert(stream, Box::new(exchange));
        Ok((ExchangeId(stream), token))
    }

    /// Takes the response to a POST. While it is not decided, returns how far the request has come, and wakes the task
    /// when either changes.
    pub(crate) fn poll_response(
        &mut self,
        exchange: ExchangeId,
        wakes: &mut WakeList,
        cx: &mut Context<'_>,
    ) -> Result<ResponseKind, Progress> {
        let Some(open) = self.open.get_mut(&exchange.0) else { return Ok(ResponseKind::Ended) };
        let Poll::Ready(kind) = open.response.poll(cx) else { return Err(open.progress) };
        if let ResponseKind::Json(_, body) = &kind {
            self.held -= self.rules.counted(body);
        }
        if !matches!(kind, ResponseKind::EventStream) {
            self.open.remove(&exchange.0);
        }
        wakes.add(self.driver.take());
        Ok(kind)
    }

    /// Notes that the time is over after which the response to a request becomes an event stream.
    pub(crate) fn note_due(&mut self, exchange: ExchangeId) {
        if let Some(open) = self.open.get_mut(&exchange.0) {
            open.progress.is_due = true;
        }
    }

    /// Turns the response to a POST into an event stream, if nothing is decided yet.
    pub(crate) fn open_stream(&mut self, exchange: ExchangeId, settings: &Settings, wakes: &mut WakeList) {
        if let Some(open) = self.open.get_mut(&exchange.0) {
            wakes.add(open.response.decide(ResponseKind::EventStream));
            self.carry_parked_if_running(exchange.0, settings, wakes);
        }
    }

    /// The next event of a stream.
    pub(crate) fn poll_event(
        &mut self,
        stream: u64,
        token: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Bytes>> {
        let Some(held) = self.held_of(stream) else { return Poll::Ready(None) };
        let Some(buffer) = self.buffer(stream) else { return Poll::Ready(None) };
        let event = buffer.poll_next(token, cx);
        self.update_held(stream, held);
        event
    }
}

// What the driver does.
impl<X> ExchangeTable<X> {
    /// Whether a data frame is accepted. If not, the driver is woken when there is room.
    pub(crate) fn has_room(&mut self, cx: &mut Context<'_>) -> bool {
        if self.closed || self.held <= self.rules.room {
            return true;
        }
        self.driver = Some(cx.waker().clone());
        false
    }

    /// Notes that the handler of an exchange's request runs. Its response becomes an event stream after this time. If
    /// that is over since the request came, the task that waits is woken; else its timer wakes it later.
    pub(crate) fn note_started(
        &mut self,
        exchange: ExchangeId,
        stream_after: Duration,
        wakes: &mut WakeList,
    ) {
        let Some(open) = self.open.get_mut(&exchange.0) else { return };
        let now = Instant::now();
        open.progress.started.get_or_insert(now);
        if now.saturating_duration_since(open.came) >= stream_after {
            wakes.add(open.response.waker());
        }
    }

    /// Notes that the handler of an exchange's request awaits something.
    pub(crate) fn note_waiting(&mut self, exchange: ExchangeId, settings: &Settings, wakes: &mut WakeList) {
        if let Some(open) = self.open.get_mut(&exchange.0) {
            open.progress.waits = true;
            wakes.add(open.response.waker());
            self.carry_parked_if_running(exchange.0, settings, wakes);
        }
    }

    pub(crate) fn note_rejection(&mut self, exchange: ExchangeId, reason: RejectReason) {
        if let Some(open) = self.open.get_mut(&exchange.0) {
            open.reason = Some(reason);
        }
    }

    /// Accepts a frame for a stream.
    pub(crate) fn send(
        &mut self,
        stream: u64,
        out: Outbound,
        settings: &Settings,
        wakes: &mut WakeList,
    ) -> Result<(), TransportError> {
        let Some(open) = self.open.get_mut(&stream) else {
            return match self.parts.get(&stream) {
                Some(of) => self.send_part(*of, out, settings, wakes),
                None => self.put(stream, out, settings, wakes),
            };
        };
        match (&open.response, out.last) {
            (ResponseState::Undecided(_), true) if !open.is_due() => {
                let status = (self.rules.status)(open.reason, &out.body);
                self.held += self.rules.counted(&out.body);
                wakes.add(open.buffer.end());
                wakes.add(open.response.decide(ResponseKind::Json(status, out.body)));
                return Ok(());
            }
            (ResponseState::Gone, true) => {
                self.open.remove(&stream);
                return Ok(());
            }
            (ResponseState::Gone, false) if !self.rules.resumable => return Ok(()),
            (ResponseState::Undecided(_), _) => {
                wakes.add(open.response.decide(ResponseKind::EventStream));
                self.carry_parked_if_running(stream, settings, wakes);
            }
            (ResponseState::Decided(_) | ResponseState::Sent | ResponseState::Gone, _) => {}
        }
        let last = out.last;
        let done = self.put(stream, out, settings, wakes);
        if last {
            self.end(stream, settings, wakes);
        }
        done
    }

    /// Ends an exchange without a frame.
    pub(crate) fn finish(
        &mut self,
        exchange: ExchangeId,
        how: ExchangeEnd,
        settings: &Settings,
        wakes: &mut WakeList,
    ) {
        let Some(open) = self.open.get_mut(&exchange.0) else {
            self.end_part(exchange, settings, wakes);
            return;
        };
        match (&open.response, how) {
            (ResponseState::Undecided(_), ExchangeEnd::Refused) => {
                let status = match (self.rules.status)(open.reason, &[]) {
                    StatusCode::OK => StatusCode::BAD_REQUEST,
                    status => status,
                };
                wakes.add(open.response.decide(ResponseKind::Refused(status)));
            }
            (ResponseState::Undecided(_), ExchangeEnd::Silent) if self.rules.silence_is_a_stream => {
                wakes.add(open.response.decide(ResponseKind::EventStream));
                self.end(exchange.0, settings, wakes);
            }
            (ResponseState::Undecided(_), ExchangeEnd::Accepted | ExchangeEnd::Silent) => {
                wakes.add(open.response.decide(ResponseKind::Accepted));
            }
            (ResponseState::Gone, _) => {
                self.open.remove(&exchange.0);
            }
            (ResponseState::Decided(_) | ResponseState::Sent, _) => self.end(exchange.0, settings, wakes),
        }
    }

    /// Ends every stream after its waiting messages, and every undecided response.
    pub(crate) fn close(&mut self, wakes: &mut WakeList) {
        self.closed = true;
        self.drop_parked();
        wakes.add(self.own.as_mut().and_then(ReplayBuffer::end));
        for open in self.open.values_mut() {
            wakes.add(open.response.decide(ResponseKind::Ended));
            wakes.add(open.buffer.end());
        }
    }

    fn put(
        &mut self,
        stream: u64,
        out: Outbound,
        settings: &Settings,
        wakes: &mut WakeList,
    ) -> Result<(), TransportError> {
        let (messages, bytes) = settings.unread_limit;
        let before = self.held_of(stream).unwrap_or(0);
        let resumable = self.rules.resumable;
        let Some(buffer) = self.buffer(stream) else { return Ok(()) };
        let droppable = out.head.kind == FrameKind::Notification;
        let over = |buffer: &ReplayBuffer| {
            let waiting = buffer.waiting();
            waiting.0 >= messages || waiting.1.saturating_add(out.body.len()) > bytes
        };
        // A stream that is read holds data frames back, unless this would hold back the frames of other clients.
        if !buffer.has_reader() || !resumable {
            while over(buffer) && buffer.drop_oldest() {
                settings.counts.notification_dropped();
                tracing::debug!(stream, "a notification was dropped: no client reads its stream");
            }
            if over(buffer) && buffer.waiting().0 > 0 {
                match out.head.kind {
                    FrameKind::Notification => {
                        settings.counts.notification_dropped();
                        return Ok(());
                    }
                    FrameKind::Request | FrameKind::Cancel => return Err(unread_limit_error(out.exchange)),
                    FrameKind::Answer => {}
                }
            }
        }
        wakes.add(buffer.push(out.body, droppable));
        self.update_held(stream, before);
        Ok(())
    }

    /// Ends a stream: no more messages follow. Without a reader it is kept among the ended ones for a client that
    /// returns.
    fn end(&mut self, stream: u64, settings: &Settings, wakes: &mut WakeList) {
        let Some(open) = self.open.get_mut(&stream) else { return };
        wakes.add(open.buffer.end());
        if !open.buffer.has_reader() {
            self.retire(stream, settings);
        }
    }
}

// What is held.
impl<X> ExchangeTable<X> {
    pub(crate) fn buffer(&mut self, stream: u64) -> Option<&mut ReplayBuffer> {
        if stream == OWN {
            return self.own.as_mut();
        }
        if let Some(open) = self.open.get_mut(&stream) {
            return Some(&mut open.buffer);
        }
        self.ended.iter_mut().find(|(number, _)| *number == stream).map(|(_, buffer)| buffer)
    }

    pub(crate) fn held_of(&mut self, stream: u64) -> Option<usize> {
        self.buffer(stream).map(|buffer| if buffer.has_reader() { buffer.waiting().1 } else { 0 })
    }

    /// Updates the count after a step. `before` is the number of bytes that were held for the stream.
    pub(crate) fn update_held(&mut self, stream: u64, before: usize) {
        let after = self.held_of(stream).unwrap_or(0);
        self.held = self.held.saturating_sub(before).saturating_add(after);
    }

    #[cfg(test)]
    pub(crate) const fn held(&self) -> usize {
        self.held
    }
}

fn unread_limit_error(exchange: ExchangeId) -> TransportError {
    let text = "the client reads no event stream, and what waits for it is at its bound";
    TransportError { exchange: Some(exchange), ..TransportError::new(TransportErrorKind::TooLarge, text) }
}

/// The most ended streams that are kept for a client that lost their end.
const ENDED: usize = 16;

impl<X> ExchangeTable<X> {
    /// Called when a response, or the future of a response, is dropped. The caller must report the returned exchanges as
    /// closed, under the same lock.
    pub(crate) fn reader_dropped(
        &mut self,
        stream: u64,
        token: u64,
        settings: &Settings,
        wakes: &mut WakeList,
    ) -> ExchangeList {
        let Some(held) = self.held_of(stream) else { return ExchangeList::new() };
        if !self.buffer(stream).is_some_and(|buffer| buffer.detach(token)) {
            return ExchangeList::new();
        }
        self.update_held(stream, held);
        wakes.add(self.driver.take());
        self.after_reader_loss(stream, settings)
    }

    /// Removes the reader of a stream, as if it had disconnected.
    pub(crate) fn cut(&mut self, stream: u64, settings: &Settings, wakes: &mut WakeList) -> ExchangeList {
        let Some(held) = self.held_of(stream) else { return ExchangeList::new() };
        wakes.add(self.buffer(stream).and_then(ReplayBuffer::cut));
        self.update_held(stream, held);
        self.after_reader_loss(stream, settings)
    }

    /// Called when a stream has lost its reader.
    fn after_reader_loss(&mut self, stream: u64, settings: &Settings) -> ExchangeList {
        let Some(open) = self.open.get_mut(&stream) else { return ExchangeList::new() };
        match open.response {
            ResponseState::Undecided(_) | ResponseState::Decided(ResponseKind::EventStream) => {
                open.response = ResponseState::Gone;
            }
            // It is answered, but no client takes the answer. The driver has already finished with it.
            ResponseState::Decided(ref kind) => {
                if let ResponseKind::Json(_, body) = kind {
                    self.held -= self.rules.counted(body);
                }
                self.open.remove(&stream);
                return ExchangeList::new();
            }
            ResponseState::Sent if !self.rules.resumable => open.response = ResponseState::Gone,
            ResponseState::Sent | ResponseState::Gone => {}
        }
        if open.buffer.is_ended() {
            self.retire(stream, settings);
            return ExchangeList::new();
        }
        if !self.rules.resumable {
            open.buffer.discard();
        }
        self.exchanges_of(stream)
    }

    /// Attaches a reader to a stream. The reader before it, if any, ends.
    pub(crate) fn attach(&mut self, stream: u64, wakes: &mut WakeList) -> u64 {
        let before = self.held_of(stream).unwrap_or(0);
        let Some(buffer) = self.buffer(stream) else { return 0 };
        let (token, displaced) = buffer.attach();
        wakes.add(displaced);
        self.update_held(stream, before);
        token
    }

    /// Moves a stream that has no reader to the ended ones.
    fn retire(&mut self, stream: u64, settings: &Settings) {
        let Some(mut open) = self.open.remove(&stream) else { return };
        if !open.buffer.was_begun() {
            return;
        }
        open.buffer.shrink();
        self.ended.push_back((stream, open.buffer));
        let size = |ended: &VecDeque<(u64, ReplayBuffer)>| -> usize {
            ended.iter().map(|(_, buffer)| buffer.waiting().1 + buffer.kept().1).sum()
        };
        while self.ended.len() > 1
            && (self.ended.len() > ENDED || size(&self.ended) > settings.unread_limit.1)
        {
            self.ended.pop_front();
        }
    }
}
