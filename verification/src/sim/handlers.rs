//! What handlers observe, checked against the invariants.

use std::time::Duration;

use rescind_core::{CallContext, CauseKind, Limits};

use super::judge::{Judge, LATE, State};
use super::observations::{WorkEnd, WorkSeen};
use super::plan::{Job, Work};
use super::sides::Side;
use super::tally::SimEvent;

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

impl State {
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

    /// Whether the handler returned a value that still was its answer: it was not cancelled, or some of its grace was
    /// left.
    pub(super) fn has_value(&self, side: Side, nonce: u64) -> bool {
        let Some(work) = self.works.get(&nonce).filter(|work| work.end == Some(WorkEnd::Value)) else {
            return false;
        };
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
    pub(super) fn check_silence(&mut self, side: Side, nonce: u64) {
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
