//! One play: its connections, the opening of its session by either side, the frames that it sends and receives, barriers,
//! and the end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::Settings;
use super::deviations::{AsMeant, DeviationSeen, as_meant};
use super::foreign::{SlowRequest, Translator};
use super::outcomes::{Direction, Evidence, Failure, Outcomes, Played, TraceLine, Verdict};
use super::requirements::Requirements;
use super::subject::{Line, Seen, Subject, SubjectError};
use crate::fixture::Handled;
use crate::pattern::Bindings;
use crate::profile::{HandshakeStep, follow};
use crate::vector::{Abilities, CallStep, HandshakeMode, OutcomeWord, Part, Scenario, Step, Work};
use crate::wire_format::{Shape, WireFormat};

/// Why a play ends early.
#[derive(Debug)]
pub(crate) enum Stop {
    Broke(Failure, String),
    NotAsked(String),
}

impl From<SubjectError> for Stop {
    fn from(trouble: SubjectError) -> Self {
        match trouble {
            SubjectError::Unable(why) => Self::NotAsked(why),
            SubjectError::Failed(why) => Self::Broke(Failure::Subject, why),
        }
    }
}

pub(crate) struct Play<'a, S> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) subject: &'a mut S,
    pub(crate) settings: &'a Settings,
    pub(crate) wire_format: WireFormat,
    pub(crate) translator: Translator<'a>,
    pub(crate) lines: Vec<LineState>,
    pub(crate) current: usize,
    pub(crate) bindings: Bindings,
    pub(crate) trace: Vec<TraceLine>,
    pub(crate) outcomes: Outcomes,
    /// The number of the runner's own requests.
    own: u64,
    /// The number of barriers that were calls of the subject.
    barriers: u64,
    /// The number of the runner's echoes that the fixture counts as handlers.
    pub(super) echoes: u64,
    pub(super) baseline: Work,
    /// The deadline of the current step.
    pub(super) until: Instant,
    pub(crate) cancel_at: Option<Instant>,
    pub(crate) cancel: Option<Duration>,
    /// The requirements of the vector, derived once.
    pub(super) requirements: Requirements,
    /// Requests of a foreign peer that were refused. A ping is answered.
    pub(super) refused: Vec<Value>,
    /// Requests that were cancelled and must not be answered.
    pub(super) silenced: Vec<Value>,
    pub(super) has_sent_a_cancel: bool,
    /// The slow requests of a foreign peer, when they were sent and when they were cancelled.
    pub(super) slow: Vec<SlowRequest>,
    /// Answers to requests of earlier scenarios in the same session.
    pub(super) strays: Vec<Value>,
    /// What a foreign peer did against the form of messages.
    pub(super) deviations: Vec<DeviationSeen>,
    /// The ids of the requests that were sent.
    pub(super) asked: Vec<Value>,
    has_sent_a_batch: bool,
    /// Messages of the last frame that were not looked at yet.
    pub(super) meant: VecDeque<Value>,
}

impl<'a, S: Subject> Play<'a, S> {
    pub(crate) fn new(scenario: &'a Scenario, subject: &'a mut S, settings: &'a Settings) -> Self {
        let wire_format = scenario.wire_format();
        let session = settings.calibration.as_ref().and_then(|known| known.session.as_ref());
        Self {
            scenario,
            until: subject.now() + settings.deadline,
            subject,
            settings,
            wire_format,
            translator: Translator::new(
                wire_format,
                settings.profile.as_ref(),
                settings.calibration.as_ref(),
            ),
            lines: Vec::new(),
            current: 0,
            bindings: session.map(|session| session.bindings.clone()).unwrap_or_default(),
            trace: Vec::new(),
            outcomes: Outcomes::default(),
            own: session.map_or(0, |session| session.first_request),
            barriers: 0,
            echoes: 0,
            baseline: Work::default(),
            cancel_at: None,
            cancel: None,
            requirements: scenario.requirements(),
            refused: Vec::new(),
            silenced: Vec::new(),
            has_sent_a_cancel: false,
            slow: Vec::new(),
            strays: Vec::new(),
            deviations: Vec::new(),
            asked: session.map(|session| session.earlier.clone()).unwrap_or_default(),
            has_sent_a_batch: false,
            meant: VecDeque::new(),
        }
    }

