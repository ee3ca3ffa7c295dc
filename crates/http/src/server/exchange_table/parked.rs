//! Messages of this side that no stream can carry yet: they wait for the link's own stream, or for a request of the client
//! whose response can carry them.
//!
//! - K1 A message that belongs to no running request is sent on the link's own stream if that is read, else on the stream
//!   of the newest request that runs and whose client is there. It waits only if there is neither.
//! - K2 Messages that wait are sent before later ones, in their order.
//! - K3 Their number and bytes are bounded by `HttpServer::unread_limit`, and their time by `HttpServer::stream_wait`. A
//!   request that waited too long fails without having been sent. A notification is dropped, except for a client whose
//!   stream was lost: it may return.
//!
//! # Batches
//!
//! A batch is several messages in one POST. Each is an exchange of its own for the driver, so each request is answered,
//! cancelled and lost alone. They share one response and one stream.
//!
//! - P1 The response is an event stream if the batch has a request, else 202. It ends with the last of its messages.
//! - P2 The messages of all batches count as open exchanges.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rescind_core::{
    CallNumber, ExchangeId, FrameKind, Outbound, TransportError, TransportErrorKind, TransportEvent,
};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::inbound_queue::SendRefused;
use crate::server::exchange_table::{
    ExchangeTable, OWN, ResponseKind, ResponseState, Retention, Settings, WakeList, unread_limit_error,
};
use crate::server::replay_buffer::ReplayBuffer;

/// What happened to a message that belongs to no running request.
#[derive(Debug)]
pub(crate) enum Unrelated {
    /// A stream carries it.
    Sent,
    /// It waits.
    Waits,
}

/// The messages that wait.
#[derive(Debug, Default)]
pub(super) struct Parked {
    frames: VecDeque<(Instant, Outbound)>,
    bytes: usize,
}

impl Parked {
    fn push(&mut self, now: Instant, out: Outbound) {
        self.bytes += out.body.len();
        self.frames.push_back((now, out));
    }

    fn remove(&mut self, place: usize) -> Option<Outbound> {
        let (_, out) = self.frames.remove(place)?;
        self.bytes -= out.body.len();
        Some(out)
    }

    fn is_over(&self, (messages, bytes): (usize, usize), more: usize) -> bool {
        self.frames.len() >= messages || self.bytes.saturating_add(more) > bytes
    }

    fn find(&self, is: impl Fn(&Outbound) -> bool) -> Option<usize> {
        self.frames.iter().position(|(_, out)| is(out))
    }
}

impl<X> ExchangeTable<X> {
    /// Sends a message that belongs to no running request (K1).
    pub(crate) fn send_unrelated(
        &mut self,
        out: Outbound,
        settings: &Settings,
        wakes: &mut WakeList,
    ) -> Result<Unrelated, TransportError> {
        let stream = if self.own.as_ref().is_some_and(ReplayBuffer::has_reader) {
            Some(OWN)
        } else {
            self.newest_running()
        };
        match stream {
            Some(stream) => {
                self.carry_parked(stream, settings, wakes);
                self.put_unrelated(stream, out, settings, wakes).map(|()| Unrelated::Sent)
            }
            None => self.park(out, settings),
        }
    }

    /// Moves the messages that wait to this stream, which is read (K2).
    pub(crate) fn carry_parked(&mut self, stream: u64, settings: &Settings, wakes: &mut WakeList) {
        while let Some(out) = self.parked.remove(0) {
            // The stream is read, so nothing is refused.
            let _ = self.put_unrelated(stream, out, settings, wakes);
        }
    }

    /// The same if the link's own stream is not read, and this one can carry other messages.
    pub(crate) fn carry_parked_if_running(&mut self, stream: u64, settings: &Settings, wakes: &mut WakeList) {
        let is_own_read = || self.own.as_ref().is_some_and(ReplayBuffer::has_reader);
        if !self.parked.frames.is_empty() && !is_own_read() && self.is_running(stream) {
            self.carry_parked(stream, settings, wakes);
        }
    }

    fn put_unrelated(
        &mut self,
        stream: u64,
        out: Outbound,
        settings: &Settings,
        wakes: &mut WakeList,
    ) -> Result<(), TransportError> {
        if let Some(open) = self.open.get_mut(&stream) {
            wakes.add(open.response.decide(ResponseKind::EventStream));
        }
        self.put(stream, out, settings, wakes)
    }

