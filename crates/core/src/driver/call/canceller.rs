//! Cancelling a call from anywhere, at any time.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::cause::{Cause, CauseKind};
use crate::driver::state::ConnectionInner;
use crate::driver::tables::slots::SlotKey;
use crate::machine::CancelResult;

/// Cancels one call. Cheap to clone, can cross threads, works outside a runtime, and does nothing once its call has
/// ended (004-31).
#[derive(Clone)]
pub struct Canceller {
    shared: Arc<ConnectionInner>,
    /// `None`: the call was settled before it began.
    ticket: Option<SlotKey>,
}

impl Canceller {
    pub(crate) fn new(shared: &Arc<ConnectionInner>, ticket: Option<SlotKey>) -> Self {
        Self { shared: Arc::clone(shared), ticket }
    }

    /// Cancels the call, with a reason for the peer where its dialect has room for one; an empty reason is none. The
    /// result says what was done about it, at once; how the call ends is told by the call.
    pub fn cancel(&self, reason: &str) -> CancelResult {
        let cause = Cause::new(CauseKind::Caller);
        self.cancel_because(if reason.is_empty() { cause } else { cause.with_reason(reason) })
    }

    /// Cancels the call for this cause. The first cause wins.
    pub fn cancel_because(&self, cause: Cause) -> CancelResult {
        let Some(ticket) = self.ticket else { return CancelResult::AlreadySettled };
        self.shared.step(|state, now, _| state.cancel_call(now, ticket, cause, None))
    }

    /// A token that cancels the call when it is cancelled, by itself or as a child of another.
    #[must_use]
    pub fn to_token(&self) -> CancellationToken {
        let token = CancellationToken::new();
        self.cancel_on(token.clone());
        token
    }

    /// Cancels the call when the token is cancelled. Nothing is left of it once the call has ended.
    pub fn cancel_on(&self, token: CancellationToken) {
        let canceller = self.clone();
        self.watch(async move {
            token.cancelled().await;
            let _ = canceller.cancel_because(Cause::new(CauseKind::Caller));
        });
    }

    /// Runs a task beside the call that ends with it.
    fn watch(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Some(ticket) = self.ticket else { return };
        let watch = self.shared.runtime.spawn(task).abort_handle();
        let late = {
            let mut state = self.shared.lock();
            match state.calls.get_mut(ticket) {
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
        f.debug_struct("Canceller").field("connection", &self.shared).finish_non_exhaustive()
    }
}
