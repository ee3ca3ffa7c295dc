//! One session with the peer that is checked: requests under fresh ids, and everything that was received, with times.

use std::time::{Duration, Instant};

use rescind_core::Deviation;
use rescind_testkit::pattern::Bindings;
use rescind_testkit::runner::{
    DeviationSeen, Direction, Line, LinkSubject, Seen, Subject, SubjectError, TraceLine, as_meant,
};
use rescind_testkit::wire_format::{Shape, WireFormat};
use rescind_testkit::{HandshakeStep, Profile, ProfileRequest, RequestKind, follow};
use serde_json::{Value, json};

use super::Started;

/// More messages than this in one session are a flood.
const MAX_FRAMES: usize = 50_000;

/// A message from the peer.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) at: Instant,
    pub(super) frame: Value,
}

/// A request that was sent.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) id: Value,
    pub(super) at: Instant,
}

/// Why a session cannot continue.
#[derive(Clone, Debug)]
pub(super) struct Lost(pub(super) String);

/// An open session.
pub(super) struct PeerSession {
    pub(super) subject: LinkSubject,
    pub(super) line: Line,
    pub(super) wire_format: WireFormat,
    pub(super) profile: Profile,
    pub(super) bindings: Bindings,
    pub(super) trace: Vec<TraceLine>,
    pub(super) received: Vec<Received>,
    /// Bytes that are not a message.
    pub(super) noise: Vec<String>,
    /// What the peer did against the form of messages: the first of each kind.
    pub(super) deviations: Vec<DeviationSeen>,
    /// The answer to `initialize`.
    pub(super) opening: Option<Value>,
    /// Cancelled requests that were not answered, as they owe it.
    pub(super) silenced: Vec<Value>,
    /// Slow requests that nobody cancelled.
    pub(super) uncancelled: Vec<Sent>,
    /// How the connection ended.
    pub(super) closed: Option<String>,
    /// The request without whose answer the session cannot go on.
    needed: Option<Value>,
    /// A request with the id 0 was sent.
    used_zero: bool,
    next: u64,
}

impl PeerSession {
    /// Opens a session as the profile says, or else as usual in the dialect.
    ///
    /// # Errors
    /// One sentence: what was sent last, and what came instead of its answer.
    pub(super) async fn open(
        started: Started,
        wire_format: WireFormat,
        patience: Duration,
    ) -> Result<Self, Lost> {
        let Started { mut subject, profile } = started;
        let line = subject.open().await.map_err(lost)?;
        let mut session = Self {
            subject,
            line,
            wire_format,
            profile,
            bindings: Bindings::default(),
            trace: Vec::new(),
            received: Vec::new(),
            noise: Vec::new(),
            deviations: Vec::new(),
            opening: None,
            silenced: Vec::new(),
            uncancelled: Vec::new(),
            closed: None,
            needed: None,
            used_zero: false,
            next: 0,
        };
        match session.begin(patience).await {
            Ok(()) => Ok(session),
            Err(Lost(why)) => Err(Lost(format!("{why}{}", session.noise_in_words()))),
        }
    }

    async fn begin(&mut self, patience: Duration) -> Result<(), Lost> {
        self.handshake(patience).await?;
        for step in self.profile.session.setup.clone() {
            self.profile_step(&step, patience).await?;
        }
        Ok(())
    }

    async fn handshake(&mut self, patience: Duration) -> Result<(), Lost> {
        let steps = self.profile.handshake.steps.clone();
        for step in &steps {
            self.profile_step(step, patience).await?;
        }
        if !steps.is_empty() {
            return Ok(());
        }
        if let Some((method, params)) = self.wire_format.opening() {
            self.accepted(method, params, patience).await?;
        }
        if let Some(method) = self.wire_format.opened() {
            self.send(self.wire_format.notification(method, json!({}))).await?;
        }
        Ok(())
    }

