//! What the handles of a connection, its handlers and its driver share.
//!
//! # Locks
//! - D1 One mutex guards a connection: the machine, the outbox and the tables beside them. It is held for one machine
//!   step, in `ConnectionInner::step` (`step.rs`), and never across an await.
//! - D2 Under it runs no code of a user: values are serialised before it is taken; wakers, handlers' starts, aborts,
//!   tokens, inboxes, hooks and the log are put into [`Effects`] and done after it is released. A codec may be asked to read
//!   a handshake under it; codecs keep no state.
//! - D3 No two connections' mutexes are held at once. What a step means for another connection (a child there, a
//!   parent there) is deferred too. So no cycle of locks exists, and a program may call back in from anywhere.
//! - D4 Locks taken while it is held: a shard of the registry, and nothing else. Those are leaves.
//! - D5 Only the driver's task touches the wire. A step that queues a frame wakes it, once, if it sleeps.
//!
//! # Deadlock
//! A wait for a lock is a wait for the end of one step; a step waits for nothing, by D1 to D4. A wait for the driver
//! is a wait for the wire alone, as the driver waits for no handler, permit or user. A handler that waits for room in
//! the outbox is cancelled and aborted like any other, and a wire that takes nothing holds up nobody who reads.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Notify;

use super::admission::{Admission, Permits};
use super::call_entry::{CallEntry, RemoteAction, Said};
use super::inbound_slot::InboundSlot;
use super::interner::Interner;
use super::memory::Memory;
use super::notification_queue::NotificationQueue;
use super::outbox::{Answer, Outbox};
use super::reported::Reported;
use super::request::RequestData;
use super::send_waiters::SendWaiters;
use super::slots::{SideTable, SlotKey, Slots};
use super::subscriptions::Subscriptions;
use super::timeouts::Timeouts;
use crate::byte_budget::ByteBudget;
use crate::clients::Client;
use crate::dialect::{Dialect, Role};
use crate::error::ConnectionError;
use crate::id::{ExchangeId, InboundKey, OutboundKey};
use crate::machine::{CloseCause, Event, Session, Work};
use crate::registry::{Registry, SessionId};
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use crate::sync::{AbortHandle, Handle, Mutex, MutexGuard};
use crate::transport::{BoxFuture, Capabilities, PeerInfo};

/// A hook for a connection's events.
pub(super) type EventHook = Arc<dyn Fn(&Event) + Send + Sync>;

/// One connection, as all its handles see it.
pub(super) struct ConnectionInner {
    state: Mutex<State>,
    pub(super) dialect: Dialect,
    pub(super) role: Role,
    pub(super) registry: Registry,
    pub(super) session_id: SessionId,
    pub(super) admission: Arc<Admission>,
    /// Whose connection it is. Where it is many clients' at once, each request has its own.
    pub(super) client: Arc<Client>,
    pub(super) runtime: Handle,
    pub(super) traits: Capabilities,
    pub(super) meta: PeerInfo,
    /// What this connection may hold.
    pub(super) budget: ByteBudget,
    pub(super) seed: u128,
    pub(super) max_frame: usize,
    pub(super) exchange_scoped: bool,
    pub(super) handles_cancels: bool,
    pub(super) timeouts: Timeouts,
    pub(super) serves: bool,
    pub(super) on_event: Option<EventHook>,
    /// Handles that keep the connection open.
    pub(super) handles: AtomicUsize,
    /// The connection is to be closed; read without the lock.
    pub(super) closing: AtomicBool,
    /// A cascade has descendants left to walk; read without the lock.
    pub(super) walking: AtomicBool,
    /// Handlers that were started and not polled yet.
    pub(super) beginning: AtomicUsize,
    /// Told once, when the connection has closed.
    pub(super) closed: Notify,
}

/// What a connection is made of, beside its machine.
pub(super) struct Config {
    pub(super) dialect: Dialect,
    pub(super) role: Role,
    pub(super) registry: Registry,
    pub(super) session_id: SessionId,
    pub(super) admission: Arc<Admission>,
    pub(super) client: Arc<Client>,
    pub(super) runtime: Handle,
    pub(super) traits: Capabilities,
    pub(super) meta: PeerInfo,
    pub(super) budget: ByteBudget,
    pub(super) handles_cancels: bool,
    pub(super) timeouts: Timeouts,
    pub(super) serves: bool,
    pub(super) on_event: Option<EventHook>,
}

/// A request this side serves with its connection, which its handler and its contexts share. One allocation for both: it is held for
/// each request in flight.
pub(super) struct Request {
    pub(super) connection: Arc<ConnectionInner>,
    pub(super) data: RequestData,
}

impl Request {
    /// The session it is registered under.
    pub(super) fn session(&self) -> &SessionId {
        self.data.session(&self.connection.session_id)
    }
}

/// A method's handler with its types erased. The trait stands where requests wait for their handlers; who implements it stands above.
pub(super) trait Handler: Send + Sync {
    fn work(&self) -> Work;

    /// Starts its task.
    fn start(&self, request: Arc<Request>, params: Option<Bytes>) -> AbortHandle;
}

/// A notification's handler with its types erased.
pub(super) trait NotificationHandler: Send + Sync {
    fn keeps_order(&self) -> bool;

