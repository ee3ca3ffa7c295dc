//! Notifications of this side that wait for room in the outbox.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::id::InboundKey;

/// The tasks that wait, in the order in which they started to wait. Each has one place, and leaves it when its wait
/// ends (I3).
#[derive(Default)]
pub(crate) struct SendWaiters {
    waiting: BTreeMap<u64, Waiting>,
    next: u64,
}

struct Waiting {
    /// The request to which the notification belongs. The wait ends with its answer.
    owner: Option<InboundKey>,
    waker: Waker,
}

impl SendWaiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Waits at its place, or at a new one. The caller drops the returned waker without the lock (D2).
    #[must_use]
    pub(crate) fn wait(
        &mut self,
        waiter: &mut Option<u64>,
        owner: Option<InboundKey>,
        waker: &Waker,
    ) -> Option<Waker> {
        if let Some(waiting) = waiter.and_then(|waiter| self.waiting.get_mut(&waiter)) {
            let is_same = waiting.waker.will_wake(waker);
            return (!is_same).then(|| std::mem::replace(&mut waiting.waker, waker.clone()));
        }
        *waiter = Some(self.next);
        self.waiting.insert(self.next, Waiting { owner, waker: waker.clone() });
        self.next += 1;
        None
    }

    /// Leaves a place. The caller drops the returned waker without the lock (D2).
    #[must_use]
    pub(crate) fn leave(&mut self, waiter: u64) -> Option<Waker> {
        self.waiting.remove(&waiter).map(|waiting| waiting.waker)
    }

    /// Takes the wakers of the notifications of this request.
    pub(crate) fn take_of(&mut self, owner: InboundKey) -> Vec<Waker> {
        let of_it = self.waiting.iter().filter(|(_, waiting)| waiting.owner == Some(owner));
        let waiters: Vec<_> = of_it.map(|(waiter, _)| *waiter).collect();
        waiters.into_iter().filter_map(|waiter| self.leave(waiter)).collect()
    }

    /// Takes all wakers.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.waiting).into_values().map(|waiting| waiting.waker)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counts(AtomicUsize);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_waiter_is_woken_through_its_latest_waker() {
        let counts: [Arc<Counts>; 3] = Default::default();
        let [first, second, third] = counts.clone().map(Waker::from);
        let (mut notifiers, mut one, mut other) = (SendWaiters::default(), None, None);
        assert!(notifiers.wait(&mut one, None, &first).is_none());
        assert!(notifiers.wait(&mut other, None, &second).is_none());
        assert!(notifiers.wait(&mut other, None, &second).is_none(), "it is the same waker");
        assert!(notifiers.wait(&mut one, None, &third).is_some(), "the first waker is of no use any more");
        assert_eq!(notifiers.waiting.len(), 2);
        notifiers.take().for_each(Waker::wake);
        assert!(notifiers.is_empty());
        assert_eq!(counts.map(|counts| counts.0.load(Ordering::Relaxed)), [0, 1, 1]);
    }
}
