//! One play: opening, barriers, the witness, and the end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::Settings;
use super::deviations::DeviationSeen;
use super::lines::{Closed, LineState};
use super::outcomes::Outcomes;
use super::requirements::Requirements;
use super::slow_requests::SlowRequest;
use super::subject::{Subject, SubjectError};
use super::translate::Translator;
use super::verdict::{Evidence, Failure, Played, TraceLine, Verdict};
use crate::fixture::Handled;
use crate::pattern::Bindings;
use crate::step::{Step, Work};
use crate::vector::{Abilities, HandshakeMode, Part, Scenario};
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
    pub(crate) wire_format: Option<WireFormat>,
    pub(crate) translator: Option<Translator<'a>>,
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
    pub(super) has_sent_a_batch: bool,
    /// Messages of the last frame that were not looked at yet.
    pub(super) meant: VecDeque<Value>,
}

impl<'a, S: Subject> Play<'a, S> {
    pub(crate) fn new(scenario: &'a Scenario, subject: &'a mut S, settings: &'a Settings) -> Self {
        let wire_format = WireFormat::of(scenario.dialect);
        let session = settings.calibration.as_ref().and_then(|known| known.session.as_ref());
        Self {
            scenario,
            until: subject.now() + settings.deadline,
            subject,
            settings,
            wire_format,
            translator: wire_format.map(|wire_format| {
                Translator::new(wire_format, settings.profile.as_ref(), settings.calibration.as_ref())
            }),
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
            requirements: scenario.vector.requirements(scenario.dialect),
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
        if let Some(why) = vector.refusal(self.scenario.dialect, abilities, profile, calibration) {
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
            let wire_format = self.wire_format()?;
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
            let Some(reported) = self.wire_format()?.value(&answer) else { return Ok(()) };
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
        let frame = self.wire_format()?.request(&id, method, params);
        self.send_as(frame).await?;
        let wire_format = self.wire_format()?;
        let id = Value::from(id);
        let is_it =
            |frame: &Value| matches!(wire_format.shape(frame), Shape::Answer { id: found } if found == id);
        self.wait_for(&format!("the answer to `{method}`"), std::slice::from_ref(&id), is_it).await
    }

    async fn send_as(&mut self, frame: Value) -> Result<(), Stop> {
        let bindings = self.bindings.clone();
        let frame = match &mut self.translator {
            Some(translator) => translator.outgoing(frame, &bindings),
            None => frame,
        };
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
        if self.wire_format()?.value(&answer).is_some() {
            self.echoes += 1;
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
        self.translator.as_ref().is_some_and(Translator::is_foreign)
    }

    pub(crate) fn wire_format(&self) -> Result<WireFormat, Stop> {
        self.wire_format
            .ok_or_else(|| Stop::NotAsked(format!("no envelope is known for `{}`", self.scenario.dialect)))
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
