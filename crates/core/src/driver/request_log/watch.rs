//! The changes of requests, for any number of readers of any speed.
//!
//! The last changes are kept once for all readers. A reader that is slower misses the oldest ones, and learns how many. So no
//! reader delays a connection, and none makes memory grow.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use crate::driver::request_log::events::RequestEvent;
use crate::driver::request_log::shared::Shared;

/// Reads the changes of a [`RequestLog`](crate::RequestLog). It keeps the log's recording alive.
pub struct RequestWatch {
    shared: Arc<Shared>,
    next: u64,
}

impl RequestWatch {
    pub(crate) const fn new(shared: Arc<Shared>, next: u64) -> Self {
        Self { shared, next }
    }

    /// The next change, if one has happened that was not read.
    pub fn try_next(&mut self) -> Option<RequestEvent> {
        let event = self.shared.lock().events.read(self.next)?;
        self.next += match &event {
            RequestEvent::Missed(missed) => *missed,
            RequestEvent::Started(_) | RequestEvent::Changed(_) | RequestEvent::Ended(_) => 1,
        };
        Some(event)
    }

    /// Waits for the next change. It waits for as long as the watch lives, also if no connection is left.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> RequestEvent {
        let shared = Arc::clone(&self.shared);
        loop {
            let mut changed = pin!(shared.changed.notified());
            changed.as_mut().enable();
            if let Some(event) = self.try_next() {
                return event;
            }
            changed.await;
        }
    }
}

impl fmt::Debug for RequestWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestWatch").field("next", &self.next).finish_non_exhaustive()
    }
}
