//! A handle that cancels a call.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::cause::{Cause, CauseKind};
use crate::driver::state::ConnectionInner;
use crate::id::SlotKey;
use crate::machine::CancelResult;

/// Cancels one call, from any thread, also outside a runtime. Cheap to clone. It does nothing once its call has ended
/// (ABP-31).
///
/// ```
/// use rescind_core::{CallContext, Outcome, Peer, Router, dialect, memory_pair};
/// use serde_json::{Value, json};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (client, server) = memory_pair();
/// let router = Router::new().method("wait", async |ctx: CallContext, _: Value| {
///     ctx.run_until_cancelled(std::future::pending::<()>()).await?;
///     Ok(Value::Null)
/// });
/// let _serving = Peer::builder(dialect::ACP).serve(router).attach(server)?;
/// let peer = Peer::builder(dialect::ACP).attach(client)?;
///
/// let call = peer.call::<_, Value>("wait", &json!({})).start()?;
/// let stop = call.canceller();
/// tokio::spawn(async move { stop.cancel("the user pressed stop") });
/// match call.outcome().await {
///     Outcome::Cancelled(cancelled) => assert_eq!(cancelled.cause.reason(), Some("the user pressed stop")),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Canceller {
    connection: Arc<ConnectionInner>,
    /// `None`: the call was settled before it began.
    slot_key: Option<SlotKey>,
}

impl Canceller {
    pub(crate) fn new(connection: &Arc<ConnectionInner>, slot_key: Option<SlotKey>) -> Self {
        Self { connection: Arc::clone(connection), slot_key }
    }

    /// Cancels the call. The reason is sent to the peer if the dialect has a field for it; an empty reason is not sent.
    /// Returns at once and says what was done. The call itself returns how it ended.
    #[expect(clippy::must_use_candidate, reason = "most callers need no result")]
    pub fn cancel(&self, reason: &str) -> CancelResult {
        let cause = Cause::new(CauseKind::Caller);
        self.cancel_because(if reason.is_empty() { cause } else { cause.with_reason(reason) })
    }

    /// Cancels the call with this cause. The first cause of a call is kept.
    #[expect(clippy::must_use_candidate, reason = "most callers need no result")]
    pub fn cancel_because(&self, cause: Cause) -> CancelResult {
        let Some(slot_key) = self.slot_key else { return CancelResult::AlreadySettled };
        self.connection.step(|state, now, _| state.cancel_call(now, slot_key, cause, None))
    }

    /// A token that cancels the call when the token is cancelled.
    #[must_use]
    pub fn to_token(&self) -> CancellationToken {
        let token = CancellationToken::new();
        self.cancel_on(token.clone());
        token
    }

    /// Cancels the call when the token is cancelled. The task that waits for the token ends with the call.
    pub fn cancel_on(&self, token: CancellationToken) {
        let canceller = self.clone();
        self.watch(async move {
            token.cancelled().await;
            canceller.cancel_because(Cause::new(CauseKind::Caller));
        });
    }

    /// Runs a task that is aborted when the call ends.
    fn watch(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Some(slot_key) = self.slot_key else { return };
        let watch = self.connection.runtime.spawn(task).abort_handle();
        let late = {
            let mut state = self.connection.lock();
            match state.calls.get_mut(slot_key.0) {
                Some(entry) if !entry.ended => {
                    entry.extras().watches.push(watch);
                    None
                }
                Some(_) | None => Some(watch),
            }
        };
        if let Some(watch) = late {
            watch.abort();
        }
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").field("connection", &self.connection).finish_non_exhaustive()
    }
}
