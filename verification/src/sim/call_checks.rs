//! The checks of calls against the invariants: the outcomes of callers, what handlers observe, and what must hold when
//! an undisturbed connection ends.

use std::time::Duration;

use rescind_core::dialect::TaskForm;
use rescind_core::{CallContext, CallError, CancelResult, CauseKind, Limits, Outcome};
use serde_json::Value;

use super::judge::{CallSeen, Judge, JudgeState, Kind, LATE, RequestSeen, SimEvent, WorkEnd, WorkSeen};
use super::plan::{Caller, Job, Side, Work};

/// Why no caller waits for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The drop cancels it.
    Dropped,
    /// It continues.
    Detached,
}

impl Judge {
    pub(super) fn begins(&self, side: Side, job: &Job, parent: Option<u64>, stillborn: bool) {
        let mut state = self.state();
        let begun = state.now();
        let asked = job.caller.cancels_after().map(|ms| begun + ms);
        state
            .note(|| format!("{side} calls {}: {:?}, {:?} ({} ms)", job.nonce, job.work, job.caller, job.ms));
        let call = CallSeen {
            side,
            caller: job.caller,
            parent,
            begun,
            asked,
            result: None,
            left: false,
            returned: false,
            not_run: false,
            cancelled_at: None,
            stillborn,
        };
        state.calls.insert(job.nonce, call);
    }

    /// The call was refused.
    pub(super) fn refused(&self, nonce: u64, error: &CallError) {
        let mut state = self.state();
        state.calls.remove(&nonce);
        let expected = matches!(error, CallError::Ended | CallError::TooMany { .. });
        state.holds(expected, "I13", || format!("the call {nonce} did not begin: {error}"));
        state.note(|| format!("{nonce} did not begin: {error}"));
    }

    pub(super) fn cancels(&self, nonce: u64, result: CancelResult) {
        let mut state = self.state();
        state.cancels += 1;
        state.note(|| format!("{nonce} is cancelled: {result:?}"));
        let now = state.now();
        let Some(call) = state.calls.get_mut(&nonce) else { return };
        if result == CancelResult::Sent {
            call.cancelled_at.get_or_insert(now);
        }
        let second = call.result.is_some();
        call.result.get_or_insert(result);
        if result == CancelResult::TakenBack {
            let written = state.request_of(nonce).is_some();
            state.holds(!written, "I12", || format!("{nonce} was taken back, and had been written"));
        }
        let quiet = !second || result == CancelResult::AlreadySettled;
        state.holds_and_counts(second, quiet, "I7", || {
            format!("{nonce} was cancelled twice, and then {result:?}")
        });
    }

    /// The call has no caller any more.
    pub(super) fn leaves_call(&self, nonce: u64, how: Left) {
        let mut state = self.state();
        state.cancels += 1;
        state.note(|| format!("{nonce} is {how:?}"));
        let now = state.now();
        if let Some(call) = state.calls.get_mut(&nonce) {
            call.left = true;
            if how == Left::Dropped {
                call.cancelled_at.get_or_insert(now);
            }
        }
    }

