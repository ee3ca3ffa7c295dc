//! The outcomes of callers, checked against the invariants.

use rescind_core::{CallError, CancelResult, CauseKind, Outcome};
use serde_json::Value;

use super::judge::{Judge, LATE};
use super::observations::CallSeen;
use super::plan::{Caller, Job};
use super::sides::Side;

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
    }
}

fn short(outcome: &Outcome<Value>) -> String {
    match outcome {
        Outcome::Completed(_) => "Completed".to_owned(),
        Outcome::CompletedAfterCancel(_) => "CompletedAfterCancel".to_owned(),
        other => format!("{other:?}"),
    }
}
