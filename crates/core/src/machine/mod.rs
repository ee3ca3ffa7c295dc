//! The cancellation machine: one connection's state, without I/O, clock, task or lock.
//!
//! Time is an argument. Every input computes all of its outputs at once; [`Session::poll_output`] only pops them, in
//! the order in which they are to be done. `recv_*` inputs come from the peer, `local_*` from this side's user.
//!
//! ```text
//! a request the peer asks of us          Queued -> Running -> Draining -> gone
//!                                                    |  ^
//!                                    CancelPending   <-+  +-> Cancelling (signalled, the handler decides)
//! a request we ask of the peer           Staged -> Written -> Cancelling -> settled
//! ```
//!
//! # Invariants
//! The numbers are those of the design; tests and failures cite them.
//! - I1 exactly one answer to each accepted request while the connection lives, or silence where that is owed:
//!   only `Session::settle` makes answers, and it acts once a slot.
//! - I2 nothing for a request after its answer: [`Session::may_notify`] is false from `settle` on, and `Silence`
//!   fences what still waits.
//! - I3 no residue: `Session::release` takes slot, index, timers, children and permit together.
//! - I4 isolation: a cancel is looked up by scope, typed id and principal, in one direction's table only.
//! - I5 each descendant is signalled once: a cascade unlinks a child before it cancels it.
//! - I6 a result decided before the cancel stands: `settle` precedes every later cancel.
//! - I7 cancelling twice is cancelling once.
//! - I8 an unknown cancel costs nothing beyond the bounded parked table.
//! - I9 no message, caller or parent cancels the handshake.
//! - I10 permits out = tasks alive: a permit is given back in `local_ended` alone.
//! - I11 every map and queue is bounded by [`Limits`].
//! - I12 a cancel is output only for a call whose `local_written` came.
//! - I13 each call settles once: `Session::settle_call` acts once a slot.
//! - I14 keys carry a generation; an old one finds nothing.

mod admission;
mod bad;
mod call;
mod cancel;
mod cancel_tree;
mod early_cancels;
mod handshake;
mod inbound;
mod input;
#[cfg(feature = "verify")]
pub mod inspect;
mod leaving;
mod lifecycle;
mod limits;
mod outbound;
mod output;
mod queue;
mod request;
mod settled_cache;
mod shares;
mod shield;
mod stats;
mod table;
mod timers;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Instant;

use crate::dialect::{Dialect, Handshake, HandshakePart, Role, Rules};
use crate::hash_index::HashIndex;
use crate::id::{CallNumber, ExchangeId, InboundKey, OutboundKey};
use crate::pool::Pool;

pub use input::{
    AfterCancel, AnswerKind, CallRefused, CallSpec, CancelResult, DisconnectPolicy, HandlerResult,
    InboundRequest, Origin, Work,
};
pub use limits::Limits;
pub use output::{AckStatus, CloseCause, Event, ForeignChild, Output, Reply, ReplyBody, Settlement};
pub use shares::ClientLimits;
pub use stats::Stats;

/// Timers done in one step: a thousand requests cancelled at once have their grace end at once, and others have their turn between.
const DUE: usize = 64;

/// What a session is made of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionConfig {
    /// The rules.
    pub dialect: Dialect,
    /// Which side we are.
    pub role: Role,
    /// The bounds.
    pub limits: Limits,
    /// Frames arrive in the order they were sent.
    pub ordered: bool,
    /// The exchange is the space of ids.
    pub exchange_scoped: bool,
    /// What one client may have, where the connection is many clients'. `None`: as much as all.
    pub client_limits: Option<ClientLimits>,
    /// Where a dialect asks for a declaration: we declare that we handle cancels.
    pub handles_cancels: bool,
}