    pub(crate) async fn run(mut self) -> Played {
        let mut step = 0;
        let verdict = match self.run_steps(&mut step).await {
            Ok(()) => Verdict::Held,
            Err(Stop::Broke(failure, why)) => Verdict::Broke { failure, why: self.with_deviation(why), step },
            Err(Stop::NotAsked(why)) => Verdict::NotAsked { why },
        };
        let verdict = self.in_the_light_of_normal_ends(verdict);
        let evidence = if verdict == Verdict::Held { vec![Evidence::Wire] } else { Vec::new() };
        Played {
            verdict,
            evidence,
            trace: self.trace,
            cancel: self.cancel,
            outcomes: self.outcomes,
            strays: self.strays,
            deviations: self.deviations,
        }
    }

    fn with_deviation(&self, why: String) -> String {
        let profile = self.settings.profile.as_ref();
        match profile.and_then(|profile| profile.deviations.get(&self.scenario.vector.name)) {
            Some(known) => format!("{why} (known deviation: {known})"),
            None => why,
        }
    }

    async fn run_steps(&mut self, at: &mut usize) -> Result<(), Stop> {
        let vector = &self.scenario.vector;
        let profile = self.settings.profile.as_ref();
        let calibration = self.settings.calibration.as_ref();
        let abilities = self.subject.abilities();
        if let Some(why) = self.scenario.refusal(abilities, profile, calibration) {
            return Err(Stop::NotAsked(why));
        }
        let session = calibration.and_then(|known| known.session.as_ref());
        match session {
            Some(session) => {
                self.lines.push(LineState::new("first", session.line));
                if let Some(opening) = &session.opening {
                    self.check_declared(opening)?;
                }
            }
            None => self.open_line("first").await?,
        }
        if let Some(why) = vector.unlike(self.subject.abilities()) {
            return Err(Stop::NotAsked(why.to_owned()));
        }
        match &vector.handshake {
            HandshakeMode::Default if session.is_some() => {}
            HandshakeMode::Default => self.open_session().await?,
            HandshakeMode::None => {}
            HandshakeMode::Steps(steps) => {
                for step in steps {
                    self.until = self.subject.now() + self.settings.deadline;
                    self.step(step).await?;
                }
            }
        }
        let declares = !vector.declared.is_empty() && self.is_foreign();
        if let Some(method) = self.wire_format.facts.discovery.filter(|_| declares) {
            let answer = self.request(method, json!({})).await;
            // What refuses to say it declares nothing.
            self.check_declared(&answer.unwrap_or_default())?;
        }
        let counts = |step: &Step| matches!(step, Step::Work(_));
        if vector.handshake != HandshakeMode::None && vector.steps.iter().any(counts) && self.has_witness() {
            self.baseline = self.counters_before().await?;
        }
        let mut steps = vector.steps.iter().peekable();
        while let Some(step) = steps.next() {
            *at += 1;
            self.until = self.subject.now() + self.settings.deadline;
            match (step, steps.peek()) {
                // A foreign peer may send either of the two first.
                (Step::Expect(ack), Some(Step::Expect(answer))) if self.is_foreign() && is_ack(ack) => {
                    self.expect_any_order(&[ack.clone(), answer.clone()]).await?;
                    steps.next();
                    *at += 1;
                }
                (Step::ExpectThrough(ack), Some(Step::ExpectThrough(answer)))
                    if self.is_foreign() && is_ack(&ack.frame) =>
                {
                    self.expect_any_order(&[ack.frame.clone(), answer.frame.clone()]).await?;
                    steps.next();
                    *at += 1;
                }
                (step, _) => self.step(step).await?,
            }
        }
        *at += 1;
        self.nothing_is_left().await
    }