    async fn profile_step(&mut self, step: &HandshakeStep, patience: Duration) -> Result<(), Lost> {
        let params = self.bindings.fill(&step.params);
        if let Some(method) = &step.method {
            let answer = self.accepted(method, params.clone(), patience).await?;
            for (name, path) in &step.bind {
                let value = follow(&answer, path)
                    .ok_or_else(|| Lost(format!("the answer to `{method}` has no `{path}`: {answer}")))?;
                self.bindings.bind(name, value.clone());
            }
        }
        if let Some(method) = &step.notify {
            self.send(self.wire_format.notification(method, params)).await?;
        }
        if let Some(method) = &step.wait {
            let within = step.within_ms.map_or(patience, Duration::from_millis);
            let named = |frame: &Value| matches!(frame.get("method").and_then(Value::as_str), Some(found) if found == method);
            let found = self.wait(self.subject.now() + within, 0, named).await?;
            if found.is_none() {
                return Err(Lost(format!("`{method}` did not come within {within:?} of the setup")));
            }
        }
        Ok(())
    }

    /// A request of the opening, which must not be refused.
    async fn accepted(&mut self, method: &str, params: Value, patience: Duration) -> Result<Value, Lost> {
        let sent = self.request(method, params).await?;
        let Some(answer) = self.needed_answer(method, &sent, patience).await? else {
            return Err(Lost(format!("`{method}` was not answered within {patience:?}")));
        };
        if self.wire_format.is_refusal(&answer.frame) {
            return Err(Lost(format!("`{method}` was refused: {}", answer.frame)));
        }
        if method == self.wire_format.opening_method() {
            self.opening = Some(answer.frame.clone());
        }
        Ok(answer.frame)
    }

    fn noise_in_words(&self) -> String {
        self.noise.first().map_or_else(String::new, |noise| {
            format!("; the peer wrote this, which is not a message: {noise}")
        })
    }

    /// The time now.
    pub(super) fn now(&self) -> Instant {
        self.subject.now()
    }

    /// An id that no request of the session has had.
    pub(super) fn fresh(&mut self) -> Value {
        self.next += 1;
        self.wire_format.id(self.next)
    }

    /// Sends the request of the profile that is used for this.
    pub(super) async fn send_kind(&mut self, kind: RequestKind) -> Result<Sent, Lost> {
        let id = self.fresh();
        self.send_kind_as(kind, id).await
    }

    /// Sends it under the id 0, which is done once in a session.
    pub(super) async fn send_as_zero(&mut self, kind: RequestKind) -> Result<Sent, Lost> {
        self.used_zero = true;
        self.send_kind_as(kind, self.wire_format.id(0)).await
    }

    async fn send_kind_as(&mut self, kind: RequestKind, id: Value) -> Result<Sent, Lost> {
        let request = self.profile.requests.get(&kind).cloned();
        let request = request.ok_or_else(|| Lost("the profile has no such request".to_owned()))?;
        let params = self.params_for(&request, &id);
        self.send(self.wire_format.request_with(&id, &request.method, params)).await?;
        Ok(Sent { id, at: self.subject.now() })
    }

    /// The params of a request of the profile that is sent under this id.
    pub(super) fn params_for(&self, request: &ProfileRequest, id: &Value) -> Value {
        let mut params = self.bindings.fill(&request.params);
        for place in TOKEN_PLACES {
            if let Some(token) = params.pointer_mut(place) {
                *token = token_for(id);
            }
        }
        params
    }

    pub(super) async fn request(&mut self, method: &str, params: Value) -> Result<Sent, Lost> {
        let id = self.fresh();
        self.send(self.wire_format.request_with(&id, method, params)).await?;
        Ok(Sent { id, at: self.subject.now() })
    }

    /// The params of the request of the profile that is used for this.
    pub(super) fn params_of(&self, kind: RequestKind) -> Value {
        let request = self.profile.requests.get(&kind);
        request.map(|request| self.bindings.fill(&request.params)).unwrap_or_default()
    }

    /// Sends the cancel of the turn that runs in a session (ACP), and returns when.
    pub(super) async fn cancel_session(&mut self, session: &Value) -> Result<Instant, Lost> {
        let params = json!({ "sessionId": session });
        self.send(self.wire_format.notification("session/cancel", params)).await?;
        Ok(self.subject.now())
    }

    /// Sends the cancel of a request and returns when.
    pub(super) async fn cancel(&mut self, id: &Value) -> Result<Instant, Lost> {
        self.send(self.wire_format.cancel(&self.wire_format.cancel_key(id))).await?;
        Ok(self.subject.now())
    }

