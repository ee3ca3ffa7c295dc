//! Holds what callers, handlers and the wire see against the invariants, while it happens and at the end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rescind_core::dialect::{CancelFrom, CancelledReply, Dialect, EarlyCancel};
use rescind_core::{CallContext, CauseKind, ErrorObject, Limits};
use tokio::time::Instant;

use super::Wire;
use super::both::{Both, Side};
use super::plan::{Job, Work};
use super::seen::{CallSeen, WorkEnd, WorkSeen, Written};
use super::tally::{Happening, Tally};
use crate::speech::Speech;
use crate::verify::{Broken, tally};

/// How late a timer may be, in milliseconds: the clock's step, and a turn of each task on the way.
pub(super) const LATE: u64 = 20;
/// Lines of a trace that are kept; a run has far fewer.
const LINES: usize = 20_000;

/// One for all that takes part in a run.
#[derive(Clone, Debug)]
pub(super) struct Judge(Arc<Mutex<State>>);

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about a run")]
pub(super) struct State {
    begun: Instant,
    pub(super) speech: Speech,
    /// What the peer cancelled is owed silence.
    pub(super) silence: bool,
    /// A cancel that overtakes its request waits for it, where the wire lets it overtake.
    pub(super) parks: bool,
    /// The wire keeps the order of frames.
    pub(super) ordered: bool,
    /// The wire may bring a frame twice.
    pub(super) repeats: bool,
    pub(super) limits: Both<Limits>,
    pub(super) calls: BTreeMap<u64, CallSeen>,
    pub(super) works: BTreeMap<u64, WorkSeen>,
    pub(super) written: Both<Written>,
    live: Both<usize>,
    /// A side was asked to shut down.
    pub(super) shut: Both<bool>,
    /// Something befell the wire, or a side left it.
    pub(super) lost: bool,
    /// The network did that.
    pub(super) cut: bool,
    /// Since when there may be other causes than what callers and handlers do.
    going_since: Option<u64>,
    /// The handshake's own caller cancelled it while it was on its way.
    pub(super) handshake_cancelled: bool,
    /// The handshake went well, where there is one.
    pub(super) is_open: bool,
    trace: Vec<String>,
    pub(super) broken: Option<Broken>,
    pub(super) cancels: u64,
    pub(super) tally: Tally,
    /// The client is away at times, to come back later, and may miss how it ends.
    pub(super) away: bool,
    /// The sides that may cancel.
    pub(super) cancels_from: Both<bool>,
    /// What a lost connection leaves may go on for a while, for its client may come back.
    resumes: bool,
    /// Whoever closes what a request came on cancels it.
    pub(super) closing_cancels: bool,
    /// When a side heard that its connection is gone.
    gone: Both<Option<u64>>,
}

