//! The connections of a server, and which of them is closed to make room for another: an unused one.
//!
//! - P1 A slot is given back once: by the end of its connection, or when the connection is closed to make room. The
//!   lock of the table decides.
//! - P2 A connection keeps its slot if anything is in flight, or if its peer ever requested anything but the handshake.
//! - P3 No connection's lock is taken while the table's lock is held.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clients::Client;
use crate::driver::request_log::RequestLog;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The most connections that were displaced and are still closing.
const MAX_CLOSING: usize = 64;

/// An open connection that may be displaced.
pub(crate) trait OpenConnection: Send + Sync {
    /// Whether a request or a call is in flight on it.
    fn is_busy(&self) -> bool;
    /// Shuts it down, as an idle connection is shut down.
    fn shut_down_idle(self: Arc<Self>);
    /// Shuts it down. Its handlers have `drain` to end before they are cancelled.
    fn shut_down(self: Arc<Self>, drain: Duration);
    /// Records it in this log from now on.
    fn record_in(self: Arc<Self>, log: &RequestLog);
}

/// The slots of a server's connections.
#[derive(Debug, Default)]
pub(crate) struct ConnectionSlots {
    table: Mutex<Table>,
    /// How many connections were displaced.
    displaced: AtomicUsize,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    taken: BTreeMap<u64, Arc<ConnectionSlot>>,
    leaving: usize,
    /// The server drains: no slot is given any more.
    draining: bool,
}

impl Table {
    fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.leaving == 0
    }
}

/// The slot of a connection.
pub(crate) struct ConnectionSlot {
    number: u64,
    client: Arc<Client>,
    used: AtomicBool,
    state: Mutex<SlotState>,
    end_notify: Notify,
}

#[derive(Default)]
struct SlotState {
    /// `None`: the connection has not opened yet.
    connection: Option<Weak<dyn OpenConnection>>,
    /// The connection has to end, for this reason.
    end_reason: Option<EndReason>,
}

/// Why a connection has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// It makes room for another connection.
    Displaced,
    /// The server drains. Handlers have this time to end.
    Drain(Duration),
}

impl ConnectionSlots {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn displaced(&self) -> usize {
        self.displaced.load(Ordering::Relaxed)
    }

    /// A slot for one more connection. `is_many`: the connection carries several clients, and is never displaced.
    /// `None`: the server drains.
    pub(crate) fn add(&self, client: &Arc<Client>, is_many: bool) -> Option<Arc<ConnectionSlot>> {
        let mut table = self.table();
        if table.draining {
            return None;
        }
        let number = table.next;
        table.next += 1;
        let slot = Arc::new(ConnectionSlot {
            number,
            client: Arc::clone(client),
            used: AtomicBool::new(is_many),
            state: Mutex::default(),
            end_notify: Notify::new(),
        });
        table.taken.insert(number, Arc::clone(&slot));
        Some(slot)
    }

    /// The slots of unused connections. `of`: only those of this client.
    pub(crate) fn unused(&self, of: Option<&Arc<Client>>) -> Vec<Arc<ConnectionSlot>> {
        let table = self.table();
        let unused = |slot: &&Arc<ConnectionSlot>| {
            !slot.used.load(Ordering::Relaxed) && of.is_none_or(|client| Arc::ptr_eq(&slot.client, client))
        };
        table.taken.values().filter(unused).cloned().collect()
    }

    /// Takes the slot of a connection that is displaced. `false`: the connection has ended, or too many are closing
    /// already.
    pub(crate) fn displace(&self, slot: &ConnectionSlot) -> bool {
        {
            let mut table = self.table();
            if table.leaving >= MAX_CLOSING || table.taken.remove(&slot.number).is_none() {
                return false;
            }
            table.leaving += 1;
        }
        self.displaced.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// The connection has ended. `false`: it was displaced before.
    pub(crate) fn remove(&self, slot: &ConnectionSlot) -> bool {
        let mut table = self.table();
        let had_it = table.taken.remove(&slot.number).is_some();
        if !had_it {
            table.leaving -= 1;
        }
        if table.is_empty() {
            self.emptied.notify_waiters();
        }
        had_it
    }

    /// Gives no slot any more, and shuts down every connection. A connection that has not opened yet ends at once.
    pub(crate) fn shut_down(&self, drain: Duration) {
        let slots: Vec<_> = {
            let mut table = self.table();
            table.draining = true;
            table.taken.values().cloned().collect()
        };
        for slot in slots {
            slot.request_end(EndReason::Drain(drain));
        }
    }

    /// Records every open connection in this log.
    pub(crate) fn record_in(&self, log: &RequestLog) {
        let slots: Vec<_> = self.table().taken.values().cloned().collect();
        for slot in slots {
            let connection = slot.state().connection.as_ref().and_then(Weak::upgrade);
            if let Some(connection) = connection {
                connection.record_in(log);
            }
        }
    }

    /// Waits until no connection is open.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn emptied(&self) {
        loop {
            let mut emptied = pin!(self.emptied.notified());
            emptied.as_mut().enable();
            if self.table().is_empty() {
                return;
            }
            emptied.await;
        }
    }
}

impl ConnectionSlot {
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) const fn client(&self) -> &Arc<Client> {
        &self.client
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_busy(&self) -> bool {
        let connection = self.state().connection.as_ref().and_then(Weak::upgrade);
        connection.is_some_and(|connection| connection.is_busy())
    }

    /// Tells the connection to end. Of two drains the earlier deadline counts. A displaced connection ends at once.
    pub(crate) fn request_end(&self, reason: EndReason) {
        let connection = {
            let mut state = self.state();
            state.end_reason = Some(match (state.end_reason, reason) {
                (None, reason) => reason,
                (Some(EndReason::Drain(first)), EndReason::Drain(second)) => {
                    EndReason::Drain(first.min(second))
                }
                (Some(EndReason::Displaced), _) | (Some(EndReason::Drain(_)), EndReason::Displaced) => return,
            });
            state.connection.clone()
        };
        match connection {
            Some(connection) => end(connection.upgrade(), reason),
            None => self.end_notify.notify_one(),
        }
    }

    /// Waits until a connection that has not opened yet has to end.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn end_requested(&self) {
        self.end_notify.notified().await;
    }

    /// The connection is open.
    pub(crate) fn opened(&self, connection: &Arc<impl OpenConnection + 'static>) {
        let connection: Arc<dyn OpenConnection> = Arc::clone(connection) as _;
        let end_reason = {
            let mut state = self.state();
            state.connection = Some(Arc::downgrade(&connection));
            state.end_reason
        };
        if let Some(reason) = end_reason {
            end(Some(connection), reason);
        }
    }

    /// The peer requested something other than the handshake.
    pub(crate) fn set_used(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

/// Ends a connection. It is called without the slot's lock, because it takes the connection's.
fn end(connection: Option<Arc<dyn OpenConnection>>, reason: EndReason) {
    match (connection, reason) {
        (Some(connection), EndReason::Displaced) => connection.shut_down_idle(),
        (Some(connection), EndReason::Drain(drain)) => connection.shut_down(drain),
        (None, _) => {}
    }
}

impl std::fmt::Debug for ConnectionSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionSlot")
            .field("number", &self.number)
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}
