//! What the handles of a connection, its handlers and its driver share.
//!
//! # Locks
//! - D1 One mutex guards a connection: the machine, the outbox and the tables beside them. It is held for one machine
//!   step, in `ConnectionInner::step` (`step.rs`), and never across an await.
//! - D2 Under it runs no code of a user: values are serialised before it is taken; wakers, handlers' starts, aborts,
//!   tokens, inboxes, hooks and the log are put into `Effects` and done after it is released. A codec may be asked to read
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

pub(crate) mod outputs;
pub(crate) mod step;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::byte_budget::ByteBudget;
use crate::clients::Client;
use crate::dialect::{Dialect, Role};
use crate::driver::admission::Admission;
use crate::driver::admission::permits::Permits;
use crate::driver::calls::entry::{CallEntry, RemoteAction, Said};
use crate::driver::memory::Memory;
use crate::driver::notifications::queue::NotificationQueue;
use crate::driver::notifications::send_waiters::SendWaiters;
use crate::driver::notifications::subscriptions::Subscriptions;
use crate::driver::outbox::{Answer, Outbox};
use crate::driver::requests::data::RequestData;
use crate::driver::requests::reported::Reported;
use crate::driver::requests::slot::InboundSlot;
use crate::driver::tables::interner::Interner;
use crate::driver::tables::slots::{SideTable, SlotKey, Slots};
use crate::driver::timeouts::Timeouts;
use crate::error::ConnectionError;
use crate::id::{ExchangeId, InboundKey, OutboundKey};
use crate::machine::{CloseCause, Event, Session, Work};
use crate::registry::{Registry, SessionId};
use crate::sync::atomic::{AtomicBool, AtomicUsize};
use crate::sync::{AbortHandle, Handle, Mutex, MutexGuard};
use crate::transport::{BoxFuture, Capabilities, PeerInfo};

/// A hook for a connection's events.
pub(crate) type EventHook = Arc<dyn Fn(&Event) + Send + Sync>;

/// One connection, as all its handles see it.
pub(crate) struct ConnectionInner {
    state: Mutex<State>,
    pub(crate) dialect: Dialect,
    pub(crate) role: Role,
    pub(crate) registry: Registry,
    pub(crate) session_id: SessionId,
    pub(crate) admission: Arc<Admission>,
    /// Whose connection it is. Where it is many clients' at once, each request has its own.
    pub(crate) client: Arc<Client>,
    pub(crate) runtime: Handle,
    pub(crate) traits: Capabilities,
    pub(crate) meta: PeerInfo,
    /// What this connection may hold.
    pub(crate) budget: ByteBudget,
    pub(crate) seed: u128,
    pub(crate) max_frame: usize,
    pub(crate) exchange_scoped: bool,
    pub(crate) handles_cancels: bool,
    pub(crate) timeouts: Timeouts,
    pub(crate) serves: bool,
    pub(crate) on_event: Option<EventHook>,
    /// Handles that keep the connection open.
    pub(crate) handles: AtomicUsize,
    /// The connection is to be closed; read without the lock.
    pub(crate) closing: AtomicBool,
    /// A cascade has descendants left to walk; read without the lock.
    pub(crate) walking: AtomicBool,
    /// Handlers that were started and not polled yet.
    pub(crate) beginning: AtomicUsize,
    /// Told once, when the connection has closed.
    pub(crate) closed: Notify,
}

/// What a connection is made of, beside its machine.
pub(crate) struct Config {
    pub(crate) dialect: Dialect,
    pub(crate) role: Role,
    pub(crate) registry: Registry,
    pub(crate) session_id: SessionId,
    pub(crate) admission: Arc<Admission>,
    pub(crate) client: Arc<Client>,
    pub(crate) runtime: Handle,
    pub(crate) traits: Capabilities,
    pub(crate) meta: PeerInfo,
    pub(crate) budget: ByteBudget,
    pub(crate) handles_cancels: bool,
    pub(crate) timeouts: Timeouts,
    pub(crate) serves: bool,
    pub(crate) on_event: Option<EventHook>,
}

/// A request this side serves with its connection, which its handler and its contexts share. One allocation for both: it is held for
/// each request in flight.
pub(crate) struct Request {
    pub(crate) connection: Arc<ConnectionInner>,
    pub(crate) data: RequestData,
}