    /// The stream of the newest request whose handler runs and whose client is there.
    fn newest_running(&self) -> Option<u64> {
        self.open.keys().copied().filter(|stream| self.is_running(*stream)).max()
    }

    fn is_running(&self, stream: u64) -> bool {
        self.open.get(&stream).is_some_and(|open| {
            let may_be_stream = match &open.response {
                // The handler of a notification never counts as waiting.
                ResponseState::Undecided(_) => open.progress.waits,
                ResponseState::Decided(ResponseKind::EventStream) | ResponseState::Sent => true,
                ResponseState::Decided(_) | ResponseState::Gone => false,
            };
            may_be_stream && open.buffer.has_reader() && !open.buffer.is_ended()
        })
    }

    fn park(&mut self, out: Outbound, settings: &Settings) -> Result<Unrelated, TransportError> {
        while self.parked.is_over(settings.unread_limit, out.body.len()) {
            let is_droppable = |parked: &Outbound| parked.head.kind == FrameKind::Notification;
            let Some(oldest) = self.parked.find(is_droppable) else { break };
            self.parked.remove(oldest);
            settings.counts.notification_dropped();
            tracing::debug!("a notification was dropped: the client reads no event stream");
        }
        if self.parked.is_over(settings.unread_limit, out.body.len()) && !self.parked.frames.is_empty() {
            return match out.head.kind {
                FrameKind::Notification => {
                    settings.counts.notification_dropped();
                    Ok(Unrelated::Sent)
                }
                FrameKind::Request | FrameKind::Cancel | FrameKind::Answer => {
                    Err(unread_limit_error(out.exchange))
                }
            };
        }
        self.parked.push(Instant::now(), out);
        Ok(Unrelated::Waits)
    }

    /// When the oldest message that may not wait longer ends. `None`: there is none.
    pub(crate) fn parked_until(&self, wait: Duration) -> Option<Instant> {
        let keeps = self.keeps_notifications();
        let mut frames = self.parked.frames.iter();
        frames
            .find(|(_, out)| !keeps || out.head.kind != FrameKind::Notification)
            .map(|(came, _)| *came + wait)
    }

    /// Ends the messages that have waited for this time (K3). The driver needs the events.
    pub(crate) fn expire_parked(&mut self, now: Instant, settings: &Settings) -> Vec<TransportEvent> {
        let keeps = self.keeps_notifications();
        let wait = settings.stream_wait;
        let mut failures = Vec::new();
        let is_over = |(came, out): &(Instant, Outbound)| {
            *came + wait <= now && !(keeps && out.head.kind == FrameKind::Notification)
        };
        while let Some(place) = self.parked.frames.iter().position(is_over) {
            let Some(out) = self.parked.remove(place) else { break };
            if out.head.kind == FrameKind::Notification {
                settings.counts.notification_dropped();
                tracing::debug!("a notification was dropped: the client opened no event stream");
            }
            let text = format!(
                "the client has no event stream (GET) and no running request, so nothing could be sent to it for {} s",
                wait.as_secs()
            );
            failures.extend(failed(&out, text));
        }
        failures
    }

    /// Whether the client had the link's own stream, and may resume it.
    fn keeps_notifications(&self) -> bool {
        self.own.as_ref().is_some_and(ReplayBuffer::was_read)
    }

    /// Drops everything that waits: the link has ended.
    pub(super) fn drop_parked(&mut self) {
        self.parked = Parked::default();
    }
}

/// The failure of a request of this side that was not sent.
fn failed(out: &Outbound, text: String) -> Option<TransportEvent> {
    if out.head.kind != FrameKind::Request {
        return None;
    }
    let number = u64::try_from(out.head.id.as_ref()?.as_number()?).ok()?;
    let exchange = ExchangeId::of_call(CallNumber(number));
    let error = TransportError {
        kind: TransportErrorKind::Closed,
        exchange: Some(exchange),
        source: Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(text)),
    };
    Some(TransportEvent::ExchangeFailed { exchange, sent: false, error })
}

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
                open.response = ResponseState::Decided(ResponseKind::EventStream);
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
            ResponseState::Gone => Ok(()),
            ResponseState::Undecided(_) | ResponseState::Decided(_) | ResponseState::Sent => {
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
            ResponseState::Gone => {
                self.open.remove(&stream);
            }
            ResponseState::Undecided(_) => wakes.add(open.response.decide(ResponseKind::Accepted)),
            ResponseState::Decided(_) | ResponseState::Sent => self.end(stream, settings, wakes),
        }
        true
    }
}
