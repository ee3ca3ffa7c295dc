//! The handle of a server: counts, a drain, and the wait for its end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::driver::admission::Admission;
use crate::driver::admission::counts::ServerCounts;
use crate::driver::request_log::log::RequestLog;

/// A handle of a [`Server`](crate::Server). It stays usable while the server runs and after it has ended. Cheap to
/// clone.
///
/// ```
/// use std::time::Duration;
/// use rescind_core::{Peer, Router, Server, dialect, memory_listener};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (listener, transport) = memory_listener();
/// let server = Server::builder([dialect::ACP]).serve(Router::new()).listen(listener);
/// let handle = server.handle();
/// let running = tokio::spawn(server.run());
/// // On a signal to stop: running requests have 10 s to end.
/// let still_running = handle.drain(Duration::from_secs(10)).await;
/// assert_eq!(still_running, 0);
/// running.await??;
/// # drop(transport);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ServerHandle {
    admission: Arc<Admission>,
    phase: Phase,
}

/// How far a server has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Phase {
    pub(super) draining: CancellationToken,
    pub(super) ended: CancellationToken,
}

impl ServerHandle {
    pub(super) const fn new(admission: Arc<Admission>, phase: Phase) -> Self {
        Self { admission, phase }
    }

    /// Ends the server gracefully. Returns how many handlers still run: blocking work that does not check its cancel
    /// cannot be stopped.
    ///
    /// 1. New connections and, over HTTP, new sessions are refused. An HTTP server that is bound to an address keeps its
    ///    port open, so that cancels and answers still arrive; HTTP/2 connections get GOAWAY.
    /// 2. Each open connection is shut down as by [`Peer::shutdown`](crate::Peer::shutdown): new requests are refused,
    ///    and running handlers have `drain` to end before they are cancelled. A connection that has not opened yet is
    ///    closed.
    /// 3. When all connections have ended, the listener is dropped and [`Server::run`](crate::Server::run) returns.
    ///
    /// A second drain may shorten the first, as when a user presses Ctrl-C again: the earlier deadline counts.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the drain.
    pub async fn drain(&self, drain: Duration) -> usize {
        self.phase.draining.cancel();
        self.admission.slots.shut_down(drain);
        self.admission.slots.emptied().await;
        self.admission.alive()
    }

    /// Waits until [`Server::run`](crate::Server::run) has returned, or the server was dropped.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn closed(&self) {
        self.phase.ended.cancelled().await;
    }

    /// The log of the requests of all its connections, of those that are open and those to come. Recording begins with
    /// the first call, and ends when the log and its watches are dropped.
    #[must_use]
    pub fn request_log(&self) -> RequestLog {
        self.admission.record_requests()
    }

    /// Whether the server drains, or has ended.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.phase.draining.is_cancelled() || self.phase.ended.is_cancelled()
    }

    /// The counts over all connections of the server.
    #[must_use]
    pub fn counts(&self) -> ServerCounts {
        ServerCounts::new(Arc::clone(&self.admission))
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
