//! A short conversation with a peer before its check: the handshake, and a few questions.

use std::time::Duration;

use rescind_testkit::check::{PeerSource as _, Started};
use rescind_testkit::runner::{Line, LinkSubject, Seen, Subject as _, SubjectError};
use rescind_testkit::wire_format::{Shape, WireFormat};
use serde_json::{Value, json};

use super::report::shown;
use super::source::Source;

/// The least time for an answer: programs load what they need first.
const LEAST: Duration = Duration::from_secs(5);

/// An open connection.
pub(super) struct Talk {
    subject: LinkSubject,
    line: Line,
    format: WireFormat,
    patience: Duration,
    next: u32,
    /// What the peer wrote beside its messages.
    noise: Option<String>,
}

impl Talk {
    /// Connects and shakes hands as usual in the dialect. The second value is the answer to `initialize`, or null
    /// where there is none.
    ///
    /// # Errors
    /// One sentence that says what happened and what to do.
    pub(super) async fn open(source: &mut Source, dialect: &str) -> Result<(Self, Value), String> {
        let format = WireFormat::of(dialect).ok_or("there is no such dialect")?;
        let patience = source.patience.max(LEAST);
        let Started { mut subject, .. } = source.start();
        let line = subject.open().await.map_err(reason)?;
        let mut talk = Self { subject, line, format, patience, next: 0, noise: None };
        let Some((method, params)) = format.opening() else { return Ok((talk, Value::Null)) };
        let answer = talk.request(method, params).await?;
        if format.is_refusal(&answer) {
            return Err(format!("`{method}` was refused: {answer}"));
        }
        if let Some(method) = format.opened() {
            talk.notify(method, json!({})).await?;
        }
        Ok((talk, answer))
    }

    /// Sends a request, and returns its answer.
    ///
    /// # Errors
    /// One sentence, if there is none.
    pub(super) async fn request(&mut self, method: &str, params: Value) -> Result<Value, String> {
        self.next += 1;
        let id = format!("ask-{}", self.next);
        let frame = self.format.request(&id, method, params);
        // A program that has ended reads nothing any more.
        let sent = self.subject.send(self.line, vec![frame.to_string()]).await;
        sent.map_err(|why| ended(method, Some(&reason(why))))?;
        let until = self.subject.now() + self.patience;
        loop {
            let left = until.saturating_duration_since(self.subject.now());
            let frame = match self.subject.recv(self.line, left).await {
                Seen::Frame(text) => text,
                Seen::Nothing => return Err(self.noise_or(self.unanswered(method))),
                Seen::Noise(what) => return Err(noise(&what)),
                // The answer may come all the same.
                Seen::Deviation(seen) => {
                    self.noise.get_or_insert(seen.sent);
                    continue;
                }
                Seen::Closed(how) => return Err(self.noise_or(ended(method, how.as_deref()))),
                Seen::Unanswered { why, .. } => {
                    let why = why.unwrap_or_else(|| "no reason was given".to_owned());
                    return Err(format!("`{method}` got no answer: {why}"));
                }
                Seen::GivenUp(_) => continue,
            };
            let Ok(frame) = serde_json::from_str::<Value>(&frame) else { return Err(noise(&frame)) };
            match self.format.shape(&frame) {
                Shape::Answer { id: of } if of == id.as_str() => return Ok(frame),
                Shape::Request { id, .. } => {
                    let refusal = self.format.refusal(&id).to_string();
                    self.subject.send(self.line, vec![refusal]).await.map_err(reason)?;
                }
                _ => {}
            }
        }
    }

    pub(super) async fn notify(&mut self, method: &str, params: Value) -> Result<(), String> {
        let frame = self.format.notification(method, params);
        self.subject.send(self.line, vec![frame.to_string()]).await.map_err(reason)
    }

    /// The result in an answer. `None`: the request was refused.
    pub(super) fn result(&self, answer: &Value) -> Option<Value> {
        if self.format.is_refusal(answer) { None } else { self.format.value(answer).cloned() }
    }

    /// The request that opened the session.
    pub(super) fn opening(&self) -> (&'static str, Value) {
        self.format.opening().unwrap_or(("initialize", json!({})))
    }

    /// Ends a session as a client that leaves does.
    pub(super) async fn leave(mut self) {
        self.subject.leave().await;
    }

    fn noise_or(&self, why: String) -> String {
        self.noise.as_deref().map_or(why, noise)
    }

    fn unanswered(&self, method: &str) -> String {
        format!("`{method}` was not answered within {:?}", self.patience)
    }
}

fn reason(trouble: SubjectError) -> String {
    match trouble {
        SubjectError::Failed(why) | SubjectError::Unable(why) => why,
    }
}

fn noise(what: &str) -> String {
    format!("it sends something that is not a message ({})", shown(what))
}

fn ended(method: &str, how: Option<&str>) -> String {
    let how = how.unwrap_or("no reason is known");
    format!("it ends, or stops reading, before it has answered `{method}` ({how})")
}
