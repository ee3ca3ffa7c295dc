//! What all clones of a log share: the recorded connections, what has ended on them, and how many.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::cause::Cause;
use crate::driver::request_log::events::{Events, RequestEvent};
use crate::driver::request_log::info::{
    Direction, EndedRequest, RequestInfo, RequestKey, RequestOutcome, SessionInfo,
};
use crate::sync::{Mutex, MutexGuard};

/// The number of ended requests that a [`RequestLog`](crate::RequestLog) keeps.
pub const MAX_ENDED_REQUESTS: usize = 200;

/// A connection that can be recorded. The trait is defined below the connection, which holds recorders.
pub(crate) trait Recorded: Send + Sync {
    /// Whether it has ended, and nothing of it runs.
    fn is_over(&self) -> bool;
    fn info(&self) -> SessionInfo;
    /// Its requests, at most this many.
    fn requests(&self, at_most: usize) -> Vec<RequestInfo>;
    /// Cancels a received request. `true`: it was open and not cancelled before.
    fn stop(self: Arc<Self>, key: RequestKey, cause: Cause) -> bool;
}

/// What all clones of a log share.
#[derive(Default)]
pub(crate) struct Shared {
    state: Mutex<LogState>,
    /// Notified after each change, without any lock held.
    pub(crate) changed: Notify,
}

/// What the log's mutex guards. It is a leaf: it is taken with the lock of a connection held, and no other lock is taken
/// while it is held.
#[derive(Default)]
pub(crate) struct LogState {
    pub(crate) events: Events,
    pub(crate) connections: BTreeMap<u64, Weak<dyn Recorded>>,
    pub(crate) ended: VecDeque<EndedRequest>,
    pub(crate) counts: RequestCounts,
}

/// How many requests started and ended since the log was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCounts {
    /// Received requests.
    pub received: OutcomeCounts,
    /// Calls of this side.
    pub made: OutcomeCounts,
}

/// How many requests of one direction started and ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutcomeCounts {
    /// Those that started.
    pub started: u64,
    /// Those that ended with [`RequestOutcome::Completed`].
    pub completed: u64,
    /// Those that ended with [`RequestOutcome::Failed`].
    pub failed: u64,
    /// Those that ended with [`RequestOutcome::Cancelled`].
    pub cancelled: u64,
    /// Those that ended with [`RequestOutcome::Refused`].
    pub refused: u64,
    /// Those that ended with [`RequestOutcome::Unreadable`].
    pub unreadable: u64,
    /// Those that ended with [`RequestOutcome::Disconnected`].
    pub disconnected: u64,
    /// Those that ended after a cancel, whatever their outcome.
    pub ended_after_cancel: u64,
    /// The sum of their times from the cancel to the end.
    pub cancel_time: Duration,
}

impl OutcomeCounts {
    fn count(&mut self, ended: &EndedRequest) {
        let outcome = match ended.outcome {
            RequestOutcome::Completed => &mut self.completed,
            RequestOutcome::Failed(_) => &mut self.failed,
            RequestOutcome::Cancelled => &mut self.cancelled,
            RequestOutcome::Refused => &mut self.refused,
            RequestOutcome::Unreadable => &mut self.unreadable,
            RequestOutcome::Disconnected => &mut self.disconnected,
        };
        *outcome += 1;
        if let Some(took) = ended.cancel_took() {
            self.ended_after_cancel += 1;
            self.cancel_time = self.cancel_time.saturating_add(took);
        }
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The recorded connections. The lock is released: dropping one of them may take it.
    pub(crate) fn connections(&self) -> Vec<Arc<dyn Recorded>> {
        self.lock().connections.values().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn add(&self, number: u64, connection: Weak<dyn Recorded>) {
        self.lock().connections.insert(number, connection);
    }

    pub(crate) fn remove(&self, number: u64) {
        self.lock().connections.remove(&number);
    }

    /// Counts and keeps a change. The caller notifies the readers when it holds no lock.
    pub(crate) fn record(&self, event: RequestEvent) {
        let mut state = self.lock();
        match &event {
            RequestEvent::Started(request) => state.counts.of(request.key.direction).started += 1,
            RequestEvent::Ended(ended) => {
                state.counts.of(ended.request.key.direction).count(ended);
                if state.ended.len() >= MAX_ENDED_REQUESTS {
                    state.ended.pop_front();
                }
                state.ended.push_back(ended.clone());
            }
            RequestEvent::Changed(_) | RequestEvent::Missed(_) => {}
        }
        state.events.push(event);
    }
}

impl RequestCounts {
    const fn of(&mut self, direction: Direction) -> &mut OutcomeCounts {
        match direction {
            Direction::Received => &mut self.received,
            Direction::Made => &mut self.made,
        }
    }
}