    /// Unexpected frames are errors: a second answer, an extra cancel.
    async fn nothing_is_left(&mut self) -> Result<(), Stop> {
        for index in 0..self.lines.len() {
            self.current = index;
            if self.line()?.closed == Closed::No && self.can_barrier() {
                self.barrier().await?;
            }
            let foreign = self.is_foreign();
            let wire_format = self.wire_format;
            let left = self.line()?.inbox.iter().find(|frame| {
                !foreign || matches!(wire_format.shape(frame), Shape::Answer { .. } | Shape::Cancel { .. })
            });
            if let Some(frame) = left {
                return Err(Stop::Broke(
                    Failure::UnexpectedFrame,
                    format!("this came and nothing was to come: {frame}"),
                ));
            }
        }
        self.ask_for_handlers().await
    }

    /// Asks the fixture which handlers ran, if it serves and can still be asked.
    async fn ask_for_handlers(&mut self) -> Result<(), Stop> {
        let serves = self.scenario.vector.role == Part::Serve && !self.is_foreign();
        if !serves || self.line()?.closed != Closed::No || !self.can_barrier() {
            return Ok(());
        }
        let until = self.subject.now() + self.settings.deadline;
        loop {
            let before = self.trace.len();
            let answer = self.request("test/handlers", json!({})).await?;
            let Some(reported) = self.wire_format.value(&answer) else { return Ok(()) };
            let handled = reported.get("handlers").map(Vec::<Handled>::deserialize);
            let Some(Ok(mut handled)) = handled else { return Ok(()) };
            let all_have_begun = reported.get("entering").and_then(Value::as_u64).unwrap_or(0) == 0;
            let is_over = all_have_begun && self.outcomes.has_shown(&handled);
            if is_over || self.subject.now() >= until {
                self.outcomes.without_the_end_of_lines(&mut handled);
                self.outcomes.handled(handled);
                return Ok(());
            }
            // Only the last request for counters is kept in the trace.
            if self.trace.len() == before + 2 {
                self.trace.truncate(before);
            }
            self.subject.pause().await;
        }
    }

    fn can_barrier(&self) -> bool {
        let steps = &self.scenario.vector.steps;
        let has_quick = self
            .settings
            .profile
            .as_ref()
            .is_none_or(|profile| profile.requests.contains_key(&crate::profile::RequestKind::Quick));
        has_quick && !steps.iter().any(|step| matches!(step, Step::Shutdown(_)))
    }

    /// Sends a request of the runner. Other frames that arrive meanwhile are kept.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> Result<Value, Stop> {
        self.own += 1;
        let id = format!("runner-{}", self.own);
        let frame = self.wire_format.request(&id, method, params);
        self.send_as(frame).await?;
        let wire_format = self.wire_format;
        let id = Value::from(id);
        let is_it =
            |frame: &Value| matches!(wire_format.shape(frame), Shape::Answer { id: found } if found == id);
        self.wait_for(&format!("the answer to `{method}`"), std::slice::from_ref(&id), is_it).await
    }

    async fn send_as(&mut self, frame: Value) -> Result<(), Stop> {
        let bindings = self.bindings.clone();
        let frame = self.translator.outgoing(frame, &bindings);
        self.send(vec![frame]).await
    }

    /// After it the subject has read what was sent before, and what the subject sent before is in the inbox.
    pub(crate) async fn barrier(&mut self) -> Result<(), Stop> {
        if self.scenario.vector.role == Part::Call {
            // The answer to a call may overtake earlier frames. A frame in the same direction does not.
            let Abilities { ordered, exchange_scoped, .. } = self.subject.abilities();
            if !ordered && !exchange_scoped {
                self.request("test/echo", json!({"value": "barrier"})).await?;
            }
            self.barriers += 1;
            let name = format!("barrier {}", self.barriers);
            return self
                .answered_call(&name, "test/echo", json!({"value": name}), json!({"value": name}))
                .await;
        }
        let answer = self.request("test/echo", json!({"value": "barrier"})).await?;
        if self.wire_format.value(&answer).is_some() {
            self.echoes += 1;
        }
        Ok(())
    }

    /// A barrier also for the cancelled requests that have streams of their own: those end without an answer, and the answer to
    /// another request can overtake what is still on them. The streams of a foreign peer may stay open.
    pub(crate) async fn barrier_on_every_stream(&mut self) -> Result<(), Stop> {
        self.barrier().await?;
        let are_owed = self.wire_format.owes_silence() && !self.is_foreign();
        if !are_owed || !self.subject.has_streams_of_requests() {
            return Ok(());
        }
        while let Some(id) = self.line()?.cancelled.first() {
            let what = format!("the end of the stream of the cancelled request {id}");
            match self.receive(self.until).await? {
                Next::Silence => {}
                Next::Frame(frame) => self.keep(frame).await?,
                Next::Closed(how) => return Err(closed(&what, how)),
                Next::Nothing => return Err(self.timed_out(&what)),
            }
        }
        Ok(())
    }

    /// The last cancel has had a visible effect.
    pub(crate) fn cancel_showed(&mut self) {
        if let (Some(at), None) = (self.cancel_at, self.cancel) {
            self.cancel = Some(self.subject.now().saturating_duration_since(at));
        }
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.translator.is_foreign()
    }

    pub(crate) fn line(&self) -> Result<&LineState, Stop> {
        self.lines
            .get(self.current)
            .ok_or_else(|| Stop::Broke(Failure::Subject, "no connection is open".to_owned()))
    }

    pub(crate) fn line_mut(&mut self) -> Result<&mut LineState, Stop> {
        self.lines
            .get_mut(self.current)
            .ok_or_else(|| Stop::Broke(Failure::Subject, "no connection is open".to_owned()))
    }
}

