//! The one link of a listener, and its POSTs (N1).

use std::net::IpAddr;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use rescind_core::failpoint::{self, Failpoint};
use rescind_core::{
    ByteBudget, ExchangeEnd, ExchangeId, FrameKind, HeldBytes, Inbound, Outbound, Principal, RejectReason,
    TraceContext, TransportError, TransportErrorKind, TransportEvent,
};
use tokio::time::Instant;

use super::mirrored_headers;
use crate::inbound_queue::{InboundQueue, SendRefused, WakeList};
use crate::server::Settings;
use crate::server::exchange_table::{ExchangeList, ExchangeRules, ExchangeTable, Exchanges};
use crate::server::replay_buffer::Retention;
use crate::server::sessions::Linked;

/// The most open POSTs.
const OPEN: usize = 16 * 1024;
/// The number of bytes that may wait for all readers together. At this number the link takes no more data from
/// handlers.
const ROOM: usize = 64 * 1024 * 1024;
/// Streams cannot be resumed.
const KEPT: Retention = Retention { events: 0, bytes: 0 };

static RULES: ExchangeRules =
    ExchangeRules { most: OPEN, room: ROOM - 1, resumable: false, silence_is_a_stream: false, status };

/// The POSTs of one link, each with the budget that counts its answer.
pub(super) struct StatelessLink {
    pub(super) inbound_queue: Arc<InboundQueue>,
    pub(super) settings: Arc<Settings>,
    pub(super) exchanges: Exchanges<ByteBudget>,
    /// The time after which the response to a request becomes an event stream.
    stream_after: Duration,
}

impl StatelessLink {
    pub(super) fn new(settings: &Arc<Settings>, stream_after: Duration) -> Arc<Self> {
        let inbound_queue = InboundQueue::new(settings.max_frame);
        let exchanges = Exchanges::new(&RULES, None);
        Arc::new(Self { inbound_queue, settings: Arc::clone(settings), exchanges, stream_after })
    }

    /// Takes a message. The token identifies the reader if the response becomes a stream.
    pub(super) fn post(
        &self,
        (body, held): (Bytes, HeldBytes),
        principal: Option<Principal>,
        address: Option<IpAddr>,
        trace: Option<Arc<TraceContext>>,
        budget: &ByteBudget,
    ) -> Result<(ExchangeId, u64), SendRefused> {
        let now = Instant::now();
        let (exchange, token) =
            self.exchanges.step(|table, _| table.begin_post(now, KEPT, budget.clone()))?;
        self.inbound_queue
            .push(Inbound { body, exchange, principal, address, trace }, held)
            .inspect_err(|_| drop(self.exchanges.lock().open.remove(&exchange.0)))?;
        Ok((exchange, token))
    }

    /// The client has disconnected, or has read the whole response (N3).
    pub(super) fn left(&self, exchange: ExchangeId, token: u64) {
        self.exchanges.step(|table, wakes| {
            let closed = table.left(exchange.0, token, &self.settings, wakes);
            self.push_closed(closed, wakes);
        });
    }

    fn push_closed(&self, closed: ExchangeList, wakes: &mut WakeList) {
        if failpoint::active(Failpoint::ExchangeCloseUntold) {
            return;
        }
        for exchange in closed {
            wakes.add(self.inbound_queue.push_event_under_lock(TransportEvent::ExchangeClosed { exchange }));
        }
    }
}

impl Linked for StatelessLink {
    const ENDED: &'static str = "the server has ended";
    const EXCHANGE_SCOPED: bool = true;

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn inbound_queue(&self) -> &Arc<InboundQueue> {
        &self.inbound_queue
    }

    fn is_closed(&self) -> bool {
        self.exchanges.lock().closed
    }

    fn has_room(&self, cx: &mut Context<'_>) -> bool {
        self.exchanges.lock().has_room(cx)
    }

    /// Cuts the stream with the most waiting bytes: its reader takes nothing, and the other streams would wait for it.
    fn cut_stalled(&self, _: Instant) {
        self.exchanges.step(|table, wakes| {
            let slowest = table.open.iter().max_by_key(|(_, open)| open.waiting_bytes());
            if let Some(stream) = slowest.map(|(stream, _)| *stream) {
                tracing::debug!("an event stream was cut, because its client does not read it");
                let closed = table.cut(stream, &self.settings, wakes);
                self.push_closed(closed, wakes);
            }
        });
    }

    fn send(&self, mut out: Outbound) -> Result<(), TransportError> {
        self.exchanges.step(|table, wakes| {
            if table.closed {
                return Err(Self::ended());
            }
            let stream = out.exchange.0;
            let is_asked = out.head.kind != FrameKind::Request;
            let Some(open) = table.open.get(&stream).filter(|open| is_asked && !open.buffer.is_ended())
            else {
                let text = "a server says nothing here but on a request of its client's";
                let error = TransportError::new(TransportErrorKind::Closed, text);
                return Err(TransportError { exchange: Some(out.exchange), ..error });
            };
            out.body = open.extra.hold_frame(out.body);
            table.send(stream, out, &self.settings, wakes)
        })
    }

    fn begin(&self, exchange: ExchangeId) {
        self.exchanges.step(|table, wakes| table.note_started(exchange, self.stream_after, wakes));
    }

    fn note_waiting(&self, exchange: ExchangeId) {
        self.exchanges.step(|table, wakes| table.note_waiting(exchange, &self.settings, wakes));
    }

