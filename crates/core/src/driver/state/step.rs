//! One step of a connection: an input of the machine with the lock held, its outputs in order, and then, without the
//! lock, the effects outside of it.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crate::driver::effects::Effects;
use crate::driver::state::{ConnectionInner, Payload, State, now};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;

impl ConnectionInner {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One step of the machine: `act` with the lock held, then the outputs in order, then, without the lock, the
    /// effects outside of it.
    pub(crate) fn step<R>(self: &Arc<Self>, act: impl FnOnce(&mut State, Instant, &mut Effects) -> R) -> R {
        self.step_with(
            Payload::None,
            |state, now, effects, _| act(state, now, effects),
            |_, _, result| result,
        )
    }

    /// A step at this time, which is not after the present: several steps of one task in a row read the clock once.
    pub(crate) fn step_at<R>(
        self: &Arc<Self>,
        now: Instant,
        act: impl FnOnce(&mut State, Instant, &mut Effects) -> R,
    ) -> R {
        self.step_with_at(
            now,
            Payload::None,
            |state, now, effects, _| act(state, now, effects),
            |_, _, result| result,
        )
    }

    /// A step whose input has a payload. `then` gets the rest of it after the outputs, with the lock held.
    pub(crate) fn step_with<T, R>(
        self: &Arc<Self>,
        payload: Payload<'_>,
        act: impl FnOnce(&mut State, Instant, &mut Effects, &mut Payload<'_>) -> T,
        then: impl FnOnce(&mut State, Payload<'_>, T) -> R,
    ) -> R {
        self.step_with_at(now(), payload, act, then)
    }

    #[inline]
    fn step_with_at<T, R>(
        self: &Arc<Self>,
        now: Instant,
        mut payload: Payload<'_>,
        act: impl FnOnce(&mut State, Instant, &mut Effects, &mut Payload<'_>) -> T,
        then: impl FnOnce(&mut State, Payload<'_>, T) -> R,
    ) -> R {
        let mut effects = Effects::default();
        let (result, given_back) = {
            let mut state = self.lock();
            let acted = act(&mut state, now, &mut effects, &mut payload);
            state.apply(self, now, &mut payload, &mut effects);
            let result = then(&mut state, payload, acted);
            let given_back = state.settle_accounts(self);
            state.call_driver(self, &mut effects);
            (result, given_back)
        };
        if given_back > 0 {
            self.budget.remove(given_back);
        }
        effects.run(self);
        result
    }
}

impl State {
    /// Gives back the permits that the step has left over, and counts the bytes that the connection holds. Most steps
    /// change neither. Returns the bytes to give back to the budget, which wakes tasks, so it is done without the lock.
    fn settle_accounts(&mut self, connection: &ConnectionInner) -> usize {
        if self.permits.held() > 0 {
            let client = (!connection.traits.exchange_scoped).then_some(&*connection.client);
            self.permits.give_back(&connection.admission, client);
        }
        let held = self.bytes_held();
        if held == self.bytes_counted {
            return 0;
        }
        self.bytes_counted = held;
        self.memory.count(held)
    }

    /// Approximate bytes that the connection holds.
    pub(crate) fn bytes_held(&self) -> usize {
        self.memory.of_requests()
            + self.outbox.bytes()
            + self.notices.bytes()
            + self.session.bytes_remembered()
    }

    /// Wakes the connection's task if it must act.
    fn call_driver(&mut self, connection: &ConnectionInner, effects: &mut Effects) {
        let earlier = match (self.session.next_timeout(), self.armed) {
            (Some(next), Some(armed)) => next < armed,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let (closing, walking) = (self.close.is_some(), self.session.has_work());
        if closing {
            connection.closing.store(true, Ordering::Relaxed);
        }
        if walking != connection.walking.load(Ordering::Relaxed) {
            connection.walking.store(walking, Ordering::Relaxed);
        }
        let over = self.end.is_some() && self.session.is_finished();
        if self.outbox.take_news() || earlier || closing || walking || over {
            self.dirty = true;
            effects.driver = self.driver.take();
        }
    }
}