/// Whether the pattern expects ABP's acknowledgement of a cancel.
fn is_ack(pattern: &Value) -> bool {
    pattern.get("type").is_some_and(|kind| kind == "capabilities/cancel-result")
}

/// A play with more frames than this is a flood.
const MAX_FRAMES: usize = 10_000;

impl<S: Subject> Play<'_, S> {
    pub(crate) async fn send(&mut self, frames: Vec<Value>) -> Result<(), Stop> {
        let texts = frames.iter().map(Value::to_string).collect();
        self.send_text(texts).await
    }

    pub(crate) async fn send_text(&mut self, texts: Vec<String>) -> Result<(), Stop> {
        let line = self.line()?.line;
        let closes = self.subject.abilities().exchange_scoped;
        for text in &texts {
            self.trace.push(TraceLine::new(Direction::Sent, text.clone()));
            let Ok(frame) = serde_json::from_str::<Value>(text) else { continue };
            self.has_sent_a_batch |= frame.is_array();
            let wire_format = self.wire_format;
            let Some(on) = self.lines.get_mut(self.current) else { continue };
            self.outcomes.sent(&on.name, wire_format, &frame);
            match wire_format.shape(&frame) {
                Shape::Cancel { key } => {
                    for one in self.slow.iter_mut().filter(|one| wire_format.cancel_key(&one.id) == key) {
                        one.cancelled = true;
                    }
                    on.cancelled
                        .extend(on.open.iter().filter(|id| wire_format.cancel_key(id) == key).cloned());
                    self.silenced.push(key);
                    self.has_sent_a_cancel = true;
                }
                // The request is sent again.
                Shape::Request { id, .. } => {
                    if !self.asked.contains(&id) {
                        self.asked.push(id.clone());
                    }
                    on.unanswered.retain(|(of, _)| *of != id);
                    on.stream_ended(&id);
                    on.open.push(id.clone());
                    let sent = self.subject.now();
                    if self.translator.is_slow(&id) {
                        self.slow.push(SlowRequest {
                            id,
                            sent,
                            cancelled: false,
                            ended_normally: None,
                            refused: None,
                        });
                    }
                }
                Shape::Notification { .. } | Shape::Answer { .. } | Shape::Other => {}
            }
            if let (true, Shape::Cancel { key }) = (closes, wire_format.shape(&frame)) {
                let said = format!("(stream closed: that is how the cancel of {key} is said here)");
                self.trace.push(TraceLine::new(Direction::Sent, said));
                self.outcomes.gave_up(&on.name, &key);
            }
        }
        Ok(self.subject.send(line, texts).await?)
    }

    /// The next frame, kept or new. `awaited`: the requests without whose answers `what` cannot arrive.
    pub(crate) async fn next(&mut self, what: &str, awaited: &[Value]) -> Result<Next, Stop> {
        if let Some(frame) = self.line_mut()?.inbox.pop_front() {
            return Ok(Next::Frame(frame));
        }
        loop {
            self.can_come(what, awaited)?;
            match self.receive(self.until).await? {
                Next::Silence => {}
                next => return Ok(next),
            }
        }
    }

    /// One deadline limits a whole step, regardless of other frames.
    async fn receive(&mut self, until: Instant) -> Result<Next, Stop> {
        if let Some(frame) = self.meant.pop_front() {
            return Ok(self.take(frame));
        }
        let within = until.saturating_duration_since(self.subject.now());
        if within.is_zero() {
            return Ok(Next::Nothing);
        }
        if self.trace.len() >= MAX_FRAMES {
            return Err(Stop::Broke(
                Failure::UnexpectedFrame,
                format!("{MAX_FRAMES} frames went over the wire, and no end is seen"),
            ));
        }
        let line = self.line()?.line;
        let seen = self.subject.recv(line, within).await;
        let text = match seen {
            Seen::Frame(text) => text,
            Seen::Unanswered { id, why } => {
                let reported = why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
                let text = format!("(stream closed: that of {id} ended without an answer{reported})");
                self.trace.push(TraceLine::new(Direction::Received, text));
                let on = self.line_mut()?;
                if why.is_some() {
                    on.stream_ended(&id);
                }
                on.unanswered.extend(why.map(|why| (id, why)));
                return Ok(Next::Silence);
            }
            Seen::GivenUp(id) => {
                let text = format!("(stream closed: that of {id} was aborted)");
                self.trace.push(TraceLine::new(Direction::Received, text));
                if !self.subject.abilities().exchange_scoped {
                    return Ok(Next::Silence);
                }
                let cancel = self.wire_format.cancel(&id);
                if let Some(on) = self.lines.get(self.current) {
                    self.outcomes.received(&on.name, self.wire_format, &cancel);
                }
                return Ok(Next::Frame(cancel));
            }
            Seen::Noise(what) => {
                self.trace.push(TraceLine::new(Direction::Received, format!("(no frame: {what})")));
                return Err(Stop::Broke(
                    Failure::Unreadable,
                    format!("the peer sent something that is not a frame: {what}"),
                ));
            }
            // The facts tell it.
            Seen::Deviation(seen) if self.is_foreign() => {
                let text = format!("({}: {})", seen.deviation, seen.sent);
                self.trace.push(TraceLine::new(Direction::Received, text));
                self.deviations.push(seen);
                return Ok(Next::Silence);
            }
            Seen::Deviation(DeviationSeen { deviation, sent }) => {
                self.trace.push(TraceLine::new(Direction::Received, format!("(no frame: {sent})")));
                return Err(Stop::Broke(Failure::Unreadable, format!("{deviation}: {sent}")));
            }
            Seen::Closed(how) => return Ok(Next::Closed(how)),
            Seen::Nothing => return Ok(Next::Nothing),
        };
        self.trace.push(TraceLine::new(Direction::Received, text.clone()));
        self.read(&text)?;
        match self.meant.pop_front() {
            Some(frame) => Ok(self.take(frame)),
            None => Ok(Next::Silence),
        }
    }

    /// Reads the messages of a frame. Those of a foreign peer are read as they were meant.
    fn read(&mut self, text: &str) -> Result<(), Stop> {
        let read = if self.is_foreign() {
            as_meant(text, self.wire_format, &self.asked, self.has_sent_a_batch)
        } else {
            serde_json::from_str(text).map(|frame| AsMeant { messages: vec![frame], deviations: Vec::new() })
        };
        let read = read.map_err(|error| {
            Stop::Broke(
                Failure::Unreadable,
                format!("the peer sent something that is not a message ({error}): {text}"),
            )
        })?;
        self.meant.extend(read.messages);
        self.deviations.extend(read.deviations);
        Ok(())
    }

    /// Takes a message, unless it is none of this scenario.
    fn take(&mut self, frame: Value) -> Next {
        if self.is_of_an_earlier_scenario(&frame) {
            self.strays.push(frame);
            return Next::Silence;
        }
        if let Some(on) = self.lines.get(self.current) {
            self.outcomes.received(&on.name, self.wire_format, &frame);
        }
        if let (Shape::Answer { id }, Some(on)) =
            (self.wire_format.shape(&frame), self.lines.get_mut(self.current))
        {
            on.stream_ended(&id);
        }
        self.note_a_normal_end(&frame);
        if self.is_cancelled_without_answer(&frame) {
            return Next::Silence;
        }
        Next::Frame(frame)
    }

    /// Waits for one frame and keeps the others. `awaited` is as in [`Self::next`].
    async fn wait_for(
        &mut self,
        what: &str,
        awaited: &[Value],
        is_it: impl Fn(&Value) -> bool,
    ) -> Result<Value, Stop> {
        let until = self.subject.now() + self.settings.deadline;
        loop {
            self.can_come(what, awaited)?;
            match self.receive(until).await? {
                Next::Silence => {}
                Next::Frame(frame) if is_it(&frame) => return Ok(frame),
                Next::Frame(frame) => self.keep(frame).await?,
                Next::Closed(how) => return Err(closed(what, how)),
                Next::Nothing => return Err(self.timed_out(what)),
            }
        }
    }

    async fn keep(&mut self, frame: Value) -> Result<(), Stop> {
        if !self.is_unrelated_request(&frame).await? {
            self.line_mut()?.inbox.push_back(frame);
        }
        Ok(())
    }
}

