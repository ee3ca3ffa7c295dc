//! The conditions that must hold when an undisturbed connection ends: what was written has arrived, requests are
//! answered and their callers have the results, and cancelled handlers have their signals.

use rescind_core::CancelResult;

use super::judge::{Judge, State};
use super::observations::{CallSeen, Kind, RequestSeen, WorkSeen};
use super::plan::{Caller, Work};
use super::sides::Side;
use super::tally::SimEvent;
use serde_json::Value;

impl Judge {
    /// Records that this happened.
    pub(super) fn saw(&self, happening: SimEvent) {
        self.state().tally.saw(happening);
    }

    /// Checks everything that is older than this many milliseconds, if the connection was not disturbed.
    pub(super) fn check_arrived(&self, slowest: u64) {
        let mut state = self.state();
        if state.is_going() || state.repeats || !state.is_open {
            return;
        }
        let Some(before) = state.now().checked_sub(slowest) else { return };
        for side in Side::BOTH {
            if state.check_frames(side, before) {
                state.tally.saw(SimEvent::HeldArrived);
            }
            state.check_requests(side, before);
        }
        state.check_cancels(before);
    }

    /// This side has shut down over an undisturbed transport: all that it wrote has arrived. If the other side has
    /// written after that end, its output is broken, and it stops reading.
    pub(super) fn check_flushed(&self, side: Side) {
        let mut state = self.state();
        let broken = state.written.of(side.other()).under_way.values().any(|places| !places.is_empty());
        let is_held = !broken && !state.away && !state.repeats && state.is_open;
        if is_held && state.check_frames(side, u64::MAX) {
            state.tally.saw(SimEvent::HeldFlushed);
        }
    }
}

impl CallSeen {
    /// The time since which its cancel is on its way or its request was dropped. `None`: neither.
    fn cancelled_at(&self, now: u64) -> Option<u64> {
        let unsupported = matches!(self.result, Some(CancelResult::NotSupported | CancelResult::TakenBack));
        let by_itself = matches!(self.caller, Caller::Deadline(_) | Caller::Token(_)) && !self.returned;
        let by_itself = self.asked.filter(|asked| by_itself && *asked < now);
        self.cancelled_at.or(by_itself).filter(|_| !unsupported)
    }
}

impl State {
    /// Whether the cancel of this call arrived after its request.
    fn came_behind(&self, side: Side, nonce: u64) -> bool {
        let mut requests = self.written.of(side).requests.values();
        requests.any(|request| request.nonce == Some(nonce) && request.cancelled_at.is_some())
    }

    /// Whether the caller of this request's call has cancelled it.
    pub(super) fn is_given_up(&self, nonce: Option<u64>) -> bool {
        let call = nonce.and_then(|nonce| self.calls.get(&nonce));
        call.is_some_and(|call| call.cancelled_at(self.now()).is_some())
    }

    /// Checks that what this side wrote before this time has arrived at the other. Returns whether it wrote anything.
    fn check_frames(&mut self, side: Side, before: u64) -> bool {
        let written = self.written.of(side);
        let is_there = written.frames.iter().any(|frame| frame.at < before);
        let mut missing = None;
        for place in written.under_way.values().flatten() {
            let Some(frame) = written.frames.get(*place).filter(|frame| frame.at < before) else { continue };
            let (invariant, nonce) = match &frame.kind {
                // It is sent on the stream of the request for which it was made.
                Kind::Cancel { id } => {
                    let nonce = written.requests.get(id).and_then(|request| request.nonce);
                    ("L1", nonce.and_then(|nonce| self.calls.get(&nonce)?.parent))
                }
                Kind::Request { id } => ("I1", written.requests.get(id).and_then(|request| request.nonce)),
                Kind::Answer { id } => {
                    ("I1", self.written.of(side.other()).requests.get(id).and_then(|request| request.nonce))
                }
                Kind::Notification { of } => ("I1", *of),
                Kind::Other => ("I7", None),
            };
            // Over HTTP a response for which no caller waits is closed, and the rest of it is lost. A request that is refused for
            // now is sent once more, and its caller does not see the refusal.
            let is_repeated = !self.ordered
                && serde_json::from_slice(&frame.body).is_ok_and(|answer| is_refused_for_now(&answer));
            if self.ordered || !(is_repeated || self.is_given_up(nonce)) {
                missing = Some((invariant, frame.at, frame.kind.clone()));
                break;
            }
        }
        if let Some((invariant, at, kind)) = missing {
            self.breaks(invariant, || format!("the {side} wrote {kind:?} at {at}, and it never came"));
        }
        is_there
    }

