//! What a server counts over all its connections, for whoever watches it.

use std::fmt;
use std::sync::Arc;

use crate::driver::admission::Admission;

/// What a server has over all its connections at this moment, against [`ServerLimits`](crate::ServerLimits). It can be asked for
/// as long as it is kept, also when the server is gone.
#[derive(Clone)]
pub struct ServerCounts(Arc<Admission>);

impl ServerCounts {
    pub(crate) const fn new(admission: Arc<Admission>) -> Self {
        Self(admission)
    }

    /// Permits taken: handlers alive, draining ones included, and requests about to start. New requests are refused at
    /// [`ServerLimits::running`](crate::ServerLimits::running).
    #[must_use]
    pub fn running(&self) -> usize {
        self.0.alive()
    }

    /// Handlers whose request is settled and that still run. New requests are refused over
    /// [`ServerLimits::draining`](crate::ServerLimits::draining).
    #[must_use]
    pub fn draining(&self) -> usize {
        self.0.draining()
    }

    /// Bytes held over all connections, and by the listener for frames that are being read. New requests are refused at
    /// [`ServerLimits::memory`](crate::ServerLimits::memory).
    #[must_use]
    pub fn memory(&self) -> usize {
        self.0.clients.budget().used()
    }

    /// Connections that are open, or being opened. The next one is refused at
    /// [`ServerLimits::sessions`](crate::ServerLimits::sessions).
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.0.sessions()
    }

    /// Connections on which nothing was ever asked and that were closed to make room for others, since the server was made.
    #[must_use]
    pub fn displaced(&self) -> usize {
        self.0.seats.displaced()
    }

    /// Clients, identified by a principal or an address, that hold anything. Zero when nobody is connected.
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
