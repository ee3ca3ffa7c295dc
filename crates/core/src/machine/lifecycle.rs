//! How a connection ends: the end of input, loss, and the six steps of a shutdown.

use std::time::{Duration, Instant};

use super::Session;
use super::inbound::State as RequestState;
use super::input::Lost;
use super::output::{CloseCause, Output};
use super::timers::Timer;
use crate::cause::{Cause, CauseKind};
use crate::id::InboundKey;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Both ways are open.
    Open,
    /// The input has ended; what runs may still answer.
    HalfClosed,
    /// This side shuts down.
    Shutdown(Step),
    /// `Close` was output.
    Closed,
    /// Nothing can be sent any more.
    Lost,
}

/// The steps of a shutdown that take time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Handlers and calls may end by themselves.
    Drain,
    /// Handlers are signalled and have their grace.
    Grace,
}

#[derive(Clone, Debug)]
pub(super) struct Lifecycle {
    state: State,
    /// When the next step is due.
    due: Option<Instant>,
    /// What to do then, in `HalfClosed` and `Lost`.
    then: Then,
    /// A cancelled handler may be waited for without a grace, where the dialect has that. Ends with the connection.
    waits_for_values: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    CancelAll,
    Close,
}

impl Lifecycle {
    pub(super) const fn new() -> Self {
        Self { state: State::Open, due: None, then: Then::CancelAll, waits_for_values: true }
    }

    pub(super) const fn waits_for_values(&self) -> bool {
        self.waits_for_values
    }

    pub(super) const fn state(&self) -> State {
        self.state
    }

    /// A request that arrives now is answered as cancelled.
    pub(super) const fn refuses_requests(&self) -> bool {
        match self.state {
            State::Open => false,
            State::HalfClosed | State::Shutdown(_) | State::Closed | State::Lost => true,
        }
    }

    /// No shield holds past shutdown's deadline.
    pub(super) const fn ignores_shields(&self) -> bool {
        match self.state {
            State::Shutdown(Step::Grace) | State::Closed => true,
            State::Open | State::HalfClosed | State::Shutdown(Step::Drain) | State::Lost => false,
        }
    }
}

impl Session {
    /// The input has ended; the output is still open. What runs has
    /// [`Limits::half_close_grace`](crate::Limits::half_close_grace) to answer, then it is cancelled. No answer can
    /// come any more, so our own calls are settled.
    pub fn recv_half_close(&mut self, now: Instant) {
        match self.lifecycle.state {
            State::Open => {
                self.lifecycle.state = State::HalfClosed;
                self.lifecycle.then = Then::CancelAll;
                self.schedule(now + self.config.limits.half_close_grace);
            }
            State::Shutdown(_) => {}
            State::HalfClosed | State::Closed | State::Lost => return,
        }
        self.lose_all_calls();
        self.advance(now);
    }

    /// The connection is lost, or its output is broken. No answer is written any more and every call of ours is
    /// settled; `lost` says what becomes of the requests we serve.
    pub fn recv_lost(&mut self, now: Instant, lost: Lost) {
        if self.lifecycle.state == State::Lost {
            return;
        }
        self.lifecycle.state = State::Lost;
        self.unschedule();
        self.lose_all_calls();
        match lost {
            Lost::CancelNow => self.cancel_all(now, CauseKind::Disconnected),
            Lost::Detach => {
                self.lifecycle.then = Then::CancelAll;
                self.schedule(now + self.config.limits.detach_grace);
            }
            Lost::Keep => {}
        }
        self.advance(now);
    }

    /// Begins the shutdown, the same on every wire:
    /// 1. requests and top-level calls are refused, while cancels and answers are still read;
    /// 2. what runs may end by itself for `drain`;
    /// 3. handlers are cancelled, cascading;
    /// 4. [`Limits::cancel_grace`](crate::Limits::cancel_grace) later they are aborted;
    /// 5. our own calls are settled with `Shutdown`, without waiting for the peer;
    /// 6. `Close`: flush for [`Limits::flush`](crate::Limits::flush) at most and close.
    pub fn local_shutdown(&mut self, now: Instant, drain: Duration) {
        match self.lifecycle.state {
            State::Open | State::HalfClosed => {}
            State::Shutdown(_) | State::Closed | State::Lost => return,
        }
        self.lifecycle.state = State::Shutdown(Step::Drain);
        self.schedule(now + drain);
        self.advance(now);
    }

