//! Which requests arrived before a notification.

use std::sync::{Arc, Weak};

use crate::driver::context::CallContext;
use crate::driver::state::{ConnectionInner, Notified};

/// Tells which requests arrived before a notification on its connection.
///
/// Handlers run concurrently, so the order in which they run is not the order of arrival. A notification that concerns
/// only the requests before it, such as ACP's `session/cancel`, uses this to leave later requests alone.
#[derive(Clone, Debug)]
pub struct ArrivalOrder {
    connection: Weak<ConnectionInner>,
    /// Its number among the notifications of the connection.
    number: u64,
}

impl ArrivalOrder {
    pub(crate) fn of(notified: &Notified) -> Self {
        Self { connection: Arc::downgrade(&notified.connection), number: notified.number }
    }

    /// Whether the notification arrived before the request on the same connection. `false` for a request of another
    /// connection. Call it while the notification's handler runs: for a request that arrived after the handler ended it
    /// returns `false` too.
    #[must_use]
    pub fn is_before(&self, request: &CallContext) -> bool {
        std::ptr::eq(self.connection.as_ptr(), Arc::as_ptr(request.connection()))
            && request.data().came_after() >= self.number
    }
}
