//! The other side of a connection.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::cause::{Cause, CauseKind};
use crate::clients::Clients;
use crate::dialect::Dialect;
use crate::driver::call::builder::CallBuilder;
use crate::driver::context::CallContext;
use crate::driver::json_text::Frame;
use crate::driver::request_log::{RequestInfo, RequestKey, RequestLog, RequestWatch};
use crate::driver::state::ConnectionInner;
use crate::error::{CallError, ConnectionError};
use crate::machine::Stats;
use crate::registry::{Registry, SessionId};
use crate::transport::{PeerInfo, UseMark};

/// The other side of a connection. A clone is the same connection.
///
/// The connection closes when the last `Peer` and the last call are dropped, unless this side serves.
///
/// ```
/// use rescind_core::{Peer, Router, dialect, memory_pair};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (client, server) = memory_pair();
/// let router = Router::new().method("echo", |_ctx, words: Vec<String>| async move { Ok(words) });
/// let _server = Peer::builder(dialect::ACP).serve(router).attach(server)?;
/// let peer = Peer::builder(dialect::ACP).attach(client)?;
/// let answer: Vec<String> = peer.call("echo", &["hello"]).await?;
/// assert_eq!(answer, ["hello"]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Peer(Arc<ConnectionInner>);

impl Peer {
    pub(crate) fn new(connection: &Arc<ConnectionInner>) -> Self {
        connection.add_handle();
        Self(Arc::clone(connection))
    }

    #[cfg(any(feature = "tower", test))]
    pub(crate) const fn connection(&self) -> &Arc<ConnectionInner> {
        &self.0
    }

    /// A call to the peer. Nothing is sent until the builder is started or awaited. Params must serialise to an object
    /// or an array. `null`, for example of `()`, is sent as no params.
    pub fn call<P: Serialize + ?Sized, R>(&self, method: impl Into<Arc<str>>, params: &P) -> CallBuilder<R> {
        CallBuilder::new(&self.0, method.into(), params)
    }

    /// Sends a notification to the peer. Does not wait for room in the outbox.
    ///
    /// # Errors
    /// [`CallError::OutboxFull`] if the peer reads slower than this side writes; [`CallError::Disconnected`] if the
    /// connection is closed; [`CallError::Params`] if the params cannot be written as JSON or exceed the frame limit.
    pub fn try_notify<P: Serialize + ?Sized>(
        &self,
        method: impl Into<Arc<str>>,
        params: &P,
    ) -> Result<(), CallError> {
        let frame = Frame::new(self.0.max_frame, method.into(), params)?;
        self.0.try_notify(frame, None)
    }

    /// Sends a notification as [`try_notify`](Self::try_notify) does, and waits for room in the outbox.
    ///
    /// # Errors
    /// The errors of [`try_notify`](Self::try_notify), except [`CallError::OutboxFull`].
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the notification is not sent.
    pub async fn notify<P: Serialize + ?Sized>(
        &self,
        method: impl Into<Arc<str>>,
        params: &P,
    ) -> Result<(), CallError> {
        let frame = Frame::new(self.0.max_frame, method.into(), params)?;
        self.0.notify(frame, None).await
    }

