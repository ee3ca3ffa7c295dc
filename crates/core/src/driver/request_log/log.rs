//! The log of requests of several connections, as a program uses it.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::cause::{Cause, CauseKind};
use crate::driver::request_log::info::{EndedRequest, RequestInfo, RequestKey, SessionInfo};
use crate::driver::request_log::shared::{RequestCounts, Shared};
use crate::driver::request_log::watch::RequestWatch;

/// The requests and calls of several connections: those in flight, and the last [`MAX_ENDED_REQUESTS`](crate::MAX_ENDED_REQUESTS) that ended. A
/// clone is the same log.
///
/// A connection is recorded from when it is added, until all clones of the log and its watches are dropped. A
/// connection that no log records does not pay for it. Each log holds at most about a megabyte for what has ended.
///
/// ```
/// use rescind_core::{CallContext, Peer, RequestLog, Router, dialect, memory_pair};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (client, server) = memory_pair();
/// let log = RequestLog::new();
/// let router = Router::new().method("wait", |ctx: CallContext, (): ()| async move {
///     let cause = ctx.cancelled().await;
///     ctx.stopped::<()>(cause)
/// });
/// let _server = Peer::builder(dialect::ACP).serve(router).request_log(&log).attach(server)?;
/// let peer = Peer::builder(dialect::ACP).attach(client)?;
/// let call = peer.call::<_, ()>("wait", &()).start()?;
/// let mut changes = log.watch();
/// changes.next().await;
/// let running = log.requests(10);
/// assert_eq!(running[0].method.as_deref(), Some("wait"));
/// log.stop(running[0].key, "it waits for too long");
/// assert!(call.await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RequestLog(Arc<Shared>);

impl RequestLog {
    /// A log that records no connection yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) const fn of(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// The recorded connections that are open, or on which a handler still runs.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionInfo> {
        let open = self.0.connections().into_iter().filter(|connection| !connection.is_over());
        open.map(|connection| connection.info()).collect()
    }

    /// The requests and calls in flight on the recorded connections, at most this many.
    #[must_use]
    pub fn requests(&self, at_most: usize) -> Vec<RequestInfo> {
        let mut requests = Vec::new();
        for connection in self.0.connections() {
            requests.append(&mut connection.requests(at_most - requests.len()));
            if requests.len() >= at_most {
                break;
            }
        }
        requests
    }

    /// The last requests and calls that have ended, the oldest first.
    #[must_use]
    pub fn ended(&self) -> Vec<EndedRequest> {
        self.0.lock().ended.iter().cloned().collect()
    }

    /// How many requests and calls started and ended.
    #[must_use]
    pub fn counts(&self) -> RequestCounts {
        self.0.lock().counts
    }

    /// A number that changes with each change of a request.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.lock().events.next()
    }

    /// The changes from now on. Take the watch before a snapshot, so that no change is between them.
    #[must_use]
    pub fn watch(&self) -> RequestWatch {
        RequestWatch::new(Arc::clone(&self.0), self.version())
    }

    /// Stops a received request, as an operator does: it is cancelled with the cause
    /// [`CauseKind::Operator`](crate::CauseKind::Operator), and its caller gets the dialect's cancelled answer, which
    /// names an operator. The reason is for the handler and the log, and is not sent. Returns `true` if the request was
    /// open and not cancelled before.
    pub fn stop(&self, key: RequestKey, reason: &str) -> bool {
        let connection = self.0.lock().connections.get(&key.connection).and_then(Weak::upgrade);
        let cause = Cause::new(CauseKind::Operator).with_reason(reason);
        connection.is_some_and(|connection| connection.stop(key, cause))
    }
}

impl Default for RequestLog {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RequestLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        f.debug_struct("RequestLog")
            .field("connections", &state.connections.len())
            .field("counts", &state.counts)
            .finish_non_exhaustive()
    }
}
