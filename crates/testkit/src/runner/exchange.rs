//! Raw frames on a transport of exchanges: the exchange on which a frame is sent, and the request that it answers.
//!
//! On a transport without exchanges it has no effect.

use std::collections::VecDeque;
use std::future::poll_fn;

use bytes::Bytes;
use rescind_core::{
    CallNumber, ExchangeEnd, ExchangeId, FrameInfo, FrameKind, Lane, Link, Outbound, RequestId,
    TransportError, TransportEvent,
};
use serde_json::Value;

use crate::wire_format::call_name;

/// The most answered exchanges that are remembered.
const MOST_ANSWERED: usize = 64;

/// One connection that carries raw frames.
pub(super) struct Exchanging {
    pub(super) link: Link,
    /// The number of exchanges that the runner opened.
    opened: u64,
    /// The runner's requests and the exchanges on which they were sent.
    asked: Vec<(Value, ExchangeId)>,
    /// The last exchanges on which an answer came.
    answered: VecDeque<ExchangeId>,
    /// The subject's unanswered requests and the exchanges on which they arrived.
    served: Vec<(Value, ExchangeId)>,
    /// The names that cancels use for the runner's requests, if they differ from the ids.
    keys: Vec<(Value, Value)>,
}

impl Exchanging {
    pub(super) fn new(link: Link) -> Self {
        let answered = VecDeque::new();
        Self { link, opened: 0, asked: Vec::new(), answered, served: Vec::new(), keys: Vec::new() }
    }

    /// Accepts every frame before it flushes, so that the peer can read them together.
    ///
    /// If ids belong to an exchange, a cancel closes the exchange of the request that it names.
    pub(super) async fn write(&mut self, frames: Vec<String>) -> Result<(), TransportError> {
        for frame in frames {
            let mut summary = FrameSummary::of(&frame);
            if let (Some(key), Some(id)) = (&summary.key, &summary.id) {
                self.keys.push((key.clone(), id.clone()));
            }
            // If two calls have the same name, the open one is meant: the other was refused.
            let mut named = self.keys.iter().filter(|(key, _)| summary.names.as_ref() == Some(key));
            let open = named.clone().rfind(|(_, id)| self.asked.iter().any(|(asked, _)| asked == id));
            if let Some((_, id)) = open.or_else(|| named.next_back()) {
                summary.names = Some(id.clone());
            }
            if self.try_abort(&summary) {
                continue;
            }
            poll_fn(|cx| self.link.tx.as_mut().poll_ready(Lane::Data, cx)).await?;
            let (exchange, last) = self.exchange_for(&summary);
            let body = Bytes::from(frame);
            let out = Outbound { body, exchange, lane: Lane::Data, head: summary.head(), last };
            match self.link.tx.as_mut().start_send(out) {
                // A frame that belongs to no open exchange cannot be sent here, because nothing would receive it.
                Err(error) if error.exchange.is_some() && self.link.traits.exchange_scoped => {}
                sent => sent?,
            }
        }
        poll_fn(|cx| self.link.tx.as_mut().poll_flush(cx)).await
    }

    /// The next event. The exchange of a frame that is not a request is ended, because it needs no answer.
    pub(super) async fn next(&mut self) -> Option<Result<TransportEvent, TransportError>> {
        loop {
            let event = poll_fn(|cx| self.link.rx.as_mut().poll_event(cx)).await;
            match &event {
                Some(Ok(TransportEvent::Message(inbound))) if inbound.exchange.is_peers() => {
                    let exchange = inbound.exchange;
                    let summary = FrameSummary::of(std::str::from_utf8(&inbound.body).unwrap_or_default());
                    match summary.id {
                        Some(id) if summary.kind != FrameKind::Answer => self.served.push((id, exchange)),
                        _ => {
                            self.link.tx.as_mut().finish_exchange(exchange, ExchangeEnd::Accepted);
                            // The next read shows whether the peer still receives.
                            let _ = poll_fn(|cx| self.link.tx.as_mut().poll_flush(cx)).await;
                        }
                    }
                }
                Some(Ok(TransportEvent::Message(inbound))) => {
                    let summary = FrameSummary::of(std::str::from_utf8(&inbound.body).unwrap_or_default());
                    // A frame without an id answers no request.
                    if summary.kind == FrameKind::Answer && summary.id.is_some() {
                        take(&mut self.asked, |(_, on)| *on == inbound.exchange);
                        self.answered.push_back(inbound.exchange);
                        if self.answered.len() > MOST_ANSWERED {
                            self.answered.pop_front();
                        }
                    }
                }
                Some(Ok(TransportEvent::ExchangeResumed { .. })) => continue,
                // A transport ends an exchange also after an answer that only a codec recognises.
                Some(Ok(TransportEvent::ExchangeFailed { exchange, .. }))
                    if self.answered.contains(exchange) =>
                {
                    continue;
                }
                Some(_) | None => {}
            }
            return event;
        }
    }

