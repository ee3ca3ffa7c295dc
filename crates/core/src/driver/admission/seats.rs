//! The connections of a server, and which of them makes room for another: one on which nothing was ever asked.
//!
//! - P1 A place is given back once: by the end of its connection, or by the one it makes room for. The lock of the table decides.
//! - P2 A connection with anything in flight, or that ever asked for anything but the handshake, keeps its place.
//! - P3 No connection's lock is taken under the table's.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError, Weak};

use tokio::sync::Notify;

use crate::clients::Client;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Connections that made room and still close, at most.
const LEAVING: usize = 64;

/// A connection that is open, as one who needs its place sees it.
pub(crate) trait Occupant: Send + Sync {
    /// Whether a request or a call is in flight on it.
    fn is_busy(&self) -> bool;
    /// It makes room: it is shut down as an idle one is.
    fn leave(self: Arc<Self>);
}

/// The places of a server's connections.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    table: Mutex<Table>,
    /// Connections that were told to make room.
    displaced: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    taken: BTreeMap<u64, Arc<Seat>>,
    leaving: usize,
}

/// What is known of a connection with a place.
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

    /// A seat for one more connection. `is_many`: the connection is all clients at once, and never makes room.
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

    /// The seats on which nothing was asked yet; `of`: of this client alone.
    pub(crate) fn unused(&self, of: Option<&Arc<Client>>) -> Vec<Arc<Seat>> {
        let table = self.table();
        let unused = |seat: &&Arc<Seat>| {
            !seat.used.load(Ordering::Relaxed) && of.is_none_or(|client| Arc::ptr_eq(&seat.client, client))
        };
        table.taken.values().filter(unused).cloned().collect()
    }

    /// Takes the seat of a connection that has to make room. `false`: it is gone, or too many leave already.
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

    /// The connection has ended. `false`: it had made room before.
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

    /// Waits until the connection has to make room before it is open.
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

    /// Something was asked on the connection.
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
