//! The readers of a session's streams, and what they report when they end.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::session_state::SessionState;
use crate::server::response_body::EventSource;

/// One stream of a session.
pub(super) struct StreamFeed {
    pub(super) session: Arc<SessionState>,
    pub(super) stream: u64,
}

impl EventSource for StreamFeed {
    fn poll_next(&self, reader: u64, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let event = self.session.exchanges.step(|table, _| table.poll_event(self.stream, reader, cx));
        event.map(|event| event.map(|event| self.session.budget.hold_frame(event)))
    }

    fn left(&self, reader: u64) {
        self.session.left(self.stream, reader);
    }
}

/// A POST that waits for the head of its response. If it is dropped before that, it reports that the client has left
/// the exchange (S3).
pub(super) struct Waiting {
    pub(super) feed: StreamFeed,
    pub(super) token: u64,
    /// Whether nothing is to be reported: the exchange is over, or the body of the response reports its end.
    pub(super) left: bool,
}

impl Waiting {
    /// The response is taken, and is not a stream: the exchange is over.
    pub(super) fn answered(&mut self) {
        self.left = true;
        self.feed.session.touch();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.left {
            self.feed.left(self.token);
        }
    }
}
