//! One step of a connection: an input of the machine with the lock held, its outputs in order, and then, without the
//! lock, the effects outside of it.

use std::sync::Arc;
use std::time::Instant;

use crate::driver::effects::Effects;
use crate::driver::state::{ConnectionInner, Payload, State, now};
use crate::sync::atomic::Ordering;

impl ConnectionInner {
    /// One step of the machine: `act` with the lock held, then the outputs in order, then, without the lock, the
    /// effects outside of it.
    pub(crate) fn step<R>(self: &Arc<Self>, act: impl FnOnce(&mut State, Instant, &mut Effects) -> R) -> R {
        self.step_with(
            Payload::None,
            |state, now, effects, _| act(state, now, effects),
            |_, _, result| result,
        )
    }

    /// A step whose input has a payload. `then` gets the rest of it after the outputs, with the lock held.
    pub(crate) fn step_with<T, R>(
        self: &Arc<Self>,
        mut payload: Payload<'_>,
        act: impl FnOnce(&mut State, Instant, &mut Effects, &mut Payload<'_>) -> T,
        then: impl FnOnce(&mut State, Payload<'_>, T) -> R,
    ) -> R {
        let now = now();
        let mut effects = Effects::default();
        let (result, given_back) = {
            let mut state = self.lock();
            let acted = act(&mut state, now, &mut effects, &mut payload);
            state.apply(self, now, &mut payload, &mut effects);
            let result = then(&mut state, payload, acted);
            state.permits.give_back(&self.admission, (!self.exchange_scoped).then_some(&*self.client));
            let held = state.bytes_held();
            let given_back = state.memory.count(held);
            state.call_driver(self, &mut effects);
            (result, given_back)
        };
        self.budget.remove(given_back);
        effects.run(self);
        result
    }
}

impl State {
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