impl Judge {
    pub(super) fn new(wire: Wire, dialect: &Dialect, speech: Speech, limits: &Both<Limits>) -> Self {
        Self(Arc::new(Mutex::new(State {
            begun: Instant::now(),
            speech,
            silence: dialect.rules().peer_cancelled == CancelledReply::Silence,
            parks: dialect.rules().early != EarlyCancel::Never,
            ordered: true,
            repeats: false,
            limits: limits.clone(),
            calls: BTreeMap::new(),
            works: BTreeMap::new(),
            written: Both::default(),
            live: Both::default(),
            shut: Both::default(),
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
            cancels_from: Both {
                client: true,
                server: matches!(dialect.rules().cancel_from, CancelFrom::Both),
            },
            resumes: wire.resumes(),
            closing_cancels: wire.serves_all_by_one(),
            gone: Both::default(),
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
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

    #[cfg(feature = "wires")]
    pub(super) fn may_repeat(&self) {
        self.state().repeats = true;
    }

    #[cfg(feature = "wires")]
    pub(super) fn unordered(&self) {
        self.state().ordered = false;
    }

    #[cfg(feature = "wires")]
    pub(super) fn may_be_away(&self) {
        self.state().away = true;
    }

    /// The network has cut a connection.
    pub(super) fn cut(&self, what: &str) {
        self.state().cut = true;
        self.lost(what);
    }

    /// The wire is no longer what it was.
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

    /// The connection of this side is gone, and it has heard of that.
    pub(super) fn is_gone(&self, side: Side, what: &str) {
        self.lost(what);
        let mut state = self.state();
        let now = state.now();
        state.gone.of_mut(side).get_or_insert(now);
    }

    /// What happened so far.
    pub(super) fn trace(&self) -> Vec<String> {
        self.state().trace.clone()
    }

    /// The trace, how many cancels were asked, and what came to pass.
    pub(super) fn into_trace(self) -> (Vec<String>, u64, Tally) {
        let mut state = self.state();
        // What it keeps of the requests would keep their connections.
        state.works.clear();
        (std::mem::take(&mut state.trace), state.cancels, state.tally)
    }

    // ---- handlers

    pub(super) fn enters(&self, side: Side, job: &Job, context: &CallContext) {
        let mut state = self.state();
        let nonce = job.nonce;
        state.note(|| format!("{side} enters {nonce}: {:?}", job.work));
        let work = WorkSeen {
            side,
            work: job.work,
            end: None,
            ended_at: None,
            cause: None,
            context: context.clone(),
        };
        let before = state.works.insert(nonce, work);
        if !state.repeats {
            state.holds(before.is_none(), "I14", || format!("the handler of {nonce} was entered twice"));
        }
        if state.cancelled_at(side, nonce).is_some() && state.is_open {
            let told = context.is_cancelled();
            state.holds(told, "L1", || format!("{nonce} is entered behind its cancel, and not told of it"));
        }
        state.tally.saw(Happening::Entered);
        *state.live.of_mut(side) += 1;
        let (live, most) = (*state.live.of(side), state.limits.of(side).running);
        // Where it may have as many as ever, a run has not enough of them.
        let is_there = most < Limits::default().running;
        state.holds_and_counts(is_there, live <= most, "I10", || {
            format!("{live} handlers live at the {side}, {most} may")
        });
    }

    pub(super) fn leaves(&self, side: Side, nonce: u64, end: WorkEnd) {
        let mut state = self.state();
        *state.live.of_mut(side) -= 1;
        let now = state.now();
        let Some(work) = state.works.get_mut(&nonce) else { return };
        work.end = Some(end);
        work.ended_at = Some(now);
        work.cause = work.context.cause().map(|cause| cause.kind());
        let (cause, work) = (work.cause, work.work);
        state.check_told(side, nonce, (work, end), cause);
        state.check_grace(side, nonce, work);
        state.check_silence(side, nonce);
        if cause == Some(CauseKind::Peer) {
            state.check_asked(side, nonce);
        }
        if cause == Some(CauseKind::Peer) {
            state.tally.saw(Happening::Signalled);
        }
        state.note(|| format!("{side} leaves {nonce}: {end:?}, cause {cause:?}"));
    }

    /// A critical section is about to end; whether a cancel came into it. One never does before the longest time for a
    /// shield, but for a shutdown and the connection's end.
    pub(super) fn shielded(&self, side: Side, job: &Job, disturbed: bool) {
        let mut state = self.state();
        let (longest, gone) = (state.limits.of(side).shield.as_millis(), state.is_going());
        let may = gone || u128::from(job.ms) >= longest;
        let is_there = !may && state.cancelled_at(side, job.nonce).is_some();
        state.holds_and_counts(is_there, !disturbed || may, "L1", || {
            format!("{} was told of its cancel in its shield", job.nonce)
        });
    }

    pub(super) fn resumes(&self) -> bool {
        self.state().resumes
    }

    /// So long critical sections of this side that have begun may take.
    pub(super) fn shields(&self, side: Side) -> Duration {
        let state = self.state();
        let shielded = |work: &WorkSeen| work.side == side && work.end.is_none() && work.work == Work::Shield;
        if state.works.values().any(shielded) { state.limits.of(side).shield } else { Duration::ZERO }
    }

    pub(super) fn live(&self, side: Side) -> usize {
        *self.state().live.of(side)
    }

    // ---- callers
}

impl State {
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn goes(&mut self) {
        let now = self.now();
        self.going_since.get_or_insert(now);
    }

    /// The peer of this side acknowledged the cancel of this call, and said that it comes too late or too early.
    pub(super) fn is_acknowledged_as_not_cancelled(&self, side: Side, nonce: u64) -> bool {
        let id = self.written.of(side).by_nonce.get(&nonce);
        id.is_some_and(|id| self.written.of(side.other()).acked.get(id) == Some(&false))
    }

    /// When the cancel of this request came to this side, behind it. Where a post may come twice nothing is said.
    pub(super) fn cancelled_at(&self, side: Side, nonce: u64) -> Option<u64> {
        let written = self.written.of(side.other());
        let request = written.requests.get(written.by_nonce.get(&nonce)?)?;
        request.cancelled_at.filter(|_| !self.repeats)
    }

    /// A handler has ended whose cancel came before: it had been told, and of that (L1). The driver takes a cancel in before
    /// anything else runs, so there is no time between.
    fn check_told(&mut self, side: Side, nonce: u64, (work, end): (Work, WorkEnd), cause: Option<CauseKind>) {
        let Some(at) = self.cancelled_at(side, nonce).filter(|_| self.is_open) else { return };
        // In a critical section it is told at its end, and after the longest time for one: but not if it is dropped in it.
        let told = cause.is_some() || (work == Work::Shield && end == WorkEnd::Dropped);
        self.holds(told, "L1", || format!("{nonce} was cancelled at {at}, and never told"));
        let other = work == Work::Local || self.going_since.is_some_and(|since| since <= at);
        let first = cause.is_none_or(|cause| cause == CauseKind::Peer) || other;
        self.holds(first, "L1", || format!("{nonce} was cancelled at {at}, and told of {cause:?}"));
    }

    /// A handler was told that its peer cancelled it: that one did (I4). Over HTTP a response may be closed instead, by whoever
    /// gives its call up and by the network.
    fn check_asked(&mut self, side: Side, nonce: u64) {
        let written = self.written.of(side.other());
        let id = written.by_nonce.get(&nonce);
        let cancelled = id.and_then(|id| written.requests.get(id)).is_some_and(|request| request.cancels > 0);
        let closed = !self.ordered && (self.is_given_up(Some(nonce)) || self.is_going() || self.repeats);
        self.holds(cancelled || closed, "I4", || format!("{nonce} was told of a cancel that nobody sent"));
    }

    /// A handler has ended: within its grace, if its peer cancelled it or its connection is gone for good (L3).
    fn check_grace(&mut self, side: Side, nonce: u64, work: Work) {
        // A critical section comes first.
        let shield = if work == Work::Shield { self.limits.of(side).shield } else { Duration::ZERO };
        let grace = self.limits.of(side).cancel_grace + shield;
        let most = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX).saturating_add(LATE);
        let cancelled = self.cancelled_at(side, nonce).filter(|_| self.is_open);
        let gone = self.gone.of(side).filter(|_| !self.resumes);
        let now = self.now();
        for (at, why) in [(cancelled, "was cancelled"), (gone, "lost its connection")] {
            let Some(at) = at else { continue };
            let in_time = now <= at.saturating_add(most);
            self.holds(in_time, "L3", || {
                format!("{nonce} {why} at {at} and ends now, {most} ms it may take")
            });
        }
    }

    /// The connection may be at its end, or beyond.
    pub(super) fn is_going(&self) -> bool {
        self.lost || self.shut.client || self.shut.server
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        if self.trace.len() < LINES {
            let line = format!("{:>7} {}", self.now(), what());
            self.trace.push(line);
        }
    }

    /// Holds what is there, and counts it as judged.
    pub(super) fn holds(&mut self, condition: bool, invariant: &'static str, what: impl FnOnce() -> String) {
        self.holds_and_counts(true, condition, invariant, what);
    }

    /// The same, but that it counts only where what the invariant is about is there; the condition has to hold in any case.
    pub(super) fn holds_and_counts(
        &mut self,
        is_there: bool,
        condition: bool,
        invariant: &'static str,
        what: impl FnOnce() -> String,
    ) {
        if is_there {
            tally::count(invariant);
        }
        if !condition {
            self.breaks(invariant, what);
        }
    }

    /// Keeps the first invariant that does not hold.
    pub(super) fn breaks(&mut self, invariant: &'static str, what: impl FnOnce() -> String) {
        if self.broken.is_some() {
            return;
        }
        let broken = Broken { invariant, what: what() };
        self.note(|| broken.to_string());
        self.broken = Some(broken);
    }

    /// Whether the call of this side may be told that its peer cancelled it.
    pub(super) fn peer_may_cancel(&self, nonce: u64, side: Side) -> bool {
        // What ran twice is known by its second run.
        if *self.shut.of(side.other()) || self.lost || self.repeats {
            return true;
        }
        self.works.get(&nonce).is_some_and(|work| {
            work.end == Some(WorkEnd::Stopped) || work.cause.is_some() || work.context.is_cancelled()
        })
    }

    /// Whether the call of this side may fail so.
    pub(super) fn may_fail(&self, nonce: u64, side: Side, error: &ErrorObject) -> bool {
        if self.repeats {
            return true;
        }
        let limits = self.limits.of(side.other());
        let tight = limits.running < 1024 || *self.shut.of(side.other()) || self.lost || !self.is_open;
        // LSP's word for a request its server gave up says that it failed.
        let given_up = error.code.0 == -32803 && self.peer_may_cancel(nonce, side);
        match self.works.get(&nonce).map(|work| work.end) {
            Some(Some(WorkEnd::Failed)) => {
                error.message == "sim failed" || error.code.0 == -32603 || given_up
            }
            Some(Some(WorkEnd::Panicked | WorkEnd::Dropped)) => true,
            Some(Some(WorkEnd::Value | WorkEnd::Stopped) | None) => given_up,
            // It was never entered: there was no room for it.
            None => tight,
        }
    }

    /// At the end: what is said not to have run was never read by the other side (I13).
    pub(super) fn check_unsent(&mut self) {
        let found = self.calls.iter().find(|(nonce, call)| {
            // What is sent a second time may come although the first was lost.
            call.not_run
                && !self.repeats
                && self.request_of(**nonce).is_some_and(|request| request.received > 0)
        });
        let found = found.map(|(nonce, _)| *nonce);
        let is_there = self.calls.values().any(|call| call.not_run);
        self.holds_and_counts(is_there, found.is_none(), "I13", || {
            format!("{found:?} came, and its caller was told otherwise")
        });
    }

    /// At the end: what was told to a handler stays, and comes before its answer or not at all.
    pub(super) fn check_causes(&mut self) {
        let (mut found, mut is_there) = (None, false);
        for (nonce, work) in &self.works {
            let now = work.context.cause().map(|cause| cause.kind());
            // Where the outbox is small a value waits for room, and until then a cancel is in time.
            let waits = self.limits.of(work.side).outbox_frames < Limits::default().outbox_frames;
            let settled = !waits && (work.end == Some(WorkEnd::Value) || work.cause.is_some());
            is_there |= settled && self.is_given_up(Some(*nonce));
            if settled && now != work.cause {
                found.get_or_insert((*nonce, work.cause, now));
            }
        }
        let told = found.map(|(nonce, then, now)| format!("{nonce} ended with {then:?} and now has {now:?}"));
        self.holds_and_counts(is_there, told.is_none(), "I6", || told.unwrap_or_default());
    }
}
