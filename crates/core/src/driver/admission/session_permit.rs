//! The permit of a connection, and which connection is displaced for a new one.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::clients::{Client, Resource};
use crate::driver::admission::Admission;
use crate::driver::admission::connection_slots::{Leave, Occupant, Seat};

/// The permit of a connection. It is given back when the connection's task ends.
pub(crate) struct SessionPermit {
    admission: Arc<Admission>,
    seat: Arc<Seat>,
}

impl Admission {
    /// A permit for one more connection of this client. At the limit the oldest unused connection is displaced: of this
    /// client, if it has used its share, else of the client with the most connections. The error names the limit.
    /// `is_many`: the connection carries several clients, and is never displaced.
    pub(crate) fn seat(
        self: &Arc<Self>,
        client: &Arc<Client>,
        is_many: bool,
    ) -> Result<SessionPermit, &'static str> {
        let open = || self.open_session(client);
        if !(open() || self.make_room(client) && open()) {
            let is_full = self.sessions() >= self.limits.max_connections;
            return Err(if is_full { "too many connections" } else { "too many connections of this client" });
        }
        let Some(seat) = self.seats.add(client, is_many) else {
            self.close_session(client);
            return Err("the server is shutting down");
        };
        Ok(SessionPermit { admission: Arc::clone(self), seat })
    }

    /// Returns whether a connection was displaced.
    fn make_room(&self, client: &Arc<Client>) -> bool {
        let has_its_share =
            client.held(Resource::Sessions) >= self.limits.client_share.of(self.limits.max_connections);
        let mut unused = self.seats.unused(has_its_share.then_some(client));
        unused.sort_by_key(|seat| (Reverse(seat.client().held(Resource::Sessions)), seat.number()));
        unused.into_iter().any(|seat| !seat.is_busy() && self.displace(&seat))
    }

    fn displace(&self, seat: &Seat) -> bool {
        if !self.seats.displace(seat) {
            return false;
        }
        self.close_session(seat.client());
        seat.leave(Leave::Displaced);
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

    /// The peer requested something other than the handshake.
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
