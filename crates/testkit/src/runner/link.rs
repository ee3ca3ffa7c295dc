//! Any transport as a subject: raw frames over a [`Link`] to the server at its other end. On a transport of exchanges each
//! frame is sent on one, and an answer names the request that it answers. Without exchanges that part has no effect.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rescind_core::{
    BadFrame, BadMessage, BoxFuture, CallNumber, Capabilities, CloseReason, Deviation, DeviationReport,
    ExchangeEnd, ExchangeId, FrameInfo, FrameKind, Lane, Link, Outbound, RequestId, TransportError,
    TransportErrorKind, TransportEvent,
};
use serde_json::Value;
use tokio::time::timeout;

use super::deviations::DeviationSeen;
use super::subject::{Line, Seen, Subject, SubjectError};
use crate::dialects::{self, DialectFacts};
use crate::vector::Abilities;
use crate::wire_format::call_name;

/// Default for the time in which a connection must open and a write must be accepted. After that the peer counts as
/// not reading.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens a connection to the subject, or returns a sentence with the reason why it cannot.
pub type Connect = Box<dyn FnMut() -> BoxFuture<'static, Result<Link, String>> + Send>;

/// The server at the other end of a transport. It handles raw frames, of which it recognises the cancels of every built-in
/// dialect.
///
/// Dropping it closes its connections.
pub struct LinkSubject {
    connect: Connect,
    abilities: Abilities,
    lines: Vec<Option<LazyLine>>,
    /// The capabilities of connections that open only with the subject's first message.
    late: Option<Capabilities>,
    exit_report: Option<Box<dyn FnMut() -> Option<String> + Send>>,
    unreached: Option<String>,
    patience: Duration,
    facts: &'static DialectFacts,
    streams_of_requests: bool,
}

impl LinkSubject {
    /// Creates a subject that `connect` reaches. It supports only one plain connection until a `with_*` method adds
    /// more.
    #[must_use]
    pub fn new(connect: Connect) -> Self {
        let abilities = Abilities {
            many_lines: false,
            half_close: false,
            calls: false,
            options: false,
            ordered: true,
            batches: true,
            bare: true,
            exchange_scoped: false,
            tasks: true,
        };
        Self {
            connect,
            abilities,
            lines: Vec::new(),
            late: None,
            exit_report: None,
            unreached: None,
            patience: DEFAULT_TIMEOUT,
            facts: &dialects::ACP,
            streams_of_requests: false,
        }
    }

    /// Also recognises the cancels of this dialect.
    #[doc(hidden)]
    #[must_use]
    pub const fn speaking(mut self, facts: &'static DialectFacts) -> Self {
        self.facts = facts;
        self
    }

    /// Sets how long opening a connection and accepting a write may take. Default: 5 s.
    #[must_use]
    pub const fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Connecting again reaches the same fixture.
    #[must_use]
    pub const fn with_many_lines(mut self) -> Self {
        self.abilities.many_lines = true;
        self
    }

    /// Closing the output leaves the input open.
    #[must_use]
    pub const fn with_half_close(mut self) -> Self {
        self.abilities.half_close = true;
        self
    }

    /// The fixture is configured with the vector's options.
    #[must_use]
    pub const fn with_options(mut self) -> Self {
        self.abilities.options = true;
        self
    }

    /// A connection opens only after the subject has sent a message on it, for transports that open with the first
    /// message. `traits`: the capabilities of the transport, in advance.
    #[must_use]
    pub const fn with_late_lines(mut self, traits: Capabilities) -> Self {
        self.note(&traits);
        self.late = Some(traits);
        self
    }

    /// Nothing can be sent on a connection before the dialect's usual opening.
    #[must_use]
    pub const fn with_usual_opening_only(mut self) -> Self {
        self.abilities.bare = false;
        self
    }

