//! The cancellation machine: the state of one connection, without I/O, clock, tasks or locks.
//!
//! Time is an argument. Every input computes all of its outputs at once; [`Session::poll_output`] only pops them, in
//! the order in which they are executed. `recv_*` inputs come from the peer, `local_*` inputs from code of this side.
//!
//! ```text
//! a request the peer asks of us          Queued -> Running -> Draining -> gone
//!                                                    |  ^
//!                                    CancelPending   <-+  +-> Cancelling (signalled, the handler decides)
//!                                        Running -> Task (answered with its handle) -> Draining
//! a request we ask of the peer           Staged -> Written -> Cancelling -> settled
//! ```
//!
//! # Invariants
//! Tests and failures cite their numbers.
//! - I1 Each accepted request gets exactly one answer while the connection lives, or none where the dialect forbids
//!   one. `Session::write_answer` outputs it. It is called by `settle`, by `settle_queued` for a request that never
//!   started, and by `local_become_task`, and one of them acts once for each slot. `refuse` answers the requests that
//!   are not accepted.
//! - I2 Nothing is sent for a request after its answer. [`Session::may_notify`] is false after `settle`, and `Silence`
//!   removes the frames that still wait.
//! - I3 Nothing is left of an ended request: `Session::release` removes its names and timers, and its slot once its
//!   children are unlinked. `local_ended` gives its permit back in the same step.
//! - I4 Isolation: a cancel is looked up by scope, typed id and principal, in the table of one direction only.
//! - I5 Each descendant is signalled once: a cascade unlinks a child before it cancels it.
//! - I6 A result that was decided before the cancel is kept: `settle` precedes every later cancel.
//! - I7 Cancelling twice has the effect of cancelling once.
//! - I8 An unknown cancel uses only an entry in the bounded table of early cancels.
//! - I9 No message, caller or parent cancels the handshake.
//! - I10 The permits in use are the tasks alive: only `local_ended` gives a permit back.
//! - I11 [`Limits`] bounds every map and queue.
//! - I12 A cancel is output only for a call after its `local_written`.
//! - I13 Each call settles once: `Session::settle_call` acts once for each slot.
//! - I14 Keys carry a generation; an old key finds nothing.
//! - I16 The end of a task is reported once, and nothing is reported of it after that: `Session::end_task` acts once for each
//!   slot.
//! - I17 A task whose cancel is reported was signalled in the same step, or is at the end of its shield.

mod cancel;
mod inbound;
#[cfg(feature = "verify")]
pub mod inspect;
mod interface;
mod lifecycle;
pub(crate) mod limits;
mod outbound;
mod remembered_ids;
mod request;
mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::collections::{HashIndex, NumberIndex, Pool, SlotMap};
use crate::dialect::{Dialect, Handshake, HandshakePart, Role, Rules};
use crate::id::{CallNumber, ExchangeId, InboundKey, OutboundKey};

pub use crate::machine::interface::{
    AfterCancel, AnswerKind, CallRefused, CallSpec, CancelResult, CloseCause, DisconnectPolicy, Event,
    ForeignChild, HandlerResult, InboundRequest, NoTask, Origin, Output, Reply, ReplyBody, Settlement, Work,
};
pub use crate::machine::limits::Limits;
pub use crate::machine::request::ClientLimits;
pub use crate::machine::status::{AcceptedCancel, CallState, RequestStatus, Stats};

/// The most timers that fire in one step. A thousand requests that were cancelled together have one deadline; other
/// work runs in between.
const MAX_TIMERS_PER_STEP: usize = 64;

/// The configuration of a session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionConfig {
    /// The rules.
    pub dialect: Dialect,
    /// The role of this side.
    pub role: Role,
    /// The limits.
    pub limits: Limits,
    /// Frames arrive in the order in which they were sent.
    pub ordered: bool,
    /// Ids are unique within an exchange and not within the session.
    pub exchange_scoped: bool,
    /// The limits of one client, if the connection carries several clients. `None`: no limits for each client.
    pub client_limits: Option<ClientLimits>,
    /// This side declares that it handles cancels, in dialects with such a declaration.
    pub handles_cancels: bool,
}

impl SessionConfig {
    /// A session on an ordered transport, with default limits, which declares that it handles cancels.
    #[must_use]
    pub fn new(dialect: Dialect, role: Role) -> Self {
        Self {
            dialect,
            role,
            limits: Limits::default(),
            ordered: true,
            exchange_scoped: false,
            client_limits: None,
            handles_cancels: true,
        }
    }
}