/// The next event.
#[derive(Debug)]
pub(crate) enum Next {
    Frame(Value),
    Closed(Option<String>),
    /// An event that is not a frame.
    Silence,
    Nothing,
}

pub(crate) fn closed(what: &str, how: Option<String>) -> Stop {
    let how = how.map_or_else(String::new, |how| format!(" ({how})"));
    Stop::Broke(Failure::Closed, format!("waited for {what}, and the connection was closed{how}"))
}

/// One connection.
#[derive(Debug)]
pub(crate) struct LineState {
    /// The vector's name for it.
    pub(crate) name: String,
    pub(crate) line: Line,
    /// Frames that arrived while the play waited for something else.
    pub(crate) inbox: VecDeque<Value>,
    pub(crate) closed: Closed,
    /// Requests that cannot be answered any more, with the transport's reason. `null`: the request is unknown.
    pub(crate) unanswered: Vec<(Value, String)>,
    /// Requests whose streams are open.
    open: Vec<Value>,
    /// Those of them that were cancelled.
    cancelled: Vec<Value>,
}

/// Whether a connection can still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Both directions are open.
    No,
    /// This side closed its output.
    Half,
    /// It has ended.
    Yes,
}

impl LineState {
    pub(crate) fn new(name: &str, line: Line) -> Self {
        Self {
            name: name.to_owned(),
            line,
            inbox: VecDeque::new(),
            closed: Closed::No,
            unanswered: Vec::new(),
            open: Vec::new(),
            cancelled: Vec::new(),
        }
    }
}

