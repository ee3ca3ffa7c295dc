//! Critical sections of a handler, which delay its signal, its grace and its abort for a limited time.

use std::time::Instant;

use super::Session;
use super::request::State;
use super::timers::{Timer, later};
use crate::failpoint::{self, Failpoint};
use crate::id::InboundKey;

impl Session {
    /// A critical section begins. The signal, the grace and the abort wait for its end, for at most
    /// [`Limits::max_shield_time`](crate::Limits::max_shield_time) and never longer than the deadline of a shutdown.
    /// Sections nest.
    pub fn local_shield(&mut self, now: Instant, key: InboundKey) {
        let until = later(now, self.config.limits.max_shield_time);
        if self.lifecycle.ignores_shields() {
            return;
        }
        let Some(request) = self.requests.get_mut(key.0) else { return };
        let extras = request.extras_mut(&mut self.request_extras);
        extras.shields += 1;
        if extras.shields == 1 {
            extras.alarms.shield = Some(until);
            self.timers.set(until, Timer::Shield(key));
            self.timers.clear(extras.alarms.grace.take(), Timer::Grace(key));
        }
    }

    /// A critical section ends. At the end of the last one the delayed cancel takes effect.
    pub fn local_unshield(&mut self, now: Instant, key: InboundKey) {
        let extras = self.requests.get_mut(key.0).and_then(|request| request.extras_if_any());
        let Some(extras) = extras else { return };
        // It is 0 already if the time of the shield has elapsed. Then the delayed cancel has taken effect.
        if extras.shields == 0 {
            return;
        }
        extras.shields -= 1;
        if extras.shields == 0 {
            self.lift_shield(now, key);
        }
        self.advance(now);
    }

    pub(super) fn shield_over(&mut self, now: Instant, key: InboundKey) {
        if let Some(request) = self.requests.get_mut(key.0) {
            request.drop_shields();
            self.lift_shield(now, key);
        }
    }

    /// Does what a shield delayed.
    pub(super) fn lift_shield(&mut self, now: Instant, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        self.timers.clear(request.take_alarm(|alarms| &mut alarms.shield), Timer::Shield(key));
        let cause = request.cause().cloned();
        match request.state {
            State::Queued | State::Running | State::Ended => {}
            State::CancelPending => {
                if let Some(cause) = cause.filter(|_| !failpoint::active(Failpoint::SignalLost)) {
                    let decides = self.is_decided_by(&cause);
                    self.decide_and_signal(now, key, cause, decides);
                }
            }
            State::Draining { owes_signal: true } => {
                request.state = State::Draining { owes_signal: false };
                self.signal(now, key);
            }
            State::Cancelling => self.start_grace(now, key),
            State::Draining { owes_signal: false } => {
                if cause.is_some() {
                    self.start_grace(now, key);
                }
            }
        }
    }
}