/// The state of one connection. The [module's docs](self) have its states and invariants.
///
/// A driver gives it inputs and executes its outputs:
///
/// ```
/// use std::time::Instant;
///
/// use rescind_core::dialect::{ACP, Role};
/// use rescind_core::{HandlerResult, InboundRequest, Origin, Output, ReplyBody, RequestId, Session, SessionConfig};
///
/// let mut session = Session::new(SessionConfig::new(ACP, Role::Server));
/// let now = Instant::now();
/// let id = RequestId::from(7);
///
/// let request = session.recv_request(now, InboundRequest::new(id.clone(), "search")).unwrap();
/// assert_eq!(session.poll_output(), Some(Output::Start(request)));
///
/// // The peer cancels the request: its handler gets a signal, and may still answer.
/// session.recv_cancel(now, Some(id), None, None, &Origin::STREAM);
/// assert!(matches!(session.poll_output(), Some(Output::Signal { key, .. }) if key == request));
///
/// // The handler stops because of the signal. The peer gets the dialect's cancelled answer.
/// session.local_answer(now, request, HandlerResult::Stopped);
/// let Some(Output::Reply(reply)) = session.poll_output() else { panic!("a reply comes first") };
/// assert!(matches!(reply.body, ReplyBody::Cancelled(_)));
/// session.local_ended(now, request);
/// assert_eq!(session.poll_output(), Some(Output::Released(request)));
/// assert_eq!(session.poll_output(), None);
/// ```
#[derive(Debug)]
#[cfg_attr(feature = "verify", derive(Clone))]
pub struct Session {
    config: SessionConfig,
    agreement: lifecycle::Agreement,
    lifecycle: lifecycle::Lifecycle,
    exit_state: lifecycle::ExitState,
    requests: SlotMap<request::Request>,
    /// The requests whose handlers have not ended, by their ids. A request that became a task has freed its id.
    ids: HashIndex,
    request_extras: Pool<request::RequestExtras>,
    /// The same requests by the keys that cancels name, where that is not the id.
    cancel_keys: HashMap<remembered_ids::Name, InboundKey>,
    /// The requests of each exchange, on transports with exchanges.
    exchanges: BTreeSet<(ExchangeId, InboundKey)>,
    queue: inbound::Queue,
    permits: inbound::HandlerPermits,
    shares: request::Shares,
    settled: remembered_ids::SettledCache,
    early_cancels: remembered_ids::EarlyCancels,
    /// Acknowledgements that wait for the ends of shields.
    held_acks: usize,
    calls: SlotMap<outbound::Call>,
    /// How many of them are not settled.
    open_calls: usize,
    /// The calls with a slot, by their numbers: also settled ones whose cancels wait to be written.
    numbers: NumberIndex,
    call_extras: Pool<outbound::CallExtras>,
    /// The cancels of this side that may still be acknowledged, by their numbers.
    cancels: HashMap<CallNumber, OutboundKey>,
    next_number: u64,
    cascades: cancel::Cascades,
    timers: Timers,
    bucket: inbound::TokenBucket,
    outputs: VecDeque<Output>,
    stats: Stats,
}

impl Session {
    /// A session before its first message.
    #[must_use]
    pub fn new(config: SessionConfig) -> Self {
        let limits = &config.limits;
        Self {
            agreement: lifecycle::Agreement::new(config.role, config.handles_cancels),
            lifecycle: lifecycle::Lifecycle::new(),
            exit_state: lifecycle::ExitState::default(),
            requests: SlotMap::new(),
            ids: HashIndex::default(),
            request_extras: Pool::new(),
            cancel_keys: HashMap::new(),
            exchanges: BTreeSet::new(),
            queue: inbound::Queue::default(),
            permits: inbound::HandlerPermits::default(),
            shares: request::Shares::new(config.client_limits),
            settled: remembered_ids::SettledCache::new(limits.max_settled_ids, limits.settled_id_lifetime),
            early_cancels: remembered_ids::EarlyCancels::new(
                limits.max_early_cancels,
                limits.early_cancel_timeout,
            ),
            held_acks: 0,
            calls: SlotMap::new(),
            open_calls: 0,
            numbers: NumberIndex::default(),
            call_extras: Pool::new(),
            cancels: HashMap::new(),
            next_number: 1,
            cascades: cancel::Cascades::default(),
            timers: Timers::default(),
            bucket: inbound::TokenBucket::default(),
            outputs: VecDeque::new(),
            stats: Stats::default(),
            config,
        }
    }

