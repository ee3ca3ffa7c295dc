//! A view of everything that a session holds, for the engines that verify it. Behind the feature `verify`.

use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use super::interface::AfterCancel;
use super::remembered_ids::Settled;
use super::{Session, lifecycle, request};
use crate::cause::CauseKind;
use crate::id::{CallNumber, ExchangeId, InboundKey, OutboundKey, Principal, RequestId, Scope};
use crate::machine::Timer;
use crate::machine::outbound::Call;

/// Everything that decides how a session continues, with times relative to the time of the view. Two sessions with
/// equal inspections that received the same kinds of input continue in the same way, except for the names of later
/// slots. Counters are left out (also that of bad frames, of which a hundred are answered in a burst), and values that
/// the search of `rescind-testkit` does not vary (the kind of work of an id, the tags of requests, reasons).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Inspection {
    /// The state of the connection.
    pub standing: Standing,
    /// Its timer, the end of a shutdown's drain, whether shields are ignored, and whether values are waited for.
    pub lifecycle: (Option<Duration>, Option<Duration>, bool, bool),
    /// Whether the client has begun the session, whether it has shut it down, and the exit code that it requested.
    pub exit_state: (bool, bool, Option<u8>),
    /// The capabilities agreed so far, and whether the handshake is over.
    pub agreement: (bool, bool, bool),
    /// Every request that has a slot, in the order of their slots.
    pub requests: Vec<RequestView>,
    /// Every call that has a slot, in the order of their slots.
    pub calls: Vec<CallView>,
    /// The calls that are not settled, as the machine counts them.
    pub open_calls: usize,
    /// Permits in use, of tasks, of blocking work and of control.
    pub permits: (usize, usize, usize),
    /// The requests that wait for a permit, in order.
    pub queue: Vec<InboundKey>,
    /// The timers with the time until they fire, the soonest first.
    pub timers: Vec<(Duration, TimerView)>,
    /// Early cancels that wait, the oldest first, each with its principal and its age. An age above the limit is shown
    /// as the limit.
    pub parked: Vec<(Scope, RequestId, Option<Principal>, Duration)>,
    /// Settled keys that are remembered, the oldest first.
    pub remembered: Vec<Remembered>,
    /// The settled keys that were forgotten: the highest number, and whether a string was among them.
    pub forgotten: (Option<i64>, bool),
    /// The requests whose children are being cancelled, in order.
    pub cascades: Vec<InboundKey>,
    /// The children on other connections.
    pub foreign: Vec<(InboundKey, u64)>,
    /// The exchanges, and the requests that arrived on them.
    pub exchanges: Vec<(ExchangeId, InboundKey)>,
    /// The keys by which cancels name requests, if they are not the ids.
    pub cancel_keys: Vec<(Scope, RequestId, InboundKey)>,
    /// Cancels of this side that may still be acknowledged.
    pub cancels: Vec<(CallNumber, OutboundKey)>,
    /// The number of names in the two indexes: requests, calls.
    pub indexed: (usize, usize),
    /// The number of the next call or cancel.
    pub next_number: u64,
    /// Outputs that were not polled.
    pub outputs: usize,
}

/// A settled key: its principal and whether it was cancelled, unless a younger entry has them; and its age, limited as
/// that of an early cancel.
pub type Remembered = (Scope, RequestId, Option<(Option<Principal>, bool)>, Duration);

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Both directions are open.
    Open,
    /// The input has ended.
    HalfClosed,
    /// In a shutdown, before its signals: handlers may end.
    Draining,
    /// In a shutdown, after its signals.
    Grace,
    /// `Close` was output.
    Closed,
    /// The connection is lost.
    Lost,
}

/// The state of a request of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestState {
    /// It waits for a permit.
    Queued,
    /// Its handler runs.
    Running,
    /// A cancel was accepted, and a shield delays it.
    CancelPending,
    /// Its handler was signalled.
    Cancelling,
    /// It is answered with the handle of a task, whose work its handler does.
    Task,
    /// It is settled, and its task runs. `true`: the handler must still be signalled.
    Draining(bool),
    /// Its task has ended.
    Ended,
}

/// The state of a call of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallState {
    /// It was not written.
    Staged,
    /// It was written.
    Written,
    /// It is cancelled, and the caller waits.
    Cancelling,
    /// It is settled. Its cancel waits to be written.
    Leaving,
}

