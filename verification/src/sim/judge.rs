//! Checks the observations of callers, handlers and the transport against the invariants, during a run and at its
//! end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rescind_core::dialect::{CancelFrom, CancelledReply, Dialect, EarlyCancel, TaskForm, TaskStatus};
use rescind_core::{
    CallContext, CancelResult, CauseKind, ErrorObject, ExchangeId, Limits, TaskLimits, Tasks,
};
use rescind_testkit::wire_format::WireFormat;
use tokio::time::Instant;

use super::Wire;
use super::plan::{Caller, PerSide, Plan, Side, Work};
use crate::{Broken, invariants};

/// How late a timer may be, in milliseconds: the step of the clock, and a turn of each task involved.
pub(super) const LATE: u64 = 20;
/// The most lines of a trace that are kept. A run has far fewer.
const LINES: usize = 20_000;

/// The judge that all parts of a run share.
#[derive(Clone, Debug)]
pub(super) struct Judge(Arc<Mutex<JudgeState>>);

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about a run")]
pub(super) struct JudgeState {
    begun: Instant,
    pub(super) speech: WireFormat,
    /// Whether a request that the peer cancelled must not be answered.
    pub(super) silence: bool,
    /// Whether a cancel that overtakes its request waits for it, if the transport allows it to overtake.
    pub(super) parks: bool,
    /// Whether the transport keeps the order of frames.
    pub(super) ordered: bool,
    /// Whether the transport may deliver a frame twice.
    pub(super) repeats: bool,
    pub(super) limits: PerSide<Limits>,
    pub(super) calls: BTreeMap<u64, CallSeen>,
    pub(super) works: BTreeMap<u64, WorkSeen>,
    pub(super) written: PerSide<Written>,
    pub(super) live: PerSide<usize>,
    /// The handlers of the server that do the work of tasks.
    pub(super) live_tasks: usize,
    /// The tasks that the server keeps. `None`: its protocol has none.
    pub(super) kept: Option<Tasks>,
    pub(super) task_form: Option<TaskForm>,
    /// How long tasks are kept.
    pub(super) task_ttl: u64,
    /// The tasks that the client started, by the nonces of their calls.
    pub(super) tasks: BTreeMap<u64, TaskSeen>,
    /// How many questions about tasks, and calls that start them, have no answer yet.
    pub(super) questions: usize,
    /// The ids of the client's requests that it cancels although they are answered with tasks.
    pub(super) late_cancels: BTreeSet<String>,
    /// Whether a side started to shut down.
    pub(super) shut: PerSide<bool>,
    /// Whether the transport was disturbed, or a side left it.
    pub(super) lost: bool,
    /// Whether the network did that.
    pub(super) cut: bool,
    /// The time since which there may be causes other than callers and handlers.
    pub(super) going_since: Option<u64>,
    /// Whether the caller of the handshake cancelled it before its end.
    pub(super) handshake_cancelled: bool,
    /// Whether the handshake succeeded, if there is one.
    pub(super) is_open: bool,
    trace: Vec<String>,
    pub(super) broken: Option<Broken>,
    pub(super) cancels: u64,
    pub(super) tally: Tally,
    /// Whether the client disconnects at times and reconnects later, so that it may miss the end.
    pub(super) away: bool,
    /// The sides that may cancel.
    pub(super) cancels_from: PerSide<bool>,
    /// Whether the handlers of a lost connection may continue for a time, because its client may reconnect.
    pub(super) resumes: bool,
    /// Whether closing the exchange of a request cancels it.
    pub(super) closing_cancels: bool,
    /// When a side detected that its connection is gone.
    pub(super) gone: PerSide<Option<u64>>,
}