    pub(super) async fn send(&mut self, frame: Value) -> Result<(), Lost> {
        self.send_all(vec![frame]).await
    }

    /// Sends frames in one write.
    pub(super) async fn send_all(&mut self, frames: Vec<Value>) -> Result<(), Lost> {
        let texts: Vec<String> = frames.iter().map(Value::to_string).collect();
        self.trace.extend(texts.iter().map(|text| TraceLine::new(Direction::Sent, text.clone())));
        let sent = self.subject.send(self.line, texts).await.map_err(lost);
        if let Err(Lost(why)) = &sent {
            self.closed.get_or_insert_with(|| why.clone());
        }
        sent
    }

    /// The first message from number `from` on that `is_it` accepts, or `None` if it has not come by `until`.
    pub(super) async fn wait(
        &mut self,
        until: Instant,
        from: usize,
        is_it: impl Fn(&Value) -> bool,
    ) -> Result<Option<Received>, Lost> {
        let mut at = from;
        loop {
            while let Some(one) = self.received.get(at) {
                if is_it(&one.frame) {
                    return Ok(Some(one.clone()));
                }
                at += 1;
            }
            if !self.receive(until).await? {
                return Ok(None);
            }
        }
    }

    /// The first answer to a request, or `None` if it has not come by `until`.
    pub(super) async fn answer(&mut self, id: &Value, until: Instant) -> Result<Option<Received>, Lost> {
        let wire_format = self.wire_format;
        self.wait(
            until,
            0,
            |frame| matches!(wire_format.shape(frame), Shape::Answer { id: found } if found == *id),
        )
        .await
    }

    /// Waits until each of these requests is answered, at most until then.
    pub(super) async fn answers_to(
        &mut self,
        ids: impl Iterator<Item = &Value>,
        until: Instant,
    ) -> Result<(), Lost> {
        for id in ids {
            self.answer(id, until).await?;
        }
        Ok(())
    }

    /// The answer to a request without which the session cannot go on. Over HTTP the wait ends as soon as the response
    /// shows that no answer can come.
    pub(super) async fn needed_answer(
        &mut self,
        method: &str,
        sent: &Sent,
        patience: Duration,
    ) -> Result<Option<Received>, Lost> {
        self.needed = Some(sent.id.clone());
        let answer = self.answer(&sent.id, sent.at + patience).await;
        let is_over = self.needed.take().is_none();
        answer.map_err(|Lost(why)| {
            if is_over { Lost(format!("the answer to `{method}` cannot come: {why}")) } else { Lost(why) }
        })
    }

    /// All answers to a request that have come so far.
    pub(super) fn answers(&self, id: &Value) -> Vec<&Received> {
        let answers_it = |one: &&Received| matches!(self.wire_format.shape(&one.frame), Shape::Answer { id: found } if found == *id);
        self.received.iter().filter(answers_it).collect()
    }

    /// The ids of the requests that were sent.
    pub(super) fn sent_ids(&self) -> Vec<Value> {
        let first = u64::from(!self.used_zero);
        (first..=self.next).map(|number| self.wire_format.id(number)).collect()
    }

    /// Answers to nothing that was sent, from this received message on.
    pub(super) fn strays(&self, from: usize) -> Vec<&Value> {
        let ids = self.sent_ids();
        let is_stray = |frame: &&Value| match self.wire_format.shape(frame) {
            Shape::Answer { id } => !ids.contains(&id),
            Shape::Other => true,
            Shape::Request { .. } | Shape::Notification { .. } | Shape::Cancel { .. } => false,
        };
        self.received.iter().skip(from).map(|one| &one.frame).filter(is_stray).collect()
    }

    /// Receives until then.
    pub(super) async fn listen(&mut self, until: Instant) -> Result<(), Lost> {
        while self.receive(until).await? {}
        Ok(())
    }