/// A request of the peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RequestView {
    /// Its key.
    pub key: InboundKey,
    /// Its id and the scope of the id.
    pub id: (Scope, RequestId),
    /// Its principal.
    pub principal: Option<Principal>,
    /// Its state.
    pub state: RequestState,
    /// The cause of its first accepted cancel.
    pub cause: Option<CauseKind>,
    /// Whether cancel messages can cancel it.
    pub cancellable: bool,
    /// The critical sections that it has entered.
    pub shields: u32,
    /// The acknowledgements that wait.
    pub held_acks: usize,
    /// Its task was aborted.
    pub aborted: bool,
    /// It has a fixed result that may replace the cancelled answer.
    pub graceful: bool,
    /// Its children on this connection, the oldest first.
    pub children: Vec<OutboundKey>,
}

/// A call of this side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CallView {
    /// Its key.
    pub key: OutboundKey,
    /// Its number.
    pub number: CallNumber,
    /// Its state.
    pub state: CallState,
    /// Why it was cancelled.
    pub cause: Option<CauseKind>,
    /// Its cancel: the number, and whether it was written.
    pub cancel: Option<(CallNumber, bool)>,
    /// The request to which it belongs.
    pub parent: Option<InboundKey>,
    /// Its timer.
    pub alarm: Option<Duration>,
    /// Its deadline, once it is cancelled.
    pub deadline: Option<Duration>,
    /// No cancel message is sent for it.
    pub no_cancel_message: bool,
    /// Whether the peer may end it with a cancel.
    pub peer_may_end: bool,
    /// How its caller proceeds after a cancel.
    pub after_cancel: AfterCancel,
}

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimerView {
    /// The longest time of a request in the queue.
    Queue(InboundKey),
    /// The grace of a signalled handler.
    Grace(InboundKey),
    /// The longest time of a shield.
    Shield(InboundKey),
    /// The time in which a lost stream may be resumed.
    Detach(InboundKey),
    /// The deadline of a call.
    Deadline(OutboundKey),
    /// The wait for the answer to a cancelled call.
    PeerWait(OutboundKey),
    /// The timer of the connection.
    Lifecycle,
}

impl From<Timer> for TimerView {
    fn from(timer: Timer) -> Self {
        match timer {
            Timer::Queue(key) => Self::Queue(key),
            Timer::Grace(key) => Self::Grace(key),
            Timer::Shield(key) => Self::Shield(key),
            Timer::LostStream(key) => Self::Detach(key),
            Timer::Deadline(key) => Self::Deadline(key),
            Timer::PeerWait(key) => Self::PeerWait(key),
            Timer::Lifecycle => Self::Lifecycle,
        }
    }
}

impl From<request::RequestState> for RequestState {
    fn from(state: request::RequestState) -> Self {
        match state {
            request::RequestState::Queued => Self::Queued,
            request::RequestState::Running => Self::Running,
            request::RequestState::CancelPending => Self::CancelPending,
            request::RequestState::Cancelling => Self::Cancelling,
            request::RequestState::Task => Self::Task,
            request::RequestState::Draining { owes_signal } => Self::Draining(owes_signal),
            request::RequestState::Ended => Self::Ended,
        }
    }
}

impl From<lifecycle::ConnectionState> for Standing {
    fn from(state: lifecycle::ConnectionState) -> Self {
        match state {
            lifecycle::ConnectionState::Open => Self::Open,
            lifecycle::ConnectionState::HalfClosed => Self::HalfClosed,
            lifecycle::ConnectionState::Shutdown(lifecycle::ShutdownStep::Drain) => Self::Draining,
            lifecycle::ConnectionState::Shutdown(lifecycle::ShutdownStep::Grace) => Self::Grace,
            lifecycle::ConnectionState::Closed => Self::Closed,
            lifecycle::ConnectionState::Lost => Self::Lost,
        }
    }
}

impl Session {
    /// Everything that it holds, at this time. It changes nothing.
    #[must_use]
    pub fn inspect(&self, now: Instant) -> Inspection {
        self.inspect_from(Some(now))
    }