impl Judge {
    pub(super) fn new(wire: Wire, dialect: &Dialect, speech: WireFormat, plan: &Plan) -> Self {
        Self(Arc::new(Mutex::new(JudgeState {
            begun: Instant::now(),
            speech,
            silence: dialect.rules().peer_cancelled == CancelledReply::Silence,
            parks: dialect.rules().early != EarlyCancel::Never,
            ordered: true,
            repeats: false,
            limits: plan.limits.clone(),
            calls: BTreeMap::new(),
            works: BTreeMap::new(),
            written: PerSide::default(),
            live: PerSide::default(),
            live_tasks: 0,
            kept: dialect.rules().tasks.map(|_| kept_tasks(plan)),
            task_form: dialect.rules().tasks,
            task_ttl: plan.task_ttl,
            tasks: BTreeMap::new(),
            questions: 0,
            late_cancels: BTreeSet::new(),
            shut: PerSide::default(),
            lost: false,
            cut: false,
            going_since: None,
            handshake_cancelled: false,
            is_open: speech.opening().is_none(),
            trace: Vec::new(),
            broken: None,
            cancels: 0,
            tally: Tally::default(),
            away: false,
            cancels_from: PerSide {
                client: true,
                server: matches!(dialect.rules().cancel_from, CancelFrom::Both),
            },
            resumes: wire.resumes(),
            closing_cancels: wire.serves_all_by_one(),
            gone: PerSide::default(),
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, JudgeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, what: impl FnOnce() -> String) {
        self.state().note(what);
    }

    pub(super) fn holds(&self, condition: bool, invariant: &'static str, what: impl FnOnce() -> String) {
        self.state().holds(condition, invariant, what);
    }

    pub(super) fn breaks(&self, invariant: &'static str, what: impl FnOnce() -> String) {
        self.state().breaks(invariant, what);
    }

    pub(super) fn broken(&self) -> Option<Broken> {
        self.state().broken.clone()
    }

    pub(super) fn may_repeat(&self) {
        self.state().repeats = true;
    }

    pub(super) fn unordered(&self) {
        self.state().ordered = false;
    }

    pub(super) fn may_be_away(&self) {
        self.state().away = true;
    }

    /// The network has cut a connection.
    pub(super) fn cut(&self, what: &str) {
        self.state().cut = true;
        self.lost(what);
    }

    /// The transport is disturbed.
    pub(super) fn lost(&self, what: &str) {
        let mut state = self.state();
        state.lost = true;
        state.goes();
        state.note(|| what.to_owned());
    }

    pub(super) fn shuts(&self, side: Side) {
        let mut state = self.state();
        *state.shut.of_mut(side) = true;
        state.goes();
        state.note(|| format!("{side} shuts down"));
    }

    /// The connection of this side is gone, and the side has detected it.
    pub(super) fn is_gone(&self, side: Side, what: &str) {
        self.lost(what);
        let mut state = self.state();
        let now = state.now();
        state.gone.of_mut(side).get_or_insert(now);
    }

    /// The trace so far.
    pub(super) fn trace(&self) -> Vec<String> {
        self.state().trace.clone()
    }

    /// The trace, the number of cancels, and the happenings.
    pub(super) fn into_trace(self) -> (Vec<String>, u64, Tally) {
        let mut state = self.state();
        // The recorded requests would keep their connections alive.
        state.works.clear();
        (std::mem::take(&mut state.trace), state.cancels, state.tally)
    }

    pub(super) fn resumes(&self) -> bool {
        self.state().resumes
    }

    /// How long a running critical section of this side may take. Zero if there is none.
    pub(super) fn shields(&self, side: Side) -> Duration {
        let state = self.state();
        let shielded = |work: &WorkSeen| work.side == side && work.end.is_none() && work.work == Work::Shield;
        if state.works.values().any(shielded) {
            state.limits.of(side).max_shield_time
        } else {
            Duration::ZERO
        }
    }

    pub(super) fn live(&self, side: Side) -> usize {
        *self.state().live.of(side)
    }

    /// How many handlers of this side end with their connection: those that do no work of tasks.
    pub(super) fn live_with_connection(&self, side: Side) -> usize {
        let state = self.state();
        match side {
            Side::Client => state.live.client,
            Side::Server => state.live.server - state.live_tasks,
        }
    }
}

impl JudgeState {
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn goes(&mut self) {
        let now = self.now();
        self.going_since.get_or_insert(now);
    }

    /// Whether the peer of this side acknowledged the cancel of this call as too late or too early.
    pub(super) fn is_acknowledged_as_not_cancelled(&self, side: Side, nonce: u64) -> bool {
        let id = self.written.of(side).by_nonce.get(&nonce);
        id.is_some_and(|id| self.written.of(side.other()).acked.get(id) == Some(&false))
    }

    /// When the cancel of this request arrived at this side, after the request. `None` if a post may arrive twice.
    pub(super) fn cancelled_at(&self, side: Side, nonce: u64) -> Option<u64> {
        let written = self.written.of(side.other());
        let request = written.requests.get(written.by_nonce.get(&nonce)?)?;
        // A request that became a task is not cancelled by a message, nor by the end of its stream.
        request.cancelled_at.filter(|_| !self.repeats && !self.is_task(Some(nonce)))
    }

    /// Whether the connection may be ending or have ended.
    pub(super) fn is_going(&self) -> bool {
        self.lost || self.shut.client || self.shut.server
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        if self.trace.len() < LINES {
            let line = format!("{:>7} {}", self.now(), what());
            self.trace.push(line);
        }
    }

    /// Checks a condition, and counts it as judged.
    pub(super) fn holds(&mut self, condition: bool, invariant: &'static str, what: impl FnOnce() -> String) {
        self.holds_and_counts(true, condition, invariant, what);
    }

    /// The same, but it counts only if the subject of the invariant exists. The condition must be true in any case.
    pub(super) fn holds_and_counts(
        &mut self,
        is_there: bool,
        condition: bool,
        invariant: &'static str,
        what: impl FnOnce() -> String,
    ) {
        if is_there {
            invariants::count(invariant);
        }
        if !condition {
            self.breaks(invariant, what);
        }
    }

    /// Keeps the first violation.
    pub(super) fn breaks(&mut self, invariant: &'static str, what: impl FnOnce() -> String) {
        if self.broken.is_some() {
            return;
        }
        let broken = Broken { invariant, what: what() };
        self.note(|| broken.to_string());
        self.broken = Some(broken);
    }

    /// Whether the call of this side may end with the outcome that its peer cancelled it.
    pub(super) fn peer_may_cancel(&self, nonce: u64, side: Side) -> bool {
        // For a request that ran twice, the second run is recorded.
        if *self.shut.of(side.other()) || self.lost || self.repeats {
            return true;
        }
        self.works.get(&nonce).is_some_and(|work| {
            work.end == Some(WorkEnd::Stopped) || work.cause.is_some() || work.context.is_cancelled()
        })
    }

    /// Whether the call of this side may fail with this error.
    pub(super) fn may_fail(&self, nonce: u64, side: Side, error: &ErrorObject) -> bool {
        if self.repeats {
            return true;
        }
        let limits = self.limits.of(side.other());
        let tight =
            limits.max_running_handlers < 1024 || *self.shut.of(side.other()) || self.lost || !self.is_open;
        // LSP's error for a request that its server cancelled says that the request failed.
        let given_up = error.code.0 == -32803 && self.peer_may_cancel(nonce, side);
        match self.works.get(&nonce).map(|work| work.end) {
            Some(Some(WorkEnd::Failed)) => {
                error.message == "sim failed" || error.code.0 == -32603 || given_up
            }
            Some(Some(WorkEnd::Panicked | WorkEnd::Dropped)) => true,
            Some(Some(WorkEnd::Value | WorkEnd::Stopped) | None) => given_up,
            // Its handler was never entered, because there was no room for it.
            None => tight,
        }
    }

    /// At the end: a request that is reported as not run was never read by the other side, or was refused for now
    /// each time (I13).
    pub(super) fn check_unsent(&mut self) {
        let found = self.calls.iter().find(|(nonce, call)| {
            // A second copy may arrive although the first was lost.
            call.not_run
                && !self.repeats
                && self.request_of(**nonce).is_some_and(|request| request.received > request.refusals)
        });
        let found = found.map(|(nonce, _)| *nonce);
        let is_there = self.calls.values().any(|call| call.not_run);
        self.holds_and_counts(is_there, found.is_none(), "I13", || {
            format!("{found:?} arrived, and its caller got a different outcome")
        });
    }
}

// The observations of a run: of each call, of each handler, and of the frames on the transport.

/// A call, from the view of its caller.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about a call")]
pub(super) struct CallSeen {
    pub(super) side: Side,
    pub(super) caller: Caller,
    /// The request whose handler made it.
    pub(super) parent: Option<u64>,
    pub(super) begun: u64,
    /// The time at which its caller cancelled it.
    pub(super) asked: Option<u64>,
    pub(super) result: Option<CancelResult>,
    /// Whether no caller waits for it.
    pub(super) left: bool,
    pub(super) returned: bool,
    /// Whether its caller learned that it cannot have run.
    pub(super) not_run: bool,
    /// Since when its cancel is on its way, as far as its caller can know.
    pub(super) cancelled_at: Option<u64>,
    /// Whether it was made for a request that was already cancelled.
    pub(super) stillborn: bool,
}

/// The tasks of a run's server.
fn kept_tasks(plan: &Plan) -> Tasks {
    let mut limits = TaskLimits::default();
    let ttl = Duration::from_millis(plan.task_ttl);
    (limits.default_ttl, limits.max_ttl) = (ttl, ttl);
    Tasks::new(limits)
}

/// A task, from the view of its client and of its handler.
#[derive(Debug)]
pub(super) struct TaskSeen {
    pub(super) begun: u64,
    /// Its id, once the client has its handle.
    pub(super) id: Option<String>,
    pub(super) handed_at: Option<u64>,
    /// When its handler made its request a task.
    pub(super) became_at: Option<u64>,
    /// Whether no client waits for the answer to its request.
    pub(super) is_given_up: bool,
    pub(super) known: Option<Known>,
    /// Whether a client cancels it with the method for that.
    pub(super) is_cancelled: bool,
    /// How many cancels were answered as effective (2025-11-25).
    pub(super) effective: u32,
    /// Since when a client knows that it is cancelled.
    pub(super) reported_at: Option<u64>,
}

/// The latest status of a task that a client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Open,
    /// It has ended, and the client does not know how.
    Over,
    Ended(TaskStatus),
}

impl Known {
    /// Whether this status may follow.
    pub(super) fn allows(self, status: TaskStatus) -> bool {
        match self {
            Self::Open => true,
            Self::Over => status.is_final(),
            Self::Ended(ended) => status == ended,
        }
    }
}

/// How a handler's code ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkEnd {
    Value,
    Stopped,
    Failed,
    Panicked,
    /// It was aborted, or its connection's driver has ended.
    Dropped,
}

/// A handler.
#[derive(Debug)]
pub(super) struct WorkSeen {
    pub(super) side: Side,
    pub(super) work: Work,
    pub(super) end: Option<WorkEnd>,
    pub(super) ended_at: Option<u64>,
    /// Its cause when it ended.
    pub(super) cause: Option<CauseKind>,
    pub(super) context: CallContext,
}

/// A request on the transport.
#[derive(Debug)]
pub(super) struct RequestSeen {
    pub(super) nonce: Option<u64>,
    pub(super) is_handshake: bool,
    /// The task that it asks about.
    pub(super) about: Option<u64>,
    /// How often it arrived, and when it arrived first.
    pub(super) received: u32,
    pub(super) received_at: Option<u64>,
    pub(super) cancels: u32,
    /// Its exchange.
    pub(super) exchange: ExchangeId,
    /// When its cancel arrived before it.
    pub(super) overtaken_at: Option<u64>,
    /// When it was cancelled: its cancel arrived after it, its exchange was closed if that cancels it, or it arrived
    /// after an early cancel that waited for it.
    pub(super) cancelled_at: Option<u64>,
    /// Whether its handler then ran without a cause, in a protocol that forbids an answer.
    pub(super) owed_silence: bool,
    /// How often it was answered.
    pub(super) answers: u32,
    /// How many of these answers refused it for now, on a wire on which it is then sent again.
    pub(super) refusals: u32,
    /// When the caller's side received the answer.
    pub(super) answer_received_at: Option<u64>,
}

/// The output of one side.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) frames: Vec<Frame>,
    /// The frames that have not arrived at the other side yet, by content.
    pub(super) under_way: BTreeMap<Bytes, Vec<usize>>,
    pub(super) received: usize,
    /// By id, as written in JSON.
    pub(super) requests: BTreeMap<String, RequestSeen>,
    /// By the name that a cancel uses, if it differs from the id.
    pub(super) names: BTreeMap<String, String>,
    pub(super) by_nonce: BTreeMap<u64, String>,
    /// The calls whose cancels this side acknowledged, and whether as cancelled.
    pub(super) acked: BTreeMap<String, bool>,
}

/// A frame and its kind.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) body: Bytes,
    pub(super) kind: Kind,
    /// When it was written.
    pub(super) at: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Request {
        id: String,
    },
    Cancel {
        id: String,
    },
    Answer {
        id: String,
    },
    /// The handler that sent it, if there is one.
    Notification {
        of: Option<u64>,
    },
    Other,
}