    /// Each request has a response stream of its own, and the transport reports its end
    /// ([`TransportEvent::ExchangeFailed`]).
    #[must_use]
    pub const fn with_streams_of_requests(mut self) -> Self {
        self.streams_of_requests = true;
        self
    }

    /// Returns how the subject ended, when a connection closes: an exit status, the tail of its standard error.
    #[must_use]
    pub fn with_exit_report(mut self, exit_report: impl FnMut() -> Option<String> + Send + 'static) -> Self {
        self.exit_report = Some(Box::new(exit_report));
        self
    }

    /// Why the last connection to the subject could not be opened. For a transport that connects only to send: why
    /// the last send could not connect.
    #[must_use]
    pub fn unreached(&self) -> Option<&str> {
        self.unreached.as_deref()
    }

    /// Closes the open connections as a client that leaves does: over HTTP that ends the session, which a running
    /// peer would otherwise keep. Waits at most five seconds for each.
    pub async fn leave(&mut self) {
        for opening in self.lines.iter_mut().filter_map(Option::take) {
            let LazyLine::Now(open) = opening else { continue };
            let Exchanging { mut link, .. } = *open;
            let closed = poll_fn(|cx| link.tx.as_mut().poll_close(&CloseReason::Normal, cx));
            // A peer that is gone receives nothing.
            let _told = timeout(DEFAULT_TIMEOUT, closed).await;
        }
    }

    /// Returns the open connection, and waits for it to open. Dropping the future loses nothing.
    async fn link(&mut self, line: Line) -> Result<&mut Exchanging, SubjectError> {
        let found = self.lines.get_mut(line.0).and_then(Option::as_mut);
        let opening = found.ok_or_else(|| SubjectError::Failed("the connection is closed".to_owned()))?;
        if let LazyLine::Later(link) = opening {
            let opened = link.await.map_err(SubjectError::Failed)?;
            *opening = LazyLine::Now(Box::new(Exchanging::new(opened, self.facts)));
        }
        match opening {
            LazyLine::Now(open) => Ok(open),
            LazyLine::Later(_) => Err(SubjectError::Failed("the connection is not open".to_owned())),
        }
    }

    /// The transport's capabilities are known from its first connection on.
    const fn note(&mut self, traits: &Capabilities) {
        self.abilities.ordered = traits.ordered;
        self.abilities.batches = traits.batches;
        self.abilities.exchange_scoped = traits.exchange_scoped;
    }

    async fn about(&mut self, line: Line, look: impl FnOnce(&mut Exchanging) -> Value) -> Value {
        self.link(line).await.map_or(Value::Null, look)
    }

    fn closed(&mut self, how: Option<String>) -> Seen {
        let exit_report = self.exit_report.as_mut().and_then(|exit_report| exit_report());
        Seen::Closed(match (how, exit_report) {
            // The transport's own description of the end may already contain it.
            (Some(how), Some(exit_report)) if !how.contains(&exit_report) => {
                Some(format!("{how}; {exit_report}"))
            }
            (None, Some(exit_report)) => Some(format!("its output ended; {exit_report}")),
            (how, None) | (how @ Some(_), Some(_)) => how,
        })
    }
}

/// A connection that is open, or opens with the subject's first message.
enum LazyLine {
    Now(Box<Exchanging>),
    Later(BoxFuture<'static, Result<Link, String>>),
}

impl fmt::Debug for LinkSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkSubject").field("abilities", &self.abilities).finish_non_exhaustive()
    }
}