    fn handle(&self, notified: Notified, params: Option<Bytes>) -> BoxFuture<'static, ()>;
}

/// What is known of a notification beside its params.
pub(super) struct Notified {
    pub(super) connection: Arc<ConnectionInner>,
    pub(super) method: Arc<str>,
    /// It was the connection's so many-th.
    pub(super) number: u64,
}

/// What a request waits with for its permit.
pub(super) struct Waiting {
    pub(super) handler: Option<Arc<dyn Handler>>,
    pub(super) params: Option<Bytes>,
}

/// What the one mutex guards (D1).
pub(super) struct State {
    pub(super) session: Session,
    pub(super) outbox: Outbox,
    pub(super) memory: Memory,
    pub(super) inbound: SideTable<InboundSlot<Request>>,
    /// Requests whose handlers wait for room in the outbox, in the order in which they began to.
    pub(super) waiting_for_room: Vec<InboundKey>,
    /// Notifications of ours that wait for room.
    pub(super) notifiers: SendWaiters,
    pub(super) calls: Slots<CallEntry>,
    pub(super) methods: Interner,
    pub(super) outbound: SideTable<SlotKey>,
    /// Requests that wait for a permit, each with what starts it.
    pub(super) queued: SideTable<Waiting>,
    /// The request that is being taken in in this step, and what starts it.
    pub(super) arriving: Option<(InboundKey, Waiting)>,
    /// The exchange of the request that is taken in in this step, if its handler starts in it: the driver tells the wire
    /// at once, where any other start has to be queued for it.
    pub(super) begun: ExchangeId,
    /// What a handler offers, in the step that offers it.
    pub(super) offered: Option<Answer>,
    /// The answer that is being read in this step.
    pub(super) answer: Option<Said>,
    pub(super) matchers: Subscriptions,
    pub(super) places: Permits,
    /// Calls whose progress somebody reads.
    pub(super) progress_readers: usize,
    pub(super) notices: NotificationQueue<Arc<dyn NotificationHandler>>,
    pub(super) reported: Reported,
    /// Children on other connections, each with what cancels it once it is known where it is.
    pub(super) foreign: HashMap<u64, Option<RemoteAction>>,
    pub(super) next_foreign: u64,
    pub(super) close: Option<CloseCause>,
    pub(super) end: Option<Result<(), ConnectionError>>,
    /// The driver's, while it sleeps.
    pub(super) driver: Option<Waker>,
    /// When the driver wakes by itself.
    pub(super) armed: Option<Instant>,
    /// Something happened since the driver looked last.
    pub(super) dirty: bool,
}

impl ConnectionInner {
    pub(super) fn new(parts: Config, session: Session) -> Self {
        let max_frame = session.limits().frame.min(parts.traits.max_frame);
        Self {
            state: Mutex::new(State {
                session,
                outbox: Outbox::new(),
                memory: Memory::new(&parts.budget),
                inbound: SideTable::new(),
                queued: SideTable::new(),
                waiting_for_room: Vec::new(),
                notifiers: SendWaiters::default(),
                calls: Slots::new(),
                methods: Interner::default(),
                outbound: SideTable::new(),
                arriving: None,
                begun: ExchangeId::NONE,
                offered: None,
                answer: None,
                matchers: Subscriptions::default(),
                places: Permits::default(),
                progress_readers: 0,
                notices: NotificationQueue::default(),
                reported: Reported::default(),
                foreign: HashMap::new(),
                next_foreign: 1,
                close: None,
                end: None,
                driver: None,
                armed: None,
                dirty: false,
            }),
            dialect: parts.dialect,
            role: parts.role,
            registry: parts.registry,
            session_id: parts.session_id,
            admission: parts.admission,
            client: parts.client,
            runtime: parts.runtime,
            traits: parts.traits,
            meta: parts.meta,
            budget: parts.budget,
            seed: draw_seed(),
            max_frame,
            exchange_scoped: parts.traits.exchange_scoped,
            handles_cancels: parts.handles_cancels,
            timeouts: parts.timeouts,
            serves: parts.serves,
            on_event: parts.on_event,
            handles: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            walking: AtomicBool::new(false),
            beginning: AtomicUsize::new(0),
            closed: Notify::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What speaks here, as a span names it.
    pub(super) fn rpc_system(&self) -> &'static str {
        if self.dialect.codec().as_json_rpc().is_some() { "jsonrpc" } else { self.dialect.name() }
    }
}

impl State {
    /// About how many bytes the connection holds.
    pub(super) fn bytes_held(&self) -> usize {
        self.memory.of_requests()
            + self.outbox.bytes()
            + self.notices.bytes()
            + self.session.bytes_remembered()
    }

    pub(super) fn entry_of(&mut self, call: OutboundKey) -> Option<(SlotKey, &mut CallEntry)> {
        let ticket = *self.outbound.get(call.0)?;
        self.calls.get_mut(ticket).map(|entry| (ticket, entry))
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

/// Now, on the runtime's clock, so that a paused one is followed.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A number of this connection's own, drawn from the keys the standard library seeds its hash maps with.
fn draw_seed() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let draw = || u128::from(RandomState::new().hash_one(0u8));
    (draw() << 64) | draw()
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