impl Request {
    /// The session it is registered under.
    pub(crate) fn session(&self) -> &SessionId {
        self.data.session(&self.connection.session_id)
    }
}

/// A method's handler with its types erased. The trait stands where requests wait for their handlers; who implements it stands above.
pub(crate) trait Handler: Send + Sync {
    fn work(&self) -> Work;

    /// Starts its task.
    fn start(&self, request: Arc<Request>, params: Option<Bytes>) -> AbortHandle;
}

/// A notification's handler with its types erased.
pub(crate) trait NotificationHandler: Send + Sync {
    fn keeps_order(&self) -> bool;

    fn handle(&self, notified: Notified, params: Option<Bytes>) -> BoxFuture<'static, ()>;
}

/// What is known of a notification beside its params.
pub(crate) struct Notified {
    pub(crate) connection: Arc<ConnectionInner>,
    pub(crate) method: Arc<str>,
    /// It was the connection's so many-th.
    pub(crate) number: u64,
}

/// What a request waits with for its permit.
pub(crate) struct Waiting {
    pub(crate) handler: Option<Arc<dyn Handler>>,
    pub(crate) params: Option<Bytes>,
}

/// What the input of a step comes with. The outputs of the step take it; what none takes stays with who made the input.
pub(crate) enum Payload<'a> {
    None,
    /// What starts the request that is taken in.
    Request(&'a mut Arriving),
    /// What a handler offers.
    Offer(&'a mut Option<Answer>),
    /// The peer's answer to a call.
    Said(&'a mut Option<Said>),
}

/// A request that is taken in.
pub(crate) struct Arriving {
    /// `None` until the machine has taken it in.
    pub(crate) key: Option<InboundKey>,
    pub(crate) waiting: Option<Waiting>,
    /// The exchange on which it has started in this step: the driver tells the transport at once, where any other start has to be
    /// queued for it.
    pub(crate) started: ExchangeId,
}

/// What the one mutex guards (D1).
pub(crate) struct State {
    pub(crate) session: Session,
    pub(crate) outbox: Outbox,
    pub(crate) memory: Memory,
    pub(crate) inbound: SideTable<InboundSlot<Request>>,
    /// Requests whose handlers wait for room in the outbox, in the order in which they began to.
    pub(crate) waiting_for_room: Vec<InboundKey>,
    /// Notifications of ours that wait for room.
    pub(crate) notifiers: SendWaiters,
    pub(crate) calls: Slots<CallEntry>,
    pub(crate) methods: Interner,
    pub(crate) outbound: SideTable<SlotKey>,
    /// Requests that wait for a permit, each with what starts it.
    pub(crate) queued: SideTable<Waiting>,
    pub(crate) matchers: Subscriptions,
    pub(crate) places: Permits,
    /// Calls whose progress somebody reads.
    pub(crate) progress_readers: usize,
    pub(crate) notices: NotificationQueue<Arc<dyn NotificationHandler>>,
    pub(crate) reported: Reported,
    /// Children on other connections, each with what cancels it once it is known where it is.
    pub(crate) foreign: HashMap<u64, Option<RemoteAction>>,
    pub(crate) next_foreign: u64,
    pub(crate) close: Option<CloseCause>,
    pub(crate) end: Option<Result<(), ConnectionError>>,
    /// The driver's, while it sleeps.
    pub(crate) driver: Option<Waker>,
    /// When the driver wakes by itself.
    pub(crate) armed: Option<Instant>,
    /// Something happened since the driver looked last.
    pub(crate) dirty: bool,
}

impl ConnectionInner {
    pub(crate) fn new(parts: Config, session: Session) -> Self {
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

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What speaks here, as a span names it.
    pub(crate) fn rpc_system(&self) -> &'static str {
        if self.dialect.codec().as_json_rpc().is_some() { "jsonrpc" } else { self.dialect.name() }
    }
}

impl State {
    /// About how many bytes the connection holds.
    pub(crate) fn bytes_held(&self) -> usize {
        self.memory.of_requests()
            + self.outbox.bytes()
            + self.notices.bytes()
            + self.session.bytes_remembered()
    }

    pub(crate) fn entry_of(&mut self, call: OutboundKey) -> Option<(SlotKey, &mut CallEntry)> {
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
pub(crate) fn now() -> Instant {
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