impl Subject for LinkSubject {
    fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn has_streams_of_requests(&self) -> bool {
        self.streams_of_requests
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    async fn open(&mut self) -> Result<Line, SubjectError> {
        if self.late.is_some() {
            self.lines.push(Some(LazyLine::Later((self.connect)())));
            return Ok(Line(self.lines.len() - 1));
        }
        let link = timeout(self.patience, (self.connect)()).await;
        let link = link.unwrap_or_else(|_| Err("the connection did not open in time".to_owned()));
        let link = link.map_err(|why| {
            self.unreached = Some(why.clone());
            SubjectError::Failed(why)
        })?;
        self.note(&link.traits);
        self.lines.push(Some(LazyLine::Now(Box::new(Exchanging::new(link, self.facts)))));
        Ok(Line(self.lines.len() - 1))
    }

    async fn send(&mut self, line: Line, frames: Vec<String>) -> Result<(), SubjectError> {
        let patience = self.patience;
        let open = self.link(line).await?;
        match timeout(patience, open.write(frames)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let Seen::Closed(how) = self.closed(Some(cause(&error))) else { return Ok(()) };
                Err(SubjectError::Failed(format!(
                    "the peer could not be written to: {}",
                    how.unwrap_or_default()
                )))
            }
            Err(_) => Err(SubjectError::Failed(format!("the peer read nothing for {patience:?}"))),
        }
    }

    async fn recv(&mut self, line: Line, within: Duration) -> Seen {
        let event = loop {
            let event = match timeout(within, self.link(line)).await {
                Err(_) => return Seen::Nothing,
                Ok(Err(_)) => return Seen::Closed(None),
                Ok(Ok(open)) => timeout(within, open.next()).await,
            };
            match event {
                // The end of the exchange follows, or the answer from where the request was redirected to, or the rest of the
                // frame.
                Ok(Some(Ok(
                    TransportEvent::Stalled { .. }
                    | TransportEvent::Unanswered { .. }
                    | TransportEvent::Deviation {
                        deviation: Deviation::NoAnswer | Deviation::Redirect, ..
                    },
                ))) => {}
                event => break event,
            }
        };
        match event {
            Err(_) => Seen::Nothing,
            Ok(Some(Ok(TransportEvent::Message(message)))) => {
                match String::from_utf8(message.body.to_vec()) {
                    Ok(text) => Seen::Frame(text),
                    Err(_) => {
                        Seen::Noise(format!("a frame that is not UTF-8, {} bytes long", message.body.len()))
                    }
                }
            }
            Ok(Some(Ok(TransportEvent::Rejected { why, head, .. }))) => Seen::Noise(refused(why, &head)),
            Ok(Some(Ok(TransportEvent::Deviation { deviation: Deviation::Noise, sent }))) => {
                Seen::Noise(String::from_utf8_lossy(&sent).into_owned())
            }
            Ok(Some(Ok(TransportEvent::Deviation { deviation, sent }))) => {
                Seen::Deviation(DeviationSeen::new(deviation, String::from_utf8_lossy(&sent)))
            }
            Ok(Some(Ok(TransportEvent::ExchangeFailed { exchange, error, .. }))) => {
                if error.kind == TransportErrorKind::Open {
                    self.unreached = Some(chain(&*error.source));
                }
                let why = chain(&*error.source);
                match self.link(line).await {
                    Ok(open) => {
                        let id = open.asked_on(exchange);
                        let why = (!open.is_open(&id)).then_some(why);
                        Seen::Unanswered { id, why }
                    }
                    Err(_) => Seen::Unanswered { id: Value::Null, why: Some(why) },
                }
            }
            Ok(Some(Ok(TransportEvent::ExchangeClosed { exchange }))) => {
                Seen::GivenUp(self.about(line, |open| open.served_on(exchange)).await)
            }
            Ok(Some(Err(error))) => self.closed(Some(cause(&error))),
            // Its output has ended.
            Ok(Some(Ok(_)) | None) => self.closed(None),
        }
    }

