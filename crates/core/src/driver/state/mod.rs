//! The state of a connection, which its handles, its handlers and its task share.
//!
//! # Locks
//! - D1 One mutex guards a connection: the machine, the outbox and the driver's tables. It is held for one step of the
//!   machine, in `ConnectionInner::step` (`step.rs`), and never across an await.
//! - D2 No code of a user runs while it is held. Values are serialised before it is taken. Wakers, starts of handlers,
//!   aborts, tokens, inboxes, hooks and the log are collected in `Effects` and run after it is released. A codec may
//!   read a handshake while it is held; codecs have no state.
//! - D3 The mutexes of two connections are never held together. Effects on another connection (a child or a parent
//!   there) run after the lock is released. So there is no cycle of locks, and a program may call any function from any
//!   callback.
//! - D4 While it is held, only a shard of the registry or a request log may be locked. Those locks are leaves.
//! - D5 Only the connection's task uses the transport. A step that queues a frame wakes the task if it sleeps.
//!
//! # Deadlock
//! A wait for the lock is a wait for the end of one step, and a step waits for nothing (D1 to D4). A wait for the
//! connection's task is a wait for the transport alone, because the task waits for no handler, permit or user. A
//! handler that waits for room in the outbox is cancelled and aborted like any other, and a transport that accepts no
//! frames does not delay reading.

pub(crate) mod record;
pub(crate) mod step;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Instant;

use tokio::sync::Notify;

use crate::byte_budget::ByteBudget;
use crate::clients::Client;
use crate::collections::{SideTable, SlotMap};
use crate::dialect::{Dialect, Role};
use crate::driver::admission::{Admission, ClientPermit, StepPermits};
use crate::driver::call_table::{AnswerContent, CallEntry, Interner, RemoteAction, Timeouts};
use crate::driver::json_text::JsonText;
use crate::driver::notifications::Subscriptions;
use crate::driver::notifications::queue::{NotificationQueue, SendWaiters};
use crate::driver::outbox::{Answer, Outbox};
use crate::driver::request_log::{LastStamp, Recorder};
use crate::driver::requests::{ClusterKeys, InboundSlot, ProgressTokens, RequestData, TracePropagator};
use crate::driver::tasks::Tasks;
use crate::error::ConnectionError;
use crate::framing::Framing;
use crate::id::{ExchangeId, InboundKey, SlotKey};
use crate::machine::{CloseCause, Event, Session, Work};
use crate::message::{Deviation, DeviationReport};
use crate::registry::{Registry, SessionHash, SessionId};
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use crate::sync::{AbortHandle, Handle, Mutex};
use crate::transport::{BoxFuture, Capabilities, Inbound, PeerInfo, TransportError, UseMark};

/// A function that is called for each event of a connection.
pub(crate) type EventHook = Arc<dyn Fn(&Event) + Send + Sync>;

/// A function that is called for each failure of one call.
pub(crate) type FailureHook = Arc<dyn Fn(&TransportError) + Send + Sync>;

