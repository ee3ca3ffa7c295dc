//! Checks the observations of callers, handlers and the transport against the invariants, during a run and at its
//! end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rescind_core::dialect::{CancelFrom, CancelledReply, Dialect, EarlyCancel};
use rescind_core::{ErrorObject, Limits};
use tokio::time::Instant;

use super::Wire;
use super::observations::{CallSeen, WorkEnd, WorkSeen, Written};
use super::plan::Work;
use super::sides::{PerSide, Side};
use super::tally::Tally;
use crate::{Broken, tally};
use rescind_testkit::wire_format::WireFormat;

/// How late a timer may be, in milliseconds: the step of the clock, and a turn of each task involved.
pub(super) const LATE: u64 = 20;
/// The most lines of a trace that are kept. A run has far fewer.
const LINES: usize = 20_000;

/// The judge that all parts of a run share.
#[derive(Clone, Debug)]
pub(super) struct Judge(Arc<Mutex<State>>);

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about a run")]
pub(super) struct State {
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
    pub(super) fn new(wire: Wire, dialect: &Dialect, speech: WireFormat, limits: &PerSide<Limits>) -> Self {
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
            written: PerSide::default(),
            live: PerSide::default(),
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
}

impl State {
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
        request.cancelled_at.filter(|_| !self.repeats)
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
            tally::count(invariant);
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