    pub(super) fn returns(&self, nonce: u64, outcome: &Outcome<Value>) {
        let mut state = self.state();
        state.note(|| format!("{nonce} returns {}", short(outcome)));
        let (now, silence) = (state.now(), state.silence);
        let written = state.request_of(nonce).is_some();
        let answered_at = state.request_of(nonce).and_then(|request| request.answer_received_at);
        let answered = answered_at.is_some();
        let Some(call) = state.calls.get_mut(&nonce) else { return };
        call.not_run = matches!(outcome, Outcome::Disconnected { may_have_run: false });
        if matches!(outcome, Outcome::Cancelled(_) | Outcome::CompletedAfterCancel(_)) {
            call.cancelled_at.get_or_insert(now);
        }
        let again = std::mem::replace(&mut call.returned, true);
        let (side, caller, result, begun, asked) =
            (call.side, call.caller, call.result, call.begun, call.asked);
        let parent = call.parent;
        state.holds(!again, "I13", || format!("{nonce} returned twice"));
        let wait =
            u64::try_from(state.limits.of(side).cancel_response_timeout.as_millis()).unwrap_or(u64::MAX);
        // Its peer acknowledged that it is not cancelled, so the caller waits for its answer.
        let goes_on = state.is_acknowledged_as_not_cancelled(side, nonce);
        let late = !goes_on && asked.is_some_and(|asked| now > asked.saturating_add(wait) + LATE);
        state.holds_and_counts(asked.is_some() && !goes_on, !late, "I13", || {
            format!("{nonce} returned {now}, was cancelled {asked:?}")
        });
        let answer = |value: &Value| value.get("nonce").and_then(Value::as_u64);
        let others = state.cancels > 0;
        let was_asked = asked.is_some_and(|asked| now >= asked);
        match outcome {
            Outcome::Completed(value) => {
                state.holds_and_counts(others, answer(value) == Some(nonce), "I4", || {
                    format!("{nonce} was answered {value}")
                });
                let quiet = matches!(result, None | Some(CancelResult::AlreadySettled));
                state.holds(quiet, "I13", || {
                    format!("{nonce} completed as if no cancel was asked: {result:?}")
                });
            }
            Outcome::CompletedAfterCancel(value) => {
                state.holds_and_counts(others, answer(value) == Some(nonce), "I4", || {
                    format!("{nonce} was answered {value}")
                });
                let because = was_asked || parent.is_some() || *state.shut.of(side);
                state.holds(because, "I13", || format!("{nonce} completed after a cancel nobody asked"));
                let possible = result != Some(CancelResult::TakenBack);
                state.holds(possible, "I13", || format!("{nonce} was taken back, and completed"));
            }
            Outcome::Cancelled(cancelled) => {
                let kind = cancelled.cause.kind();
                let because = match kind {
                    CauseKind::Caller => was_asked,
                    CauseKind::Deadline => was_asked && matches!(caller, Caller::Deadline(_)),
                    CauseKind::Parent => parent.is_some(),
                    CauseKind::Shutdown => *state.shut.of(side),
                    CauseKind::Peer => answered && state.peer_may_cancel(nonce, side),
                    CauseKind::Disconnected | CauseKind::Dropped | CauseKind::Limit | CauseKind::Local => {
                        parent.is_some()
                    }
                    _ => false,
                };
                state.holds(because, "I13", || format!("{nonce} was cancelled by {kind:?}, began {begun}"));
                let confirmed = cancelled.confirmed;
                let known = !confirmed || answered || !written || silence;
                state.holds(known, "I13", || format!("{nonce} is confirmed, and no answer came"));
                let honest = confirmed || written;
                state.holds(honest, "I13", || format!("{nonce} never was on the wire, and is not confirmed"));
            }
            Outcome::Failed(error) => {
                if !state.may_fail(nonce, side, error) {
                    state.breaks("I4", || format!("{nonce} failed, and its handler did not: {error}"));
                }
            }
            Outcome::Disconnected { may_have_run } => {
                // Over HTTP there is then no session, and posts are refused.
                let because = state.is_going() || !state.is_open || state.repeats;
                state.holds(because, "I13", || format!("{nonce} is disconnected, and nothing was lost"));
                // A transport of posts knows of some posts that they were never sent.
                let honest = *may_have_run || !written || !state.ordered;
                state.holds(honest, "I13", || {
                    format!("{nonce} may have run: {may_have_run}, and was written")
                });
            }
            other => state.breaks("I13", || format!("{nonce} returned {other:?}")),
        }
        // I5: its parent's cancel is also its own, and arrived before it was answered.
        let signalled_at =
            parent.and_then(|parent| state.cancelled_at(side, parent)).filter(|_| state.is_open);
        if answered_at.zip(signalled_at).is_some_and(|(answered, signalled)| signalled < answered) {
            let reported = !matches!(outcome, Outcome::Completed(_));
            state.holds(reported, "I5", || {
                format!("{nonce} completed after its parent's cancel, and was not cancelled")
            });
        }
        let born = state.calls.get(&nonce).is_some_and(|call| call.stillborn);
        let cancelled = matches!(outcome, Outcome::Cancelled(_) | Outcome::Disconnected { .. });
        state.holds_and_counts(born, !born || cancelled, "I5", || {
            format!("{nonce} is a child of a cancelled request")
        });
    }