    /// Waits until the connection has closed. Returns `Ok` after the end of input, after a shutdown, and when the peer
    /// closes.
    ///
    /// # Errors
    /// The error that broke the connection.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn closed(&self) -> Result<(), ConnectionError> {
        loop {
            let mut closed = std::pin::pin!(self.0.closed.notified());
            closed.as_mut().enable();
            if let Some(end) = self.0.lock().end.clone() {
                return end;
            }
            closed.await;
        }
    }

    /// Waits until the handlers of the notifications that have arrived so far have ended, except those of
    /// [`Router::concurrent_notification`](crate::Router::concurrent_notification). After the connection has closed, it
    /// waits only for the handler that runs, unless the router handles the others too
    /// ([`Router::pause_reading_at`](crate::Router::pause_reading_at)).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn notifications_handled(&self) {
        self.0.notifications_handled().await;
    }

    /// The exit code that the peer requests of this process with LSP's `exit`, which also closes the connection: 0
    /// after `shutdown`, else 1. `None`: the peer sent no `exit`.
    ///
    /// LSP 3.18, "Exit Notification": "The server should exit with success code 0 if the shutdown request has been
    /// received before; otherwise with error code 1."
    #[must_use]
    pub fn exit_code(&self) -> Option<u8> {
        self.0.lock().session.exit_code()
    }

    /// Whether the connection has closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.lock().end.is_some()
    }

    /// Shuts the connection down in six steps, the same on every transport:
    /// 1. New requests and calls are refused. Cancels and answers are still read.
    /// 2. Handlers may end without a cancel, for at most `drain`.
    /// 3. Handlers that still run are cancelled, and their child calls with them.
    /// 4. After [`Limits::cancel_grace`](crate::Limits::cancel_grace) they are aborted.
    /// 5. Calls of this side are settled with [`CauseKind::Shutdown`](crate::CauseKind::Shutdown).
    /// 6. Frames that wait are flushed, for at most [`Limits::flush_timeout`](crate::Limits::flush_timeout), and the transport is
    ///    closed.
    ///
    /// Returns how many handlers still run: blocking work that does not check its cancel cannot be stopped. A program
    /// that must end uses the runtime's `shutdown_timeout`. A second shutdown may shorten the drain of the first: the
    /// earlier deadline counts.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the shutdown.
    pub async fn shutdown(&self, drain: Duration) -> u64 {
        self.0.step(|state, now, _| state.session.local_shutdown(now, drain));
        let _ = self.closed().await;
        let stats = self.0.lock().session.stats();
        stats.running + stats.draining
    }

    /// The machine's present counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.lock().session.stats()
    }

    /// The present lengths of this side's queues.
    #[must_use]
    pub fn queue_stats(&self) -> QueueStats {
        let state = self.0.lock();
        QueueStats {
            outbox_frames: state.outbox.frames(),
            outbox_bytes: state.outbox.bytes(),
            memory: state.bytes_held(),
            notifications_waiting: state.notices.len(),
            notifications_dropped: state.notices.dropped,
        }
    }

    /// The clients with which the connection is counted: those of its server, or those of
    /// [`PeerBuilder::clients`](crate::PeerBuilder::clients). A connection that belongs to this one, such as the other
    /// side of a gateway, counts its bytes in the same limit if it is built with them.
    #[must_use]
    pub fn clients(&self) -> &Clients {
        &self.0.admission.clients
    }

    /// The requests of the peer and the calls of this side that are in flight. A connection that no
    /// [`RequestLog`] records knows them too, with little less: see [`RequestInfo`].
    #[must_use]
    pub fn requests(&self) -> Vec<RequestInfo> {
        self.0.requests_in_flight(usize::MAX)
    }

    /// The changes of its requests and calls from now on. Those in flight are reported as started first. To follow
    /// several connections, add each to one [`RequestLog`].
    #[must_use]
    pub fn watch_requests(&self) -> RequestWatch {
        let log = RequestLog::new();
        let watch = log.watch();
        self.0.record_into(&log);
        watch
    }

    /// Records the connection in this log from now on. To record it from its first message, use
    /// [`PeerBuilder::request_log`](crate::PeerBuilder::request_log).
    pub fn record_in(&self, log: &RequestLog) {
        self.0.record_into(log);
    }

    /// Stops a received request of this connection, as [`RequestLog::stop`] does.
    #[expect(clippy::must_use_candidate, reason = "most callers have no use for the answer")]
    pub fn stop_request(&self, key: RequestKey, reason: &str) -> bool {
        self.0.stop_request(key, Cause::new(CauseKind::Operator).with_reason(reason))
    }

    /// The session's name in the [`registry`](Self::registry).
    #[must_use]
    pub fn session(&self) -> &SessionId {
        &self.0.session_id
    }

    /// The registry that lists this side's cancelled requests.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// The dialect of the connection. If several were offered, the one that was chosen.
    #[must_use]
    pub fn dialect(&self) -> &Dialect {
        &self.0.dialect
    }

    /// The mark of use of the connection. A program sets it that does work for the peer while no message passes, such as
    /// a task, so that the connection does not end as unused.
    #[must_use]
    pub fn use_mark(&self) -> UseMark {
        self.0.use_mark.get_or_init(UseMark::default).clone()
    }

    /// What the transport knows about the peer.
    #[must_use]
    pub fn meta(&self) -> &PeerInfo {
        &self.0.meta
    }
}

impl CallContext {
    /// The peer that sent the request.
    #[must_use]
    pub fn peer(&self) -> Peer {
        Peer::new(self.connection())
    }
}

impl Clone for Peer {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.drop_handle();
    }
}

/// The lengths of the queues of a connection at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// Frames that wait to be written.
    pub outbox_frames: usize,
    /// Approximate bytes that wait to be written, without calls of this side.
    pub outbox_bytes: usize,
    /// Approximate bytes that are held for the connection.
    /// [`Limits::max_memory_bytes`](crate::Limits::max_memory_bytes) bounds them.
    pub memory: usize,
    /// Notifications of the peer that wait for their handler.
    pub notifications_waiting: usize,
    /// A counter of the notifications that were dropped because too many waited.
    pub notifications_dropped: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::ACP;
    use crate::driver::router::Router;
    use crate::transport::memory_pair;
    use serde_json::{Value, json};

    fn connect(router: Router) -> (Peer, Peer) {
        let (near, far) = memory_pair();
        let server = Peer::builder(ACP).serve(router).attach(far).unwrap();
        (Peer::builder(ACP).attach(near).unwrap(), server)
    }

    fn echo() -> Router {
        Router::new().method("echo", |_: CallContext, reported: Value| async move { Ok(reported) })
    }

    /// Entries are not visible from outside. Nothing is kept of calls that have ended, on their own connection or on
    /// their parent's.
    #[tokio::test]
    async fn calls_that_ended_leave_no_entry() {
        let (upstream, _far) = connect(echo());
        let gateway = upstream.clone();
        let via = Router::new().method("via", move |ctx: CallContext, _: Value| {
            let gateway = gateway.clone();
            async move {
                for _ in 0..10 {
                    let _: Value = gateway.call("echo", &json!({})).child_of(&ctx).await?;
                }
                Ok(ctx.connection().lock().foreign.len())
            }
        });
        let (client, _near) = connect(via);
        let left: usize = client.call("via", &json!({})).await.unwrap();
        assert_eq!(left, 0, "I3: a parent knows children that have ended");
        for peer in [&client, &upstream] {
            assert_eq!(peer.0.lock().calls.len(), 0, "I3: a call that ended keeps its entry");
        }
    }
}