impl Kind {
    /// Whether a second copy means the same.
    pub(super) const fn may_be_said_twice(&self) -> bool {
        match self {
            Self::Cancel { .. } | Self::Answer { .. } | Self::Other => true,
            Self::Request { .. } | Self::Notification { .. } => false,
        }
    }
}

// What happened in a run, and in how many of many runs: a simulation in which nothing happens passes too.

/// An event that can happen in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimEvent {
    /// Both sides were connected.
    Opened,
    /// A handler was entered.
    Entered,
    /// A running handler got its peer's cancel.
    Signalled,
    /// Bytes that were written together were accepted in parts.
    Split,
    /// Bytes that were written in parts arrived together.
    Joined,
    /// Bytes were delayed.
    Delayed,
    /// Bytes that had arrived were stalled.
    Stalled,
    /// A connection was cut after one of its bytes.
    CutAtByte,
    /// All connections were cut.
    Cut,
    /// One direction ended.
    HalfClosed,
    /// A message overtook another.
    Reordered,
    /// A message arrived twice.
    Repeated,
    /// A cancel arrived before its request.
    Overtaken,
    /// An answer was read in another form with the same meaning.
    Respelled,
    /// The connection was undisturbed to its end, and earlier frames were checked to have arrived.
    HeldArrived,
    /// The same, and an earlier completed request was checked to be answered.
    HeldAnswered,
    /// The same, and a handler with an earlier cancel was checked to have its signal.
    HeldTold,
    /// The frames of a side that had shut down were checked to have arrived.
    HeldFlushed,
}

