//! The POSTs that are open, and what waits to be said on each.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::StatusCode;
use rescind_core::failpoint::{self, Failpoint};
use rescind_core::{
    ByteBudget, ExchangeEnd, ExchangeId, FrameKind, HeldBytes, Inbound, Outbound, Principal, RejectReason,
    TransportError, TransportErrorKind, TransportEvent,
};
use tokio::time::Instant;

use super::mirrored_headers;
use crate::inbound_queue::{InboundQueue, NotTaken};
use crate::int_map::Numbered;
use crate::server::Settings;
use crate::server::link::Linked;
use crate::sync::{Mutex, MutexGuard};
use crate::wake_list::WakeList;

/// So many POSTs are open at a time.
const OPEN: usize = 16 * 1024;
/// What waits for all readers together, in bytes; over it no more is taken from handlers.
const ROOM: usize = 64 * 1024 * 1024;

/// The POSTs of one link.
pub(super) struct ExchangeTable {
    pub(super) inbound_queue: Arc<InboundQueue>,
    pub(super) settings: Arc<Settings>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    open: Numbered<Post>,
    /// What waits in all of them.
    bytes: usize,
    closed: bool,
    driver: Option<Waker>,
}

/// One POST.
#[derive(Default)]
struct Post {
    /// What its answer counts in.
    budget: ByteBudget,
    waiting: VecDeque<Bytes>,
    bytes: usize,
    /// Its handler runs.
    begun: bool,
    fault: Option<RejectReason>,
    /// The driver has ended it: with its last frame, or without one.
    ended: Option<End>,
    /// Whoever asked is gone: what comes is dropped.
    left: bool,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Answered,
    Without(ExchangeEnd),
}

/// What a POST is answered with.
#[derive(Debug)]
pub(super) enum ResponseKind {
    /// One message.
    Json(StatusCode, Bytes),
    /// 202.
    Accepted,
    /// 400, without a message.
    Refused,
    /// An event stream, now.
    Stream,
    /// An event stream, unless an answer comes first.
    Begun,
    /// The link has ended.
    Gone,
}

