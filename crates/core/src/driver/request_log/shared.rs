//! What all clones of a log share: the recorded connections, what has ended on them, and how many.
//!
//! # The changes of requests, for any number of readers of any speed
//!
//! The last changes are kept once for all readers. A reader that is slower misses the oldest ones, and learns how many. So no
//! reader delays a connection, and none makes memory grow.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::cause::{Cause, CauseKind};
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

/// The number of changes that are kept.
pub(crate) const MAX_EVENTS: usize = 512;

/// A change of a request or a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestEvent {
    /// It has arrived or was made.
    Started(RequestInfo),
    /// Its status has changed, or it was cancelled. A cancel that a critical section delays is reported when it takes
    /// effect. That a call was written is not reported.
    Changed(RequestInfo),
    /// It has ended.
    Ended(EndedRequest),
    /// The reader was too slow: it missed this many changes. A new snapshot has their result.
    Missed(u64),
}

/// The changes that are kept.
#[derive(Debug, Default)]
pub(crate) struct Events {
    kept: VecDeque<RequestEvent>,
    /// The number of the oldest one that is kept.
    first: u64,
}

impl Events {
    pub(crate) fn push(&mut self, event: RequestEvent) {
        if self.kept.len() >= MAX_EVENTS {
            self.kept.pop_front();
            self.first += 1;
        }
        self.kept.push_back(event);
    }

    /// The number that the next event will get.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// The event of this number, or how many were missed. `None`: it has not happened yet.
    pub(crate) fn read(&self, number: u64) -> Option<RequestEvent> {
        if let Some(missed) = self.first.checked_sub(number).filter(|missed| *missed > 0) {
            return Some(RequestEvent::Missed(missed));
        }
        self.kept.get(usize::try_from(number - self.first).ok()?).cloned()
    }
}

/// The requests and calls of several connections: those in flight, and the last [`MAX_ENDED_REQUESTS`](crate::MAX_ENDED_REQUESTS) that ended. A
/// clone is the same log.
///
/// A connection is recorded from when it is added, until all clones of the log and its watches are dropped. A
/// connection that no log records does not pay for it. Each log holds at most about a megabyte for what has ended.
///
/// ```
/// use rescind_core::{CallContext, Peer, RequestLog, Router, dialect, memory_pair};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (client, server) = memory_pair();
/// let log = RequestLog::new();
/// let router = Router::new().method("wait", |ctx: CallContext, (): ()| async move {
///     let cause = ctx.cancelled().await;
///     ctx.stopped::<()>(cause)
/// });
/// let _server = Peer::builder(dialect::ACP).serve(router).request_log(&log).attach(server)?;
/// let peer = Peer::builder(dialect::ACP).attach(client)?;
/// let call = peer.call::<_, ()>("wait", &()).start()?;
/// let mut changes = log.watch();
/// changes.next().await;
/// let running = log.requests(10);
/// assert_eq!(running[0].method.as_deref(), Some("wait"));
/// log.stop(running[0].key, "it waits for too long");
/// assert!(call.await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RequestLog(Arc<Shared>);

impl RequestLog {
    /// A log that records no connection yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) const fn of(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// The recorded connections that are open, or on which a handler still runs.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionInfo> {
        let open = self.0.connections().into_iter().filter(|connection| !connection.is_over());
        open.map(|connection| connection.info()).collect()
    }

    /// The requests and calls in flight on the recorded connections, at most this many.
    #[must_use]
    pub fn requests(&self, at_most: usize) -> Vec<RequestInfo> {
        let mut requests = Vec::new();
        for connection in self.0.connections() {
            requests.append(&mut connection.requests(at_most - requests.len()));
            if requests.len() >= at_most {
                break;
            }
        }
        requests
    }

    /// The last requests and calls that have ended, the oldest first.
    #[must_use]
    pub fn ended(&self) -> Vec<EndedRequest> {
        self.0.lock().ended.iter().cloned().collect()
    }

    /// How many requests and calls started and ended.
    #[must_use]
    pub fn counts(&self) -> RequestCounts {
        self.0.lock().counts
    }

    /// A number that changes with each change of a request.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.lock().events.next()
    }

    /// The changes from now on. Take the watch before a snapshot, so that no change is between them.
    #[must_use]
    pub fn watch(&self) -> RequestWatch {
        RequestWatch::new(Arc::clone(&self.0), self.version())
    }

    /// Stops a received request, as an operator does: it is cancelled with the cause
    /// [`CauseKind::Operator`](crate::CauseKind::Operator), and its caller gets the dialect's cancelled answer, which
    /// names an operator. The reason is for the handler and the log, and is not sent. Returns `true` if the request was
    /// open and not cancelled before.
    pub fn stop(&self, key: RequestKey, reason: &str) -> bool {
        let connection = self.0.lock().connections.get(&key.connection).and_then(Weak::upgrade);
        let cause = Cause::new(CauseKind::Operator).with_reason(reason);
        connection.is_some_and(|connection| connection.stop(key, cause))
    }
}

impl Default for RequestLog {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RequestLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        f.debug_struct("RequestLog")
            .field("connections", &state.connections.len())
            .field("counts", &state.counts)
            .finish_non_exhaustive()
    }
}

/// Reads the changes of a [`RequestLog`](crate::RequestLog). It keeps the log's recording alive.
pub struct RequestWatch {
    shared: Arc<Shared>,
    next: u64,
}

impl RequestWatch {
    pub(crate) const fn new(shared: Arc<Shared>, next: u64) -> Self {
        Self { shared, next }
    }

    /// The next change, if one has happened that was not read.
    pub fn try_next(&mut self) -> Option<RequestEvent> {
        let event = self.shared.lock().events.read(self.next)?;
        self.next += match &event {
            RequestEvent::Missed(missed) => *missed,
            RequestEvent::Started(_) | RequestEvent::Changed(_) | RequestEvent::Ended(_) => 1,
        };
        Some(event)
    }

    /// Waits for the next change. It waits for as long as the watch lives, also if no connection is left.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> RequestEvent {
        let shared = Arc::clone(&self.shared);
        loop {
            let mut changed = pin!(shared.changed.notified());
            changed.as_mut().enable();
            if let Some(event) = self.try_next() {
                return event;
            }
            changed.await;
        }
    }
}

impl fmt::Debug for RequestWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestWatch").field("next", &self.next).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_learns_how_many_changes_it_missed_and_memory_is_bounded() {
        let mut events = Events::default();
        assert_eq!(events.read(0), None);
        for missed in 0..10_000 {
            events.push(RequestEvent::Missed(missed));
        }
        assert_eq!(events.kept.len(), MAX_EVENTS, "I11");
        let missed = 10_000 - MAX_EVENTS as u64;
        assert_eq!(events.read(0), Some(RequestEvent::Missed(missed)));
        // Each event has its number as its content here.
        assert_eq!(events.read(missed), Some(RequestEvent::Missed(missed)));
        assert_eq!(events.read(9_999), Some(RequestEvent::Missed(9_999)));
        assert_eq!((events.read(10_000), events.next()), (None, 10_000));
    }
}
