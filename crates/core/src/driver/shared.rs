//! What the handles of a connection, its handlers and its driver share.
//!
//! # Locks
//! - D1 One mutex guards a connection: the machine, the outbox and the tables beside them. It is held for one machine
//!   step, in [`ConnectionInner::step`], and never across an await.
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

use tokio::sync::Notify;

use super::admission::{Admission, Permits};
use super::call_entry::{CallEntry, RemoteAction, Said};
use super::effects::Effects;
use super::interner::Interner;
use super::memory::Memory;
use super::notification_queue::NotificationQueue;
use super::outbox::{Answer, Outbox};
use super::reported::Reported;
use super::request::{InboundSlot, Waiting};
use super::send_waiters::SendWaiters;
use super::slots::{SideTable, SlotKey, Slots};
use super::subscriptions::Subscriptions;
use super::timeouts::Timeouts;
use crate::byte_budget::ByteBudget;
use crate::clients::Client;
use crate::dialect::{Dialect, Role};
use crate::error::ConnectionError;
use crate::id::{ExchangeId, InboundKey, OutboundKey};
use crate::machine::{CloseCause, Event, Session};
use crate::registry::{Registry, SessionId};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Handle, Mutex, MutexGuard};
use crate::transport::{Capabilities, PeerInfo};

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

/// What the one mutex guards (D1).
pub(super) struct State {
    pub(super) session: Session,
    pub(super) outbox: Outbox,
    pub(super) memory: Memory,
    pub(super) inbound: SideTable<InboundSlot>,
    /// Requests whose handlers wait for room in the outbox, in the order in which they began to.
    pub(super) waiting_for_room: Vec<InboundKey>,
    /// Notifications of ours that wait for room.
    pub(super) notifiers: SendWaiters,
    pub(super) calls: Slots<CallEntry>,
    pub(super) methods: Interner,
    pub(super) outbound: SideTable<SlotKey>,
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
    pub(super) notices: NotificationQueue,
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

    /// One step of the machine: `act` under the lock, then the outputs in order, then, without the lock, all that
    /// concerns others.
    pub(super) fn step<R>(self: &Arc<Self>, act: impl FnOnce(&mut State, Instant, &mut Effects) -> R) -> R {
        let now = now();
        let mut effects = Effects::default();
        let (result, given_back) = {
            let mut state = self.lock();
            let result = act(&mut state, now, &mut effects);
            state.apply(self, now, &mut effects);
            state.places.give_back(&self.admission, (!self.exchange_scoped).then_some(&*self.client));
            let held = state.bytes_held();
            let given_back = state.memory.count(held);
            state.call_driver(self, &mut effects);
            (result, given_back)
        };
        self.budget.remove(given_back);
        effects.run(self);
        result
    }
}

impl State {
    /// Wakes the driver if what happened needs it.
    fn call_driver(&mut self, shared: &ConnectionInner, effects: &mut Effects) {
        let earlier = match (self.session.next_timeout(), self.armed) {
            (Some(next), Some(armed)) => next < armed,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let (closing, walking) = (self.close.is_some(), self.session.has_work());
        if closing {
            shared.closing.store(true, Ordering::Relaxed);
        }
        if walking != shared.walking.load(Ordering::Relaxed) {
            shared.walking.store(walking, Ordering::Relaxed);
        }
        let over = self.end.is_some() && self.session.is_finished();
        if self.outbox.take_news() || earlier || closing || walking || over {
            self.dirty = true;
            effects.driver = self.driver.take();
        }
    }

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

    /// Wakes those who wait for room, once a fair part of it is free again.
    pub(super) fn give_room(&mut self, effects: &mut Effects) {
        if self.waiting_for_room.is_empty() && self.notifiers.is_empty() {
            return;
        }
        if self.outbox.has_room_again(self.session.limits()) {
            self.give_room_to_all(effects);
        }
    }

    pub(super) fn give_room_to_all(&mut self, effects: &mut Effects) {
        for key in self.waiting_for_room.drain(..) {
            let extras = self.inbound.get_mut(key.0).and_then(|slot| slot.extras.as_mut());
            let waker = extras.and_then(|extras| extras.waits_for_room.take());
            effects.wakers.extend(waker);
        }
        effects.wakers.extend(self.notifiers.take());
    }

    /// A request is answered or silenced: nothing of it waits for room any more.
    pub(super) fn end_waits_for_room(&mut self, key: InboundKey, effects: &mut Effects) {
        effects.wakers.extend(self.notifiers.take_of(key));
        let extras = self.inbound.get_mut(key.0).and_then(|slot| slot.extras.as_mut());
        if let Some(waker) = extras.and_then(|extras| extras.waits_for_room.take()) {
            effects.wakers.push(waker);
            self.waiting_for_room.retain(|waiting| *waiting != key);
        }
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
