//! Any transport as a subject: raw frames over a [`Link`] to the server at its other end.

use std::fmt;
use std::future::poll_fn;
use std::time::{Duration, Instant};

use rescind_core::{
    BadFrame, BadMessage, BoxFuture, Capabilities, CloseReason, Deviation, DeviationReport, Link,
    TransportError, TransportErrorKind, TransportEvent,
};
use serde_json::Value;
use tokio::time::timeout;

use super::deviations::DeviationSeen;
use super::exchange::Exchanging;
use super::subject::{Line, Seen, Subject, SubjectError};
use crate::vector::Abilities;

/// Default for the time in which a connection must open and a write must be accepted. After that the peer counts as
/// not reading.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens a connection to the subject, or returns a sentence with the reason why it cannot.
pub type Connect = Box<dyn FnMut() -> BoxFuture<'static, Result<Link, String>> + Send>;

/// The server at the other end of a transport. It handles raw frames only, so it needs no dialect.
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
        };
        Self {
            connect,
            abilities,
            lines: Vec::new(),
            late: None,
            exit_report: None,
            unreached: None,
            patience: DEFAULT_TIMEOUT,
        }
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
            *opening = LazyLine::Now(Box::new(Exchanging::new(opened)));
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
        self.lines.push(Some(LazyLine::Now(Box::new(Exchanging::new(link)))));
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
                // The end of the exchange follows, or the answer from where the request was redirected to.
                Ok(Some(Ok(TransportEvent::Deviation {
                    deviation: Deviation::NoAnswer | Deviation::Redirect,
                    ..
                }))) => {}
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
