//! The last changes of requests. They are kept once for all readers.

use std::collections::VecDeque;

use crate::driver::request_log::info::{EndedRequest, RequestInfo};

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
    pub(crate) fn read(&self, number: u64) -> Option<RequestEvent> {
        if let Some(missed) = self.first.checked_sub(number).filter(|missed| *missed > 0) {
            return Some(RequestEvent::Missed(missed));
        }
        self.kept.get(usize::try_from(number - self.first).ok()?).cloned()
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
        // Each event has its number as its content here.
        assert_eq!(events.read(missed), Some(RequestEvent::Missed(missed)));
        assert_eq!(events.read(9_999), Some(RequestEvent::Missed(9_999)));
        assert_eq!((events.read(10_000), events.next()), (None, 10_000));
    }
}
