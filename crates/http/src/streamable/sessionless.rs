//! A server without sessions: each request has one of its own, which nobody can name and which ends with its response.
//!
//! # Running requests and early cancels
//!
//! The requests that run, by principal and id, and the cancels that came before their requests.
//!
//! - R1 A cancel finds its request or is kept, and a request that begins finds the cancel or is found by it: both happen under one
//!   lock.
//! - R2 Early cancels are bounded in number, for all principals and for each, and in time.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use rescind_core::{CancelBodies, HeldBytes, Principal, RequestId};
use tokio::time::Instant;

use crate::envelope::{Envelope, once};
use crate::server::checks::Refused;
use crate::server::{RouteRefusal, SHARED_CANCEL_KEPT, Settings};
use crate::streamable::session::SessionState;
use crate::sync::{AbortHandle, Mutex, MutexGuard, spawn};

/// The largest cancel, in bytes. It is passed to other processes as it is.
const MAX_CANCEL: usize = 4096;

/// The part of a server that only one without sessions has.
#[derive(Debug)]
pub(super) struct Sessionless {
    cancel: CancelBodies,
    running: Arc<RunningRequests>,
}

/// What a POST holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A request, and its id if that is valid. An invalid body is passed on like a request, and its session refuses it.
    Request(Option<RequestId>),
    /// A cancel, and the request that it names.
    Cancel(Option<RequestId>),
    Notification,
    Answer,
}

impl Message {
    fn read(cancel: CancelBodies, body: &[u8]) -> Self {
        let read = Envelope::of(body);
        if read.is_answer() {
            return Self::Answer;
        }
        match read.method() {
            Some(method) if read.id.is_none() && method == cancel.method => {
                let [id] = once(read.params, [cancel.request]);
                Self::Cancel(id.and_then(|id| RequestId::from_json(id.get()).ok()))
            }
            Some(_) if read.id.is_none() => Self::Notification,
            Some(_) | None => Self::Request(read.id()),
        }
    }
}

impl Sessionless {
    pub(super) fn new(cancel: CancelBodies) -> Self {
        Self { cancel, running: Arc::default() }
    }

    /// Handles a message that is not a request.
    pub(super) async fn take(
        &self,
        settings: &Settings,
        principal: Option<&Principal>,
        body: &Bytes,
        held: HeldBytes,
    ) -> Result<Taken, Refused> {
        match Message::read(self.cancel, body) {
            Message::Request(id) => return Ok(Taken::Request(id, held)),
            Message::Answer => {
                return Err(Refused::bad(
                    "this server has no sessions, and no request of it waits for an answer",
                ));
            }
            Message::Notification => {}
            Message::Cancel(id) => match (principal, id) {
                (Some(principal), Some(id)) => self.cancel(settings, principal, id, body, held).await?,
                (None, _) => {
                    settings.counts.cancel_ignored();
                    tracing::debug!(
                        "a cancel was ignored: without an auth hook nobody knows whose request it names"
                    );
                }
                // It names no request.
                (Some(_), None) => {}
            },
        }
        Ok(Taken::Accepted)
    }

    async fn cancel(
        &self,
        settings: &Settings,
        principal: &Principal,
        id: RequestId,
        body: &Bytes,
        held: HeldBytes,
    ) -> Result<(), Refused> {
        if body.len() > MAX_CANCEL {
            return Err(Refused::too_large(MAX_CANCEL));
        }
        let frame = held.with_frame(body.clone());
        let done = self.running.cancel((principal.clone(), id.clone()), &frame, SHARED_CANCEL_KEPT);
        match done {
            Cancelled::Reached(_) => return Ok(()),
            Cancelled::Kept => {}
            Cancelled::Dropped => {
                settings.counts.cancel_ignored();
                tracing::debug!("a cancel is not kept: too many wait for their requests");
            }
        }
        match &settings.session_router {
            Some(router) => {
                let sent = router.cancel_shared(principal, &id, frame).await;
                sent.map_err(RouteRefusal::refused)
            }
            None => Ok(()),
        }
    }

    /// Makes a request known to cancels until its session ends. Called before the session gets the request.
    pub(super) fn begin(&self, settings: &Settings, session: &Arc<SessionState>, id: RequestId) {
        let Some(principal) = session.principal.clone() else { return };
        let watch = settings.session_router.as_ref().and_then(|router| router.watch_shared(&principal, &id));
        let (mut running, early) = self.running.add((principal, id), session);
        if let Some(watch) = watch {
            let session = Arc::downgrade(session);
            let task = spawn(async move {
                let frame = watch.await;
                if let Some(session) = session.upgrade() {
                    session.cancelled_by(frame);
                }
            });
            running = running.watched_by(task.abort_handle());
        }
        session.runs_as(running);
        if let Some(frame) = early {
            session.cancelled_by(frame);
        }
    }
}

/// What became of a message.
pub(super) enum Taken {
    /// It is a request, which needs a session.
    Request(Option<RequestId>, HeldBytes),
    /// It is not, and gets 202.
    Accepted,
}

/// The most cancels that wait for their requests.
const WAITING: usize = 4096;
/// The most of them for one principal.
const WAITING_OF_ONE: usize = 256;

