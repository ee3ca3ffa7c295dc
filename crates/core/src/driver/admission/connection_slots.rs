//! The connections of a server, and which of them is closed to make room for another: an unused one.
//!
//! - P1 A seat is given back once: by the end of its connection, or when the connection is closed to make room. The
//!   lock of the table decides.
//! - P2 A connection keeps its seat if anything is in flight, or if its peer ever requested anything but the handshake.
//! - P3 No connection's lock is taken while the table's lock is held.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clients::Client;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The most connections that were displaced and are still closing.
const MAX_CLOSING: usize = 64;

/// An open connection that may be displaced.
pub(crate) trait Occupant: Send + Sync {
    /// Whether a request or a call is in flight on it.
    fn is_busy(&self) -> bool;
    /// Shuts it down, as an idle connection is shut down.
    fn leave(self: Arc<Self>);
    /// Shuts it down. Its handlers have `drain` to end before they are cancelled.
    fn shut_down(self: Arc<Self>, drain: Duration);
}

/// The seats of a server's connections.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    table: Mutex<Table>,
    /// How many connections were displaced.
    displaced: AtomicUsize,
    emptied: Notify,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    taken: BTreeMap<u64, Arc<Seat>>,
    leaving: usize,
    /// The server drains: no seat is given any more.
    draining: bool,
}

impl Table {
    fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.leaving == 0
    }
}

/// The seat of a connection.
pub(crate) struct Seat {
    number: u64,
    client: Arc<Client>,
    used: AtomicBool,
    state: Mutex<SeatState>,
    leave_notify: Notify,
}

#[derive(Default)]
struct SeatState {
    /// `None`: the connection has not opened yet.
    occupant: Option<Weak<dyn Occupant>>,
    /// The connection has to end, for this reason.
    leave: Option<Leave>,
}

/// Why a connection has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// It makes room for another connection.
    Displaced,
    /// The server drains. Handlers have this time to end.
    Drain(Duration),
}

impl Seats {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn displaced(&self) -> usize {
        self.displaced.load(Ordering::Relaxed)
    }

    /// A seat for one more connection. `is_many`: the connection carries several clients, and is never displaced.
    /// `None`: the server drains.
    pub(crate) fn add(&self, client: &Arc<Client>, is_many: bool) -> Option<Arc<Seat>> {
        let mut table = self.table();
        if table.draining {
            return None;
        }
        let number = table.next;
        table.next += 1;
        let seat = Arc::new(Seat {
            number,
            client: Arc::clone(client),
            used: AtomicBool::new(is_many),
            state: Mutex::default(),
            leave_notify: Notify::new(),
        });
        table.taken.insert(number, Arc::clone(&seat));
        Some(seat)
    }

    /// The seats of unused connections. `of`: only those of this client.
    pub(crate) fn unused(&self, of: Option<&Arc<Client>>) -> Vec<Arc<Seat>> {
        let table = self.table();
        let unused = |seat: &&Arc<Seat>| {
            !seat.used.load(Ordering::Relaxed) && of.is_none_or(|client| Arc::ptr_eq(&seat.client, client))
        };
        table.taken.values().filter(unused).cloned().collect()
    }

    /// Takes the seat of a connection that is displaced. `false`: the connection has ended, or too many are closing
    /// already.
    pub(crate) fn displace(&self, seat: &Seat) -> bool {
        {
            let mut table = self.table();
            if table.leaving >= MAX_CLOSING || table.taken.remove(&seat.number).is_none() {
                return false;
            }
            table.leaving += 1;
        }
        self.displaced.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// The connection has ended. `false`: it was displaced before.
    pub(crate) fn remove(&self, seat: &Seat) -> bool {
        let mut table = self.table();
        let had_it = table.taken.remove(&seat.number).is_some();
        if !had_it {
            table.leaving -= 1;
        }
        if table.is_empty() {
            self.emptied.notify_waiters();
        }
        had_it
    }

    /// Gives no seat any more, and shuts down every connection. A connection that has not opened yet ends at once.
    pub(crate) fn shut_down(&self, drain: Duration) {
        let seats: Vec<_> = {
            let mut table = self.table();
            table.draining = true;
            table.taken.values().cloned().collect()
        };
        for seat in seats {
            seat.leave(Leave::Drain(drain));
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

impl Seat {
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) const fn client(&self) -> &Arc<Client> {
        &self.client
    }

    fn state(&self) -> MutexGuard<'_, SeatState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_busy(&self) -> bool {
        let occupant = self.state().occupant.as_ref().and_then(Weak::upgrade);
        occupant.is_some_and(|occupant| occupant.is_busy())
    }

    /// Tells the connection to end. Only the first call has an effect.
    pub(crate) fn leave(&self, leave: Leave) {
        let occupant = {
            let mut state = self.state();
            if state.leave.is_some() {
                return;
            }
            state.leave = Some(leave);
            state.occupant.clone()
        };
        match occupant {
            Some(occupant) => end(occupant.upgrade(), leave),
            None => self.leave_notify.notify_one(),
        }
    }

    /// Waits until a connection that has not opened yet has to end.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn left(&self) {
        self.leave_notify.notified().await;
    }

    /// The connection is open.
    pub(crate) fn opened(&self, occupant: &Arc<impl Occupant + 'static>) {
        let occupant: Arc<dyn Occupant> = Arc::clone(occupant) as _;
        let leave = {
            let mut state = self.state();
            state.occupant = Some(Arc::downgrade(&occupant));
            state.leave
        };
        if let Some(leave) = leave {
            end(Some(occupant), leave);
        }
    }

    /// The peer requested something other than the handshake.
    pub(crate) fn set_used(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

/// Ends a connection. It is called without the seat's lock, because it takes the connection's.
fn end(occupant: Option<Arc<dyn Occupant>>, leave: Leave) {
    match (occupant, leave) {
        (Some(occupant), Leave::Displaced) => occupant.leave(),
        (Some(occupant), Leave::Drain(drain)) => occupant.shut_down(drain),
        (None, _) => {}
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("number", &self.number).field("used", &self.used).finish_non_exhaustive()
    }
}
