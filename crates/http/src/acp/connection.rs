//! One connection on the serving side: its streams, and which message goes by which.
//!
//! - D1 A request's exchange is the stream its answer goes by. A stream that loses its reader, or that has none when a
//!   request comes, is told as closed, and as resumed with its next reader: what that means the protocol says.
//! - D2 Messages and what happens to their streams are handed over under one lock, so that the driver hears of them in the
//!   order in which they happened.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use rescind_core::{
    ExchangeId, Finish, FrameKind, Inbound, Outbound, Principal, RequestId, TransportError,
    TransportErrorKind, TransportEvent,
};
use tokio::time::Instant;

use super::peek::Message;
use super::server::Connections;
use crate::intake::{Intake, NotTaken};
use crate::numbers::Numbered;
use crate::server::Settings;
use crate::server::mailbox::{Kept, Mailbox};
use crate::sync::{Mutex, MutexGuard};
use crate::wakes::Wakes;

/// The exchange of `initialize`, the only one answered on its own POST (A1).
const OPENING: ExchangeId = ExchangeId(1);
/// The exchange of the connection's own stream; those of the sessions follow in their order (D1).
const FIRST: u64 = OPENING.0 + 1;
/// The stream of the connection itself.
pub(super) const OWN: u64 = 0;
/// Sessions with a stream of their own; messages of more go by the connection's.
const LANES: usize = 1024;
/// Requests of ours whose stream is remembered.
const ROUTES: usize = 65_536;
/// What waits for all streams together, in bytes; over it the connection ends.
const MOST: usize = 64 * 1024 * 1024;
/// A taken event is not kept: no stream is taken up again where it was cut.
const KEPT: Kept = Kept { events: 1, bytes: 0 };

pub(super) struct Connection {
    pub(super) id: Arc<str>,
    pub(super) principal: Option<Principal>,
    pub(super) intake: Arc<Intake>,
    pub(super) settings: Arc<Settings>,
    table: Weak<Connections>,
    state: Mutex<State>,
}

struct State {
    lanes: Numbered<Mailbox>,
    names: HashMap<String, u64>,
    /// The streams our own requests went by.
    asked: HashMap<RequestId, u64>,
    opening: Opening,
    closed: bool,
    used: Instant,
    driver: Option<Waker>,
}

/// What `initialize` is answered with.
enum Opening {
    Waits(Option<Waker>),
    Answered(Bytes),
    Refused,
    Told,
}