/// A function that is called for each deviation of the peer.
pub(crate) type DeviationHook = Arc<dyn Fn(&DeviationReport<'_>) + Send + Sync>;

/// One connection. All its handles share it.
pub(crate) struct ConnectionInner {
    state: Mutex<DriverState>,
    config: Config,
    pub(crate) seed: u128,
    /// The hash of its session in the registry.
    session_hash: SessionHash,
    pub(crate) max_frame: usize,
    /// Its number in this process.
    pub(crate) number: u64,
    /// When it opened.
    pub(crate) opened: Instant,
    /// Handles that keep the connection open.
    pub(crate) handles: AtomicUsize,
    /// The connection must close. Read without the lock.
    pub(crate) closing: AtomicBool,
    /// A cascade has descendants left to cancel. Read without the lock.
    pub(crate) cascading: AtomicBool,
    /// Handlers that were started and not polled yet.
    pub(crate) beginning: AtomicUsize,
    /// Notified once, when the connection has closed.
    pub(crate) closed: Notify,
}

/// The configuration of a connection, in addition to its machine.
pub(crate) struct Config {
    pub(crate) dialect: Dialect,
    pub(crate) role: Role,
    pub(crate) registry: Registry,
    pub(crate) session_id: SessionId,
    pub(crate) admission: Arc<Admission>,
    /// The client of the connection. If the connection carries several clients, each request has its own.
    pub(crate) client: Arc<Client>,
    pub(crate) runtime: Handle,
    pub(crate) traits: Capabilities,
    pub(crate) meta: PeerInfo,
    /// `None`: the transport is not a byte stream.
    pub(crate) framing: Option<Framing>,
    /// The byte budget of the connection.
    pub(crate) budget: ByteBudget,
    /// Until when the connection counts as used, once the transport or the application asks for it.
    pub(crate) use_mark: OnceLock<UseMark>,
    pub(crate) handles_cancels: bool,
    /// Handlers start after the notifications before their requests are handled.
    pub(crate) in_order: bool,
    pub(crate) timeouts: Timeouts,
    pub(crate) serves: bool,
    pub(crate) on_event: Option<EventHook>,
    pub(crate) on_call_failure: Option<FailureHook>,
    pub(crate) on_deviation: Option<DeviationHook>,
    /// `None`: traces are not read.
    pub(crate) propagator: Option<Arc<dyn TracePropagator>>,
    /// The tasks of its server. `None`: no request becomes a task.
    pub(crate) tasks: Option<Tasks>,
    /// `None`: the connection is not part of a cluster.
    pub(crate) cluster_keys: Option<Arc<dyn ClusterKeys>>,
}

impl Deref for ConnectionInner {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.config
    }
}

/// A request that this side serves, and its connection. Its handler and its contexts share it. Both are in one
/// allocation, because one is held for each request in flight.
pub(crate) struct Request {
    pub(crate) connection: Arc<ConnectionInner>,
    pub(crate) data: RequestData,
}

impl Request {
    /// The session it is registered under.
    pub(crate) fn session(&self) -> &SessionId {
        self.data.session(&self.connection.session_id)
    }

    /// The hash of that session in the registry.
    pub(crate) fn session_hash(&self) -> SessionHash {
        if self.data.has_own_session() {
            self.connection.registry.hash(self.session())
        } else {
            self.connection.session_hash
        }
    }
}

/// A method's handler with its types erased. The trait is defined below its implementations, where requests wait for
/// their handlers.
pub(crate) trait Handler: Send + Sync {
    fn kind(&self) -> HandlerKind;

    /// Starts its task.
    fn start(&self, request: Arc<Request>, params: Option<JsonText>) -> AbortHandle;

    /// Polls it once, if it is quick. If it is not ready then, it becomes a task.
    fn poll_first(&self, request: Arc<Request>, params: Option<JsonText>) {
        let abort = self.start(Arc::clone(&request), params);
        request.data.set_abort(abort);
    }
}

/// How a handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandlerKind {
    Task,
    /// As a task, after a first poll by the connection's task.
    Quick,
    Blocking,
}

impl HandlerKind {
    /// The kind of work that the machine counts.
    pub(crate) const fn work(self) -> Work {
        match self {
            Self::Task | Self::Quick => Work::Task,
            Self::Blocking => Work::Blocking,
        }
    }
}

/// A handler to be started.
pub(crate) struct Start {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) request: Arc<Request>,
    pub(crate) params: Option<JsonText>,
}

/// A notification's handler with its types erased.
pub(crate) trait NotificationHandler: Send + Sync {
    fn keeps_order(&self) -> bool;

    fn handle(&self, notified: Notified, params: Option<JsonText>) -> BoxFuture<'static, ()>;
}

/// A notification without its params.
pub(crate) struct Notified {
    pub(crate) connection: Arc<ConnectionInner>,
    pub(crate) method: Arc<str>,
    /// Its number among the notifications of the connection.
    pub(crate) number: u64,
}

/// The data to start a request that waits for a permit.
pub(crate) struct WaitingRequest {
    pub(crate) handler: Option<Arc<dyn Handler>>,
    pub(crate) params: Option<JsonText>,
}

