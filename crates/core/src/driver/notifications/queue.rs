//! Notifications of the peer that wait for the router's handlers, in arrival order, and the requests that wait for these
//! handlers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use crate::driver::json_text::JsonText;
use crate::id::{InboundKey, SlotKey};
use crate::machine::Limits;

/// A notification that waits for its handler.
pub(crate) struct Notice<H> {
    pub(crate) handler: H,
    pub(crate) method: Arc<str>,
    pub(crate) params: Option<JsonText>,
    /// Its number among the notifications of the connection; 0 until it is queued.
    pub(crate) number: u64,
}

impl<H> Notice<H> {
    pub(crate) const fn new(handler: H, method: Arc<str>, params: Option<JsonText>) -> Self {
        Self { handler, method, params, number: 0 }
    }

    /// Its size in the limits, in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.method.len() + self.params.as_ref().map_or(0, JsonText::len)
    }
}

/// How an accepted notification is handled.
pub(crate) enum Admitted<H> {
    /// It is handled by a task of its own.
    Concurrent(Notice<H>),
    /// It is the first: a task must be started that empties the queue.
    First,
    /// It waits behind other notifications.
    Behind,
}

/// The queue of notifications.
pub(crate) struct NotificationQueue<H> {
    waiting: VecDeque<Notice<H>>,
    bytes: usize,
    /// How many were accepted.
    number: u64,
    /// How many are handled out of order.
    concurrent: usize,
    /// A task empties the queue.
    worked: bool,
    /// The last one that the task took.
    taken: u64,
    turns: Vec<Turn>,
    /// Calls that were answered and wait until this notification is handled.
    answered: Vec<(u64, SlotKey)>,
    /// The connection's task reads nothing until at most this many wait.
    paused: Option<usize>,
    /// Whether notifications are handled also after the connection is gone.
    pub(crate) outlast: bool,
    /// Tasks that wait until notifications are handled.
    watchers: Vec<Waker>,
    pub(crate) dropped: u64,
}

/// A request whose handler has not started, because the notifications before it are not handled.
struct Turn {
    /// The last of these notifications.
    after: u64,
    request: InboundKey,
    /// Wakes its task.
    waker: Waker,
}

impl<H> Default for NotificationQueue<H> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            number: 0,
            concurrent: 0,
            worked: false,
            taken: 0,
            turns: Vec::new(),
            answered: Vec::new(),
            paused: None,
            outlast: false,
            watchers: Vec::new(),
            dropped: 0,
        }
    }
}

impl<H> NotificationQueue<H> {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.concurrent
    }

    /// The last notification that is not handled yet. A request that arrives now is after it. 0: there is none.
    pub(crate) const fn last_open(&self) -> u64 {
        if self.worked { self.number } else { 0 }
    }

    /// Bytes that wait.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn has_room(&self, limits: &Limits, weight: usize) -> bool {
        self.len() < limits.max_queued_notifications && self.bytes + weight <= limits.max_notification_bytes
    }

    /// Accepts a notification that is handled in order.
    pub(crate) fn push(&mut self, notice: Notice<H>) -> Admitted<H> {
        let mut notice = self.numbered(notice);
        let waits = std::mem::replace(&mut self.worked, true);
        if waits {
            notice.params = notice.params.map(JsonText::unpinned);
        }
        self.waiting.push_back(notice);
        if waits { Admitted::Behind } else { Admitted::First }
    }

    /// Accepts a notification that is handled out of order.
    pub(crate) fn push_concurrent(&mut self, notice: Notice<H>) -> Admitted<H> {
        self.concurrent += 1;
        Admitted::Concurrent(self.numbered(notice))
    }

    fn numbered(&mut self, notice: Notice<H>) -> Notice<H> {
        self.number += 1;
        self.bytes += notice.weight();
        Notice { number: self.number, ..notice }
    }

    /// The next notification in order. `None`: the queue is empty, and its task ends.
    pub(crate) fn pop(&mut self) -> Option<Notice<H>> {
        let notice = self.waiting.pop_front();
        match &notice {
            Some(notice) => {
                self.bytes -= notice.weight();
                self.taken = notice.number;
            }
            None => self.worked = false,
        }
        notice
    }

    /// Whether this notification and all before it are handled, except those that are handled out of order.
    pub(crate) const fn is_handled(&self, number: u64) -> bool {
        !self.worked || self.taken > number
    }

    /// A request waits until this notification is handled. Its task must call this in each poll. Drop the returned waker
    /// without the lock (D2).
    #[must_use]
    pub(crate) fn wait_for_turn(&mut self, after: u64, request: InboundKey, waker: Waker) -> Option<Waker> {
        if let Some(turn) = self.turns.iter_mut().find(|turn| turn.request == request) {
            return Some(std::mem::replace(&mut turn.waker, waker));
        }
        self.turns.push(Turn { after, request, waker });
        None
    }

    /// The wakers of the requests that wait no longer.
    #[must_use]
    pub(crate) fn take_turns(&mut self) -> Vec<Waker> {
        let (due, waiting): (Vec<_>, _) =
            std::mem::take(&mut self.turns).into_iter().partition(|turn| self.is_handled(turn.after));
        self.turns = waiting;
        due.into_iter().map(|turn| turn.waker).collect()
    }

    /// The waker of a request that is cancelled or has ended.
    pub(crate) fn take_turn_of(&mut self, request: InboundKey) -> Option<Waker> {
        let place = self.turns.iter().position(|turn| turn.request == request)?;
        Some(self.turns.swap_remove(place).waker)
    }

    /// A call was answered. It is not settled before this notification is handled.
    pub(crate) fn answer_after(&mut self, number: u64, call: SlotKey) {
        self.answered.push((number, call));
    }

    /// The calls whose answers wait no longer, in the order of their answers.
    #[must_use]
    pub(crate) fn take_answered(&mut self) -> Vec<SlotKey> {
        if self.answered.is_empty() {
            return Vec::new();
        }
        let (due, waiting): (Vec<_>, _) =
            std::mem::take(&mut self.answered).into_iter().partition(|(number, _)| self.is_handled(*number));
        self.answered = waiting;
        due.into_iter().map(|(_, call)| call).collect()
    }

    /// Wakes this task when the next notification is taken, or none is left.
    pub(crate) fn watch(&mut self, waker: Waker) {
        self.watchers.push(waker);
    }

    #[must_use]
    pub(crate) fn take_watchers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.watchers)
    }

    /// Whether so many wait that the connection's task reads no more. It reads again when half of them are handled.
    pub(crate) fn pauses(&mut self, most: usize) -> bool {
        if self.paused.is_none() && self.waiting.len() > most {
            self.paused = Some(most / 2);
        }
        self.paused.is_some()
    }

    /// Whether the connection's task must be woken, because it may read again.
    pub(crate) fn resumes(&mut self) -> bool {
        let resumes = self.paused.is_some_and(|most| self.waiting.len() <= most);
        if resumes {
            self.paused = None;
        }
        resumes
    }

    /// A notification that was handled out of order is done.
    pub(crate) const fn concurrent_done(&mut self, bytes: usize) {
        self.concurrent -= 1;
        self.bytes -= bytes;
    }

    /// Empties the queue when the connection is gone, unless its notifications are handled nevertheless. Drop the returned notifications without the lock (D2).
    #[must_use]
    pub(crate) fn clear(&mut self) -> VecDeque<Notice<H>> {
        if self.outlast {
            return VecDeque::new();
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.bytes -= waiting.iter().map(Notice::weight).sum::<usize>();
        waiting
    }
}