impl Connection {
    pub(super) fn new(
        id: Arc<str>,
        principal: Option<Principal>,
        settings: &Arc<Settings>,
        table: Weak<Connections>,
    ) -> Arc<Self> {
        let state = State {
            lanes: Numbered::from_iter([(OWN, Mailbox::new(OWN, KEPT))]),
            names: HashMap::new(),
            asked: HashMap::new(),
            opening: Opening::Waits(None),
            closed: false,
            used: Instant::now(),
            driver: None,
        };
        let (intake, settings) = (Intake::new(settings.max_frame), Arc::clone(settings));
        Arc::new(Self { id, principal, intake, settings, table, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One step under the lock; wakers are called after it.
    fn step<T>(&self, step: impl FnOnce(&mut State, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::default();
        let result = {
            let mut state = self.state();
            state.used = Instant::now();
            step(&mut state, &mut wakes)
        };
        wakes.wake();
        result
    }

    /// Takes in the request that opened the connection.
    pub(super) fn open(&self, body: Bytes, principal: Option<Principal>) -> Result<(), NotTaken> {
        let mut inbound = Inbound::new(body);
        inbound.exchange = OPENING;
        inbound.principal = principal;
        self.intake.push(inbound)
    }

    /// Takes in any other message. `session`: the one its header or its params name.
    pub(super) fn post(
        &self,
        body: Bytes,
        message: &Message<'_>,
        principal: Option<Principal>,
        session: Option<&str>,
    ) -> Result<(), NotTaken> {
        self.step(|state, wakes| {
            let lane = session.filter(|_| !message.is_answered_apart()).map_or(OWN, |name| state.lane(name));
            let mut inbound = Inbound::new(body);
            inbound.exchange = if message.is_request() { exchange_of(lane) } else { ExchangeId::NONE };
            inbound.principal = principal;
            wakes.extend(self.intake.push_under_lock(inbound)?);
            if let (true, Some(id)) = (message.is_answer(), message.id()) {
                state.asked.remove(&id);
            }
            // D1: nobody is there to whom an answer could be written.
            if message.is_request() && state.lanes.get(&lane).is_some_and(|mailbox| !mailbox.has_reader()) {
                wakes.extend(self.intake.tell_under_lock(closed(lane)));
            }
            Ok(())
        })
    }

    /// Whether an answer belongs to a session: `Some` with whether it is this one; `None`: it belongs to none.
    pub(super) fn asked_by(&self, answer: &RequestId, session: Option<&str>) -> Option<bool> {
        let state = self.state();
        let lane = state.asked.get(answer).filter(|lane| **lane != OWN)?;
        Some(session.and_then(|name| state.names.get(name)) == Some(lane))
    }

    /// What `initialize` is answered with. `None`: it was refused without a word, or the link has ended.
    pub(super) fn poll_opening(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.state();
        if state.closed && matches!(state.opening, Opening::Waits(_)) {
            return Poll::Ready(None);
        }
        match std::mem::replace(&mut state.opening, Opening::Told) {
            Opening::Answered(body) => Poll::Ready(Some(body)),
            Opening::Refused | Opening::Told => Poll::Ready(None),
            Opening::Waits(_) => {
                state.opening = Opening::Waits(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }

    /// A frame of the driver's (A2).
    pub(super) fn send(&self, out: Outbound) -> Result<(), TransportError> {
        self.step(|state, wakes| {
            if out.exchange == OPENING && out.last {
                wakes.extend(state.answer_opening(Opening::Answered(out.body)));
                return Ok(());
            }
            let lane = state.lane_of(&out);
            let droppable = out.head.kind == FrameKind::Notification;
            let Some(mailbox) = state.lanes.get_mut(&lane) else { return Ok(()) };
            wakes.extend(mailbox.push(out.body, droppable));
            let (messages, bytes) = self.settings.mailbox;
            while mailbox.waiting().0 > messages || mailbox.waiting().1 > bytes {
                if mailbox.has_reader() || !mailbox.drop_oldest() {
                    break;
                }
                self.settings.counts.notification_dropped();
            }
            let waiting: usize = state.lanes.values().map(|mailbox| mailbox.waiting().1).sum();
            if waiting > MOST {
                let text = "the client reads none of what waits for it";
                return Err(TransportError::new(TransportErrorKind::Closed, text));
            }
            Ok(())
        })
    }

    pub(super) fn finish(&self, exchange: ExchangeId, _: Finish) {
        if exchange == OPENING {
            self.step(|state, wakes| wakes.extend(state.answer_opening(Opening::Refused)));
        }
    }

    /// A reader for a stream: that of this session, or the connection's own. `None`: there are too many.
    pub(super) fn listen(&self, session: Option<&str>) -> Option<(u64, u64)> {
        self.step(|state, wakes| {
            let lane = session.map_or(OWN, |name| state.lane(name));
            if session.is_some() && lane == OWN {
                return None;
            }
            let mailbox = state.lanes.get_mut(&lane)?;
            let was_lost = !mailbox.has_reader();
            let (token, displaced) = mailbox.attach();
            wakes.extend(displaced);
            if was_lost {
                let resumed = TransportEvent::ExchangeResumed { exchange: exchange_of(lane) };
                wakes.extend(self.intake.tell_under_lock(resumed));
            }
            Some((lane, token))
        })
    }

    pub(super) fn poll_event(&self, lane: u64, token: u64, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.step(|state, wakes| {
            let Some(mailbox) = state.lanes.get_mut(&lane) else { return Poll::Ready(None) };
            let event = mailbox.poll_next(token, cx);
            if event.is_ready() {
                wakes.extend(state.driver.take());
            }
            event
        })
    }

    /// A stream's response is gone. Its connection goes on; what it asked for does as long as the protocol lets it (D1).
    pub(super) fn left(&self, lane: u64, token: u64) {
        self.step(|state, wakes| {
            if state.lanes.get_mut(&lane).is_some_and(|mailbox| mailbox.detach(token)) {
                wakes.extend(self.intake.tell_under_lock(closed(lane)));
            }
            wakes.extend(state.driver.take());
        });
    }

    /// Whether every stream that is read has room (A3).
    pub(super) fn has_room(&self, cx: &Context<'_>) -> bool {
        let mut state = self.state();
        let most = self.settings.mailbox;
        let has_room = !state.lanes.values().any(|mailbox| is_full(mailbox, most));
        if !has_room {
            state.driver = Some(cx.waker().clone());
        }
        has_room
    }

    /// Cuts the streams that hold bulk back and whose readers took nothing since then.
    pub(super) fn cut_stalled(&self, since: Instant) {
        let most = self.settings.mailbox;
        self.step(|state, wakes| {
            let is_cut = |mailbox: &Mailbox| is_full(mailbox, most) && mailbox.is_stalled(since);
            for (lane, mailbox) in state.lanes.iter_mut().filter(|(_, mailbox)| is_cut(mailbox)) {
                tracing::debug!(lane, "an event stream that nobody reads was cut");
                wakes.extend(mailbox.cut());
                wakes.extend(self.intake.tell_under_lock(closed(*lane)));
            }
        });
    }

    /// When nobody will have used it for too long; `None`: somebody does.
    pub(super) fn idle_at(&self) -> Option<Instant> {
        let state = self.state();
        let busy =
            state.lanes.values().any(Mailbox::has_reader) || matches!(state.opening, Opening::Waits(_));
        (!busy).then(|| state.used + self.settings.session_idle)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// The opening was given up before its answer.
    pub(super) fn give_up_opening(&self) {
        self.intake.tell(TransportEvent::ExchangeClosed { exchange: OPENING });
        self.end();
    }

    /// Nothing more is taken in; streams end behind what waits. The id is unknown from now on.
    pub(super) fn end(&self) {
        if let Some(table) = self.table.upgrade() {
            table.remove(&self.id);
        }
        self.step(|state, wakes| {
            state.closed = true;
            wakes.extend(state.driver.take());
            if let Opening::Waits(waker) = &mut state.opening {
                wakes.extend(waker.take());
            }
            wakes.extend(state.lanes.values_mut().filter_map(Mailbox::end));
        });
        self.intake.end();
    }
}

/// The exchange of the requests whose answers go by this stream.
const fn exchange_of(lane: u64) -> ExchangeId {
    ExchangeId(FIRST + lane)
}

/// Nobody reads this stream any more.
const fn closed(lane: u64) -> TransportEvent {
    TransportEvent::ExchangeClosed { exchange: exchange_of(lane) }
}

/// Something that is read has more waiting than it should.
fn is_full(mailbox: &Mailbox, (messages, bytes): (usize, usize)) -> bool {
    let waiting = mailbox.waiting();
    mailbox.has_reader() && (waiting.0 > messages || waiting.1 > bytes)
}

impl State {
    /// The stream of a session, made if it is new; the connection's own where there are too many.
    fn lane(&mut self, name: &str) -> u64 {
        if let Some(lane) = self.names.get(name) {
            return *lane;
        }
        if self.names.len() >= LANES || name.is_empty() {
            return OWN;
        }
        let lane = u64::try_from(self.names.len()).unwrap_or_default() + 1;
        self.names.insert(name.to_owned(), lane);
        let mut mailbox = Mailbox::new(lane, KEPT);
        if self.closed {
            mailbox.end();
        }
        self.lanes.insert(lane, mailbox);
        lane
    }

    fn lane_of(&mut self, out: &Outbound) -> u64 {
        let id = out.head.id.as_ref();
        let stream = out.exchange.0.checked_sub(FIRST).unwrap_or(OWN);
        match out.head.kind {
            FrameKind::Answer => stream,
            FrameKind::Cancel => id.and_then(|id| self.asked.get(id).copied()).unwrap_or(OWN),
            FrameKind::Request | FrameKind::Notification => {
                let lane = Message::of(&out.body).session().map_or(stream, |name| self.lane(&name));
                if let (FrameKind::Request, Some(id), true) = (out.head.kind, id, self.asked.len() < ROUTES) {
                    self.asked.insert(id.clone(), lane);
                }
                lane
            }
        }
    }

    fn answer_opening(&mut self, answer: Opening) -> Option<Waker> {
        match std::mem::replace(&mut self.opening, answer) {
            Opening::Waits(waker) => waker,
            told => {
                self.opening = told;
                None
            }
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rescind_core::{Head, Lane};

    use super::*;

    /// Puts more on a session's stream than it should hold.
    fn fill(connection: &Connection, session: &str) {
        let body = Bytes::from(format!(r#"{{"method":"said","params":{{"sessionId":"{session}"}}}}"#));
        for _ in 0..=connection.settings.mailbox.0 {
            let head = Head { kind: FrameKind::Notification, id: None, method: None };
            let (exchange, lane) = (ExchangeId::NONE, Lane::Bulk);
            connection.send(Outbound { body: body.clone(), exchange, lane, head, last: false }).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_stream_that_was_full_all_the_time_is_cut() {
        let connection = Connection::new("c".into(), None, &Arc::default(), Weak::new());
        let wait = Duration::from_secs(30);
        let [stalled, late] = ["stalled", "late"].map(|session| connection.listen(Some(session)).unwrap());
        fill(&connection, "stalled");
        let since = Instant::now();
        tokio::time::advance(wait).await;
        fill(&connection, "late");
        connection.cut_stalled(since);
        let is_read = |(lane, token): (u64, u64)| {
            let mut cx = Context::from_waker(Waker::noop());
            matches!(connection.poll_event(lane, token, &mut cx), Poll::Ready(Some(_)))
        };
        assert_eq!((is_read(stalled), is_read(late)), (false, true));
    }
}