impl SimEvent {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Opened,
        Self::Entered,
        Self::Signalled,
        Self::Split,
        Self::Joined,
        Self::Delayed,
        Self::Stalled,
        Self::CutAtByte,
        Self::Cut,
        Self::HalfClosed,
        Self::Reordered,
        Self::Repeated,
        Self::Overtaken,
        Self::Respelled,
        Self::HeldArrived,
        Self::HeldAnswered,
        Self::HeldTold,
        Self::HeldFlushed,
    ];

    /// In how many of a thousand runs on this transport it must happen at least: half of the counted number.
    #[must_use]
    pub const fn least(self, wire: Wire) -> u64 {
        let posts = wire.has_connections();
        match self {
            Self::Opened => 450,
            Self::Entered => 400,
            Self::Signalled => 220,
            Self::Split | Self::Joined => 350,
            Self::Delayed => 280,
            Self::Stalled => 55,
            Self::CutAtByte => 20,
            Self::Cut => 115,
            Self::HalfClosed => 25,
            Self::Reordered if posts => 130,
            Self::Repeated if posts => 13,
            Self::Overtaken if wire.resumes() => 4,
            Self::Reordered | Self::Repeated | Self::Overtaken => 0,
            Self::Respelled => 200,
            // With posts, checked frames must be older.
            Self::HeldArrived => {
                if posts {
                    125
                } else {
                    185
                }
            }
            Self::HeldAnswered => {
                if posts {
                    115
                } else {
                    160
                }
            }
            Self::HeldTold => {
                if posts {
                    95
                } else {
                    130
                }
            }
            Self::HeldFlushed => 29,
        }
    }
}