    /// The connection of this side has closed: each of its callers has a result (I13).
    pub(super) fn all_returned(&self, side: Side) {
        let mut state = self.state();
        let calls = || state.calls.iter().filter(|(_, call)| call.side == side);
        let is_there = calls().next().is_some();
        let waiting: Vec<u64> =
            calls().filter(|(_, call)| !call.returned && !call.left).map(|(nonce, _)| *nonce).collect();
        state.holds_and_counts(is_there, waiting.is_empty(), "I13", || {
            format!("the connection is closed, and these calls of the {side} wait: {waiting:?}")
        });
        let questions = if side == Side::Client { state.questions } else { 0 };
        state.holds_and_counts(false, questions == 0, "I13", || {
            format!("the connection is closed, and {questions} questions about tasks wait")
        });
    }
}

fn short(outcome: &Outcome<Value>) -> String {
    match outcome {
        Outcome::Completed(_) => "Completed".to_owned(),
        Outcome::CompletedAfterCancel(_) => "CompletedAfterCancel".to_owned(),
        other => format!("{other:?}"),
    }
}

// What handlers observe, checked against the invariants.

impl Judge {
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
            let reported = context.is_cancelled();
            state.holds(reported, "L1", || format!("{nonce} is entered after its cancel, and not signalled"));
        }
        state.tally.saw(SimEvent::Entered);
        *state.live.of_mut(side) += 1;
        let (live, most) = (*state.live.of(side), state.limits.of(side).max_running_handlers);
        // With the default limit, a run does not have enough handlers to reach it.
        let is_there = most < Limits::default().max_running_handlers;
        state.holds_and_counts(is_there, live <= most, "I10", || {
            format!("{live} handlers live at the {side}, {most} may")
        });
    }

    /// `was_task`: its request became a task.
    pub(super) fn leaves(&self, side: Side, nonce: u64, end: WorkEnd, was_task: bool) {
        let mut state = self.state();
        *state.live.of_mut(side) -= 1;
        state.live_tasks -= usize::from(was_task);
        let now = state.now();
        let Some(work) = state.works.get_mut(&nonce) else { return };
        work.end = Some(end);
        work.ended_at = Some(now);
        work.cause = work.context.cause().map(|cause| cause.kind());
        let (cause, work) = (work.cause, work.work);
        state.check_told(side, nonce, (work, end), cause);
        state.check_grace(side, nonce, work);
        state.check_silence(side, nonce);
        state.check_task_left(nonce, cause);
        if cause == Some(CauseKind::Peer) {
            if !was_task {
                state.check_asked(side, nonce);
            }
            state.tally.saw(SimEvent::Signalled);
        }
        state.note(|| format!("{side} leaves {nonce}: {end:?}, cause {cause:?}"));
    }

    /// A critical section is about to end. `disturbed`: a cancel reached it. No cancel does before the longest time
    /// for a shield, except at a shutdown or the end of the connection.
    pub(super) fn shielded(&self, side: Side, job: &Job, disturbed: bool) {
        let mut state = self.state();
        let (longest, gone) = (state.limits.of(side).max_shield_time.as_millis(), state.is_going());
        let may = gone || u128::from(job.ms) >= longest;
        let is_there = !may && state.cancelled_at(side, job.nonce).is_some();
        state.holds_and_counts(is_there, !disturbed || may, "L1", || {
            format!("{} was signalled inside its shield", job.nonce)
        });
    }
}

