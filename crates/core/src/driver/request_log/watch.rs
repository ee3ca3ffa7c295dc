//! The changes of requests, for any number of readers of any speed.
//!
//! The last [`MAX_EVENTS`] changes are kept once for all readers. A reader that is slower misses the oldest ones, and
//! learns how many. So no reader delays a connection, and none makes memory grow.

use std::collections::VecDeque;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use crate::driver::request_log::info::{EndedRequest, RequestInfo};
use crate::driver::request_log::log::Shared;

/// The number of changes that are kept.
pub(crate) const MAX_EVENTS: usize = 512;

/// A change of a request or a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestEvent {
    /// It has arrived or was made.
    Started(RequestInfo),
    /// Its status has changed, or it was cancelled. A cancel that a critical section delays is reported when it takes
    /// effect. That a call was written is not reported.
    Changed(RequestInfo),
    /// It has ended.
    Ended(EndedRequest),
    /// The reader was too slow: it missed this many changes. A new snapshot has their result.
    Missed(u64),
}

/// The changes that are kept.
#[derive(Debug, Default)]
pub(crate) struct Events {
    kept: VecDeque<RequestEvent>,
    /// The number of the oldest one that is kept.
    first: u64,
}

impl Events {
    pub(crate) fn push(&mut self, event: RequestEvent) {
        if self.kept.len() >= MAX_EVENTS {
            self.kept.pop_front();
            self.first += 1;
        }
        self.kept.push_back(event);
    }

    /// The number that the next event will get.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// The event of this number, or how many were missed. `None`: it has not happened yet.
    fn read(&self, number: u64) -> Option<RequestEvent> {
        if let Some(missed) = self.first.checked_sub(number).filter(|missed| *missed > 0) {
            return Some(RequestEvent::Missed(missed));
        }
        self.kept.get(usize::try_from(number - self.first).ok()?).cloned()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_learns_how_many_changes_it_missed_and_memory_is_bounded() {
        let mut events = Events::default();
        assert_eq!(events.read(0), None);
        for missed in 0..10_000 {
            events.push(RequestEvent::Missed(missed));
        }
        assert_eq!(events.kept.len(), MAX_EVENTS, "I11");
        let missed = 10_000 - MAX_EVENTS as u64;
        assert_eq!(events.read(0), Some(RequestEvent::Missed(missed)));
        // What stands in the event is its number here.
        assert_eq!(events.read(missed), Some(RequestEvent::Missed(missed)));
        assert_eq!(events.read(9_999), Some(RequestEvent::Missed(9_999)));
        assert_eq!((events.read(10_000), events.next()), (None, 10_000));
    }
}