impl SessionConfig {
    /// A session on an ordered wire with default limits that declares what the dialect lets it declare.
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

/// One connection's state. See the [module's docs](self) for its shape and invariants.
#[derive(Debug)]
#[cfg_attr(feature = "verify", derive(Clone))]
pub struct Session {
    config: SessionConfig,
    agreement: handshake::Agreement,
    lifecycle: lifecycle::Lifecycle,
    leaving: leaving::Leaving,
    requests: table::Table<request::Request>,
    /// Every request whose handler has not ended, by its id.
    ids: HashIndex,
    request_extras: Pool<request::Extras>,
    /// The same by the key a cancel names, where that is not the id.
    cancel_keys: HashMap<settled_cache::Name, InboundKey>,
    /// The requests that came on each exchange, on wires that have exchanges.
    exchanges: BTreeSet<(ExchangeId, InboundKey)>,
    queue: queue::Queue,
    permits: queue::Permits,
    shares: shares::Shares,
    settled: settled_cache::SettledCache,
    early_cancels: early_cancels::EarlyCancels,
    /// Acknowledgements that wait for the ends of shields.
    held_acks: usize,
    calls: table::Table<call::Call>,
    /// How many of them are not settled.
    open_calls: usize,
    /// Every call of ours that is open, by its number.
    numbers: HashIndex,
    call_extras: Pool<call::Extras>,
    /// Every cancel of ours whose acknowledgement may still come, by its number.
    cancels: HashMap<CallNumber, OutboundKey>,
    next_number: u64,
    tree: cancel_tree::Cascades,
    timers: timers::Timers,
    bucket: bad::TokenBucket,
    outputs: VecDeque<Output>,
    stats: Stats,
}

impl Session {
    /// A connection on which nothing has been said yet.
    #[must_use]
    pub fn new(config: SessionConfig) -> Self {
        let limits = &config.limits;
        Self {
            agreement: handshake::Agreement::new(config.role, config.handles_cancels),
            lifecycle: lifecycle::Lifecycle::new(),
            leaving: leaving::Leaving::default(),
            requests: table::Table::new(),
            ids: HashIndex::default(),
            request_extras: Pool::new(),
            cancel_keys: HashMap::new(),
            exchanges: BTreeSet::new(),
            queue: queue::Queue::default(),
            permits: queue::Permits::default(),
            shares: shares::Shares::new(config.client_limits),
            settled: settled_cache::SettledCache::new(limits.remembered, limits.remembered_time),
            early_cancels: early_cancels::EarlyCancels::new(limits.parked, limits.parked_time),
            held_acks: 0,
            calls: table::Table::new(),
            open_calls: 0,
            numbers: HashIndex::default(),
            call_extras: Pool::new(),
            cancels: HashMap::new(),
            next_number: 1,
            tree: cancel_tree::Cascades::default(),
            timers: timers::Timers::default(),
            bucket: bad::TokenBucket::default(),
            outputs: VecDeque::new(),
            stats: Stats::default(),
            config,
        }
    }

    /// Takes in one half of the handshake: the peer's when it was read, ours when it was accepted. The result ends
    /// the exchange (000-20), opens the session and picks the revision.
    pub fn handshake(&mut self, part: HandshakePart, said: &Handshake) {
        self.leaving.begun = true;
        self.agreement.hear(self.config.dialect.rules(), part, said);
    }

    /// The next thing to do, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due, if ever.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Does what is due by `now`, 64 timers at most. Where more are due, [`next_timeout`](Self::next_timeout) says so by a time
    /// that is not after `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        for _ in 0..DUE {
            let Some(timer) = self.timers.pop_due(now) else { break };
            match timer {
                timers::Timer::Queue(key) => self.queue_time_over(now, key),
                timers::Timer::Grace(key) => self.grace_over(now, key),
                timers::Timer::Shield(key) => self.shield_over(now, key),
                timers::Timer::Detach(key) => self.detach_over(now, key),
                timers::Timer::Deadline(key) => self.deadline_over(now, key),
                timers::Timer::PeerWait(key) => self.peer_wait_over(key),
                timers::Timer::Lifecycle => self.lifecycle_over(now),
            }
        }
        self.advance(now);
    }

    /// Whether batches are allowed: the handshake named the revision that has them.
    #[must_use]
    pub const fn allows_batches(&self) -> bool {
        self.agreement.allows_batches()
    }

    /// The dialect this session was made for.
    #[must_use]
    pub const fn dialect(&self) -> &Dialect {
        &self.config.dialect
    }

    /// About how many bytes it takes for ids that are settled and for early cancels: what requests and calls take comes on top.
    #[must_use]
    pub fn bytes_remembered(&self) -> usize {
        self.settled.bytes() + self.early_cancels.bytes()
    }

    /// The bounds.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// Which side we are.
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

    /// Counts an event and puts it among the outputs.
    fn emit(&mut self, event: Event) {
        self.stats.count(&event);
        self.push(Output::Event(event));
    }
}