    /// `None`: without times.
    fn inspect_from(&self, now: Option<Instant>) -> Inspection {
        let until = |at: Instant| now.map_or(Duration::ZERO, |now| at.saturating_duration_since(now));
        let age = |at: Instant| now.map_or(Duration::ZERO, |now| now.saturating_duration_since(at));
        let (due, drained_by, ignores_shields, waits) = self.lifecycle.inspect();
        let mut cancel_keys: Vec<_> =
            self.cancel_keys.iter().map(|((scope, id), key)| (*scope, id.clone(), *key)).collect();
        cancel_keys.sort_unstable();
        let mut cancels: Vec<_> = self.cancels.iter().map(|(number, key)| (*number, *key)).collect();
        cancels.sort_unstable();
        let forgotten = self.settled.inspect_forgotten(now);
        Inspection {
            standing: self.lifecycle.state().into(),
            lifecycle: (due.map(until), drained_by.map(until), ignores_shields, waits),
            exit_state: (self.exit_state.begun, self.exit_state.shut_down, self.exit_state.exit),
            agreement: self.agreement.inspect(),
            requests: self.requests.iter().map(|(key, _)| self.view(InboundKey(key))).collect(),
            calls: self.calls.iter().map(|(key, call)| call.view(OutboundKey(key), until)).collect(),
            open_calls: self.open_calls,
            permits: self.permits.inspect(),
            queue: self.queue.inspect().collect(),
            timers: self.timers.inspect().map(|(at, timer)| (until(at), timer.into())).collect(),
            parked: self
                .early_cancels
                .inspect()
                .map(|(((scope, id), principal), at)| {
                    let age = age(at).min(self.config.limits.early_cancel_timeout);
                    (*scope, id.clone(), principal.clone(), age)
                })
                .collect(),
            remembered: self
                .settled
                .inspect()
                .map(|((scope, id), known, at)| {
                    let known = known.map(|(settled, whose)| (whose.cloned(), settled == Settled::Cancelled));
                    (*scope, id.clone(), known, age(at).min(self.config.limits.settled_id_lifetime))
                })
                .collect(),
            forgotten: (forgotten.highest, forgotten.strings),
            cascades: self.cascades.inspect().collect(),
            foreign: self.cascades.inspect_foreign().collect(),
            exchanges: self.exchanges.iter().copied().collect(),
            cancel_keys,
            cancels,
            indexed: (self.ids.len(), self.numbers.len()),
            next_number: self.next_number,
            outputs: self.outputs.len(),
        }
    }

    fn view(&self, key: InboundKey) -> RequestView {
        let nothing = RequestView {
            key,
            id: (Scope::Session, RequestId::number(0)),
            principal: None,
            state: RequestState::Ended,
            cause: None,
            cancellable: false,
            shields: 0,
            held_acks: 0,
            aborted: false,
            graceful: false,
            children: Vec::new(),
        };
        let Some(request) = self.requests.get(key.0) else { return nothing };
        let extras = request.extras();
        let (scope, id) = request.scoped_id();
        RequestView {
            id: (scope, id.clone()),
            principal: request.principal().cloned(),
            state: request.state.into(),
            cause: request.cause().map(crate::cause::Cause::kind),
            cancellable: request.cancellability == request::Cancellability::All,
            shields: extras.shields,
            held_acks: extras.held_acks.len(),
            aborted: request.aborted,
            graceful: extras.fixed.is_some(),
            children: self.children_of(extras.first_child),
            ..nothing
        }
    }

    fn children_of(&self, first: Option<OutboundKey>) -> Vec<OutboundKey> {
        let next = |child: &OutboundKey| self.calls.get(child.0).and_then(Call::next_sibling);
        std::iter::successors(first, next).take(self.calls.len() + 1).collect()
    }
}

/// A hash of its content. A session does not know the present time, so its times are relative to its next timer, or
/// else to its latest record. Two sessions that differ only in the time have one hash. The hash of an [`Inspection`]
/// distinguishes more states, because it includes the time.
impl Hash for Session {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (_, drained_by, ..) = self.lifecycle.inspect();
        let known =
            self.early_cancels.inspect().map(|(_, at)| at).chain(self.settled.inspect().map(|(.., at)| at));
        let from = self.next_timeout().or_else(|| known.max()).or(drained_by);
        self.inspect_from(from).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use std::hash::DefaultHasher;

    use super::*;
    use crate::dialect::{MCP, Role};
    use crate::machine::{InboundRequest, Origin, SessionConfig};

    fn hash_of(session: &Session) -> u64 {
        let mut hasher = DefaultHasher::new();
        session.hash(&mut hasher);
        hasher.finish()
    }

    fn cancelled(now: Instant, id: i64) -> Session {
        let mut session = Session::new(SessionConfig::new(MCP, Role::Server));
        session.recv_request(now, InboundRequest::new(id.into(), "work"));
        session.recv_cancel(now, Some(id.into()), None, None, &Origin::STREAM);
        session
    }

    #[test]
    fn sessions_that_differ_only_in_time_have_the_same_hash() {
        let now = Instant::now();
        let later = now + Duration::from_secs(7);
        assert_eq!(hash_of(&cancelled(now, 1)), hash_of(&cancelled(later, 1)));
        assert_ne!(hash_of(&cancelled(now, 1)), hash_of(&cancelled(now, 2)));
        let fresh = || Session::new(SessionConfig::new(MCP, Role::Server));
        assert_eq!(hash_of(&fresh()), hash_of(&fresh()));
    }
}