    fn note_rejection(&self, exchange: ExchangeId, reason: RejectReason) {
        self.exchanges.lock().note_rejection(exchange, reason);
    }

    fn finish(&self, exchange: ExchangeId, how: ExchangeEnd) {
        self.exchanges.step(|table, wakes| table.finish(exchange, how, &self.settings, wakes));
    }

    /// Nothing more is taken in. Messages that wait are still read.
    fn end(&self) {
        self.exchanges.step(ExchangeTable::close);
        self.inbound_queue.end();
    }
}

fn status(reason: Option<RejectReason>, answer: &[u8]) -> StatusCode {
    match reason {
        Some(RejectReason::BadMessage | RejectReason::NotInitialized) => StatusCode::BAD_REQUEST,
        Some(RejectReason::DuplicateId) => StatusCode::CONFLICT,
        Some(RejectReason::Overloaded) => StatusCode::TOO_MANY_REQUESTS,
        Some(RejectReason::MethodNotFound) => StatusCode::NOT_FOUND,
        Some(_) | None => mirrored_headers::status_of(answer),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Poll, Waker};

    use rescind_core::{FrameInfo, Lane, Receiver as _};

    use super::*;
    use crate::inbound_queue::InboundReceiver;

    /// Room for two messages on a POST.
    fn exchanges() -> Arc<StatelessLink> {
        StatelessLink::new(
            &Arc::new(Settings { unread_limit: (2, 1024), ..Settings::default() }),
            Duration::ZERO,
        )
    }

    fn post(exchanges: &StatelessLink) -> (ExchangeId, u64) {
        {
            let budget = ByteBudget::default();
            exchanges.post((Bytes::from_static(b"{}"), budget.hold(2)), None, None, None, &budget).unwrap()
        }
    }

    fn say(
        exchanges: &StatelessLink,
        (exchange, _): (ExchangeId, u64),
        body: impl Into<Bytes>,
        kind: FrameKind,
    ) {
        let head = FrameInfo { kind, id: None, method: None, trace: None };
        let last = kind == FrameKind::Answer;
        exchanges.send(Outbound { body: body.into(), exchange, lane: Lane::Data, head, last }).unwrap();
    }

    fn note(exchanges: &StatelessLink, exchange: (ExchangeId, u64), body: impl Into<Bytes>) {
        say(exchanges, exchange, body, FrameKind::Notification);
    }

    /// Reads the messages that wait for a reader until it would block, and returns them with whether the stream has
    /// ended.
    fn read(exchanges: &StatelessLink, (exchange, token): (ExchangeId, u64)) -> (Vec<Bytes>, bool) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut read = Vec::new();
        loop {
            match exchanges.exchanges.step(|table, _| table.poll_event(exchange.0, token, &mut cx)) {
                Poll::Ready(Some(event)) => {
                    let data = event.strip_prefix(b"data: ").and_then(|data| data.strip_suffix(b"\n\n"));
                    read.push(event.slice_ref(data.expect("an event without an id")));
                }
                Poll::Ready(None) => return (read, true),
                Poll::Pending => return (read, false),
            }
        }
    }

    #[test]
    fn a_slow_reader_gets_its_newest_notifications_and_its_answer() {
        let exchanges = exchanges();
        let (slow, other) = (post(&exchanges), post(&exchanges));
        for number in ["1", "2", "3"] {
            note(&exchanges, slow, number);
        }
        note(&exchanges, other, "its own");
        say(&exchanges, slow, "answer", FrameKind::Answer);
        assert_eq!(exchanges.settings.counts.dropped_notifications(), 2);
        assert_eq!(read(&exchanges, slow), (vec!["3".into(), "answer".into()], true));
        assert_eq!(read(&exchanges, other), (vec!["its own".into()], false), "N4: its own request only");
        assert_eq!(exchanges.exchanges.lock().held(), 0, "what was dropped or read does not count any more");
    }

    #[test]
    fn an_answer_over_the_buffer_limit_is_kept_and_notifications_are_dropped() {
        let exchanges = exchanges();
        let slow = post(&exchanges);
        note(&exchanges, slow, "1");
        let answer = Bytes::from(vec![b'x'; 2000]);
        say(&exchanges, slow, answer.clone(), FrameKind::Answer);
        assert_eq!(read(&exchanges, slow), (vec![answer], true));
        assert_eq!(exchanges.settings.counts.dropped_notifications(), 1);
    }

    #[test]
    fn the_stream_with_the_most_unread_bytes_is_cut_and_its_request_is_reported_as_left() {
        let exchanges = exchanges();
        let (slow, other) = (post(&exchanges), post(&exchanges));
        note(&exchanges, slow, "much of it");
        note(&exchanges, other, "little");
        exchanges.cut_stalled(Instant::now());
        assert_eq!(read(&exchanges, slow), (vec![], true));
        assert_eq!(read(&exchanges, other), (vec!["little".into()], false));
        let mut receiver = InboundReceiver(Arc::clone(&exchanges.inbound_queue));
        let mut closed = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(event))) = Pin::new(&mut receiver).poll_event(&mut cx) {
            if let TransportEvent::ExchangeClosed { exchange } = event {
                closed.push(exchange);
            }
        }
        assert_eq!(closed, [slow.0], "N4: its own request only");
    }
}