/// The payload of a step's input. The outputs of the step take it. The caller keeps the rest.
pub(crate) enum Payload<'a> {
    None,
    /// The data to start the request that is received.
    Request(&'a mut Arriving),
    /// The answer of a handler.
    Offer(&'a mut Option<Answer>),
    /// The peer's answer to a call.
    AnswerContent(&'a mut Option<AnswerContent>),
}

/// A request that is received in this step.
pub(crate) struct Arriving {
    /// `None` until the machine has accepted it.
    pub(crate) key: Option<InboundKey>,
    /// `None` when it has started. If its handler is quick, it stays, and the connection's task polls the handler after the
    /// step.
    pub(crate) waiting: Option<WaitingRequest>,
    /// The permit of its client, until it starts.
    pub(crate) client_permit: ClientPermit,
    /// The exchange on which it has started in this step. The connection's task tells the transport at once; any other
    /// start is queued for the task.
    pub(crate) started: ExchangeId,
}

impl Arriving {
    pub(crate) const fn new(waiting: WaitingRequest) -> Self {
        Self {
            key: None,
            waiting: Some(waiting),
            client_permit: ClientPermit::None,
            started: ExchangeId::NONE,
        }
    }
}

/// What the mutex guards (D1).
pub(crate) struct DriverState {
    pub(crate) session: Session,
    pub(crate) outbox: Outbox,
    pub(crate) memory: Memory,
    /// Approximate bytes that the connection held at the end of the last step.
    bytes_counted: usize,
    pub(crate) inbound: SideTable<InboundSlot<Request>>,
    /// Requests whose handlers wait for room in the outbox, in the order in which they started to wait.
    pub(crate) waiting_for_room: Vec<InboundKey>,
    /// Notifications of this side that wait for room.
    pub(crate) notifiers: SendWaiters,
    pub(crate) calls: SlotMap<CallEntry>,
    pub(crate) methods: Interner,
    pub(crate) outbound: SideTable<SlotKey>,
    /// Requests that wait for a permit, each with the data to start it.
    pub(crate) queued: SideTable<WaitingRequest>,
    pub(crate) matchers: Subscriptions,
    pub(crate) permits: StepPermits,
    /// The number of calls whose progress is read.
    pub(crate) progress_readers: usize,
    pub(crate) notices: NotificationQueue<Arc<dyn NotificationHandler>>,
    pub(crate) reported: ProgressTokens,
    /// Children on other connections, each with the action that cancels it. `None` until the child has started.
    pub(crate) foreign: HashMap<u64, Option<RemoteAction>>,
    pub(crate) next_foreign: u64,
    pub(crate) close: Option<CloseCause>,
    pub(crate) end: Option<Result<(), ConnectionError>>,
    /// The waker of the connection's task, while it sleeps.
    pub(crate) driver: Option<Waker>,
    /// The time at which the task's timer wakes it.
    pub(crate) armed: Option<Instant>,
    /// Something has happened since the task looked last.
    pub(crate) dirty: bool,
    /// What is recorded. `None`: no log records the connection.
    pub(crate) recorder: Option<Box<Recorder>>,
    /// The time of the last request or call, as it is kept.
    pub(crate) last_stamp: LastStamp,
    /// Notifications that were written, without those that the peer has answered all the same.
    pub(crate) notifications_written: u32,
    /// When each kind of deviation was logged last.
    pub(crate) logged_deviations: Option<Box<[Option<Instant>; Deviation::KINDS]>>,
}

impl ConnectionInner {
    pub(crate) fn new(config: Config, session: Session) -> Self {
        let max_frame = session.limits().max_frame_bytes.min(config.traits.max_frame);
        Self {
            state: Mutex::new(DriverState {
                session,
                outbox: Outbox::new(),
                memory: Memory::new(&config.budget),
                bytes_counted: 0,
                inbound: SideTable::new(),
                queued: SideTable::new(),
                waiting_for_room: Vec::new(),
                notifiers: SendWaiters::default(),
                calls: SlotMap::new(),
                methods: Interner::default(),
                outbound: SideTable::new(),
                matchers: Subscriptions::default(),
                permits: StepPermits::default(),
                progress_readers: 0,
                notices: NotificationQueue::default(),
                reported: ProgressTokens::default(),
                foreign: HashMap::new(),
                next_foreign: 1,
                close: None,
                end: None,
                driver: None,
                armed: None,
                dirty: false,
                recorder: None,
                last_stamp: LastStamp::default(),
                notifications_written: 0,
                logged_deviations: None,
            }),
            session_hash: config.registry.hash(&config.session_id),
            config,
            seed: draw_seed(),
            max_frame,
            number: next_number(),
            opened: now(),
            handles: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            cascading: AtomicBool::new(false),
            beginning: AtomicUsize::new(0),
            closed: Notify::new(),
        }
    }

    /// The RPC system, as spans name it.
    pub(crate) fn rpc_system(&self) -> &'static str {
        if self.dialect.codec().as_json_rpc().is_some() { "jsonrpc" } else { self.dialect.name() }
    }
}

impl std::fmt::Debug for ConnectionInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("session", &self.session_id)
            .field("dialect", &self.dialect)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("session", self.session())
            .field("id", &self.data.id)
            .field("method", &self.data.method)
            .field("cause", &self.data.cause())
            .finish_non_exhaustive()
    }
}

