//! Batches: several messages in one POST. Each is an exchange of its own for the driver, so each request is answered,
//! cancelled and lost alone. They share one response and one stream.
//!
//! - P1 The response is an event stream if the batch has a request, else 202. It ends with the last of its messages.
//! - P2 The messages of all batches count as open exchanges.

use rescind_core::{ExchangeId, Outbound, TransportError};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{ExchangeTable, Response, ResponseKind, Retention, Settings, WakeList};
use crate::inbound_queue::SendRefused;

/// A batch that was begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchBegun {
    /// The stream of its answers.
    pub(crate) stream: u64,
    /// The reader of that stream.
    pub(crate) token: u64,
    /// The exchange of its first message. Those of the others follow.
    pub(crate) first: u64,
}

/// The exchanges of a stream: one, or those of a batch.
pub(crate) type ExchangeList = SmallVec<[ExchangeId; 1]>;

impl<X> ExchangeTable<X> {
    /// Begins a batch of so many messages. `asks`: it has a request.
    pub(crate) fn begin_batch(
        &mut self,
        now: Instant,
        kept: Retention,
        extra: X,
        messages: usize,
        asks: bool,
    ) -> Result<BatchBegun, SendRefused> {
        if self.open_messages().saturating_add(messages) > self.rules.most {
            return Err(if self.closed { SendRefused::Closed } else { SendRefused::Full });
        }
        let (ExchangeId(stream), token) = self.begin_post(now, kept, extra)?;
        let first = self.next;
        for _ in 0..messages {
            self.parts.insert(self.next, stream);
            self.next += 1;
        }
        if let Some(open) = self.open.get_mut(&stream) {
            open.parts = messages;
            if asks {
                open.response = Response::Decided(ResponseKind::EventStream);
            }
        }
        Ok(BatchBegun { stream, token, first })
    }

    /// Forgets a batch that was not passed on.
    pub(crate) fn drop_batch(&mut self, batch: BatchBegun) {
        self.parts.retain(|_, stream| *stream != batch.stream);
        self.open.remove(&batch.stream);
    }

    /// The open exchanges, each message of a batch for itself (P2).
    pub(super) fn open_messages(&self) -> usize {
        self.open.len() + self.parts.len()
    }

    /// The stream of an exchange.
    pub(crate) fn stream_of(&self, exchange: ExchangeId) -> u64 {
        self.parts.get(&exchange.0).copied().unwrap_or(exchange.0)
    }

    /// The exchanges of a stream that have not ended.
    pub(crate) fn exchanges_of(&self, stream: u64) -> ExchangeList {
        if self.open.get(&stream).is_none_or(|open| open.parts == 0) {
            return ExchangeList::from_elem(ExchangeId(stream), 1);
        }
        let parts = self.parts.iter().filter(|(_, of)| **of == stream).map(|(part, _)| ExchangeId(*part));
        let mut parts: ExchangeList = parts.collect();
        parts.sort_unstable();
        parts
    }

    /// Accepts a frame for a message of a batch.
    pub(super) fn send_part(
        &mut self,
        stream: u64,
        out: Outbound,
        settings: &Settings,
        wakes: &mut WakeList,
    ) -> Result<(), TransportError> {
        let Some(open) = self.open.get_mut(&stream) else { return Ok(()) };
        let (part, last) = (out.exchange, out.last);
        let done = match &open.response {
            // No client takes it.
            Response::Gone => Ok(()),
            Response::Undecided(_) | Response::Decided(_) | Response::Sent => {
                wakes.add(open.response.decide(ResponseKind::EventStream));
                self.put(stream, out, settings, wakes)
            }
        };
        if last {
            self.end_part(part, settings, wakes);
        }
        done
    }

    /// Ends a message of a batch, and the response with the last of them (P1). `false`: it is of no batch.
    pub(super) fn end_part(&mut self, part: ExchangeId, settings: &Settings, wakes: &mut WakeList) -> bool {
        let Some(stream) = self.parts.remove(&part.0) else { return false };
        let Some(open) = self.open.get_mut(&stream) else { return true };
        open.parts = open.parts.saturating_sub(1);
        if open.parts > 0 {
            return true;
        }
        match &open.response {
            Response::Gone => {
                self.open.remove(&stream);
            }
            Response::Undecided(_) => wakes.add(open.response.decide(ResponseKind::Accepted)),
            Response::Decided(_) | Response::Sent => self.end(stream, settings, wakes),
        }
        true
    }
}