    async fn half_close(&mut self, line: Line) -> Result<(), SubjectError> {
        let patience = self.patience;
        let open = self.link(line).await?;
        let closed = poll_fn(|cx| open.link.tx.as_mut().poll_close(&CloseReason::Normal, cx));
        match timeout(patience, closed).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(SubjectError::Failed(format!("its input could not be ended: {error}"))),
            Err(_) => Err(SubjectError::Failed("its input did not end in time".to_owned())),
        }
    }

    async fn disconnect(&mut self, line: Line) -> Result<(), SubjectError> {
        if let Some(open) = self.lines.get_mut(line.0) {
            *open = None;
        }
        Ok(())
    }

    async fn pause(&mut self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Why input is not a frame, and the beginning of it.
#[must_use]
pub fn refused(why: BadFrame, head: &[u8]) -> String {
    let deviation = Deviation::Dropped(BadMessage::Frame(why));
    DeviationReport { deviation, sent: head, is_repeated: false }.to_string()
}

/// An error and its sources, in one sentence. The reason may be the last part.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        source = inner.source();
    }
    text
}

/// The reason, without the name of the error kind if the message already says that the connection has ended.
fn cause(error: &TransportError) -> String {
    match error.kind {
        TransportErrorKind::Closed | TransportErrorKind::Io => error.source.to_string(),
        _ => error.to_string(),
    }
}

/// The most answered exchanges that are remembered.
const MOST_ANSWERED: usize = 64;

/// One connection that carries raw frames.
struct Exchanging {
    pub(super) link: Link,
    facts: &'static DialectFacts,
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
    pub(super) fn new(link: Link, facts: &'static DialectFacts) -> Self {
        let answered = VecDeque::new();
        Self { link, facts, opened: 0, asked: Vec::new(), answered, served: Vec::new(), keys: Vec::new() }
    }

    /// Accepts every frame before it flushes, so that the peer can read them together.
    ///
    /// If ids belong to an exchange, a cancel closes the exchange of the request that it names.
    pub(super) async fn write(&mut self, frames: Vec<String>) -> Result<(), TransportError> {
        for frame in frames {
            let mut summary = FrameSummary::of(&frame, self.facts);
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
                    let summary =
                        FrameSummary::of(std::str::from_utf8(&inbound.body).unwrap_or_default(), self.facts);
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
                    let summary =
                        FrameSummary::of(std::str::from_utf8(&inbound.body).unwrap_or_default(), self.facts);
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
    fn asked_on(&mut self, exchange: ExchangeId) -> Value {
        take(&mut self.asked, |(_, on)| *on == exchange).map_or(Value::Null, |(id, _)| id)
    }

    /// Whether a request with this id is open.
    pub(super) fn is_open(&self, id: &Value) -> bool {
        self.asked.iter().any(|(asked, _)| asked == id)
    }

    /// The subject's request that arrived on this exchange.
    fn served_on(&mut self, exchange: ExchangeId) -> Value {
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
    fn of(frame: &str, facts: &DialectFacts) -> Self {
        let frame: Value = serde_json::from_str(frame).unwrap_or_default();
        let text = |pointer: &str| frame.pointer(pointer).and_then(Value::as_str);
        let id = frame.get("id").filter(|id| !id.is_null()).cloned();
        let keys = facts.cancel_keys();
        let names = keys.into_iter().find_map(|key| frame.get("params")?.get(key));
        let names = names.or_else(|| frame.pointer("/payload/callId"));
        let key = call_name(&frame).cloned();
        let (kind, method) = match (text("/method"), text("/type")) {
            (Some(method), _) if facts.is_cancel(method) => (FrameKind::Cancel, Some(method)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_to_open_a_connection_can_be_set() {
        let never = || -> Connect { Box::new(|| Box::pin(std::future::pending())) };
        let long = Duration::from_secs(60);
        for (mut subject, wait) in [
            (LinkSubject::new(never()), DEFAULT_TIMEOUT),
            (LinkSubject::new(never()).with_patience(long), long),
        ] {
            let begun = tokio::time::Instant::now();
            assert!(
                matches!(subject.open().await, Err(SubjectError::Failed(why)) if why.contains("in time"))
            );
            assert_eq!(begun.elapsed(), wait);
        }
    }
}
