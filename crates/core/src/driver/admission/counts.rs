//! The counts of a server over all its connections.

use std::fmt;
use std::sync::Arc;

use crate::driver::admission::Admission;

/// The present counts of a server over all its connections. [`ServerLimits`](crate::ServerLimits) bounds them. The
/// handle stays usable after the server is dropped.
#[derive(Clone)]
pub struct ServerCounts(Arc<Admission>);

impl ServerCounts {
    pub(crate) const fn new(admission: Arc<Admission>) -> Self {
        Self(admission)
    }

    /// Permits in use: handlers that run, handlers that drain included, and requests about to start. New requests are
    /// refused at [`ServerLimits::max_running_handlers`](crate::ServerLimits::max_running_handlers).
    #[must_use]
    pub fn running(&self) -> usize {
        self.0.alive()
    }

    /// Handlers that still run after their request is settled. New requests are refused above
    /// [`ServerLimits::max_draining_handlers`](crate::ServerLimits::max_draining_handlers).
    #[must_use]
    pub fn draining(&self) -> usize {
        self.0.draining()
    }

    /// Bytes held over all connections, and by the listener for frames that are being read. New requests are refused at
    /// [`ServerLimits::max_memory_bytes`](crate::ServerLimits::max_memory_bytes).
    #[must_use]
    pub fn memory(&self) -> usize {
        self.0.clients.budget().used()
    }

    /// Connections that are open or being opened. New connections are refused at
    /// [`ServerLimits::max_connections`](crate::ServerLimits::max_connections).
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.0.sessions()
    }

    /// Unused connections that were closed to make room for others, since the server was built.
    #[must_use]
    pub fn displaced(&self) -> usize {
        self.0.slots.displaced()
    }

    /// Clients, identified by a principal or an address, that hold a connection, a request or bytes.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.0.clients.len()
    }
}

impl fmt::Debug for ServerCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCounts")
            .field("running", &self.running())
            .field("draining", &self.draining())
            .field("sessions", &self.sessions())
            .field("memory", &self.memory())
            .finish()
    }
}