impl JudgeState {
    /// A handler has ended after its cancel arrived: it had the signal, with the right cause (L1). The driver takes
    /// in a cancel before anything else runs, so there is no time between.
    fn check_told(&mut self, side: Side, nonce: u64, (work, end): (Work, WorkEnd), cause: Option<CauseKind>) {
        let Some(at) = self.cancelled_at(side, nonce).filter(|_| self.is_open) else { return };
        // In a critical section the signal comes at its end, or after the longest time for one. If the handler is
        // dropped in it, there is none.
        let reported = cause.is_some() || (work == Work::Shield && end == WorkEnd::Dropped);
        self.holds(reported, "L1", || format!("{nonce} was cancelled at {at}, and never signalled"));
        let other = work == Work::Local || self.going_since.is_some_and(|since| since <= at);
        let first = cause.is_none_or(|cause| cause == CauseKind::Peer) || other;
        if !first {
            self.breaks("L1", || format!("{nonce} was cancelled at {at}, and signalled with {cause:?}"));
        }
    }

    /// A handler got its peer's cancel, and the peer has sent one (I4). Over HTTP a closed response counts too, by a
    /// caller that drops its call or by the network.
    fn check_asked(&mut self, side: Side, nonce: u64) {
        let written = self.written.of(side.other());
        let id = written.by_nonce.get(&nonce);
        let cancelled = id.and_then(|id| written.requests.get(id)).is_some_and(|request| request.cancels > 0);
        let closed = !self.ordered && (self.is_given_up(Some(nonce)) || self.is_going() || self.repeats);
        self.holds(cancelled || closed, "I4", || format!("{nonce} was signalled without a cancel"));
    }

    /// A handler has ended within its grace, if its peer cancelled it or its connection is permanently lost (L3).
    fn check_grace(&mut self, side: Side, nonce: u64, work: Work) {
        // A critical section comes before the grace.
        let shield = if work == Work::Shield { self.limits.of(side).max_shield_time } else { Duration::ZERO };
        let grace = self.limits.of(side).cancel_grace + shield;
        let most = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX).saturating_add(LATE);
        let cancelled = self.cancelled_at(side, nonce).filter(|_| self.is_open);
        // A task outlives its connection.
        let gone = self.gone.of(side).filter(|_| !self.resumes && !self.is_task(Some(nonce)));
        let now = self.now();
        for (at, why) in [(cancelled, "was cancelled"), (gone, "lost its connection")] {
            let Some(at) = at else { continue };
            let in_time = now <= at.saturating_add(most);
            self.holds(in_time, "L3", || {
                format!("{nonce} {why} at {at} and ends now, {most} ms it may take")
            });
        }
    }

    /// Whether the handler returned a value that still was its answer: it was not cancelled, or some of its grace was
    /// left.
    pub(super) fn has_value(&self, side: Side, nonce: u64) -> bool {
        // The answer to a request that became a task is its handle.
        let has_ended = |work: &&WorkSeen| work.end == Some(WorkEnd::Value) && !self.is_task(Some(nonce));
        let Some(work) = self.works.get(&nonce).filter(has_ended) else { return false };
        let grace = u64::try_from(self.limits.of(side).cancel_grace.as_millis()).unwrap_or(u64::MAX);
        let over = self.cancelled_at(side, nonce).map(|at| at.saturating_add(grace));
        match work.cause {
            None => over.is_none() || !self.waits_for_room(side),
            Some(CauseKind::Peer) if self.waits_for_room(side) => false,
            Some(CauseKind::Peer) => over.zip(work.ended_at).is_some_and(|(over, ended)| ended < over),
            // The time of the signal with another cause is not known.
            Some(_) => false,
        }
    }

    /// With a small outbox a value waits for room, and a cancel takes effect until then.
    fn waits_for_room(&self, side: Side) -> bool {
        self.limits.of(side).max_outbox_frames < Limits::default().max_outbox_frames
    }

    /// A handler tried to send a notification. `taken`: it was accepted. After the answer or the silent end it is not
    /// (I2). A request that was refused for now and came again is not over until its second answer.
    pub(super) fn check_notified(&mut self, side: Side, nonce: u64, taken: bool) {
        if self.is_task(Some(nonce)) {
            // Where tasks have no notifications, they are dropped.
            if self.task_form == Some(TaskForm::AskedByClient) && !self.repeats {
                let over = self.is_known_to_be_over(nonce);
                self.holds_and_counts(over, !over || !taken, "I2", || {
                    format!("{side} takes a notification for the task {nonce}, whose end is known")
                });
            }
            return;
        }
        let written = self.written.of(side.other());
        let Some(id) = written.by_nonce.get(&nonce) else { return };
        let answered = written
            .requests
            .get(id)
            .is_some_and(|request| request.answers > 0 && request.answers >= request.received);
        if !self.repeats && (answered || self.is_silenced(side, id)) {
            self.holds(!taken, "I2", || format!("{side} takes a notification for {nonce}, which is over"));
        }
    }

    /// A handler has ended whose request must not be answered: its result is not written, and was not (I2).
    fn check_silence(&mut self, side: Side, nonce: u64) {
        let written = self.written.of(side.other());
        let Some(id) = written.by_nonce.get(&nonce).filter(|id| self.is_silenced(side, id)) else { return };
        let answered = written.requests.get(id).is_some_and(|request| request.answers > 0);
        self.holds(!answered, "I2", || format!("{nonce} was answered, and is owed silence"));
    }

    /// At the end: the cause that a handler got does not change, and came before its answer or not at all.
    pub(super) fn check_causes(&mut self) {
        let (mut found, mut is_there) = (None, false);
        for (nonce, work) in &self.works {
            let now = work.context.cause().map(|cause| cause.kind());
            let settled =
                !self.waits_for_room(work.side) && (work.end == Some(WorkEnd::Value) || work.cause.is_some());
            is_there |= settled && self.is_given_up(Some(*nonce));
            if settled && now != work.cause {
                found.get_or_insert((*nonce, work.cause, now));
            }
        }
        let reported =
            found.map(|(nonce, then, now)| format!("{nonce} ended with {then:?} and now has {now:?}"));
        self.holds_and_counts(is_there, reported.is_none(), "I6", || reported.unwrap_or_default());
    }
}