    /// Reads one part of the handshake: the peer's part when it is received, this side's part when it is accepted. The
    /// result ends the handshake (ACPDRAFT-20), opens the session and selects the revision.
    pub fn handshake(&mut self, part: HandshakePart, declared: &Handshake) {
        self.exit_state.begun = true;
        self.agreement.read_declaration(self.config.dialect.rules(), part, declared);
    }

    /// The next output, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The time at which [`handle_timeout`](Self::handle_timeout) is due. `None`: never.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Fires the timers that are due by `now`, at most 64 of them. If more are due,
    /// [`next_timeout`](Self::next_timeout) returns a time that is not after `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        for _ in 0..MAX_TIMERS_PER_STEP {
            let Some(timer) = self.timers.pop_due(now) else { break };
            match timer {
                Timer::Queue(key) => self.queue_time_over(now, key),
                Timer::Grace(key) => self.grace_over(now, key),
                Timer::Shield(key) => self.shield_over(now, key),
                Timer::LostStream(key) => self.lost_stream_grace_over(now, key),
                Timer::Deadline(key) => self.deadline_over(now, key),
                Timer::PeerWait(key) => self.peer_wait_over(key),
                Timer::Lifecycle => self.lifecycle_over(now),
            }
        }
        self.advance(now);
    }

    /// Continues the cascades in progress by one slice, and whatever waited for the end of something. Every input ends with
    /// it. Call it between frames while [`has_work`](Self::has_work) is true.
    pub fn advance(&mut self, now: Instant) {
        if self.has_work() {
            self.cancel_cascade_slice(now);
        }
        if self.lifecycle.state() != lifecycle::ConnectionState::Open {
            self.after_end(now);
        }
    }

    /// Whether batches are allowed: the handshake selected the revision that has them.
    #[must_use]
    pub const fn allows_batches(&self) -> bool {
        self.agreement.allows_batches()
    }

    /// The dialect of this session.
    #[must_use]
    pub const fn dialect(&self) -> &Dialect {
        &self.config.dialect
    }

    /// Approximate bytes of settled ids and early cancels. Requests and calls are not counted here.
    #[must_use]
    pub fn bytes_remembered(&self) -> usize {
        self.settled.bytes() + self.early_cancels.bytes()
    }

    /// The limits.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// The role of this side.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.config.role
    }

    fn rules(&self) -> &Rules {
        self.config.dialect.rules()
    }

    fn push(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    /// Counts an event and outputs it.
    fn emit(&mut self, event: Event) {
        self.stats.count(&event);
        self.push(Output::Event(event));
    }
}

// The timers. Every timer can be removed, so the set never contains more than what waits (I3).

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A request has waited too long for a permit.
    Queue(InboundKey),
    /// The grace of a signalled handler has elapsed.
    Grace(InboundKey),
    /// The longest time of a shield has elapsed.
    Shield(InboundKey),
    /// A lost stream was not resumed.
    LostStream(InboundKey),
    /// The deadline of a call.
    Deadline(OutboundKey),
    /// The peer did not answer a cancelled call in time.
    PeerWait(OutboundKey),
    /// The timer of the connection: half-close, drain, grace, detach. Only one of them at a time.
    Lifecycle,
}

/// A time later than this is never reached: a limit may be as long as the longest `Duration`.
const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The end of a period that begins now.
fn later(now: Instant, time: Duration) -> Instant {
    now.checked_add(time).unwrap_or(now + NEVER)
}

#[derive(Clone, Debug, Default)]
struct Timers(BTreeSet<(Instant, Timer)>);

impl Timers {
    fn set(&mut self, at: Instant, timer: Timer) {
        self.0.insert((at, timer));
    }

    fn clear(&mut self, at: Option<Instant>, timer: Timer) {
        if let Some(at) = at {
            self.0.remove(&(at, timer));
        }
    }

    fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    fn pop_due(&mut self, now: Instant) -> Option<Timer> {
        let (at, _) = self.0.first()?;
        if *at > now {
            return None;
        }
        self.0.pop_first().map(|(_, timer)| timer)
    }

    #[cfg(feature = "verify")]
    fn inspect(&self) -> impl Iterator<Item = (Instant, Timer)> {
        self.0.iter().copied()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.len()
    }
}