    /// The connection is lost and nothing of it is left.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.lifecycle.state == State::Lost && self.requests.len() == 0 && self.calls.len() == 0
    }

    pub(super) fn lifecycle_over(&mut self, now: Instant) {
        self.lifecycle.due = None;
        match (self.lifecycle.state, self.lifecycle.then) {
            (State::Open | State::Closed, _) => {}
            (State::HalfClosed, Then::CancelAll) => {
                self.lifecycle.then = Then::Close;
                self.schedule(now + self.config.limits.cancel_grace);
                self.cancel_all(now, CauseKind::Disconnected);
            }
            (State::HalfClosed, Then::Close) => {
                self.end_all(now);
                self.close(CloseCause::InputEnded);
            }
            (State::Lost, _) => self.cancel_all(now, CauseKind::Disconnected),
            (State::Shutdown(Step::Drain), _) => {
                self.lifecycle.state = State::Shutdown(Step::Grace);
                self.schedule(now + self.config.limits.cancel_grace);
                self.cancel_all(now, CauseKind::Shutdown);
            }
            (State::Shutdown(Step::Grace), _) => {
                self.end_all(now);
                self.close_shutdown(now);
            }
        }
    }

    /// Whatever waited for something to end goes on, if it has. The last thing each input does.
    pub(super) fn after_end(&mut self, now: Instant) {
        match self.lifecycle.state {
            State::Open | State::Closed | State::Lost => {}
            State::HalfClosed => {
                if self.has_idle_handlers() {
                    self.close(CloseCause::InputEnded);
                }
            }
            State::Shutdown(Step::Drain) => {
                if self.has_idle_handlers() && self.open_calls == 0 {
                    self.close_shutdown(now);
                }
            }
            State::Shutdown(Step::Grace) => {
                if self.has_idle_handlers() {
                    self.close_shutdown(now);
                }
            }
        }
    }

    fn close_shutdown(&mut self, now: Instant) {
        self.cancel_all_calls(now, CauseKind::Shutdown);
        self.close(CloseCause::Shutdown);
    }

    fn close(&mut self, cause: CloseCause) {
        self.unschedule();
        self.lifecycle.state = State::Closed;
        self.push(Output::Close(cause));
    }

    /// Cancels every request we serve, the handshake included.
    fn cancel_all(&mut self, now: Instant, kind: CauseKind) {
        self.lifecycle.waits_for_values = false;
        for key in self.requests.keys().into_iter().map(InboundKey) {
            if self.lifecycle.ignores_shields() {
                self.drop_shields(now, key);
            }
            if matches!(self.state_of(key), Some(RequestState::Queued | RequestState::Running)) {
                self.accept_cancel(now, key, Cause::new(kind), None);
            } else {
                self.start_missing_grace(now, key);
            }
        }
    }

    /// Settles and aborts what still runs, shielded or not: nothing can be answered behind `Close`.
    fn end_all(&mut self, now: Instant) {
        for key in self.requests.keys().into_iter().map(InboundKey) {
            self.drop_shields(now, key);
            self.grace_over(now, key);
        }
    }

    fn drop_shields(&mut self, now: Instant, key: InboundKey) {
        let Some(request) = self.requests.get_mut(key.0) else { return };
        if request.shields > 0 {
            request.shields = 0;
            self.lift_shield(now, key);
        }
    }

    /// No handler runs and none waits to.
    fn has_idle_handlers(&self) -> bool {
        self.permits.held() == 0 && self.queue.len() == 0
    }

    fn schedule(&mut self, at: Instant) {
        self.unschedule();
        self.lifecycle.due = Some(at);
        self.timers.set(at, Timer::Lifecycle);
    }

    fn unschedule(&mut self) {
        self.timers.clear(self.lifecycle.due.take(), Timer::Lifecycle);
    }
}
