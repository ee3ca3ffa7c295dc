//! How a session is opened, by either side.

use serde_json::{Value, json};

use super::lines::LineState;
use super::play::{Play, Stop};
use super::subject::Subject;
use super::verdict::Failure;
use crate::profile::{HandshakeStep, follow};
use crate::step::{CallStep, OutcomeWord};
use crate::vector::Part;
use crate::wire_format::Shape;

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
        let wire_format = self.wire_format()?;
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
        if self.wire_format()?.is_refusal(&answer) {
            return Err(Stop::Broke(Failure::Opening, format!("`{method}` was refused: {answer}")));
        }
        if method == "initialize" {
            self.check_declared(&answer)?;
        }
        Ok(answer)
    }

    /// A foreign peer is asked only what fits its declarations in the answer to `initialize`.
    pub(super) fn check_declared(&self, answer: &Value) -> Result<(), Stop> {
        if !self.is_foreign() {
            return Ok(());
        }
        if self.requirements.sends_cancels && self.wire_format()?.declares_no_cancels(answer) {
            let why = "this peer declares no cancellation, so no cancel may be sent";
            return Err(Stop::NotAsked(why.to_owned()));
        }
        match &self.scenario.vector.declared {
            Some(path) if follow(answer, path).is_none() => {
                let why = format!("it applies only to peers whose answer to `initialize` has `{path}`");
                Err(Stop::NotAsked(why))
            }
            Some(_) | None => Ok(()),
        }
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
        let wire_format = self.wire_format()?;
        let Some((method, params)) = wire_format.opening() else {
            return Ok(());
        };
        self.answered_call("the opening", method, params, wire_format.opening_result()).await
    }

    pub(super) async fn answered_call(
        &mut self,
        name: &str,
        method: &str,
        params: Value,
        value: Value,
    ) -> Result<(), Stop> {
        let wire_format = self.wire_format()?;
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
            let frame = self.wire_format()?.notification(method, self.bindings.fill(&step.params));
            self.send(vec![frame]).await?;
        }
        Ok(())
    }
}
