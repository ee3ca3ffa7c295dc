//! The permit of a connection, and which connection is displaced for a new one.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::clients::{Client, Resource};
use crate::driver::admission::Admission;
use crate::driver::admission::connection_slots::{ConnectionSlot, EndReason, OpenConnection};

/// The permit of a connection. It is given back when the connection's task ends.
pub(crate) struct SessionPermit {
    admission: Arc<Admission>,
    slot: Arc<ConnectionSlot>,
}

impl Admission {
    /// A permit for one more connection of this client. At the limit the oldest unused connection is displaced: of this
    /// client, if it has used its share, else of the client with the most connections. The error names the limit.
    /// `is_many`: the connection carries several clients, and is never displaced.
    pub(crate) fn admit_connection(
        self: &Arc<Self>,
        client: &Arc<Client>,
        is_many: bool,
    ) -> Result<SessionPermit, &'static str> {
        let open = || self.open_session(client);
        if !(open() || self.make_room(client) && open()) {
            let is_full = self.sessions() >= self.limits.max_connections;
            return Err(if is_full { "too many connections" } else { "too many connections of this client" });
        }
        let Some(slot) = self.slots.add(client, is_many) else {
            self.close_session(client);
            return Err("the server is shutting down");
        };
        Ok(SessionPermit { admission: Arc::clone(self), slot })
    }

    /// Returns whether a connection was displaced.
    fn make_room(&self, client: &Arc<Client>) -> bool {
        let has_its_share =
            client.held(Resource::Sessions) >= self.limits.client_share.of(self.limits.max_connections);
        let mut unused = self.slots.unused(has_its_share.then_some(client));
        unused.sort_by_key(|slot| (Reverse(slot.client().held(Resource::Sessions)), slot.number()));
        unused.into_iter().any(|slot| !slot.is_busy() && self.displace(&slot))
    }

    fn displace(&self, slot: &ConnectionSlot) -> bool {
        if !self.slots.displace(slot) {
            return false;
        }
        self.close_session(slot.client());
        slot.request_end(EndReason::Displaced);
        true
    }
}

impl SessionPermit {
    pub(crate) fn client(&self) -> &Arc<Client> {
        self.slot.client()
    }

    pub(crate) const fn slot(&self) -> &Arc<ConnectionSlot> {
        &self.slot
    }

    /// The connection is open.
    pub(crate) fn opened(&self, connection: &Arc<impl OpenConnection + 'static>) {
        self.slot.opened(connection);
    }

    /// The peer requested something other than the handshake.
    pub(crate) fn set_used(&self) {
        self.slot.set_used();
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        if self.admission.slots.remove(&self.slot) {
            self.admission.close_session(self.slot.client());
        }
    }
}