type Key = (Principal, RequestId);

/// The requests that run, and the cancels that wait.
#[derive(Default)]
pub(super) struct RunningRequests {
    state: Mutex<SessionlessState>,
}

#[derive(Default)]
struct SessionlessState {
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
    fn state(&self) -> MutexGuard<'_, SessionlessState> {
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

impl SessionlessState {
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

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use rescind_core::MCP_CANCEL;

    use super::*;
    use crate::server::sessions::Linked as _;
    use crate::streamable::session::Serves;

    fn principal(name: &str) -> Principal {
        Principal(name.into())
    }

    fn session(of: &str) -> Arc<SessionState> {
        let serves = Serves::OneRequest;
        SessionState::new("x".into(), Some(principal(of)), None, &Arc::default(), Weak::new(), serves)
    }

    fn cancel(table: &RunningRequests, of: &str, id: i64) -> Cancelled {
        table.cancel((principal(of), RequestId::number(id)), &Bytes::from_static(b"{}"), SHARED_CANCEL_KEPT)
    }

    #[test]
    fn a_message_is_read_by_the_data_of_its_protocol() {
        let number = |id| Some(RequestId::number(id));
        for (body, message) in [
            (r#"{"jsonrpc":"2.0","id":7,"method":"tools/call"}"#, Message::Request(number(7))),
            (r#"{"jsonrpc":"2.0","id":7,"method":"notifications/cancelled"}"#, Message::Request(number(7))),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#,
                Message::Cancel(number(7)),
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"7"}}"#,
                Message::Cancel(Some(RequestId::text("7").unwrap())),
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"requestId":2}}"#,
                Message::Cancel(None),
            ),
            (r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#, Message::Cancel(None)),
            (r#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":7}}"#, Message::Notification),
            (r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, Message::Notification),
            (r#"{"jsonrpc":"2.0","id":7,"result":null}"#, Message::Answer),
            (r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"no"}}"#, Message::Answer),
            (r#"{"jsonrpc":"2.0","id":null,"method":"tools/call"}"#, Message::Request(None)),
            ("[]", Message::Request(None)),
            ("no json", Message::Request(None)),
        ] {
            assert_eq!(Message::read(MCP_CANCEL, body.as_bytes()), message, "{body}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_is_empty_when_the_sessions_have_ended() {
        let sessionless = Sessionless::new(MCP_CANCEL);
        let settings = Settings::default();
        let (one, two) = (session("ada"), session("ada"));
        sessionless.begin(&settings, &one, RequestId::number(1));
        sessionless.begin(&settings, &two, RequestId::number(1));
        assert_eq!(sessionless.running.held(), (2, 0));
        assert_eq!(cancel(&sessionless.running, "ada", 1), Cancelled::Reached(2), "both have the id");
        assert_eq!(cancel(&sessionless.running, "bob", 1), Cancelled::Kept);
        let (exchange, _) = one.post(Bytes::from_static(b"{}"), one.budget.hold(2), None).unwrap();
        one.finish(exchange, rescind_core::ExchangeEnd::Silent);
        assert_eq!(sessionless.running.held(), (1, 1), "a response ends the session");
        two.end();
        tokio::time::advance(SHARED_CANCEL_KEPT).await;
        assert_eq!(sessionless.running.held(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_early_cancel_waits_for_one_request_and_for_two_seconds() {
        let table = Arc::new(RunningRequests::default());
        let key = |id| (principal("ada"), RequestId::number(id));
        let just_before = SHARED_CANCEL_KEPT.checked_sub(Duration::from_millis(1)).unwrap();
        let session = session("ada");
        assert_eq!(cancel(&table, "ada", 1), Cancelled::Kept);
        tokio::time::advance(just_before).await;
        assert_eq!(cancel(&table, "ada", 1), Cancelled::Kept, "the first one counts");
        assert!(table.add(key(1), &session).1.is_some());
        assert!(table.add(key(1), &session).1.is_none(), "it was for the first request");
        assert_eq!(cancel(&table, "ada", 2), Cancelled::Kept);
        tokio::time::advance(just_before).await;
        // A newer one with an id that was used before has a time of its own.
        assert_eq!(cancel(&table, "ada", 1), Cancelled::Kept);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(table.add(key(2), &session).1.is_none(), "it is over");
        assert!(table.add(key(1), &session).1.is_some());
        assert_eq!(table.held(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_early_cancels_of_one_principal_leave_room_for_others() {
        let table = RunningRequests::default();
        let kept = (0..1000).filter(|id| cancel(&table, "mallory", *id) == Cancelled::Kept).count();
        assert_eq!(kept, 256);
        assert_eq!(cancel(&table, "mallory", 1000), Cancelled::Dropped);
        assert_eq!(cancel(&table, "ada", 1000), Cancelled::Kept);
        for principal in 0..100 {
            for id in 0..100 {
                cancel(&table, &principal.to_string(), id);
            }
        }
        assert_eq!(table.held(), (0, 4096));
        tokio::time::advance(SHARED_CANCEL_KEPT).await;
        assert_eq!(cancel(&table, "mallory", 1), Cancelled::Kept);
        assert_eq!(table.held(), (0, 1));
    }
}