/// The present time of the runtime's clock, which a test may pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A number that no other connection of this process has.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// A random number for this connection, from the keys with which the standard library seeds its hash maps.
fn draw_seed() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let draw = || u128::from(RandomState::new().hash_one(0u8));
    (draw() << 64) | draw()
}

// The bytes that a connection holds, as its budget counts them.

/// The least change, in bytes, that is passed to the budget. Most steps change less and do not use what connections
/// share.
const REPORT_STEP: usize = 8 * 1024;
/// The approximate size of a request in addition to its frame, in bytes: its slots, its task, the state of its handler.
const REQUEST_BYTES: usize = 1024;

/// The bytes that a connection holds.
#[derive(Debug)]
pub(crate) struct Memory {
    budget: ByteBudget,
    /// The bytes that the budget counts for it.
    reported: usize,
    /// Bytes of requests that wait or run.
    requests: usize,
}

impl Memory {
    pub(crate) fn new(budget: &ByteBudget) -> Self {
        Self { budget: budget.clone(), reported: 0, requests: 0 }
    }

    /// A request was admitted.
    pub(crate) const fn request_came(&mut self, bytes: u32) {
        self.requests += bytes as usize;
    }

    /// A request has ended.
    pub(crate) const fn request_gone(&mut self, bytes: u32) {
        self.requests -= bytes as usize;
    }

    /// The answer of a request waits for room. From now on the request counts with the larger of its frame and its
    /// answer.
    pub(crate) fn answer_waits(&mut self, held: &mut u32, answer: usize) {
        let answer = u32::try_from(answer).unwrap_or(u32::MAX);
        if answer > *held {
            self.requests += (answer - *held) as usize;
            *held = answer;
        }
    }
}

impl Memory {
    /// Bytes of requests that wait or run.
    pub(crate) const fn of_requests(&self) -> usize {
        self.requests
    }

    /// Updates the budget at the end of each step. Returns the bytes that must be given back. The caller does that
    /// without the lock, because it wakes tasks.
    #[must_use]
    pub(crate) fn count(&mut self, held: usize) -> usize {
        let reported = self.reported;
        if held.abs_diff(reported) < REPORT_STEP && (held > 0 || reported == 0) {
            return 0;
        }
        self.reported = held;
        if held > reported {
            self.budget.add(held - reported);
        }
        reported.saturating_sub(held)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.budget.remove(self.reported);
    }
}

/// The bytes that a request counts.
pub(crate) fn bytes_of_request(inbound: &Inbound) -> u32 {
    u32::try_from(inbound.body.len().saturating_add(REQUEST_BYTES)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_in_flight_takes_little() {
        let bytes = (size_of::<Request>(), size_of::<InboundSlot<Request>>());
        assert!(bytes.0 <= 128 && bytes.1 <= 24, "W8: a request and its slot take {bytes:?} bytes");
    }
}
