//! Requests and calls as an operator sees them: those in flight, and those that have ended.
//!
//! A connection records nothing until it is added to a [`RequestLog`]. Until then each output of the
//! machine costs one check of a flag.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::pin::pin;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::cause::{Cause, CauseKind};
use crate::dialect::Role;
use crate::id::{CallKey, RequestId};
use crate::machine::{AcceptedCancel, RequestStatus, Stats};
use crate::message::ErrorCode;
use crate::registry::SessionId;
use crate::sync::{Mutex, MutexGuard};
use crate::transport::PeerInfo;

// What is shown of a request, of an ended one, and of a session.

/// The most bytes of a method's name that a [`RequestLog`](crate::RequestLog) keeps. A peer may send longer names.
pub const MAX_RECORDED_METHOD_BYTES: usize = 256;

/// The direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// The peer asked this side.
    Received,
    /// This side asked the peer: a call.
    Made,
}

impl Direction {
    /// The direction as one lower-case word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Made => "made",
        }
    }
}

/// Names a request or a call of this process. No two of them have the same key, also not one after the other.
///
/// ```
/// use rescind_core::RequestKey;
///
/// let key: RequestKey = "7-received-3-0".parse().unwrap();
/// assert_eq!(key.to_string(), "7-received-3-0");
/// assert!("7-received-3".parse::<RequestKey>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey {
    pub(crate) connection: u64,
    pub(crate) direction: Direction,
    pub(crate) key: CallKey,
}

impl RequestKey {
    /// The number of its connection in this process, as [`SessionInfo::connection`] has it.
    #[must_use]
    pub const fn connection(&self) -> u64 {
        self.connection
    }

    /// Its direction.
    #[must_use]
    pub const fn direction(&self) -> Direction {
        self.direction
    }
}

impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connection, direction, key } = self;
        write!(f, "{connection}-{}-{}-{}", direction.name(), key.slot, key.generation)
    }
}

/// A text that is not a [`RequestKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request key is written CONNECTION-DIRECTION-SLOT-GENERATION")]
pub struct InvalidRequestKey;

impl FromStr for RequestKey {
    type Err = InvalidRequestKey;

    fn from_str(text: &str) -> Result<Self, InvalidRequestKey> {
        fn number<N: FromStr>(part: Option<&str>) -> Result<N, InvalidRequestKey> {
            let digits = part.filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
            digits.and_then(|digits| digits.parse().ok()).ok_or(InvalidRequestKey)
        }
        let mut parts = text.split('-');
        let connection = number(parts.next())?;
        let direction = match parts.next() {
            Some("received") => Direction::Received,
            Some("made") => Direction::Made,
            Some(_) | None => return Err(InvalidRequestKey),
        };
        let key = CallKey { slot: number(parts.next())?, generation: number(parts.next())? };
        if parts.next().is_some() {
            return Err(InvalidRequestKey);
        }
        Ok(Self { connection, direction, key })
    }
}

/// A request that the peer made, or a call of this side, while it is in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestInfo {
    /// Its key.
    pub key: RequestKey,
    /// Its session. Over stateless HTTP each request has its own.
    pub session: SessionId,
    /// Its id on the wire.
    pub id: RequestId,
    /// Its method, as its caller wrote it: escape it before it is shown. `None` if it is not known any more: a call
    /// that is written keeps its method only while its connection is recorded, or if few methods were called on it.
    pub method: Option<Arc<str>>,
    /// Its subject, such as its tool or its document, as its caller wrote it. `None`: the dialect's
    /// [`ShownMembers`](crate::dialect::ShownMembers) find nothing, the connection was not recorded when it came, its params
    /// have more than 64 KiB, or it is a call of this side.
    pub about: Option<Arc<str>>,
    /// The name and the version of its client, as the handshake or in other dialects the request itself has them. `None`: they
    /// do not say it, the connection was not recorded then, or it is a call of this side.
    pub client: Option<Arc<str>>,
    /// The progress that its handler reported last. `None`: none, or the connection was not recorded then.
    pub progress: Option<RequestProgress>,
    /// How far it is.
    pub status: RequestStatus,
    /// When it arrived or was made, exact to a millisecond.
    pub started: Instant,
    /// The request to which a call belongs, on this connection or another. Once that request is cancelled, only a
    /// recorded connection still knows it.
    pub parent: Option<RequestKey>,
    /// Its first accepted cancel.
    pub cancel: Option<AcceptedCancel>,
}

