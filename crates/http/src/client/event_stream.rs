//! The events of a response, as they arrive.

use std::time::Duration;

use http_body_util::BodyExt;
use rescind_core::{BadFrame, Deviation, ExchangeId, TransportEvent};
use tokio::time::Instant;

use super::ResponseBody;
use super::events::{Event, Events, Read};
use crate::inbound_queue::InboundQueue;

/// How long a stream may stay open after its answer, so that its connection can be used again.
const AFTER_ANSWER: Duration = Duration::from_secs(1);

/// A response that is an event stream.
pub(crate) struct EventStream<'a> {
    body: ResponseBody,
    events: Events,
    /// The largest event, in bytes.
    limit: usize,
    inbound_queue: &'a InboundQueue,
    /// When the client stops reading the stream.
    ends_by: Option<Instant>,
    /// Whether the response has ended.
    is_over: bool,
}

impl<'a> EventStream<'a> {
    /// A stream whose events have at most `limit` bytes of data each.
    pub(crate) fn new(body: ResponseBody, limit: usize, inbound_queue: &'a InboundQueue) -> Self {
        Self { body, events: Events::new(limit), limit, inbound_queue, ends_by: None, is_over: false }
    }

    /// Notes that the answer has arrived: the stream should end now. If it does not end in time, the client stops
    /// reading it.
    pub(crate) fn answered(&mut self) {
        self.ends_by.get_or_insert_with(|| Instant::now() + AFTER_ANSWER);
    }

    /// The next event. `None`: the stream has ended, with or without an error. If an event is above the limit, it is
    /// skipped and the driver gets a rejection.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            while let Some(read) = self.events.next() {
                match read {
                    Read::Event(event) => return Some(event),
                    Read::TooLarge => {
                        let why = BadFrame::TooLarge { limit: self.limit };
                        self.inbound_queue.push_event(TransportEvent::Rejected {
                            exchange: ExchangeId::NONE,
                            why,
                            head: bytes::Bytes::new(),
                        });
                    }
                }
            }
            if self.is_over {
                return None;
            }
            let frame = self.body.frame();
            let frame = match self.ends_by {
                Some(by) => tokio::time::timeout_at(by, frame).await.unwrap_or_default(),
                None => frame.await,
            };
            if let Some(Ok(frame)) = frame {
                self.events.push(&frame.into_data().unwrap_or_default());
                continue;
            }
            self.is_over = true;
            let last = self.events.finish();
            if let Some(last) = &last {
                self.inbound_queue.push_event(TransportEvent::Deviation {
                    deviation: Deviation::UnendedEvent,
                    sent: last.data.clone(),
                });
            }
            return last;
        }
    }
}