impl ExchangeTable {
    pub(super) fn new(settings: &Arc<Settings>) -> Arc<Self> {
        let inbound_queue = InboundQueue::new(settings.max_frame);
        Arc::new(Self { inbound_queue, settings: Arc::clone(settings), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One step under the lock; wakers are called after it.
    fn step<T>(&self, step: impl FnOnce(&mut State, &mut WakeList) -> T) -> T {
        let mut wakers = WakeList::default();
        let result = step(&mut self.state(), &mut wakers);
        wakers.wake();
        result
    }

    /// Takes a message in.
    pub(super) fn post(
        &self,
        (body, held): (Bytes, HeldBytes),
        principal: Option<Principal>,
        address: Option<IpAddr>,
        budget: &ByteBudget,
    ) -> Result<ExchangeId, NotTaken> {
        let exchange = {
            let mut state = self.state();
            if state.closed {
                return Err(NotTaken::Closed);
            }
            if state.open.len() >= OPEN {
                return Err(NotTaken::Full);
            }
            state.next += 1;
            let number = state.next;
            state.open.insert(number, Post { budget: budget.clone(), ..Post::default() });
            ExchangeId(number)
        };
        let mut inbound = Inbound::new(body);
        inbound.exchange = exchange;
        (inbound.principal, inbound.address) = (principal, address);
        self.inbound_queue
            .push(inbound, held)
            .inspect_err(|_| drop(self.state().open.remove(&exchange.0)))?;
        Ok(exchange)
    }

    /// What to answer a POST with, as soon as that is known. `Begun` is told once `begun` is not known yet.
    pub(super) fn poll_response_kind(
        &self,
        exchange: ExchangeId,
        knows_begun: bool,
        cx: &mut Context<'_>,
    ) -> Poll<ResponseKind> {
        self.step(|state, _| {
            let closed = state.closed;
            let Some(post) = state.open.get_mut(&exchange.0) else { return Poll::Ready(ResponseKind::Gone) };
            match (post.ended, post.waiting.len()) {
                (Some(End::Answered), 1) => {
                    let Some(body) = post.waiting.pop_front() else { return Poll::Pending };
                    post.bytes -= body.len();
                    state.bytes -= body.len();
                    return Poll::Ready(ResponseKind::Json(status(post.fault, &body), body));
                }
                (Some(End::Without(ExchangeEnd::Refused)), 0) => return Poll::Ready(ResponseKind::Refused),
                (Some(End::Without(ExchangeEnd::Accepted | ExchangeEnd::Silent) | End::Answered), 0) => {
                    return Poll::Ready(ResponseKind::Accepted);
                }
                (_, 0) if closed => return Poll::Ready(ResponseKind::Gone),
                (_, 0) if post.begun && !knows_begun => return Poll::Ready(ResponseKind::Begun),
                (None, 0) => {}
                (_, _) => return Poll::Ready(ResponseKind::Stream),
            }
            post.waker = Some(cx.waker().clone());
            Poll::Pending
        })
    }

    /// The next message of an event stream. `None`: it has ended.
    pub(super) fn poll_next(&self, exchange: ExchangeId, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.step(|state, wakers| {
            let closed = state.closed;
            let Some(post) = state.open.get_mut(&exchange.0).filter(|post| !post.left) else {
                return Poll::Ready(None);
            };
            let Some(body) = post.waiting.pop_front() else {
                if post.ended.is_some() || closed {
                    return Poll::Ready(None);
                }
                post.waker = Some(cx.waker().clone());
                return Poll::Pending;
            };
            post.bytes -= body.len();
            state.bytes -= body.len();
            wakers.extend(state.driver.take());
            Poll::Ready(Some(body))
        })
    }

    /// Whoever asked is gone, or has all there is (N3).
    pub(super) fn left(&self, exchange: ExchangeId) {
        let gave_up = self.step(|state, wakers| {
            let Some(post) = state.open.get_mut(&exchange.0).filter(|post| !post.left) else { return false };
            post.left = true;
            post.waiting.clear();
            state.bytes -= std::mem::take(&mut post.bytes);
            wakers.extend(state.driver.take());
            let open = post.ended.is_none();
            if !open {
                state.open.remove(&exchange.0);
            }
            open
        });
        if gave_up && !failpoint::active(Failpoint::ExchangeCloseUntold) {
            self.inbound_queue.push_event(TransportEvent::ExchangeClosed { exchange });
        }
    }

    #[cfg(feature = "verify")]
    pub(super) fn open_posts(&self) -> usize {
        self.state().open.len()
    }
}

impl Linked for ExchangeTable {
    const ENDED: &'static str = "the server has ended";
    const EXCHANGE_SCOPED: bool = true;

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn inbound_queue(&self) -> &Arc<InboundQueue> {
        &self.inbound_queue
    }

    fn is_closed(&self) -> bool {
        self.state().closed
    }

    fn has_room(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.state();
        let has_room = state.bytes < ROOM;
        if !has_room {
            state.driver = Some(cx.waker().clone());
        }
        has_room
    }

    /// Cuts the stream for which most waits: its reader takes nothing, and the others would wait for it.
    fn cut_stalled(&self, _: Instant) {
        let slowest = {
            let state = self.state();
            state.open.iter().max_by_key(|(_, post)| post.bytes).map(|(number, _)| *number)
        };
        if let Some(number) = slowest {
            tracing::debug!("a stream that takes nothing is cut");
            self.left(ExchangeId(number));
        }
    }

    fn send(&self, out: Outbound) -> Result<(), TransportError> {
        self.step(|state, wakers| {
            if state.closed {
                return Err(Self::ended());
            }
            let most = self.settings.mailbox;
            let is_asked = |post: &&mut Post| out.head.kind != FrameKind::Request && post.ended.is_none();
            let Some(post) = state.open.get_mut(&out.exchange.0).filter(is_asked) else {
                let text = "a server says nothing here but on a request of its client's";
                let error = TransportError::new(TransportErrorKind::Closed, text);
                return Err(TransportError { exchange: Some(out.exchange), ..error });
            };
            if !post.left {
                post.bytes += out.body.len();
                state.bytes += out.body.len();
                post.waiting.push_back(post.budget.hold_frame(out.body));
                // N4: all but the last are notifications.
                while post.waiting.len() > 1 && (post.waiting.len() > most.0 || post.bytes > most.1) {
                    let dropped = post.waiting.pop_front().map_or(0, |body| body.len());
                    post.bytes -= dropped;
                    state.bytes -= dropped;
                    self.settings.counts.notification_dropped();
                }
            }
            if out.last {
                post.ended = Some(End::Answered);
            }
            wakers.extend(post.waker.take());
            if out.last && post.left {
                state.open.remove(&out.exchange.0);
            }
            Ok(())
        })
    }

    fn finish(&self, exchange: ExchangeId, how: ExchangeEnd) {
        self.step(|state, wakers| {
            let Some(post) = state.open.get_mut(&exchange.0) else { return };
            post.ended = post.ended.or(Some(End::Without(how)));
            wakers.extend(post.waker.take());
            if post.left {
                state.open.remove(&exchange.0);
            }
        });
    }

    fn begin(&self, exchange: ExchangeId) {
        self.step(|state, wakers| {
            let Some(post) = state.open.get_mut(&exchange.0) else { return };
            post.begun = true;
            wakers.extend(post.waker.take());
        });
    }

    fn note_rejection(&self, exchange: ExchangeId, fault: RejectReason) {
        if let Some(post) = self.state().open.get_mut(&exchange.0) {
            post.fault = Some(fault);
        }
    }

    /// Nothing more is taken in; what waits is still read.
    fn end(&self) {
        self.step(|state, wakers| {
            state.closed = true;
            wakers.extend(state.driver.take());
            wakers.extend(state.open.values_mut().filter_map(|post| post.waker.take()));
        });
        self.inbound_queue.end();
    }
}

fn status(fault: Option<RejectReason>, answer: &[u8]) -> StatusCode {
    match fault {
        Some(RejectReason::BadMessage | RejectReason::NotInitialized) => StatusCode::BAD_REQUEST,
        Some(RejectReason::DuplicateId) => StatusCode::CONFLICT,
        Some(RejectReason::Overloaded) => StatusCode::TOO_MANY_REQUESTS,
        Some(RejectReason::MethodNotFound) => StatusCode::NOT_FOUND,
        Some(_) | None => mirrored_headers::status_of(answer),
    }
}

impl fmt::Debug for ExchangeTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExchangeTable").field("open", &self.state().open.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use rescind_core::{FrameInfo, Lane, Receiver as _};

    use super::*;
    use crate::inbound_queue::InboundReceiver;

    /// Room for two messages on a POST.
    fn exchanges() -> Arc<ExchangeTable> {
        ExchangeTable::new(&Arc::new(Settings { mailbox: (2, 1024), ..Settings::default() }))
    }

    fn post(exchanges: &ExchangeTable) -> ExchangeId {
        {
            let budget = ByteBudget::default();
            exchanges.post((Bytes::from_static(b"{}"), budget.hold(2)), None, None, &budget).unwrap()
        }
    }

    fn say(exchanges: &ExchangeTable, exchange: ExchangeId, body: impl Into<Bytes>, kind: FrameKind) {
        let head = FrameInfo { kind, id: None, method: None };
        let last = kind == FrameKind::Answer;
        exchanges.send(Outbound { body: body.into(), exchange, lane: Lane::Data, head, last }).unwrap();
    }

    fn note(exchanges: &ExchangeTable, exchange: ExchangeId, body: impl Into<Bytes>) {
        say(exchanges, exchange, body, FrameKind::Notification);
    }

    /// What waits for a reader, until it would have to wait itself; and whether the stream has ended.
    fn read(exchanges: &ExchangeTable, exchange: ExchangeId) -> (Vec<Bytes>, bool) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut read = Vec::new();
        loop {
            match exchanges.poll_next(exchange, &mut cx) {
                Poll::Ready(Some(body)) => read.push(body),
                Poll::Ready(None) => return (read, true),
                Poll::Pending => return (read, false),
            }
        }
    }

    #[test]
    fn what_waits_for_a_slow_reader_is_its_newest_notifications_and_its_answer() {
        let exchanges = exchanges();
        let (slow, other) = (post(&exchanges), post(&exchanges));
        for number in ["1", "2", "3"] {
            note(&exchanges, slow, number);
        }
        note(&exchanges, other, "its own");
        say(&exchanges, slow, "answer", FrameKind::Answer);
        assert_eq!(exchanges.settings.counts.dropped_notifications(), 2);
        assert_eq!(read(&exchanges, slow), (vec!["3".into(), "answer".into()], true));
        assert_eq!(read(&exchanges, other), (vec!["its own".into()], false), "N4: its own request only");
        assert_eq!(exchanges.state().bytes, 0, "what was dropped or read does not count any more");
    }

    #[test]
    fn an_answer_larger_than_the_bound_is_kept_where_notifications_give_way() {
        let exchanges = exchanges();
        let slow = post(&exchanges);
        note(&exchanges, slow, "1");
        let answer = Bytes::from(vec![b'x'; 2000]);
        say(&exchanges, slow, answer.clone(), FrameKind::Answer);
        assert_eq!(read(&exchanges, slow), (vec![answer], true));
        assert_eq!(exchanges.settings.counts.dropped_notifications(), 1);
    }

    #[test]
    fn the_stream_for_which_most_waits_is_cut_and_its_request_told_as_left() {
        let exchanges = exchanges();
        let (slow, other) = (post(&exchanges), post(&exchanges));
        note(&exchanges, slow, "much of it");
        note(&exchanges, other, "little");
        exchanges.cut_stalled(Instant::now());
        assert_eq!(read(&exchanges, slow), (vec![], true));
        assert_eq!(read(&exchanges, other), (vec!["little".into()], false));
        let mut receiver = InboundReceiver(Arc::clone(&exchanges.inbound_queue));
        let mut closed = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(event))) = Pin::new(&mut receiver).poll_event(&mut cx) {
            if let TransportEvent::ExchangeClosed { exchange } = event {
                closed.push(exchange);
            }
        }
        assert_eq!(closed, [slow], "N4: its own request only");
    }
}
