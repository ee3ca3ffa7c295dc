//! Notifications of the peer that wait for the router's handlers, in arrival order.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::driver::params::unpinned;
use crate::machine::Limits;

/// A notification that waits for its handler.
pub(crate) struct Notice<H> {
    pub(crate) handler: H,
    pub(crate) method: Arc<str>,
    pub(crate) params: Option<Bytes>,
    /// Its number among the notifications of the connection; 0 until it is queued.
    pub(crate) number: u64,
}

impl<H> Notice<H> {
    pub(crate) const fn new(handler: H, method: Arc<str>, params: Option<Bytes>) -> Self {
        Self { handler, method, params, number: 0 }
    }

    /// Its size in the limits, in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.method.len() + self.params.as_ref().map_or(0, Bytes::len)
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
    pub(crate) dropped: u64,
}

impl<H> Default for NotificationQueue<H> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), bytes: 0, number: 0, concurrent: 0, worked: false, dropped: 0 }
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
            notice.params = notice.params.map(unpinned);
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
            Some(notice) => self.bytes -= notice.weight(),
            None => self.worked = false,
        }
        notice
    }

    /// A notification that was handled out of order is done.
    pub(crate) const fn concurrent_done(&mut self, bytes: usize) {
        self.concurrent -= 1;
        self.bytes -= bytes;
    }

    /// Empties the queue when the connection is gone. Drop the returned notifications without the lock (D2).
    #[must_use]
    pub(crate) fn clear(&mut self) -> VecDeque<Notice<H>> {
        let waiting = std::mem::take(&mut self.waiting);
        self.bytes -= waiting.iter().map(Notice::weight).sum::<usize>();
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (params, weight) in [(None, 2), (Some("[1]"), 5)] {
            let notice = Notice::new((), Arc::from("ab"), params.map(Bytes::from));
            assert_eq!(notice.weight(), weight, "I11");
        }
    }

    #[test]
    fn a_popped_notification_returns_its_bytes() {
        let notice = || Notice::new((), Arc::from("ab"), Some(Bytes::from_static(b"[1]")));
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
}
