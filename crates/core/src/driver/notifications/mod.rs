//! Notifications of the peer, and the inbox from which a call's handle reads them.

pub(crate) mod queue;
pub(crate) mod tasks;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use serde::de::DeserializeOwned;

use crate::byte_budget::ByteBudget;
use crate::driver::json_text::{JsonText, read_params};
use crate::error::CallError;
use crate::sync::{Mutex, MutexGuard};

/// The most unread notifications of one handle. Above it new ones are dropped and counted.
const MAX_UNREAD: usize = 1024;

/// A notification of the peer.
#[derive(Clone)]
pub struct Notification {
    method: Arc<str>,
    params: Option<JsonText>,
}

impl Notification {
    pub(crate) const fn new(method: Arc<str>, params: Option<JsonText>) -> Self {
        Self { method, params }
    }

    /// The same notification, with its params counted in a budget. `None`: the budget has no room for them.
    fn held_in(self, budget: &ByteBudget) -> Option<Self> {
        let Self { method, params } = self;
        let params = match params {
            Some(params) => {
                let held = budget.try_hold(params.len())?;
                Some(params.unpinned().map_bytes(|bytes| held.with_frame(bytes)))
            }
            None => None,
        };
        Some(Self { method, params })
    }

    /// Its method.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Its params as JSON text.
    #[must_use]
    pub fn raw_params(&self) -> Option<&str> {
        self.params.as_ref().and_then(JsonText::as_str)
    }

    /// Its params as a value.
    ///
    /// # Errors
    /// [`CallError::Notification`] if they do not have the requested type.
    pub fn params<P: DeserializeOwned>(&self) -> Result<P, CallError> {
        read_params(self.params.clone(), |_| ())
            .map_err(|error| CallError::Notification { method: self.method.to_string(), what: error.message })
    }
}

impl fmt::Debug for Notification {
    /// Without the params, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notification").field("method", &self.method).finish_non_exhaustive()
    }
}

/// The peer's notifications for one call, before its answer.
///
/// At most 1024 unread notifications are kept, and no more bytes than the connection's limit. Above that new ones are
/// dropped and [counted](Self::dropped).
#[must_use = "nothing is read unless it is polled"]
pub struct Notifications(Arc<Inbox>);

impl Notifications {
    pub(crate) const fn new(inbox: Arc<Inbox>) -> Self {
        Self(inbox)
    }

    /// The next notification. `None` once the call has ended and all are read.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Notification> {
        std::future::poll_fn(|cx| self.0.poll_next(cx)).await
    }

    /// How many notifications were dropped because too many were unread.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.lock().dropped
    }
}

impl futures_core::Stream for Notifications {
    type Item = Notification;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Notification>> {
        self.0.poll_next(cx)
    }
}

impl fmt::Debug for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifications").field("unread", &self.0.lock().unread.len()).finish()
    }
}

/// The unread notifications of a call. Its lock is never taken while the connection's lock is held.
pub(crate) struct Inbox {
    pub(crate) reads_progress: bool,
    state: Mutex<InboxState>,
}

#[derive(Default)]
struct InboxState {
    unread: VecDeque<Notification>,
    reader: Option<Waker>,
    closed: bool,
    dropped: u64,
}

impl Inbox {
    pub(crate) fn new(reads_progress: bool) -> Arc<Self> {
        Arc::new(Self { reads_progress, state: Mutex::default() })
    }

    /// Keeps a notification until it is read. Its bytes count in the budget of the connection.
    pub(crate) fn push(&self, notification: Notification, budget: &ByteBudget) {
        let kept = notification.held_in(budget);
        let (reader, left) = {
            let mut state = self.lock();
            match kept {
                Some(kept) if state.unread.len() < MAX_UNREAD && !state.closed => {
                    state.unread.push_back(kept);
                    (state.reader.take(), None)
                }
                left => {
                    state.dropped += 1;
                    (None, left)
                }
            }
        };
        drop(left);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    pub(crate) fn close(&self) {
        let reader = {
            let mut state = self.lock();
            state.closed = true;
            state.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Notification>> {
        let mut state = self.lock();
        match state.unread.pop_front() {
            Some(notification) => Poll::Ready(Some(notification)),
            None if state.closed => Poll::Ready(None),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
    use futures_core::Stream;
    use serde_json::value::RawValue;

    use super::*;

    fn text(json: &str) -> JsonText {
        RawValue::from_string(json.to_owned()).map(JsonText::of_value).unwrap()
    }

    fn tick(n: usize) -> Notification {
        Notification::new(Arc::from("tick"), Some(text(&format!("[{n}]"))))
    }

    /// The result of a reader's poll now. A reader of the stream gets the same.
    fn read(notifications: &mut Notifications) -> Poll<Option<usize>> {
        let reported = Pin::new(notifications).poll_next(&mut Context::from_waker(Waker::noop()));
        reported.map(|reported| reported.map(|reported| reported.params::<[usize; 1]>().unwrap()[0]))
    }

    #[test]
    fn unread_notifications_over_the_limit_are_dropped_and_counted() {
        let inbox = Inbox::new(false);
        let mut notifications = Notifications::new(Arc::clone(&inbox));
        assert_eq!((read(&mut notifications), notifications.dropped()), (Poll::Pending, 0));
        let budget = ByteBudget::default();
        (0..MAX_UNREAD + 3).for_each(|n| inbox.push(tick(n), &budget));
        assert_eq!(notifications.dropped(), 3, "I11");
        assert_eq!(read(&mut notifications), Poll::Ready(Some(0)));
        inbox.push(tick(MAX_UNREAD), &budget);
        inbox.close();
        inbox.push(tick(7), &budget);
        assert_eq!(notifications.dropped(), 4, "after the end of its call none is kept");
        for n in 1..=MAX_UNREAD {
            assert_eq!(read(&mut notifications), Poll::Ready(Some(n)));
        }
        assert_eq!(read(&mut notifications), Poll::Ready(None));
    }

    #[test]
    fn unread_notifications_stay_within_the_budget_of_their_connection() {
        let inbox = Inbox::new(false);
        let mut notifications = Notifications::new(Arc::clone(&inbox));
        let budget = ByteBudget::new(7);
        (0..3).for_each(|n| inbox.push(tick(n), &budget));
        assert_eq!((notifications.dropped(), budget.used()), (1, 6), "I11: each is [n]");
        assert_eq!(read(&mut notifications), Poll::Ready(Some(0)));
        assert_eq!(budget.used(), 3);
        drop((inbox, notifications));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn params_are_kept_as_received() {
        let spaced = Notification::new(Arc::from("m"), Some(text("[ 1 ]")));
        assert_eq!((spaced.method(), spaced.raw_params()), ("m", Some("[ 1 ]")));
        assert_eq!(Notification::new(Arc::from("m"), None).raw_params(), None);
    }

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
