//! The grace after a cancel: how long a handler that was signalled may run until its task is aborted.

use std::time::Instant;

use super::Session;
use super::output::{Event, Output};
use super::request::State;
use super::timers::{Timer, later};
use crate::cause::CauseKind;
use crate::dialect::AnswerAfterCancel;
use crate::failpoint::{self, Failpoint};
use crate::id::InboundKey;

impl Session {
    /// Starts the grace of a handler that is signalled. It has none where the dialect waits for its value.
    pub(super) fn start_grace(&mut self, now: Instant, key: InboundKey) {
        let waits = self.lifecycle.waits_for_values()
            && self.rules().answer_after_cancel == AnswerAfterCancel::ResultIfFinished;
        if waits && self.request_cause(key).is_some_and(|cause| cause.kind() == CauseKind::Peer) {
            return;
        }
        let until = later(now, self.config.limits.cancel_grace);
        let Some(request) = self.requests.get_mut(key.0) else { return };
        if request.aborted {
            return;
        }
        let grace = &mut request.extras_mut(&mut self.request_extras).alarms.grace;
        self.timers.clear(grace.replace(until), Timer::Grace(key));
        self.timers.set(until, Timer::Grace(key));
    }

    /// Starts the grace of a handler that was signalled without one (GETMCP-15).
    pub(super) fn start_missing_grace(&mut self, now: Instant, key: InboundKey) {
        let Some(request) = self.requests.get(key.0) else { return };
        let signalled = match request.state {
            State::Cancelling => true,
            // A handler without its signal is shielded.
            State::Draining { .. } => request.cause().is_some(),
            State::Queued | State::Running | State::CancelPending | State::Ended => false,
        };
        if signalled && request.extras().shields == 0 && request.extras().alarms.grace.is_none() {
            self.start_grace(now, key);
        }
    }

    /// The grace has elapsed: the request is settled as cancelled if it is not settled yet, and its task is aborted.
    pub(super) fn grace_over(&mut self, now: Instant, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        self.timers.clear(request.take_alarm(|alarms| &mut alarms.grace), Timer::Grace(key));
        match request.state {
            State::Queued | State::Running | State::CancelPending | State::Ended => return,
            State::Cancelling => {
                let cause = request.cause().cloned();
                self.settle_cancelled(now, key, cause);
            }
            State::Draining { .. } => {}
        }
        if failpoint::active(Failpoint::RapidReset) {
            self.abort(key);
            self.local_ended(now, key);
            return;
        }
        self.abort(key);
    }

    /// Aborts a handler's task, once.
    fn abort(&mut self, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        if !std::mem::replace(&mut request.aborted, true) {
            self.emit(Event::Aborted(key));
            self.push(Output::Abort(key));
        }
    }
}
