//! The connections of a server, and which of them makes room for another: one on which nothing was ever asked.
//!
//! - P1 A place is given back once: by the end of its connection, or by the one it makes room for. The lock of the table decides.
//! - P2 A connection with anything in flight, or that ever asked for anything but the handshake, keeps its place.
//! - P3 No connection's lock is taken under the table's.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError, Weak};

use tokio::sync::Notify;

use super::admission::Admission;
use super::shared::ConnectionInner;
use crate::clients::{Client, Resource};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Connections that made room and still close, at most.
const LEAVING: usize = 64;

/// The places of a server's connections.
#[derive(Debug, Default)]
pub(super) struct Seats {
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
pub(super) struct Seat {
    number: u64,
    client: Arc<Client>,
    used: AtomicBool,
    shared: OnceLock<Weak<ConnectionInner>>,
    left: AtomicBool,
    told: Notify,
}

/// A connection's place among those of its server, given back when its driver ends.
pub(super) struct SessionPermit {
    admission: Arc<Admission>,
    seat: Arc<Seat>,
}

impl Seats {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn displaced(&self) -> usize {
        self.displaced.load(Ordering::Relaxed)
    }
}

impl Admission {
    /// A place for one more connection of this client. Where there is none, the oldest connection without use makes room: of this
    /// client, if it has its share, else of whoever has most. The error says what is full. `is_many`: the connection is all clients
    /// at once, and never makes room.
    pub(super) fn seat(
        self: &Arc<Self>,
        client: &Arc<Client>,
        is_many: bool,
    ) -> Result<SessionPermit, &'static str> {
        let open = || self.open_session(client);
        if !(open() || self.make_room(client) && open()) {
            let is_full = self.sessions() >= self.limits.sessions;
            return Err(if is_full { "too many connections" } else { "too many connections of this client" });
        }
        let mut table = self.seats.table();
        let number = table.next;
        table.next += 1;
        let seat = Arc::new(Seat {
            number,
            client: Arc::clone(client),
            used: AtomicBool::new(is_many),
            shared: OnceLock::new(),
            left: AtomicBool::new(false),
            told: Notify::new(),
        });
        table.taken.insert(number, Arc::clone(&seat));
        drop(table);
        Ok(SessionPermit { admission: Arc::clone(self), seat })
    }

    /// `true`: a place was given back.
    fn make_room(&self, client: &Arc<Client>) -> bool {
        let has_its_share =
            client.held(Resource::Sessions) >= self.limits.client_share.of(self.limits.sessions);
        let mut unused: Vec<Arc<Seat>> = {
            let table = self.seats.table();
            let unused = |seat: &&Arc<Seat>| {
                !seat.used.load(Ordering::Relaxed) && (!has_its_share || Arc::ptr_eq(&seat.client, client))
            };
            table.taken.values().filter(unused).cloned().collect()
        };
        unused.sort_by_key(|seat| (Reverse(seat.client.held(Resource::Sessions)), seat.number));
        unused.into_iter().any(|seat| !seat.is_busy() && self.displace(&seat))
    }

    fn displace(&self, seat: &Seat) -> bool {
        {
            let mut table = self.seats.table();
            if table.leaving >= LEAVING || table.taken.remove(&seat.number).is_none() {
                return false;
            }
            table.leaving += 1;
        }
        self.close_session(&seat.client);
        self.seats.displaced.fetch_add(1, Ordering::Relaxed);
        seat.leave();
        true
    }
}

impl Seat {
    fn shared(&self) -> Option<Arc<ConnectionInner>> {
        self.shared.get()?.upgrade()
    }

    fn is_busy(&self) -> bool {
        self.shared().is_some_and(|shared| shared.lock().session.has_requests_or_calls())
    }

    fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
        match self.shared() {
            Some(shared) => shared.step(|state, now, _| state.session.local_idle(now)),
            None => self.told.notify_one(),
        }
    }

    /// Waits until the connection has to make room before it is open.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn left(&self) {
        self.told.notified().await;
    }
}

impl SessionPermit {
    pub(super) fn client(&self) -> &Arc<Client> {
        &self.seat.client
    }

    pub(super) const fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// The connection is open.
    pub(super) fn opened(&self, shared: &Arc<ConnectionInner>) {
        let _ = self.seat.shared.set(Arc::downgrade(shared));
        if self.seat.left.load(Ordering::SeqCst) {
            shared.step(|state, now, _| state.session.local_idle(now));
        }
    }

    /// Something was asked on the connection.
    pub(super) fn is_used(&self) {
        if !self.seat.used.load(Ordering::Relaxed) {
            self.seat.used.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        let gives_back = {
            let mut table = self.admission.seats.table();
            let has_it = table.taken.remove(&self.seat.number).is_some();
            if !has_it {
                table.leaving -= 1;
            }
            has_it
        };
        if gives_back {
            self.admission.close_session(&self.seat.client);
        }
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("number", &self.number).field("used", &self.used).finish_non_exhaustive()
    }
}