/// How far a request is, as its handler reports it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RequestProgress {
    /// What is done.
    pub done: f64,
    /// Of how much. `None`: the handler does not say.
    pub total: Option<f64>,
}

impl Eq for RequestProgress {}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestOutcome {
    /// With a value. After a cancel the value may be partial.
    Completed,
    /// With an error that does not say "cancelled".
    Failed(ErrorCode),
    /// It was cancelled. A received request was answered so, or not answered where the dialect forbids that.
    Cancelled,
    /// A limit refused it while it waited.
    Refused,
    /// The answer to a call could not be read.
    Unreadable,
    /// The connection was lost before an answer.
    Disconnected,
}

impl RequestOutcome {
    /// The outcome as one lower-case word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
            Self::Refused => "refused",
            Self::Unreadable => "unreadable",
            Self::Disconnected => "disconnected",
        }
    }
}

/// A request or a call that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndedRequest {
    /// What was known of it last.
    pub request: RequestInfo,
    /// How it ended.
    pub outcome: RequestOutcome,
    /// When it ended: of a received request, when its handler had ended too.
    pub ended: Instant,
}

impl EndedRequest {
    /// A request that has ended.
    pub(crate) const fn new(request: RequestInfo, outcome: RequestOutcome, ended: Instant) -> Self {
        Self { request, outcome, ended }
    }

    /// The time from its start to its end.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.ended.saturating_duration_since(self.request.started)
    }

    /// The time from its cancel to its end. `None`: it was not cancelled.
    #[must_use]
    pub fn cancel_took(&self) -> Option<Duration> {
        self.request.cancel.as_ref().map(|cancel| self.ended.saturating_duration_since(cancel.at))
    }
}

/// A connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its number in this process.
    pub connection: u64,
    /// Its name in the registry.
    pub session: SessionId,
    /// The name of its dialect.
    pub dialect: &'static str,
    /// The role of this side.
    pub role: Role,
    /// What the transport knows about the peer.
    pub peer: PeerInfo,
    /// The name and the version of the client, as its handshake has them. `None`: the handshake does not say it, or the
    /// connection was not recorded then.
    pub client: Option<Arc<str>>,
    /// When it opened.
    pub opened: Instant,
    /// Its counters.
    pub stats: Stats,
}

/// The name, or its beginning if it is longer than is kept.
pub(crate) fn recorded_method(method: Arc<str>) -> Arc<str> {
    if method.len() <= MAX_RECORDED_METHOD_BYTES { method } else { beginning(&method).into() }
}

