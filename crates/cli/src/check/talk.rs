//! A short conversation with a peer before its check: the handshake, and a few questions.

use std::collections::BTreeMap;
use std::time::Duration;

use rescind_check::{PeerSource as _, Started};
use rescind_testkit::dialects::DialectFacts;
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
    /// The results of requests that the peer sends, by method. Others are refused.
    pub(super) replies: BTreeMap<String, Value>,
}

/// What came of a request.
pub(super) enum Asked {
    Answered(Value),
    /// Its time was over. It was cancelled.
    Unanswered,
    /// The session has ended, or cannot be read.
    Lost(String),
}

impl Talk {
    /// Connects and shakes hands as usual in the dialect. The second value is the answer to `initialize`, or null
    /// where there is none.
    ///
    /// # Errors
    /// One sentence that says what happened and what to do.
    pub(super) async fn open(
        source: &mut Source,
        facts: &'static DialectFacts,
    ) -> Result<(Self, Value), String> {
        let format = WireFormat { facts };
        let patience = source.patience.max(LEAST);
        let Started { mut subject, .. } = source.start();
        let line = subject.open().await.map_err(reason)?;
        let mut talk =
            Self { subject, line, format, patience, next: 0, noise: None, replies: BTreeMap::new() };
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
        let id = self.send(method, params).await?;
        let answer = self.answer(method, &id, self.patience).await?;
        answer.ok_or_else(|| self.noise_or(self.unanswered(method)))
    }

    /// Sends a request, and waits this long for its answer. Without one it is cancelled.
    pub(super) async fn ask(&mut self, method: &str, params: Value, within: Duration) -> Asked {
        let id = match self.send(method, params).await {
            Ok(id) => id,
            Err(why) => return Asked::Lost(why),
        };
        match self.answer(method, &id, within).await {
            Ok(Some(answer)) => Asked::Answered(answer),
            Ok(None) => {
                let cancel = self.format.cancel(&self.format.cancel_key(&Value::from(id)));
                // A peer that reads nothing any more is left all the same.
                drop(self.subject.send(self.line, vec![cancel.to_string()]).await);
                Asked::Unanswered
            }
            Err(why) => Asked::Lost(why),
        }
    }

    async fn send(&mut self, method: &str, params: Value) -> Result<String, String> {
        self.next += 1;
        let id = format!("ask-{}", self.next);
        let frame = self.format.request(&id, method, params);
        // A program that has ended reads nothing any more.
        let sent = self.subject.send(self.line, vec![frame.to_string()]).await;
        sent.map_err(|why| ended(method, Some(&reason(why))))?;
        Ok(id)
    }

    /// The answer to a request. `None`: it was not answered in this time.
    async fn answer(&mut self, method: &str, id: &str, within: Duration) -> Result<Option<Value>, String> {
        let until = self.subject.now() + within;
        loop {
            let left = until.saturating_duration_since(self.subject.now());
            let frame = match self.subject.recv(self.line, left).await {
                Seen::Frame(text) => text,
                Seen::Nothing => return Ok(None),
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
                Shape::Answer { id: of } if of == id => return Ok(Some(frame)),
                Shape::Request { id, method } => {
                    let value = self.replies.get(&method).cloned();
                    let reply = match value.or_else(|| self.format.answer_to_any(&method)) {
                        Some(value) => self.format.answer(&id, &method, &value),
                        None => self.format.refusal(&id),
                    };
                    self.subject.send(self.line, vec![reply.to_string()]).await.map_err(reason)?;
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