/// The tasks that wait, in the order in which they started to wait. Each has one place, and leaves it when its wait
/// ends (I3).
#[derive(Default)]
pub(crate) struct SendWaiters {
    waiting: BTreeMap<u64, SendWaiter>,
    next: u64,
}

struct SendWaiter {
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
        self.waiting.insert(self.next, SendWaiter { owner, waker: waker.clone() });
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

    use serde_json::value::RawValue;

    use super::*;

    fn text() -> JsonText {
        RawValue::from_string("[1]".to_owned()).map(JsonText::of_value).unwrap()
    }

    use crate::id::CallKey;

    #[test]
    fn the_queue_has_room_up_to_its_limits_of_notifications_and_bytes() {
        let mut limits = Limits::default();
        (limits.max_queued_notifications, limits.max_notification_bytes) = (3, 15);
        let notices =
            |concurrent, bytes| NotificationQueue::<()> { bytes, concurrent, ..NotificationQueue::default() };
        for (notices, weight, has_room) in [
            (notices(0, 0), 15, true),
            (notices(0, 0), 16, false),
            (notices(2, 10), 5, true),
            (notices(2, 10), 6, false),
            (notices(3, 0), 0, false),
        ] {
            let (len, bytes) = (notices.len(), notices.bytes);
            let reported = format!("{weight} bytes beside {len} notifications of {bytes}");
            assert_eq!(notices.has_room(&limits, weight), has_room, "I11: {reported}");
        }
    }

    #[test]
    fn a_notification_weighs_its_method_and_its_params() {
        for (params, weight) in [(None, 2), (Some(text()), 5)] {
            let notice = Notice::new((), Arc::from("ab"), params);
            assert_eq!(notice.weight(), weight, "I11");
        }
    }

    #[test]
    fn a_popped_notification_returns_its_bytes() {
        let notice = || Notice::new((), Arc::from("ab"), Some(text()));
        let mut queue = NotificationQueue::default();
        assert!(matches!(queue.push(notice()), Admitted::First));
        assert!(matches!(queue.push(notice()), Admitted::Behind));
        assert!(matches!(queue.push_concurrent(notice()), Admitted::Concurrent(Notice { number: 3, .. })));
        assert_eq!((queue.len(), queue.bytes(), queue.last_open()), (3, 15, 3));
        assert_eq!(queue.pop().map(|notice| notice.number), Some(1));
        queue.concurrent_done(5);
        assert_eq!((queue.clear().len(), queue.bytes(), queue.len()), (1, 0, 0));
        assert!(queue.pop().is_none() && queue.last_open() == 0, "I3: no task empties the queue");
    }

    #[test]
    fn a_request_waits_until_the_last_notification_before_it_is_handled() {
        let notice = || Notice::new((), Arc::from("ab"), None);
        let request = |slot| InboundKey(CallKey { slot, generation: 0 });
        let mut queue = NotificationQueue::default();
        assert!(queue.is_handled(0), "nothing was received");
        for _ in 0..3 {
            queue.push(notice());
        }
        queue.push_concurrent(notice());
        assert_eq!(queue.last_open(), 4);
        for slot in 0..3 {
            assert!(queue.wait_for_turn(u64::from(slot) + 1, request(slot), Waker::noop().clone()).is_none());
        }
        let again = queue.wait_for_turn(3, request(2), Waker::noop().clone());
        assert!(again.is_some() && queue.turns.len() == 3, "a request waits once");
        assert!(queue.take_turn_of(request(1)).is_some() && queue.take_turn_of(request(1)).is_none());
        queue.pop();
        assert!(queue.take_turns().is_empty(), "the first is only taken");
        queue.pop();
        assert_eq!((queue.is_handled(1), queue.is_handled(2), queue.take_turns().len()), (true, false, 1));
        queue.pop();
        queue.pop();
        assert_eq!((queue.is_handled(4), queue.take_turns().len(), queue.turns.len()), (true, 1, 0));
    }

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
