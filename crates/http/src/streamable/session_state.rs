//! One session on the serving side: its exchanges, its event streams, and what waits on them.
//!
//! One lock, held for one step; nothing is woken, sent or dropped under it that could take it again.
//! - C1 An exchange is answered once: by its verdict, or on its stream.
//! - C2 A stream that loses its reader before its end is told as closed, one that gets a reader again as resumed, both under
//!   the lock: told in another order, a stream that is read would count as lost.
//! - C3 What is held is bounded: for streams that are read by [`has_room`](crate::server::link::Linked::has_room), for the others by the
//!   mailbox's bound, and what was answered and may be asked for again by the settings of the resume buffer.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use rescind_core::{ByteBudget, ExchangeId, HeldBytes, Inbound, Principal, TransportEvent};
use tokio::time::Instant;

use super::exchanges::{Exchange, OWN, State};
use super::link::HELD_FOR_BULK;
use crate::envelope::Envelope;
use crate::inbound_queue::{InboundQueue, NotTaken};
use crate::int_map::Numbered;
use crate::server::Settings;
use crate::server::json_or_event_stream::{Response, ResponseKind};
use crate::server::replay_buffer::{Forgotten, ReplayBuffer};
use crate::server::sessions::{Conversed, Sessions};
use crate::sync::{Mutex, MutexGuard};
use crate::wake_list::WakeList;

/// So many exchanges are open at most, detached ones included.
const EXCHANGES: usize = 4096;

/// One session.
pub(super) struct SessionState {
    pub(super) id: Arc<str>,
    pub(super) principal: Option<Principal>,
    /// Where it was opened from.
    pub(super) address: Option<IpAddr>,
    pub(super) inbound_queue: Arc<InboundQueue>,
    pub(super) settings: Arc<Settings>,
    /// The bytes that are held for it.
    pub(super) budget: ByteBudget,
    table: Weak<Sessions<Self>>,
    /// Something was asked in it but its opening.
    used: AtomicBool,
    state: Mutex<State>,
}

/// Why a stream cannot be taken up again.
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

/// Why a message was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAdmitted {
    /// Too many exchanges are open, or too many messages wait.
    TooMany,
    /// The session has ended.
    Ended,
}

