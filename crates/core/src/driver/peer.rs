//! The other side of a connection.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::dialect::Dialect;
use crate::driver::call::builder::CallBuilder;
use crate::driver::params::Frame;
use crate::driver::state::ConnectionInner;
use crate::error::{CallError, ConnectionError};
use crate::machine::Stats;
use crate::registry::{Registry, SessionId};
use crate::transport::PeerInfo;

/// The other side of a connection. Clones are the same connection.
///
/// Dropping the last one, and the last call, closes the connection, unless this side serves.
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
pub struct Peer(Arc<ConnectionInner>);

impl Peer {
    pub(crate) fn new(shared: &Arc<ConnectionInner>) -> Self {
        shared.hold();
        Self(Arc::clone(shared))
    }

    #[cfg(any(feature = "tower", test))]
    pub(crate) const fn shared(&self) -> &Arc<ConnectionInner> {
        &self.0
    }

    /// A call to the peer. Nothing happens until it is started or awaited. Params are what serde writes as an object or
    /// an array; `null`, as of `()`, is none at all.
    pub fn call<P: Serialize + ?Sized, R>(&self, method: impl Into<Arc<str>>, params: &P) -> CallBuilder<R> {
        CallBuilder::new(&self.0, method.into(), params)
    }

    /// Notifies the peer. It does not wait for room in the outbox.
    ///
    /// # Errors
    /// [`CallError::OutboxFull`] if the peer reads slower than this side writes; [`CallError::Disconnected`] if the
    /// connection is closed; [`CallError::Params`] if the params cannot be written or are over the frame limit.
    pub fn try_notify<P: Serialize + ?Sized>(
        &self,
        method: impl Into<Arc<str>>,
        params: &P,
    ) -> Result<(), CallError> {
        let frame = Frame::new(self.0.max_frame, method.into(), params)?;
        self.0.try_notify(frame, None)
    }

    /// As [`try_notify`](Self::try_notify), but waits for room in the outbox.
    ///
    /// # Errors
    /// As for [`try_notify`](Self::try_notify), without [`CallError::OutboxFull`].
    ///
    /// # Cancel safety
    /// Dropped before it is done, the notification is not sent.
    pub async fn notify<P: Serialize + ?Sized>(
        &self,
        method: impl Into<Arc<str>>,
        params: &P,
    ) -> Result<(), CallError> {
        let frame = Frame::new(self.0.max_frame, method.into(), params)?;
        self.0.notify(frame, None).await
    }

    /// Waits until the connection has closed, however that comes: `Ok` at the end of input, after a shutdown, or when
    /// the peer closes.
    ///
    /// # Errors
    /// What broke it.
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

    /// The exit code the peer asks of this process, once it has told it to end (LSP's `exit`, which closes the connection): 0 after
    /// `shutdown`, else 1. `None`: it has not; a connection that just ends asks nothing of its process.
    ///
    /// LSP 3.18, "Exit Notification": "The server should exit with success code 0 if the shutdown request has been received before;
    /// otherwise with error code 1."
    #[must_use]
    pub fn exit_code(&self) -> Option<u8> {
        self.0.lock().session.exit_code()
    }

    /// Whether the connection has closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.lock().end.is_some()
    }

    /// Shuts the connection down in six steps, the same on every wire: new requests and calls are refused while
    /// cancels and answers are still read; what runs may end by itself for `drain`; handlers are cancelled, cascading;
    /// after [`Limits::cancel_grace`](crate::Limits::cancel_grace) they are aborted; calls of ours are settled with
    /// [`CauseKind::Shutdown`](crate::CauseKind::Shutdown); what waits is flushed for
    /// [`Limits::flush`](crate::Limits::flush) at most, and the wire is closed.
    ///
    /// Returns how many handlers still ran then: blocking work that does not look at its cancel cannot be stopped. A
    /// program that must end uses the runtime's `shutdown_timeout`.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the shutdown back.
    pub async fn shutdown(&self, drain: Duration) -> u64 {
        self.0.step(|state, now, _| state.session.local_shutdown(now, drain));
        let _ = self.closed().await;
        let stats = self.0.lock().session.stats();
        stats.running + stats.draining
    }

    /// The machine's counters, now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.lock().session.stats()
    }

    /// What waits on this side, now.
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

    /// The session's name in the [`registry`](Self::registry).
    #[must_use]
    pub fn session(&self) -> &SessionId {
        &self.0.session_id
    }

    /// The registry that knows this side's cancelled requests.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// The dialect of the connection; of several that were offered, the one the peer speaks.
    #[must_use]
    pub fn dialect(&self) -> &Dialect {
        &self.0.dialect
    }

    /// What the wire knows of the peer.
    #[must_use]
    pub fn meta(&self) -> &PeerInfo {
        &self.0.meta
    }
}

impl Clone for Peer {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Peer").field(&self.0).finish()
    }
}

/// What waits on this side of a connection, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStats {
    /// Frames that wait to be written.
    pub outbox_frames: usize,
    /// About how many bytes wait to be written, calls of ours not counted.
    pub outbox_bytes: usize,
    /// About how many bytes are held for the connection, against [`Limits::memory`](crate::Limits::memory).
    pub memory: usize,
    /// Notifications of the peer that wait for their handler.
    pub notifications_waiting: usize,
    /// A counter: notifications of the peer that were dropped because too many waited.
    pub notifications_dropped: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::ACP;
    use crate::driver::context::CallContext;
    use crate::driver::router::Router;
    use crate::transport::memory_pair;
    use serde_json::{Value, json};

    fn connect(router: Router) -> (Peer, Peer) {
        let (near, far) = memory_pair();
        let server = Peer::builder(ACP).serve(router).attach(far).unwrap();
        (Peer::builder(ACP).attach(near).unwrap(), server)
    }

    fn echo() -> Router {
        Router::new().method("echo", |_: CallContext, told: Value| async move { Ok(told) })
    }

    /// What no one outside can see: nothing is kept of calls that have ended, on their own connection or on their parent's.
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
            assert_eq!(peer.0.lock().calls.taken(), 0, "I3: a call that ended keeps its entry");
        }
    }
}