    /// Receives one event. Returns false if none came by `until`.
    async fn receive(&mut self, until: Instant) -> Result<bool, Lost> {
        let within = until.saturating_duration_since(self.subject.now());
        if within.is_zero() {
            return Ok(false);
        }
        if self.trace.len() >= MAX_FRAMES {
            return Err(Lost(format!("the peer sent more than {MAX_FRAMES} messages in one session")));
        }
        let seen = self.subject.recv(self.line, within).await;
        let at = self.subject.now();
        match seen {
            Seen::Frame(text) => {
                self.trace.push(TraceLine::new(Direction::Received, text.clone()));
                match as_meant(&text, self.wire_format, &self.sent_ids(), false) {
                    Ok(read) => {
                        read.deviations.into_iter().for_each(|seen| self.deviates(seen));
                        for frame in read.messages {
                            self.reply(&frame).await?;
                            if self.is_no_message(&frame) {
                                self.noise.push(frame.to_string());
                            }
                            if self.answers_nothing(&frame) {
                                self.deviates(DeviationSeen::new(Deviation::UnknownId, frame.to_string()));
                            }
                            self.received.push(Received { at, frame });
                        }
                    }
                    Err(_) => self.noise.push(text),
                }
            }
            Seen::Noise(what) => {
                self.trace.push(TraceLine::new(Direction::Received, format!("(no message: {what})")));
                self.noise.push(what);
            }
            Seen::Deviation(seen) => {
                let text = format!("({}: {})", seen.deviation, seen.sent);
                self.trace.push(TraceLine::new(Direction::Received, text));
                self.deviates(seen);
            }
            Seen::Unanswered { id, why } => {
                let text = format!("(stream closed: that of {id} ended without an answer)");
                self.trace.push(TraceLine::new(Direction::Received, text));
                if let Some(why) = self.subject.unreached() {
                    return Err(Lost(format!("it could not be reached: {why}")));
                }
                if let Some(why) = why.filter(|_| self.needed.as_ref() == Some(&id)) {
                    self.needed = None;
                    return Err(Lost(why));
                }
            }
            Seen::GivenUp(_) => {}
            Seen::Closed(how) => {
                let how = how.unwrap_or_else(|| "the connection was closed".to_owned());
                self.trace.push(TraceLine::new(Direction::Received, format!("(closed: {how})")));
                self.closed = Some(how.clone());
                return Err(Lost(how));
            }
            Seen::Nothing => return Ok(false),
        }
        Ok(true)
    }

    fn deviates(&mut self, seen: DeviationSeen) {
        if self.deviations.iter().all(|known| known.deviation != seen.deviation) {
            self.deviations.push(seen);
        }
    }

    /// Whether it is JSON and has neither a method nor what an answer has.
    fn is_no_message(&self, frame: &Value) -> bool {
        let is_answer = ["id", "result", "error"].into_iter().any(|name| frame.get(name).is_some());
        let is_other = self.wire_format.shape(frame) == Shape::Other;
        self.wire_format.is_json_rpc() && is_other && !is_answer && !frame.is_array()
    }

    /// Whether it is a result with an id that no request had. An error may be about something that could not be read.
    fn answers_nothing(&self, frame: &Value) -> bool {
        let Shape::Answer { id } = self.wire_format.shape(frame) else { return false };
        self.wire_format.is_json_rpc()
            && !id.is_null()
            && frame.get("result").is_some()
            && !self.sent_ids().contains(&id)
    }

    /// Answers a request of the peer's own: as the profile says, as every peer must, or with "method not found".
    async fn reply(&mut self, frame: &Value) -> Result<(), Lost> {
        let Shape::Request { id, method } = self.wire_format.shape(frame) else { return Ok(()) };
        let value = self.profile.session.replies.get(&method).cloned();
        let answer = match value.or_else(|| self.wire_format.answer_to_any(&method)) {
            Some(value) => self.wire_format.answer(&id, &method, &value),
            None => self.wire_format.refusal(&id),
        };
        self.send(answer).await
    }
}

/// Where the params of a request carry its progress token (MCP, LSP).
pub(super) const TOKEN_PLACES: [&str; 2] = ["/_meta/progressToken", "/workDoneToken"];

/// The progress token of the request with this id. Each request has one of its own.
pub(super) fn token_for(id: &Value) -> Value {
    Value::from(format!("check-{id}"))
}

fn lost(trouble: SubjectError) -> Lost {
    match trouble {
        SubjectError::Unable(why) | SubjectError::Failed(why) => Lost(why),
    }
}
