//! Budgets of bytes: of a server, of each client, of each connection.
//!
//! Budgets form a tree: the bytes of a connection count for its client and for its server too. If a budget is full, new
//! work is refused or waits. Accepted work is never dropped: its answer is counted even if that exceeds the limit.

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The name of the limit in refusals and events.
pub const MEMORY: &str = "memory";

/// A limit of bytes, and how many are in use. Clones share one count.
///
/// ```
/// use rescind_core::ByteBudget;
///
/// let server = ByteBudget::new(100);
/// let connection = server.child(60);
/// let held = connection.try_hold(50).expect("there is room");
/// assert_eq!((connection.used(), server.used()), (50, 50));
/// assert!(connection.try_hold(20).is_none(), "the connection is full");
/// assert!(server.child(60).try_hold(60).is_none(), "so is the server");
/// drop(held);
/// assert_eq!(server.used(), 0);
/// ```
#[derive(Clone)]
pub struct ByteBudget(Arc<Node>);

struct Node {
    limit: AtomicUsize,
    used: AtomicUsize,
    /// The budget for which this one counts too. Set once.
    parent: OnceLock<ByteBudget>,
    waiting: Mutex<Vec<Waker>>,
    /// A task may be in `waiting`.
    is_awaited: AtomicBool,
}

impl Default for ByteBudget {
    /// A budget without a limit.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl ByteBudget {
    /// A budget of `limit` bytes without a parent.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Node {
            limit: AtomicUsize::new(limit),
            used: AtomicUsize::new(0),
            parent: OnceLock::new(),
            waiting: Mutex::new(Vec::new()),
            is_awaited: AtomicBool::new(false),
        }))
    }

    /// A budget of `limit` bytes that counts for this one too.
    #[must_use]
    pub fn child(&self, limit: usize) -> Self {
        let child = Self::new(limit);
        child.set_parent(self);
        child
    }

    /// Sets the parent, for which the bytes of this budget count too, also those in use already. A budget that has a
    /// parent keeps it. Call it while no other thread uses this budget.
    pub fn set_parent(&self, parent: &Self) {
        if self.0.parent.set(parent.clone()).is_ok() {
            parent.add(self.used());
        }
    }

    /// The budget for which this one counts too.
    #[must_use]
    pub fn parent(&self) -> Option<&Self> {
        self.0.parent.get()
    }

    /// Changes the limit, in bytes. Bytes in use stay in use.
    pub fn set_limit(&self, limit: usize) {
        self.0.limit.store(limit, Ordering::Relaxed);
    }

    /// The limit, in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// Bytes in use. It may be more than the limit: answers to accepted requests are always added.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::SeqCst)
    }

    /// Whether this many bytes fit, here and in all parents.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.full_at(bytes).is_none()
    }

    /// Takes this many bytes if they fit. `None`: they do not fit.
    #[must_use]
    pub fn try_hold(&self, bytes: usize) -> Option<HeldBytes> {
        // Bytes that are added and removed again would wake the tasks that wait, and two of them would wake each other
        // forever.
        if bytes > 0 && !self.has_room(bytes) {
            return None;
        }
        let held = self.hold(bytes);
        // Added first and compared then: so two threads cannot both get the same room.
        if bytes > 0 && !self.has_room(0) { None } else { Some(held) }
    }

    /// Takes this many bytes, also if they do not fit: for work that was accepted already.
    pub fn hold(&self, bytes: usize) -> HeldBytes {
        self.add(bytes);
        HeldBytes { budget: self.clone(), bytes }
    }

    /// The same bytes. They count here until the last handle to them is dropped.
    #[must_use]
    pub fn hold_frame(&self, frame: Bytes) -> Bytes {
        let held = self.hold(frame.len());
        held.with_frame(frame)
    }

    /// Ready once this many bytes fit. Until then the task is woken when there may be room.
    pub fn poll_room(&self, bytes: usize, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(full) = self.full_at(bytes) {
            full.await_change(cx.waker());
            // Bytes may have been given back just before the waker was stored.
            if full.fits(bytes) {
                continue;
            }
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// The first budget, from here upwards, without room for this many bytes.
    fn full_at(&self, bytes: usize) -> Option<&Self> {
        let mut budget = self;
        loop {
            if !budget.fits(bytes) {
                return Some(budget);
            }
            budget = budget.parent()?;
        }
    }

    fn fits(&self, bytes: usize) -> bool {
        self.used().saturating_add(bytes) <= self.limit()
    }

    /// Adds bytes in use. Wakes no task.
    pub(crate) fn add(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut budget = Some(self);
        while let Some(at) = budget {
            at.0.used.fetch_add(bytes, Ordering::SeqCst);
            budget = at.parent();
        }
    }

    /// Removes bytes in use, and wakes the tasks that wait for room.
    pub(crate) fn remove(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut budget = Some(self);
        while let Some(at) = budget {
            at.0.used.fetch_sub(bytes, Ordering::SeqCst);
            if at.0.is_awaited.load(Ordering::SeqCst) {
                at.wake_all();
            }
            budget = at.parent();
        }
    }

    fn await_change(&self, waker: &Waker) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|other| other.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        self.0.is_awaited.store(true, Ordering::SeqCst);
    }

    fn wake_all(&self) {
        let waiting = {
            let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            self.0.is_awaited.store(false, Ordering::SeqCst);
            std::mem::take(&mut *waiting)
        };
        for waker in waiting {
            waker.wake();
        }
    }
}

