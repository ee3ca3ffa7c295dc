//! The requests of a server without sessions that run, by principal and id, and the cancels that came before their requests.
//!
//! - R1 A cancel finds its request or is kept, and a request that begins finds the cancel or is found by it: both happen under one
//!   lock.
//! - R2 Early cancels are bounded in number, for all principals and for each, and in time.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use rescind_core::{Principal, RequestId};
use tokio::time::Instant;

use super::session_state::SessionState;
use crate::sync::{AbortHandle, Mutex, MutexGuard};

/// The most cancels that wait for their requests.
const WAITING: usize = 4096;
/// The most of them for one principal.
const WAITING_OF_ONE: usize = 256;

type Key = (Principal, RequestId);

/// The requests that run, and the cancels that wait.
#[derive(Default)]
pub(super) struct RunningRequests {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: HashMap<Key, Vec<(u64, Weak<SessionState>)>>,
    next: u64,
    early: HashMap<Key, Early>,
    /// In the order in which they end.
    order: VecDeque<(Key, u64)>,
    counts: HashMap<Principal, usize>,
}

/// A cancel that waits for its request.
struct Early {
    frame: Bytes,
    number: u64,
    until: Instant,
}

/// What a cancel did in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cancelled {
    /// It reached this number of requests, at least one.
    Reached(usize),
    /// It waits for its request.
    Kept,
    /// As many cancels wait as may.
    Dropped,
}

impl RunningRequests {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request until the result is dropped, and takes the cancel that came before it.
    pub(super) fn add(self: &Arc<Self>, key: Key, session: &Arc<SessionState>) -> (Running, Option<Bytes>) {
        let mut state = self.state();
        state.forget_old(Instant::now());
        let number = state.number();
        state.running.entry(key.clone()).or_default().push((number, Arc::downgrade(session)));
        let early = state.take_early(&key);
        drop(state);
        (Running { table: Arc::clone(self), key, number, watch: None }, early)
    }

    /// Passes a cancel to each request with this principal and id, or keeps it for this time.
    pub(super) fn cancel(&self, key: Key, frame: &Bytes, keep: Duration) -> Cancelled {
        let found: Vec<_> = {
            let mut state = self.state();
            let now = Instant::now();
            state.forget_old(now);
            match state.running.get(&key) {
                Some(running) => running.iter().filter_map(|(_, session)| session.upgrade()).collect(),
                None => return state.keep(key, frame.clone(), now + keep),
            }
        };
        // Without the lock: the last reference to a session takes it.
        for session in &found {
            session.cancelled_by(frame.clone());
        }
        Cancelled::Reached(found.len())
    }

    /// The requests that run, and the cancels that wait.
    #[cfg(test)]
    pub(super) fn held(&self) -> (usize, usize) {
        let mut state = self.state();
        state.forget_old(Instant::now());
        assert_eq!(state.early.len(), state.counts.values().sum::<usize>());
        (state.running.values().map(Vec::len).sum(), state.early.len())
    }
}

impl State {
    const fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The first of several equal cancels is kept.
    fn keep(&mut self, key: Key, frame: Bytes, until: Instant) -> Cancelled {
        if self.early.contains_key(&key) {
            return Cancelled::Kept;
        }
        let of_one = self.counts.get(&key.0).copied().unwrap_or(0);
        if self.early.len() >= WAITING || of_one >= WAITING_OF_ONE {
            return Cancelled::Dropped;
        }
        let number = self.number();
        self.counts.insert(key.0.clone(), of_one + 1);
        self.order.push_back((key.clone(), number));
        self.early.insert(key, Early { frame, number, until });
        Cancelled::Kept
    }

    fn take_early(&mut self, key: &Key) -> Option<Bytes> {
        let early = self.early.remove(key)?;
        if let Some(count) = self.counts.get_mut(&key.0) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key.0);
            }
        }
        Some(early.frame)
    }

    /// Each is kept for the same time, so the oldest ends first.
    fn forget_old(&mut self, now: Instant) {
        while let Some((key, number)) = self.order.front() {
            let early = self.early.get(key).filter(|early| early.number == *number);
            if early.is_some_and(|early| early.until > now) {
                return;
            }
            let is_over = early.is_some();
            let Some((key, _)) = self.order.pop_front() else { return };
            if is_over {
                self.take_early(&key);
            }
        }
    }
}

/// A request in the table until this is dropped.
pub(super) struct Running {
    table: Arc<RunningRequests>,
    key: Key,
    number: u64,
    /// The task that waits for a cancel from another process.
    watch: Option<AbortHandle>,
}

impl Running {
    /// Ends this task with the request.
    pub(super) fn watched_by(mut self, task: AbortHandle) -> Self {
        self.watch = Some(task);
        self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
        let mut state = self.table.state();
        if let Some(running) = state.running.get_mut(&self.key) {
            running.retain(|(number, _)| *number != self.number);
            if running.is_empty() {
                state.running.remove(&self.key);
            }
        }
    }
}

impl fmt::Debug for RunningRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningRequests").finish_non_exhaustive()
    }
}