/// In how many runs each event happened. For one run: whether it happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally([u64; SimEvent::ALL.len()]);

impl Tally {
    /// In how many runs this happened.
    #[must_use]
    pub fn of(&self, happening: SimEvent) -> u64 {
        self.0.get(happening as usize).copied().unwrap_or_default()
    }

    /// Records that it happened in this run.
    pub(super) fn saw(&mut self, happening: SimEvent) {
        if let Some(seen) = self.0.get_mut(happening as usize) {
            *seen = 1;
        }
    }

    /// Adds the observations of another part of the same run.
    pub(super) fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(seen, other)| *seen = (*seen).max(other));
    }

    /// Adds another run.
    pub(super) fn add(&mut self, run: &Self) {
        self.0.iter_mut().zip(run.0).for_each(|(seen, run)| *seen += run);
    }

    /// The events that happened in too few of these runs on this transport. With few runs this is random, and nothing
    /// is reported.
    #[must_use]
    pub fn lacks(&self, wire: Wire, runs: u64) -> Vec<String> {
        let floor = |happening: SimEvent| happening.least(wire) * runs / 1_000;
        let lacking = SimEvent::ALL.into_iter().filter(|it| floor(*it) >= 5 && self.of(*it) < floor(*it));
        lacking.map(|it| format!("{it:?} in {} of {runs} runs, not {}", self.of(it), floor(it))).collect()
    }
}