    /// The runner's request that was sent on this exchange.
    pub(super) fn asked_on(&mut self, exchange: ExchangeId) -> Value {
        take(&mut self.asked, |(_, on)| *on == exchange).map_or(Value::Null, |(id, _)| id)
    }

    /// Whether a request with this id is open.
    pub(super) fn is_open(&self, id: &Value) -> bool {
        self.asked.iter().any(|(asked, _)| asked == id)
    }

    /// The subject's request that arrived on this exchange.
    pub(super) fn served_on(&mut self, exchange: ExchangeId) -> Value {
        let found = take(&mut self.served, |(_, on)| *on == exchange);
        found.map_or(Value::Null, |(id, on)| {
            self.link.tx.as_mut().finish_exchange(on, ExchangeEnd::Silent);
            id
        })
    }

    /// Whether this cancel was expressed by closing the exchange of the request that it names.
    fn try_abort(&mut self, summary: &FrameSummary) -> bool {
        let scoped = self.link.traits.exchange_scoped && summary.kind == FrameKind::Cancel;
        let named = summary.names.as_ref().filter(|_| scoped);
        let Some((_, exchange)) = named.and_then(|named| take(&mut self.asked, |(id, _)| id == named)) else {
            return false;
        };
        self.link.tx.as_mut().abort_exchange(exchange).is_ok()
    }

    fn exchange_for(&mut self, summary: &FrameSummary) -> (ExchangeId, bool) {
        match summary.kind {
            FrameKind::Answer => {
                let named = take(&mut self.served, |(id, _)| Some(id) == summary.id.as_ref());
                named.map_or((self.open_exchange(), false), |(_, on)| (on, true))
            }
            FrameKind::Notification if !self.link.traits.opens_exchanges => (self.open_exchange(), false),
            FrameKind::Request | FrameKind::Cancel | FrameKind::Notification => {
                if !self.link.traits.opens_exchanges {
                    return (ExchangeId::NONE, false);
                }
                self.opened += 1;
                let exchange = ExchangeId::of_call(CallNumber(self.opened));
                if let Some(id) = &summary.id {
                    self.asked.push((id.clone(), exchange));
                }
                (exchange, false)
            }
        }
    }

    /// The exchange for a frame that belongs to no request. If the posts have the only streams, it is that of the
    /// last request.
    fn open_exchange(&self) -> ExchangeId {
        let last = self.served.last().filter(|_| self.link.traits.exchange_scoped);
        last.map_or(ExchangeId::NONE, |(_, exchange)| *exchange)
    }
}

fn take<T>(all: &mut Vec<T>, is_it: impl FnMut(&T) -> bool) -> Option<T> {
    let found = all.iter().rposition(is_it)?;
    Some(all.remove(found))
}

/// The apparent content of a frame, for transports that need it.
struct FrameSummary {
    kind: FrameKind,
    /// Its id.
    id: Option<Value>,
    /// The id it cancels.
    names: Option<Value>,
    /// The name that a cancel uses for it, if it differs from its id.
    key: Option<Value>,
    method: Option<String>,
}

impl FrameSummary {
    fn of(frame: &str) -> Self {
        let frame: Value = serde_json::from_str(frame).unwrap_or_default();
        let text = |pointer: &str| frame.pointer(pointer).and_then(Value::as_str);
        let id = frame.get("id").filter(|id| !id.is_null()).cloned();
        let names = ["/params/requestId", "/params/id", "/payload/callId"]
            .into_iter()
            .find_map(|at| frame.pointer(at));
        let key = call_name(&frame).cloned();
        let (kind, method) = match (text("/method"), text("/type")) {
            (Some(method @ ("$/cancel_request" | "$/cancelRequest" | "notifications/cancelled")), _) => {
                (FrameKind::Cancel, Some(method))
            }
            (Some(method), _) if id.is_some() => (FrameKind::Request, Some(method)),
            (Some(method), _) => (FrameKind::Notification, Some(method)),
            (None, Some("capabilities/cancel")) => (FrameKind::Cancel, None),
            (None, Some("capabilities/call")) => (FrameKind::Request, text("/payload/capability")),
            (None, Some(kind @ ("notification" | "progress"))) => (FrameKind::Notification, Some(kind)),
            (None, Some(kind)) if !kind.ends_with("-result") => (FrameKind::Request, Some(kind)),
            (None, Some(_)) => (FrameKind::Answer, None),
            (None, None) if frame.get("result").is_some() || frame.get("error").is_some() => {
                (FrameKind::Answer, None)
            }
            // A frame that is not a message is answered like a request.
            (None, None) => (FrameKind::Request, None),
        };
        Self { kind, names: names.cloned(), key, method: method.map(str::to_owned), id }
    }

    fn head(&self) -> FrameInfo {
        let id = match self.kind {
            FrameKind::Cancel => self.names.as_ref(),
            _ => self.id.as_ref(),
        };
        let id = id.and_then(|id| RequestId::from_json(&id.to_string()).ok());
        FrameInfo { kind: self.kind, id, method: self.method.as_deref().map(Into::into), trace: None }
    }
}