impl fmt::Debug for ByteBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteBudget")
            .field("used", &self.used())
            .field("limit", &self.limit())
            .field("parent", &self.parent())
            .finish()
    }
}

/// Bytes of a [`ByteBudget`] that are in use until this is dropped.
#[derive(Debug)]
#[must_use = "the bytes are given back when it is dropped"]
pub struct HeldBytes {
    budget: ByteBudget,
    bytes: usize,
}

impl HeldBytes {
    /// How many bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the number of bytes, also if they do not fit.
    pub fn resize(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.budget.add(bytes - self.bytes);
        } else {
            self.budget.remove(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Changes the number of bytes if they fit; fewer bytes always fit. Returns `false` if they do not fit, and nothing
    /// changes.
    #[must_use]
    pub fn try_resize(&mut self, bytes: usize) -> bool {
        let before = self.bytes;
        // As in `try_hold`: an attempt that fails wakes no task.
        if bytes > before && !self.budget.has_room(bytes - before) {
            return false;
        }
        self.resize(bytes);
        if bytes > before && !self.budget.has_room(0) {
            self.resize(before);
            return false;
        }
        true
    }

    /// The same frame. These bytes are in use until the last handle to the frame is dropped.
    #[must_use]
    pub fn with_frame(self, frame: Bytes) -> Bytes {
        if frame.is_empty() { frame } else { Bytes::from_owner(HeldFrame { frame, _held: self }) }
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.budget.remove(self.bytes);
    }
}

struct HeldFrame {
    frame: Bytes,
    _held: HeldBytes,
}

impl AsRef<[u8]> for HeldFrame {
    fn as_ref(&self) -> &[u8] {
        &self.frame
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize as Count;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(Count);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn bytes_held_by_a_child_count_in_every_parent_budget() {
        let server = ByteBudget::new(100);
        let client = server.child(50);
        let connection = client.child(40);
        let held = connection.hold(30);
        assert_eq!([server.used(), client.used(), connection.used()], [30; 3]);
        assert!(connection.has_room(10) && !connection.has_room(11), "its own limit");
        assert!(client.has_room(20) && !client.child(100).has_room(21), "its client's");
        drop(held);
        assert_eq!([server.used(), client.used(), connection.used()], [0; 3]);
    }

    #[test]
    fn a_failed_hold_changes_no_budget() {
        let budget = ByteBudget::new(10).child(100);
        let mut held = budget.try_hold(10).unwrap();
        assert!(budget.try_hold(1).is_none() && !held.try_resize(11));
        assert_eq!((held.bytes(), budget.used()), (10, 10));
        assert!(held.try_resize(4) && budget.try_hold(6).is_some());
        // Accepted work exceeds the limit, and then nothing new fits.
        held.resize(20);
        assert_eq!(budget.used(), 20);
        assert!(budget.try_hold(1).is_none());
    }

    #[test]
    fn a_frame_is_held_until_its_last_part_is_dropped() {
        let budget = ByteBudget::new(10);
        let frame = budget.hold_frame(Bytes::from_static(b"12345678"));
        let part = frame.slice(2..3);
        drop(frame);
        assert_eq!((budget.used(), &*part), (8, &b"3"[..]));
        drop(part);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_waiter_for_a_parents_room_is_woken_when_the_parent_gets_bytes_back() {
        let server = ByteBudget::new(10);
        let (one, two) = (server.child(10), server.child(10));
        let held = one.hold(8);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        assert!(two.poll_room(2, &mut cx).is_ready());
        assert!(two.poll_room(3, &mut cx).is_pending() && two.poll_room(3, &mut cx).is_pending());
        assert_eq!(woken.0.load(Ordering::SeqCst), 0);
        drop(held);
        assert_eq!(woken.0.load(Ordering::SeqCst), 1, "once, however often it asked");
        assert!(two.poll_room(3, &mut cx).is_ready());
    }

    #[test]
    fn a_failed_try_hold_wakes_no_waiter() {
        let server = ByteBudget::new(10);
        let _full = server.hold(10);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        assert!(server.poll_room(1, &mut cx).is_pending());
        let mut held = server.child(10).hold(0);
        assert!(!held.try_resize(1) && server.try_hold(1).is_none());
        assert_eq!(woken.0.load(Ordering::SeqCst), 0, "waiters would wake each other forever");
    }

    #[test]
    fn a_parent_set_later_counts_bytes_held_already() {
        let (server, connection) = (ByteBudget::new(100), ByteBudget::default());
        let held = connection.hold(30);
        connection.set_parent(&server);
        connection.set_parent(&ByteBudget::new(1));
        assert_eq!(server.used(), 30);
        drop(held);
        assert_eq!((server.used(), connection.used()), (0, 0));
    }
}