// The conditions that must hold when an undisturbed connection ends: what was written has arrived, requests are
// answered and their callers have the results, and cancelled handlers have their signals.

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

impl JudgeState {
    /// Whether the cancel of this call arrived after its request.
    fn came_behind(&self, side: Side, nonce: u64) -> bool {
        let mut requests = self.written.of(side).requests.values();
        requests.any(|request| request.nonce == Some(nonce) && request.cancelled_at.is_some())
    }

    /// Whether the caller of this request's call has cancelled it.
    pub(super) fn is_given_up(&self, nonce: Option<u64>) -> bool {
        let call = nonce.and_then(|nonce| self.calls.get(&nonce));
        let task = nonce.and_then(|nonce| self.tasks.get(&nonce));
        task.is_some_and(|task| task.is_given_up)
            || call.is_some_and(|call| call.cancelled_at(self.now()).is_some())
    }

    /// Whether nobody may wait for the answer to this request, so that over HTTP it may be lost.
    pub(super) fn is_moot(&self, request: &RequestSeen) -> bool {
        request.about.is_some() || self.is_given_up(request.nonce)
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
            let request = match &frame.kind {
                Kind::Request { id } | Kind::Cancel { id } => written.requests.get(id),
                Kind::Answer { id } => self.written.of(side.other()).requests.get(id),
                Kind::Notification { .. } | Kind::Other => None,
            };
            let is_moot = request.is_some_and(|request| request.about.is_some());
            // Over HTTP a response for which no caller waits is closed, and the rest of it is lost. A request that is refused for
            // now is sent once more, and its caller does not see the refusal.
            let is_repeated = !self.ordered
                && serde_json::from_slice(&frame.body).is_ok_and(|answer| is_refused_for_now(&answer));
            if self.ordered || !(is_repeated || is_moot || self.is_given_up(nonce)) {
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