impl LineState {
    /// The stream of the last request with this id is no longer waited for.
    fn stream_ended(&mut self, id: &Value) {
        self.open.retain(|open| open != id);
        self.cancelled.retain(|cancelled| cancelled != id);
    }
}

impl<S: Subject> Play<'_, S> {
    pub(crate) async fn open_line(&mut self, name: &str) -> Result<(), Stop> {
        let line = self.subject.open().await?;
        self.current = self.lines.len();
        self.lines.push(LineState::new(name, line));
        Ok(())
    }

    /// Opens the session as usual in the dialect, or as the profile defines.
    pub(crate) async fn open_session(&mut self) -> Result<(), Stop> {
        if self.scenario.vector.role == Part::Call {
            return self.open_as_server().await;
        }
        let wire_format = self.wire_format;
        if let Some(profile) = self.settings.profile.as_ref().filter(|it| !it.handshake.steps.is_empty()) {
            for step in &profile.handshake.steps {
                self.profile_step(step).await?;
            }
            return Ok(());
        }
        if let Some((method, params)) = wire_format.opening() {
            self.accepted(method, params).await?;
        }
        if let Some(method) = wire_format.opened() {
            self.send(vec![wire_format.notification(method, json!({}))]).await?;
        }
        Ok(())
    }

    /// Returns the answer to a request of the opening. A refusal ends the play, because without the session the
    /// vector cannot be played.
    async fn accepted(&mut self, method: &str, params: Value) -> Result<Value, Stop> {
        let answer = self.request(method, params).await?;
        if self.wire_format.is_refusal(&answer) {
            return Err(Stop::Broke(Failure::Opening, format!("`{method}` was refused: {answer}")));
        }
        if method == self.wire_format.opening_method() {
            self.check_declared(&answer)?;
        }
        Ok(answer)
    }

    /// A foreign peer is asked only what fits its declarations.
    fn check_declared(&self, answer: &Value) -> Result<(), Stop> {
        if !self.is_foreign() {
            return Ok(());
        }
        if self.requirements.sends_cancels && self.wire_format.declares_no_cancels(answer) {
            let why = "this peer declares no cancellation, so no cancel may be sent";
            return Err(Stop::NotAsked(why.to_owned()));
        }
        let missing = self.scenario.vector.declared.iter().find(|pointer| answer.pointer(pointer).is_none());
        missing.map_or(Ok(()), |pointer| {
            let method = self.wire_format.declaring_method();
            let why = format!("it applies only to peers whose answer to `{method}` has `{pointer}`");
            Err(Stop::NotAsked(why))
        })
    }

    /// A vector with its own handshake tests what the peer declares and which version it supports. A foreign peer that
    /// opens the session differently is not asked that vector, because both are its own choice.
    pub(super) fn check_own_opening(&self, answer: &Value) -> Result<(), Stop> {
        let opens = answer.pointer("/result/protocolVersion").is_some();
        if opens && self.requirements.own_opening && self.is_foreign() {
            let why = format!(
                "it is for peers that answer `initialize` otherwise, and this one's answer is {answer}"
            );
            return Err(Stop::NotAsked(why));
        }
        Ok(())
    }

    /// The subject is the client: it opens the session on request and receives an answer.
    async fn open_as_server(&mut self) -> Result<(), Stop> {
        let wire_format = self.wire_format;
        let Some((method, params)) = wire_format.opening() else {
            return Ok(());
        };
        self.answered_call("the opening", method, params, wire_format.opening_result()).await
    }

    async fn answered_call(
        &mut self,
        name: &str,
        method: &str,
        params: Value,
        value: Value,
    ) -> Result<(), Stop> {
        let wire_format = self.wire_format;
        let call = CallStep::plain(name, method, params);
        let line = self.line()?.line;
        self.subject.call(line, &call).await?;
        let wanted = method.to_owned();
        let is_it = move |frame: &Value| matches!(wire_format.shape(frame), Shape::Request { method, .. } if method == wanted);
        let frame = self.wait_for(name, &[], is_it).await?;
        let id = frame.get("id").cloned().unwrap_or_default();
        self.send(vec![wire_format.answer(&id, method, &value)]).await?;
        match self.subject.outcome(name, self.settings.deadline).await? {
            Some(ended) if ended.outcome == OutcomeWord::Completed => Ok(()),
            Some(ended) => {
                Err(Stop::Broke(Failure::Opening, format!("{name} was answered and ended as {ended:?}")))
            }
            None => Err(Stop::Broke(Failure::Unanswered, format!("{name} was answered and did not end"))),
        }
    }

    async fn profile_step(&mut self, step: &HandshakeStep) -> Result<(), Stop> {
        let params = self.bindings.fill(&step.params);
        if let Some(method) = &step.method {
            let answer = self.accepted(method, params).await?;
            for (name, path) in &step.bind {
                match follow(&answer, path) {
                    Some(value) => self.bindings.bind(name, value.clone()),
                    None => {
                        return Err(Stop::Broke(
                            Failure::Opening,
                            format!("the answer to `{method}` has no `{path}`: {answer}"),
                        ));
                    }
                }
            }
        }
        if let Some(method) = &step.notify {
            let frame = self.wire_format.notification(method, self.bindings.fill(&step.params));
            self.send(vec![frame]).await?;
        }
        Ok(())
    }
}