    /// Checks that what this side received before this time is answered, if an answer is required, and that the
    /// caller has it.
    fn check_requests(&mut self, side: Side, before: u64) {
        let queue_time = u64::try_from(self.limits.of(side).queue_timeout.as_millis()).unwrap_or(u64::MAX);
        let owed = |(id, request): &(&String, &RequestSeen)| {
            let Some(nonce) = request.nonce else { return false };
            let over = match self.works.get(&nonce) {
                Some(work) => work.ended_at,
                None => request.received_at.map(|at| at.saturating_add(queue_time)),
            };
            over.is_some_and(|at| at < before)
                && !self.is_silenced(side, id)
                && !self.is_given_up(request.nonce)
        };
        let requests = &self.written.of(side.other()).requests;
        let is_there = requests.iter().any(|request| owed(&request));
        let open = requests.iter().filter(owed).find(|(_, request)| request.answers == 0);
        let open = open.map(|(id, request)| (id.clone(), request.nonce));
        self.holds_and_counts(is_there, open.is_none(), "I1", || {
            format!("the {side} never answered {open:?}")
        });
        if is_there {
            self.tally.saw(SimEvent::HeldAnswered);
        }
        let requests = &self.written.of(side.other()).requests;
        let answered = |request: &&RequestSeen| request.answer_received_at.is_some_and(|at| at < before);
        let is_there = requests.values().any(|request| answered(&request));
        let untold = requests.values().filter(answered).find_map(|request| {
            let call = self.calls.get(&request.nonce?)?;
            (!call.returned && !call.left).then_some(request.nonce)
        });
        self.holds_and_counts(is_there, untold.is_none(), "I13", || {
            format!("{untold:?} is answered, and its caller waits")
        });
    }

    /// Checks that every running handler that was cancelled before this time has its signal.
    fn check_cancels(&mut self, before: u64) {
        let now = self.now();
        let heard = |(nonce, work): &(&u64, &WorkSeen)| {
            // In some protocols only one side may cancel.
            let call = self.calls.get(nonce).filter(|call| *self.cancels_from.of(call.side));
            let cancelled = call.and_then(|call| call.cancelled_at(now)).is_some_and(|at| at < before);
            // A cancel that overtook its request names nothing, if the dialect keeps no early cancels.
            let hit = || self.parks || call.is_some_and(|call| self.came_behind(call.side, **nonce));
            // Over HTTP it is sent on the response of the request for which it was made, and is lost with that
            // response.
            let closed = !self.ordered && call.is_some_and(|call| self.is_given_up(call.parent));
            // A critical section gets the signal at its end.
            cancelled && !closed && work.work != Work::Shield && hit()
        };
        let is_there = self.works.iter().any(|work| heard(&work));
        let untold = |(_, work): &(&u64, &WorkSeen)| work.end.is_none() && !work.context.is_cancelled();
        let untold = self.works.iter().filter(heard).find(untold).map(|(nonce, _)| *nonce);
        let what = untold.map(|nonce| {
            format!("{nonce} is cancelled, and its handler was never signalled: {:?}", self.calls.get(&nonce))
        });
        self.holds_and_counts(is_there, what.is_none(), "L1", || what.unwrap_or_default());
        if is_there {
            self.tally.saw(SimEvent::HeldTold);
        }
    }
}

/// Whether an answer says that a limit is reached.
pub(super) fn is_refused_for_now(answer: &Value) -> bool {
    answer.pointer("/error/data/reason").is_some_and(|reason| reason == "overloaded")
}
