//! A connection's permit among those of its server, and who gives his up for a new one.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::clients::{Client, Resource};
use crate::driver::admission::Admission;
use crate::driver::admission::seats::{Occupant, Seat};

/// A connection's place among those of its server, given back when its driver ends.
pub(crate) struct SessionPermit {
    admission: Arc<Admission>,
    seat: Arc<Seat>,
}

impl Admission {
    /// A place for one more connection of this client. Where there is none, the oldest connection without use makes room: of this
    /// client, if it has its share, else of whoever has most. The error says what is full. `is_many`: the connection is all clients
    /// at once, and never makes room.
    pub(crate) fn seat(
        self: &Arc<Self>,
        client: &Arc<Client>,
        is_many: bool,
    ) -> Result<SessionPermit, &'static str> {
        let open = || self.open_session(client);
        if !(open() || self.make_room(client) && open()) {
            let is_full = self.sessions() >= self.limits.sessions;
            return Err(if is_full { "too many connections" } else { "too many connections of this client" });
        }
        Ok(SessionPermit { admission: Arc::clone(self), seat: self.seats.add(client, is_many) })
    }

    /// `true`: a place was given back.
    fn make_room(&self, client: &Arc<Client>) -> bool {
        let has_its_share =
            client.held(Resource::Sessions) >= self.limits.client_share.of(self.limits.sessions);
        let mut unused = self.seats.unused(has_its_share.then_some(client));
        unused.sort_by_key(|seat| (Reverse(seat.client().held(Resource::Sessions)), seat.number()));
        unused.into_iter().any(|seat| !seat.is_busy() && self.displace(&seat))
    }

    fn displace(&self, seat: &Seat) -> bool {
        if !self.seats.displace(seat) {
            return false;
        }
        self.close_session(seat.client());
        seat.leave();
        true
    }
}

impl SessionPermit {
    pub(crate) fn client(&self) -> &Arc<Client> {
        self.seat.client()
    }

    pub(crate) const fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// The connection is open.
    pub(crate) fn opened(&self, occupant: &Arc<impl Occupant + 'static>) {
        self.seat.opened(occupant);
    }

    /// Something was asked on the connection.
    pub(crate) fn set_used(&self) {
        self.seat.set_used();
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        if self.admission.seats.remove(&self.seat) {
            self.admission.close_session(self.seat.client());
        }
    }
}
