//! One session on the serving side: its exchanges, its event streams, and what waits on them.
//!
//! One lock, held for one step; nothing is woken, sent or dropped under it that could take it again.
//! - C1 An exchange is answered once: by its verdict, or on its stream.
//! - C2 A stream that loses its reader before its end is told as closed, one that gets a reader again as resumed, both under
//!   the lock: told in another order, a stream that is read would count as lost.
//! - C3 What is held is bounded: for streams that are read by [`has_room`](Conversation::has_room), for the others by the
//!   mailbox's bound, and what was answered and may be asked for again by the settings of the resume buffer.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use rescind_core::{ExchangeId, Inbound, Principal, TransportEvent};
use tokio::time::Instant;

use super::exchanges::{Exchange, Head, OWN, State, Verdict};
use super::speaking::HELD_FOR_BULK;
use super::table::Table;
use crate::intake::{Intake, NotTaken};
use crate::numbers::Numbered;
use crate::server::Settings;
use crate::server::mailbox::{Forgotten, Mailbox};
use crate::sync::{Mutex, MutexGuard};
use crate::wakes::Wakes;

/// So many exchanges are open at most, detached ones included.
const EXCHANGES: usize = 4096;

/// One session.
pub(super) struct Conversation {
    pub(super) id: Arc<str>,
    pub(super) principal: Option<Principal>,
    pub(super) intake: Arc<Intake>,
    pub(super) settings: Arc<Settings>,
    table: Weak<Table>,
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

impl Conversation {
    pub(super) fn new(
        id: Arc<str>,
        principal: Option<Principal>,
        settings: &Arc<Settings>,
        table: Weak<Table>,
    ) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            exchanges: Numbered::default(),
            own: Mailbox::new(OWN, settings.kept),
            ended: VecDeque::new(),
            next: OWN + 1,
            held: 0,
            driver: None,
            closed: false,
            used: now,
        };
        let intake = Intake::new(settings.max_frame);
        let settings = Arc::clone(settings);
        Arc::new(Self { id, principal, intake, settings, table, state: Mutex::new(state) })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One step under the lock.
    pub(super) fn step<T>(&self, step: impl FnOnce(&mut State, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::default();
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
    pub(super) fn post(&self, body: Bytes) -> Result<(ExchangeId, u64), NotAdmitted> {
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
            let mut mailbox = Mailbox::new(stream, self.settings.kept);
            let (token, _) = mailbox.attach();
            let exchange = Exchange { head: Head::Undecided(None), mailbox, fault: None };
            state.exchanges.insert(stream, Box::new(exchange));
            Ok((stream, token))
        })?;
        let exchange = ExchangeId(stream);
        let inbound = Inbound { body, exchange, principal: self.principal.clone() };
        match self.intake.push(inbound) {
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
    pub(super) fn poll_verdict(&self, exchange: ExchangeId, cx: &mut Context<'_>) -> Poll<Verdict> {
        self.step(|state, wakes| {
            let Some(open) = state.exchanges.get_mut(&exchange.0) else { return Poll::Ready(Verdict::Ended) };
            match &mut open.head {
                Head::Undecided(waker) => {
                    *waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                Head::Decided(_) => {
                    let Head::Decided(verdict) = std::mem::replace(&mut open.head, Head::Stream) else {
                        return Poll::Ready(Verdict::Ended);
                    };
                    if !matches!(verdict, Verdict::Stream) {
                        state.exchanges.remove(&exchange.0);
                    }
                    wakes.add(state.driver.take());
                    Poll::Ready(verdict)
                }
                Head::Stream | Head::Gone => Poll::Ready(Verdict::Stream),
            }
        })
    }

    /// The answer to a POST becomes an event stream now, if nothing was decided yet.
    pub(super) fn open_stream(&self, exchange: ExchangeId) {
        self.step(|state, wakes| {
            if let Some(open) = state.exchanges.get_mut(&exchange.0) {
                open.decide(Verdict::Stream, wakes);
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
                wakes.add(self.intake.tell_under_lock(resumed));
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
            match open.head {
                Head::Undecided(_) | Head::Decided(Verdict::Stream) => open.head = Head::Gone,
                // It is answered, and nobody is there to take the answer: the driver is done with it.
                Head::Decided(_) => {
                    state.exchanges.remove(&stream);
                    return;
                }
                Head::Stream | Head::Gone => {}
            }
            if ended {
                state.retire(stream, kept);
            } else {
                let closed = TransportEvent::ExchangeClosed { exchange: ExchangeId(stream) };
                wakes.add(self.intake.tell_under_lock(closed));
            }
        });
    }

    /// Nobody finds it any more.
    pub(super) fn forget(&self) {
        if let Some(table) = self.table.upgrade() {
            table.remove(&self.id);
        }
    }

    /// When it may be ended for idleness, if nobody uses it until then. `None`: it is in use.
    pub(super) fn idle_at(&self) -> Option<Instant> {
        let state = self.state();
        let in_use = !state.exchanges.is_empty() || state.own.has_reader();
        (!in_use).then(|| state.used + self.settings.session_idle)
    }
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversation").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rescind_core::{Finish, FrameKind, Lane, Outbound, RequestId};

    use super::*;

    fn answer(exchange: ExchangeId) -> Outbound {
        let head =
            rescind_core::Head { kind: FrameKind::Answer, id: Some(RequestId::number(1)), method: None };
        Outbound { body: Bytes::from_static(b"{}"), exchange, lane: Lane::Bulk, head, last: true }
    }

    #[tokio::test]
    async fn a_client_that_leaves_while_it_is_answered_leaves_nothing_behind() {
        let answers: [fn(&Conversation, ExchangeId); 3] = [
            |session, exchange| session.send(answer(exchange)).unwrap(),
            |session, exchange| session.finish(exchange, Finish::Accepted),
            |session, exchange| session.finish(exchange, Finish::Refused),
        ];
        for answer in answers {
            let session = Conversation::new("session".into(), None, &Arc::default(), Weak::new());
            let (exchange, token) = session.post(Bytes::from_static(b"{}")).unwrap();
            answer(&session, exchange);
            session.left(exchange.0, token);
            assert!(session.state().exchanges.is_empty());
            assert!(session.idle_at().is_some(), "the session would never idle");
        }
    }
}