impl SessionState {
    pub(super) fn new(
        id: Arc<str>,
        principal: Option<Principal>,
        address: Option<IpAddr>,
        settings: &Arc<Settings>,
        table: Weak<Sessions<Self>>,
    ) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            exchanges: Numbered::default(),
            own: ReplayBuffer::new(OWN, settings.kept),
            ended: VecDeque::new(),
            next: OWN + 1,
            held: 0,
            driver: None,
            closed: false,
            used: now,
        };
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
            table,
            used: AtomicBool::new(false),
            state: Mutex::new(state),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One step under the lock.
    pub(super) fn step<T>(&self, step: impl FnOnce(&mut State, &mut WakeList) -> T) -> T {
        let mut wakes = WakeList::default();
        let result = {
            let mut state = self.state();
            let result = step(&mut state, &mut wakes);
            if state.held <= HELD_FOR_BULK || state.closed {
                wakes.add(state.driver.take());
            }
            result
        };
        wakes.wake();
        result
    }

    // What the client does.

    /// Takes in the message of a POST. The token is the reader's, should a stream come of it.
    pub(super) fn post(&self, body: Bytes, held: HeldBytes) -> Result<(ExchangeId, u64), NotAdmitted> {
        let (stream, token) = self.step(|state, _| {
            if state.closed {
                return Err(NotAdmitted::Ended);
            }
            if state.exchanges.len() >= EXCHANGES {
                return Err(NotAdmitted::TooMany);
            }
            let stream = state.next;
            state.next += 1;
            state.used = Instant::now();
            let mut mailbox = ReplayBuffer::new(stream, self.settings.kept);
            let (token, _) = mailbox.attach();
            let exchange = Exchange { response: Response::Undecided(None), mailbox, fault: None };
            state.exchanges.insert(stream, Box::new(exchange));
            Ok((stream, token))
        })?;
        let exchange = ExchangeId(stream);
        let inbound = Inbound { body, exchange, principal: self.principal.clone(), address: None };
        match self.inbound_queue.push(inbound, held) {
            Ok(()) => Ok((exchange, token)),
            Err(why) => {
                self.state().exchanges.remove(&stream);
                Err(match why {
                    NotTaken::Full => NotAdmitted::TooMany,
                    NotTaken::Closed => NotAdmitted::Ended,
                })
            }
        }
    }

    /// Waits for what a POST is answered with.
    pub(super) fn poll_response_kind(
        &self,
        exchange: ExchangeId,
        cx: &mut Context<'_>,
    ) -> Poll<ResponseKind> {
        self.step(|state, wakes| {
            let Some(open) = state.exchanges.get_mut(&exchange.0) else {
                return Poll::Ready(ResponseKind::Ended);
            };
            let polled = open.response.poll(cx);
            if let Poll::Ready(kind) = &polled {
                if !matches!(kind, ResponseKind::EventStream) {
                    state.exchanges.remove(&exchange.0);
                }
                wakes.add(state.driver.take());
            }
            polled
        })
    }

    /// The answer to a POST becomes an event stream now, if nothing was decided yet.
    pub(super) fn open_stream(&self, exchange: ExchangeId) {
        self.step(|state, wakes| {
            if let Some(open) = state.exchanges.get_mut(&exchange.0) {
                wakes.add(open.response.decide(ResponseKind::EventStream));
            }
        });
    }

    /// Gives a POST's stream its first event, to come back with.
    pub(super) fn prime(&self, exchange: ExchangeId, retry: Option<Duration>) {
        self.step(|state, wakes| {
            if let Some(open) = state.exchanges.get_mut(&exchange.0) {
                wakes.add(open.mailbox.prime_first(retry));
            }
        });
    }

    /// A reader of the own stream. `None`: there is one, and it is not to be displaced.
    pub(super) fn listen(&self, displace: bool) -> Option<u64> {
        self.step(|state, wakes| {
            state.used = Instant::now();
            if state.closed || (state.own.has_reader() && !displace) {
                return None;
            }
            Some(state.attach(OWN, wakes))
        })
    }

    /// A reader of a stream that was cut after event `last`.
    pub(super) fn resume(&self, stream: u64, last: u64) -> Result<u64, NotResumed> {
        self.step(|state, wakes| {
            state.used = Instant::now();
            if state.closed {
                return Err(NotResumed::Forgotten);
            }
            let held = state.held_of(stream).ok_or(NotResumed::Forgotten)?;
            let mailbox = state.mailbox(stream).ok_or(NotResumed::Forgotten)?;
            mailbox.rewind(last)?;
            if mailbox.is_ended() && mailbox.waiting().0 == 0 {
                return Err(NotResumed::Over);
            }
            state.update_held(stream, held);
            let token = state.attach(stream, wakes);
            if state.exchanges.contains_key(&stream) {
                let resumed = TransportEvent::ExchangeResumed { exchange: ExchangeId(stream) };
                wakes.add(self.inbound_queue.push_event_under_lock(resumed));
            }
            Ok(token)
        })
    }

    /// The next event of a stream.
    pub(super) fn poll_event(&self, stream: u64, token: u64, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.step(|state, _| {
            let Some(held) = state.held_of(stream) else { return Poll::Ready(None) };
            let Some(mailbox) = state.mailbox(stream) else { return Poll::Ready(None) };
            let event = mailbox.poll_next(token, cx);
            state.update_held(stream, held);
            event
        })
    }

    /// A response is gone, or the future of one.
    pub(super) fn left(&self, stream: u64, token: u64) {
        self.step(|state, wakes| {
            state.used = Instant::now();
            let Some(held) = state.held_of(stream) else { return };
            let Some(mailbox) = state.mailbox(stream) else { return };
            if !mailbox.detach(token) {
                return;
            }
            let ended = mailbox.is_ended();
            state.update_held(stream, held);
            wakes.add(state.driver.take());
            let kept = self.settings.mailbox.1;
            let Some(open) = state.exchanges.get_mut(&stream) else { return };
            match open.response {
                Response::Undecided(_) | Response::Decided(ResponseKind::EventStream) => {
                    open.response = Response::Gone;
                }
                // It is answered, and nobody is there to take the answer: the driver is done with it.
                Response::Decided(_) => {
                    state.exchanges.remove(&stream);
                    return;
                }
                Response::Sent | Response::Gone => {}
            }
            if ended {
                state.retire(stream, kept);
            } else {
                let closed = TransportEvent::ExchangeClosed { exchange: ExchangeId(stream) };
                wakes.add(self.inbound_queue.push_event_under_lock(closed));
            }
        });
    }

    /// A message came in it, after the one that opened it.
    pub(super) fn note_use(&self, body: &[u8]) {
        if !self.used.load(Ordering::Relaxed) && Envelope::of(body).is_request() {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Nobody finds it any more.
    pub(super) fn forget(&self) {
        if let Some(table) = self.table.upgrade() {
            table.remove(&self.id);
        }
    }
}

impl Conversed for SessionState {
    fn principal(&self) -> Option<&Principal> {
        self.principal.as_ref()
    }

    fn is_unused(&self) -> bool {
        !self.used.load(Ordering::Relaxed) && self.state().exchanges.is_empty()
    }
}

impl std::fmt::Debug for SessionState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionState").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rescind_core::{ExchangeEnd, FrameKind, Lane, Outbound, RequestId};

    use super::*;
    use crate::server::idle::Idles;
    use crate::server::link::Linked;

    fn answer(exchange: ExchangeId) -> Outbound {
        let head =
            rescind_core::FrameInfo { kind: FrameKind::Answer, id: Some(RequestId::number(1)), method: None };
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
            let session = SessionState::new("session".into(), None, None, &Arc::default(), Weak::new());
            let (exchange, token) = session.post(Bytes::from_static(b"{}"), session.budget.hold(2)).unwrap();
            answer(&session, exchange);
            session.left(exchange.0, token);
            assert!(session.state().exchanges.is_empty());
            assert!(session.idle_at().is_some(), "the session would never idle");
        }
    }
}