/// The beginning of a text that is kept.
pub(crate) fn beginning(text: &str) -> &str {
    let mut end = text.len().min(MAX_RECORDED_METHOD_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// A time in milliseconds since its connection opened. It wraps after 49 days: read at a time that is less than 24 days
/// later, it is exact to a millisecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp(u32);

/// The stamp that a connection gave last. Most requests arrive in the same millisecond as the one before them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastStamp {
    stamp: Stamp,
    /// The end of its millisecond. `None`: there was no stamp.
    until: Option<Instant>,
}

impl LastStamp {
    /// The stamp of this time, on a connection that opened at `opened`. A time before the last stamp gets that stamp.
    pub(crate) fn of(&mut self, now: Instant, opened: Instant) -> Stamp {
        if self.until.is_none_or(|until| now >= until) {
            self.stamp = Stamp::of(now, opened);
            let nanos = now.saturating_duration_since(opened).subsec_nanos() % 1_000_000;
            self.until = now.checked_add(Duration::from_nanos(u64::from(1_000_000 - nanos)));
        }
        self.stamp
    }
}

impl Stamp {
    fn of(now: Instant, opened: Instant) -> Self {
        let since = now.saturating_duration_since(opened);
        #[expect(clippy::cast_possible_truncation, reason = "it wraps")]
        let seconds = since.as_secs() as u32;
        Self(seconds.wrapping_mul(1000).wrapping_add(since.subsec_millis()))
    }

    /// The time that was stamped. A stamp of a later millisecond than `now` is that of `now`: a step takes its time
    /// before it has the lock.
    pub(crate) fn time(self, now: Instant, opened: Instant) -> Instant {
        let age = Self::of(now, opened).0.wrapping_sub(self.0);
        let age = if age > u32::MAX / 2 { 0 } else { age };
        now.checked_sub(Duration::from_millis(age.into())).map_or(opened, |time| time.max(opened))
    }
}

// What all clones of a log share: the recorded connections, what has ended on them, and how many.
//
// # The changes of requests, for any number of readers of any speed
//
// The last changes are kept once for all readers. A reader that is slower misses the oldest ones, and learns how many. So no
// reader delays a connection, and none makes memory grow.

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
    /// Its status or its progress has changed, or it was cancelled. A cancel that a critical section delays is reported when it takes
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

// What one connection tells the logs that record it.

/// The logs whose readers must be notified when no lock is held.
pub(crate) type Notified = Vec<Arc<Shared>>;

/// The logs of a connection, and the last state of each request in flight that they have.
pub(crate) struct Recorder {
    connection: u64,
    logs: Vec<Weak<Shared>>,
    /// The name and the version of the client, as its handshake has them.
    pub(crate) client: Option<Arc<str>>,
    /// The limits of requests and calls bound it: it holds none that has ended.
    known: HashMap<(Direction, CallKey), Known>,
}

struct Known {
    info: RequestInfo,
    /// How it will have ended, once that is decided.
    outcome: Option<RequestOutcome>,
    /// When the logs got its progress last.
    told_progress: Option<Instant>,
}

/// The shortest time between two changes of a request's progress that the logs get.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

impl Recorder {
    pub(crate) fn new(connection: u64) -> Self {
        Self { connection, logs: Vec::new(), client: None, known: HashMap::new() }
    }

    /// Adds a log, which gets all requests in flight. It has no effect for a log that was added before.
    pub(crate) fn add(&mut self, log: &Arc<Shared>, in_flight: Vec<RequestInfo>) {
        if self.logs.iter().any(|known| known.as_ptr() == Arc::as_ptr(log)) {
            return;
        }
        self.logs.push(Arc::downgrade(log));
        for info in in_flight {
            log.record(RequestEvent::Started(self.know(info)));
        }
    }

    /// Whether any log is left.
    pub(crate) fn has_readers(&self) -> bool {
        self.logs.iter().any(|log| log.strong_count() > 0)
    }

    /// The last state of a request that the logs have.
    pub(crate) fn known(&self, direction: Direction, key: CallKey) -> Option<&RequestInfo> {
        self.known.get(&(direction, key)).map(|known| &known.info)
    }

    /// A request has arrived, or a call was made.
    pub(crate) fn started(&mut self, info: RequestInfo, notified: &mut Notified) {
        let event = RequestEvent::Started(self.know(info));
        self.tell(&event, notified);
    }

    /// A request has this status and this cancel now. The logs get it if it is new. The first cancel is kept.
    pub(crate) fn changed(
        &mut self,
        key: (Direction, CallKey),
        status: RequestStatus,
        cancel: Option<AcceptedCancel>,
        notified: &mut Notified,
    ) {
        let Some(Known { info, .. }) = self.known.get_mut(&key) else { return };
        let is_new_cancel = info.cancel.is_none() && cancel.is_some();
        if info.status == status && !is_new_cancel {
            return;
        }
        info.status = status;
        if is_new_cancel {
            info.cancel = cancel;
        }
        let event = RequestEvent::Changed(info.clone());
        self.tell(&event, notified);
    }

    /// A request is so far now. The logs get it at most ten times a second.
    pub(crate) fn progressed(
        &mut self,
        key: (Direction, CallKey),
        progress: RequestProgress,
        now: Instant,
        notified: &mut Notified,
    ) {
        let Some(known) = self.known.get_mut(&key) else { return };
        known.info.progress = Some(progress);
        if known.told_progress.is_some_and(|told| now < told + PROGRESS_INTERVAL) {
            return;
        }
        known.told_progress = Some(now);
        let event = RequestEvent::Changed(known.info.clone());
        self.tell(&event, notified);
    }

    /// How a request will have ended.
    pub(crate) fn decided(&mut self, key: (Direction, CallKey), outcome: RequestOutcome) {
        if let Some(known) = self.known.get_mut(&key) {
            known.outcome = Some(outcome);
        }
    }

    /// A request has ended. A request whose outcome was not decided lost its connection.
    pub(crate) fn ended(&mut self, key: (Direction, CallKey), now: Instant, notified: &mut Notified) {
        let Some(Known { info, outcome, .. }) = self.known.remove(&key) else { return };
        let outcome = outcome.unwrap_or(RequestOutcome::Disconnected);
        self.tell(&RequestEvent::Ended(EndedRequest::new(info, outcome, now)), notified);
    }

    fn know(&mut self, mut info: RequestInfo) -> RequestInfo {
        info.method = info.method.map(recorded_method);
        let RequestKey { direction, key, .. } = info.key;
        let known =
            self.known.entry((direction, key)).or_insert(Known { info, outcome: None, told_progress: None });
        known.info.clone()
    }

    fn tell(&mut self, event: &RequestEvent, notified: &mut Notified) {
        self.logs.retain(|log| {
            let Some(log) = log.upgrade() else { return false };
            log.record(event.clone());
            if !notified.iter().any(|known| Arc::ptr_eq(known, &log)) {
                notified.push(log);
            }
            true
        });
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        for log in self.logs.iter().filter_map(Weak::upgrade) {
            log.remove(self.connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_written_and_nothing_else_is() {
        for direction in [Direction::Received, Direction::Made] {
            let key = RequestKey {
                connection: u64::MAX,
                direction,
                key: CallKey { slot: u32::MAX, generation: 9 },
            };
            assert_eq!(key.to_string().parse(), Ok(key));
            assert_eq!((key.connection(), key.direction()), (u64::MAX, direction));
        }
        for text in [
            "",
            "1",
            "1-made",
            "1-made-2",
            "1-made-2-3-4",
            "1-sent-2-3",
            "-1-made-2-3",
            "1-made-+2-3",
            "1-made--3",
            "1-made-4294967296-3",
        ] {
            assert_eq!(text.parse::<RequestKey>(), Err(InvalidRequestKey), "{text}");
        }
    }

    #[test]
    fn a_long_name_is_cut_at_a_character_and_a_short_one_is_shared() {
        let short: Arc<str> = Arc::from("work");
        assert!(Arc::ptr_eq(&recorded_method(Arc::clone(&short)), &short));
        let long = recorded_method(Arc::from(format!("x{}", "é".repeat(4000))));
        assert_eq!(long.len(), MAX_RECORDED_METHOD_BYTES - 1);
    }

    #[test]
    fn a_stamp_is_exact_to_a_millisecond_and_survives_its_wrap() {
        let opened = Instant::now();
        for (opened_before, age) in
            [(0, 0), (5, 5), (90_000, 1234), (5_000_000_000, 777), (4_294_967_500, 900)]
        {
            let now = opened + Duration::from_micros(opened_before * 1000 + 123_456);
            let came = now.checked_sub(Duration::from_millis(age)).unwrap();
            let read = Stamp::of(came, opened).time(now, opened);
            let off = read.max(came) - read.min(came);
            assert!(off <= Duration::from_millis(1), "{opened_before}: {off:?}");
        }
    }

    #[test]
    fn a_time_before_the_connection_is_its_beginning() {
        let opened = Instant::now();
        assert_eq!(Stamp::of(opened, opened + Duration::from_secs(9)), Stamp::default());
        assert_eq!(Stamp::default().time(opened, opened), opened);
    }

    #[test]
    fn the_last_stamp_is_given_again_until_its_millisecond_ends() {
        let opened = Instant::now();
        let mut last = LastStamp::default();
        for micros in [0, 999, 1000, 1999, 2001, 900_000, 900_999, 901_000, 5_000_000] {
            let now = opened + Duration::from_micros(micros);
            assert_eq!(last.of(now, opened), Stamp::of(now, opened), "{micros} us");
        }
    }

    #[test]
    fn a_time_that_another_step_has_passed_gets_the_stamp_of_that_step_and_no_great_age() {
        let opened = Instant::now();
        let (before, now) = (opened + Duration::from_micros(6_900), opened + Duration::from_micros(7_100));
        let mut last = LastStamp::default();
        let stamp = last.of(now, opened);
        assert_eq!(last.of(before, opened), stamp);
        assert_eq!(stamp.time(before, opened), before);
    }

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
