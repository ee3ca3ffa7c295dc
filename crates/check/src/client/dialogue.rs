//! Raw frames with the program: each request is answered on the exchange on which it came.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use rescind_core::{
    Deviation, ExchangeEnd, ExchangeId, FrameInfo, FrameKind, Lane, Link, Outbound, RequestId, TransportEvent,
};
use rescind_testkit::runner::{DeviationSeen, refused};
use serde_json::Value;
use tokio::time::timeout;

/// A connection that the program opened.
pub(super) struct Dialogue {
    link: Link,
    /// The unanswered requests of the program, and their exchanges.
    open: Vec<(Value, ExchangeId)>,
    patience: Duration,
}

/// What came on a connection.
pub(super) enum Heard {
    /// A message, and the exchange on which it came.
    Frame(String, ExchangeId),
    Noise(String),
    Deviation(DeviationSeen),
    /// The program closed the stream of this request.
    StreamClosed(Value),
    Closed,
}

impl Dialogue {
    pub(super) const fn new(link: Link, patience: Duration) -> Self {
        Self { link, open: Vec::new(), patience }
    }

    pub(super) const fn ordered(&self) -> bool {
        self.link.traits.ordered
    }

    pub(super) const fn exchange_scoped(&self) -> bool {
        self.link.traits.exchange_scoped
    }

    /// The next event.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Heard {
        loop {
            let event = poll_fn(|cx| self.link.rx.as_mut().poll_event(cx)).await;
            return match event {
                Some(Ok(TransportEvent::Message(message))) => {
                    match String::from_utf8(message.body.to_vec()) {
                        Ok(text) => Heard::Frame(text, message.exchange),
                        Err(_) => Heard::Noise(format!("{} bytes that are not UTF-8", message.body.len())),
                    }
                }
                Some(Ok(TransportEvent::Rejected { why, head, .. })) => Heard::Noise(refused(why, &head)),
                Some(Ok(TransportEvent::Deviation { deviation: Deviation::Noise, sent })) => {
                    Heard::Noise(String::from_utf8_lossy(&sent).into_owned())
                }
                Some(Ok(TransportEvent::Deviation { deviation, sent })) => {
                    Heard::Deviation(DeviationSeen::new(deviation, String::from_utf8_lossy(&sent)))
                }
                Some(Ok(TransportEvent::ExchangeClosed { exchange })) => {
                    let Some(at) = self.open.iter().position(|(_, on)| *on == exchange) else { continue };
                    let (id, _) = self.open.remove(at);
                    self.link.tx.as_mut().finish_exchange(exchange, ExchangeEnd::Silent);
                    Heard::StreamClosed(id)
                }
                Some(Ok(TransportEvent::ExchangeResumed { .. } | TransportEvent::ExchangeFailed { .. })) => {
                    continue;
                }
                Some(Ok(_) | Err(_)) | None => Heard::Closed,
            };
        }
    }

    /// Notes a request of the program, whose answer may take long.
    pub(super) fn begin(&mut self, id: &Value, exchange: ExchangeId) {
        self.open.push((id.clone(), exchange));
        if exchange.is_peers() {
            self.link.tx.as_mut().begin_exchange(exchange);
            self.link.tx.as_mut().note_waiting(exchange);
        }
    }

    /// Accepts a message that needs no answer.
    pub(super) async fn accept(&mut self, exchange: ExchangeId) {
        if exchange.is_peers() {
            self.link.tx.as_mut().finish_exchange(exchange, ExchangeEnd::Accepted);
            self.flush().await;
        }
    }

    /// Ends a request without an answer.
    pub(super) async fn silence(&mut self, id: &Value) {
        if let Some(exchange) = self.take(id).filter(|exchange| exchange.is_peers()) {
            self.link.tx.as_mut().finish_exchange(exchange, ExchangeEnd::Silent);
            self.flush().await;
        }
    }

    /// Sends an answer.
    pub(super) async fn answer(&mut self, id: &Value, frame: &Value) {
        let exchange = self.take(id);
        let last = exchange.is_some_and(ExchangeId::is_peers);
        self.send(FrameKind::Answer, Some(id), frame, exchange.unwrap_or(ExchangeId::NONE), last).await;
    }

    /// Sends a frame that belongs to a request of the program, on its exchange if it is open.
    pub(super) async fn beside(
        &mut self,
        id: &Value,
        kind: FrameKind,
        own_id: Option<&Value>,
        frame: &Value,
    ) {
        let open = self.open.iter().rfind(|(open, _)| open == id);
        let exchange = open.map_or(ExchangeId::NONE, |(_, exchange)| *exchange);
        self.send(kind, own_id, frame, exchange, false).await;
    }

    fn take(&mut self, id: &Value) -> Option<ExchangeId> {
        let at = self.open.iter().rposition(|(open, _)| open == id)?;
        Some(self.open.remove(at).1)
    }

    /// A program that is gone or does not read gets nothing. The record shows what it did then.
    async fn send(
        &mut self,
        kind: FrameKind,
        id: Option<&Value>,
        frame: &Value,
        exchange: ExchangeId,
        last: bool,
    ) {
        let method = frame.get("method").and_then(Value::as_str).map(Into::into);
        let id = id.and_then(|id| RequestId::from_json(&id.to_string()).ok());
        let head = FrameInfo { kind, id, method, trace: None };
        let body = Bytes::from(frame.to_string());
        let out = Outbound { body, exchange, lane: Lane::Data, head, last };
        let sent = async {
            poll_fn(|cx| self.link.tx.as_mut().poll_ready(Lane::Data, cx)).await?;
            self.link.tx.as_mut().start_send(out)?;
            poll_fn(|cx| self.link.tx.as_mut().poll_flush(cx)).await
        };
        let _written = timeout(self.patience, sent).await;
    }

    async fn flush(&mut self) {
        let flushed = poll_fn(|cx| self.link.tx.as_mut().poll_flush(cx));
        let _written = timeout(self.patience, flushed).await;
    }
}
