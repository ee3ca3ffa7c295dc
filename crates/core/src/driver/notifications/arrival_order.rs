//! Where a notification stood among the requests of its connection.

use std::sync::{Arc, Weak};

use crate::driver::context::CallContext;
use crate::driver::state::{ConnectionInner, Notified};

/// Where a notification stood among the requests of its connection.
///
/// Handlers run beside one another, so when one's code runs says nothing of what came first on the wire. A notification
/// that means the requests before it, as ACP's `session/cancel` does, asks its place and leaves the later ones alone.
#[derive(Clone, Debug)]
pub struct ArrivalOrder {
    connection: Weak<ConnectionInner>,
    /// It was the connection's so many-th.
    number: u64,
}

impl ArrivalOrder {
    pub(crate) fn of(notified: &Notified) -> Self {
        Self { connection: Arc::downgrade(&notified.connection), number: notified.number }
    }

    /// Whether the notification came before the request, on the same connection. Between connections there is no order:
    /// `false`. To be asked while the notification's handler runs; for a request that came after its end it is `false`
    /// too.
    #[must_use]
    pub fn is_before(&self, request: &CallContext) -> bool {
        std::ptr::eq(self.connection.as_ptr(), Arc::as_ptr(request.connection()))
            && request.request().came_after() >= self.number
    }
}
