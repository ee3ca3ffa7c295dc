//! The connections of a server, and which of them is closed to make room for another: an unused one.
//!
//! - P1 A seat is given back once: by the end of its connection, or when the connection is closed to make room. The
//!   lock of the table decides.
//! - P2 A connection keeps its seat if anything is in flight, or if its peer ever requested anything but the handshake.
//! - P3 No connection's lock is taken while the table's lock is held.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError, Weak};

use tokio::sync::Notify;

use crate::clients::Client;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The most connections that were displaced and are still closing.
const LEAVING: usize = 64;

/// An open connection that may be displaced.
pub(crate) trait Occupant: Send + Sync {
    /// Whether a request or a call is in flight on it.
    fn is_busy(&self) -> bool;
    /// Shuts it down, as an idle connection is shut down.
    fn leave(self: Arc<Self>);
}

/// The seats of a server's connections.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    table: Mutex<Table>,
    /// How many connections were displaced.
    displaced: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    taken: BTreeMap<u64, Arc<Seat>>,
    leaving: usize,
}

/// The seat of a connection.
pub(crate) struct Seat {
    number: u64,
    client: Arc<Client>,
    used: AtomicBool,
    occupant: OnceLock<Weak<dyn Occupant>>,
    left: AtomicBool,
    told: Notify,
}

impl Seats {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn displaced(&self) -> usize {
        self.displaced.load(Ordering::Relaxed)
    }

    /// A seat for one more connection. `is_many`: the connection carries several clients, and is never displaced.
    pub(crate) fn add(&self, client: &Arc<Client>, is_many: bool) -> Arc<Seat> {
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        let seat = Arc::new(Seat {
            number,
            client: Arc::clone(client),
            used: AtomicBool::new(is_many),
            occupant: OnceLock::new(),
            left: AtomicBool::new(false),
            told: Notify::new(),
        });
        table.taken.insert(number, Arc::clone(&seat));
        seat
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
            if table.leaving >= LEAVING || table.taken.remove(&seat.number).is_none() {
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
        had_it
    }
}

impl Seat {
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) const fn client(&self) -> &Arc<Client> {
        &self.client
    }

    fn occupant(&self) -> Option<Arc<dyn Occupant>> {
        self.occupant.get()?.upgrade()
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.occupant().is_some_and(|occupant| occupant.is_busy())
    }

    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
        match self.occupant() {
            Some(occupant) => occupant.leave(),
            None => self.told.notify_one(),
        }
    }

    /// Waits until the connection is displaced before it has opened.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn left(&self) {
        self.told.notified().await;
    }

    /// The connection is open.
    pub(crate) fn opened(&self, occupant: &Arc<impl Occupant + 'static>) {
        let weak = Arc::downgrade(occupant);
        let _ = self.occupant.set(weak);
        if self.left.load(Ordering::SeqCst) {
            Arc::clone(occupant).leave();
        }
    }

    /// The peer requested something other than the handshake.
    pub(crate) fn set_used(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("number", &self.number).field("used", &self.used).finish_non_exhaustive()
    }
}
