//! Which calls read which notifications: the calls whose callers select their notifications.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::driver::notifications::{Inbox, Notification};

/// Whether a notification belongs to a call.
pub(crate) type Belongs = Arc<dyn Fn(&Notification) -> bool + Send + Sync>;

/// A reader that selects notifications for a call.
#[derive(Clone)]
pub(crate) struct Matcher {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) belongs: Belongs,
}

/// The sequence number of a reader. Readers are called in the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seq(u64);

/// The readers in their order.
pub(crate) type Readers = BTreeMap<Seq, Matcher>;

/// The readers of a connection. A notification calls them without the connection's lock, so it holds the list itself
/// and not a copy. The list is copied only if it changes meanwhile: at most once for each notification, which calls all
/// readers anyway.
#[derive(Default)]
pub(crate) struct Subscriptions {
    readers: Arc<Readers>,
    next: u64,
}

impl Subscriptions {
    pub(crate) fn add(&mut self, matcher: Matcher) -> Seq {
        let seq = Seq(self.next);
        self.next += 1;
        Arc::make_mut(&mut self.readers).insert(seq, matcher);
        seq
    }

    /// Removes a reader. The caller drops it without the lock (D2).
    #[must_use]
    pub(crate) fn remove(&mut self, seq: Seq) -> Option<Matcher> {
        Arc::make_mut(&mut self.readers).remove(&seq)
    }

    /// All readers at this moment, if there are any.
    pub(crate) fn all(&self) -> Option<Arc<Readers>> {
        (!self.readers.is_empty()).then(|| Arc::clone(&self.readers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher() -> Matcher {
        Matcher { inbox: Inbox::new(false), belongs: Arc::new(|_| true) }
    }

    #[test]
    fn a_notification_does_not_copy_the_readers() {
        let mut matchers = Subscriptions::default();
        assert!(matchers.all().is_none());
        for _ in 0..1000 {
            matchers.add(matcher());
        }
        let all = matchers.all().unwrap();
        let copies = all.values().filter(|reader| Arc::strong_count(&reader.belongs) != 1).count();
        assert_eq!((all.len(), copies), (1000, 0), "the readers are copied for a notification");
    }

    #[test]
    fn the_end_of_a_call_removes_only_its_own_reader() {
        let mut matchers = Subscriptions::default();
        let added: Vec<_> = (0..1000).map(|_| matchers.add(matcher())).collect();
        let list = Arc::as_ptr(&matchers.readers);
        for seq in added.iter().take(500) {
            let removed = matchers.remove(*seq);
            assert_eq!(removed.map(|removed| Arc::strong_count(&removed.belongs)), Some(1));
        }
        assert_eq!(Arc::as_ptr(&matchers.readers), list, "the list is built anew for each call that ends");
        let left: Vec<_> = matchers.readers.keys().copied().collect();
        assert_eq!(left, added.split_at(500).1, "the others keep their order");
    }

    #[test]
    fn readers_added_or_removed_during_a_lookup_do_not_change_its_result() {
        let mut matchers = Subscriptions::default();
        let first = matchers.add(matcher());
        let asked = matchers.all().unwrap();
        let second = matchers.add(matcher());
        assert!(matchers.remove(first).is_some());
        assert_eq!(asked.keys().collect::<Vec<_>>(), [&first]);
        assert_eq!(matchers.all().unwrap().keys().collect::<Vec<_>>(), [&second]);
        assert!(matchers.remove(first).is_none(), "a number is not given again");
    }
}
