//! The implementation of each step of a vector.

use serde_json::Value;

use super::frames::{Next, closed};
use super::lines::{Closed, LineState};
use super::play::{Play, Stop};
use super::subject::{Ended, Subject};
use super::verdict::Failure;
use crate::pattern::matches;
use crate::step::{OutcomeStep, Step, Through, Unwanted};
use crate::wire_format::Shape;

impl<S: Subject> Play<'_, S> {
    pub(crate) async fn step(&mut self, step: &Step) -> Result<(), Stop> {
        match step {
            Step::Send(frame) => self.send_frames(std::slice::from_ref(frame)).await,
            Step::SendTogether(frames) => self.send_frames(frames).await,
            Step::SendRaw(text) => self.send_text(vec![text.clone()]).await,
            Step::Expect(pattern) => self.expect(pattern).await,
            Step::ExpectAnyOrder(patterns) => self.expect_any_order(patterns).await,
            Step::ExpectThrough(through) => self.expect_through(through).await,
            Step::ExpectNothing(unwanted) => self.expect_nothing(unwanted).await,
            Step::ExpectClosed(_) => self.expect_closed().await,
            Step::Skip(pattern) => self.skip(pattern).await,
            Step::Work(wanted) => self.counters_become(*wanted).await,
            Step::Barrier(_) => self.barrier().await,
            Step::HalfClose(_) => {
                let line = self.line()?.line;
                self.subject.half_close(line).await?;
                self.line_mut()?.closed = Closed::Half;
                Ok(())
            }
            Step::Disconnect(_) => {
                let LineState { line, name, .. } = self.line()?;
                let (line, name) = (*line, name.clone());
                if self.subject.abilities().exchange_scoped {
                    self.outcomes.left(&name);
                }
                self.subject.disconnect(line).await?;
                self.line_mut()?.closed = Closed::Yes;
                Ok(())
            }
            Step::On(name) => self.go_on_with(name).await,
            Step::Call(call) => {
                let mut call = call.clone();
                call.child_of = call.child_of.map(|id| self.bindings.fill(&id));
                let line = self.line()?.line;
                Ok(self.subject.call(line, &call).await?)
            }
            Step::CancelCall(cancel) => {
                self.cancel_at = Some(self.subject.now());
                let said = self.subject.cancel_call(&cancel.name, cancel.reason.as_deref()).await?;
                match cancel.result {
                    Some(wanted) if wanted != said => Err(Stop::Broke(
                        Failure::Subject,
                        format!("cancelling `{}` should say {wanted:?} and says {said:?}", cancel.name),
                    )),
                    _ => Ok(()),
                }
            }
            Step::DropCall(call) => Ok(self.subject.drop_call(&call.name).await?),
            Step::ExpectOutcome(wanted) => self.expect_outcome(wanted).await,
            Step::Shutdown(_) => {
                let line = self.line()?.line;
                Ok(self.subject.shutdown(line).await?)
            }
        }
    }

    async fn send_frames(&mut self, templates: &[Value]) -> Result<(), Stop> {
        let mut frames = Vec::new();
        let wire_format = self.wire_format()?;
        for template in templates {
            let mut frame = self.bindings.fill(template);
            if let Some(translator) = &mut self.translator {
                frame = translator.outgoing(frame, &self.bindings);
            }
            if matches!(wire_format.shape(&frame), Shape::Cancel { .. }) {
                self.cancel_at = Some(self.subject.now());
            }
            frames.push(frame);
        }
        self.send(frames).await
    }

    async fn go_on_with(&mut self, name: &str) -> Result<(), Stop> {
        if let Some(index) = self.lines.iter().position(|line| line.name == name) {
            self.current = index;
            return Ok(());
        }
        self.open_line(name).await?;
        self.open_session().await
    }

    async fn expect(&mut self, pattern: &Value) -> Result<(), Stop> {
        let choices = self.choices(pattern);
        let awaited = self.answered_by([pattern])?;
        loop {
            let frame = self.next_for(pattern, &awaited).await?;
            match self.match_one(&choices, &frame) {
                Ok(()) => return Ok(()),
                Err(why) if !self.is_unrelated_frame(&frame).await? => {
                    self.check_own_opening(&frame)?;
                    let wanted = self.bindings.fill(pattern);
                    return Err(Stop::Broke(
                        Failure::OtherFrame,
                        format!("{why}; wanted {wanted}, and this came: {frame}"),
                    ));
                }
                Err(_) => {}
            }
        }
    }

    async fn expect_through(&mut self, through: &Through) -> Result<(), Stop> {
        let (frame, skipping) = (self.choices(&through.frame), self.choices(&through.skipping));
        let awaited = self.answered_by([&through.frame])?;
        loop {
            let came = self.next_for(&through.frame, &awaited).await?;
            match self.match_one(&frame, &came) {
                Ok(()) => return Ok(()),
                Err(why) => {
                    if self.match_one(&skipping, &came).is_err() && !self.is_unrelated_frame(&came).await? {
                        return Err(Stop::Broke(
                            Failure::OtherFrame,
                            format!(
                                "{why}; wanted {}, and this came: {came}",
                                self.bindings.fill(&through.frame)
                            ),
                        ));
                    }
                }
            }
        }
    }

    pub(crate) async fn expect_any_order(&mut self, patterns: &[Value]) -> Result<(), Stop> {
        let mut came = Vec::new();
        let mut awaited = self.answered_by(patterns)?;
        while came.len() < patterns.len() {
            let wanted = Value::Array(patterns.to_vec());
            let frame = self.next_for(&wanted, &awaited).await?;
            if let Shape::Answer { id } = self.wire_format()?.shape(&frame) {
                awaited.retain(|of| *of != id);
            }
            let known = patterns.iter().any(|pattern| {
                let choices = self.choices(pattern);
                choices.iter().any(|choice| matches(choice, &frame, &mut self.bindings.clone()).is_ok())
            });
            if known || !self.is_unrelated_frame(&frame).await? {
                came.push(frame);
            }
        }
        for pattern in patterns {
            let choices = self.choices(pattern);
            let found = came.iter().position(|frame| self.match_one(&choices, frame).is_ok());
            let Some(index) = found else {
                let came = Value::Array(came);
                let wanted = self.bindings.fill(pattern);
                return Err(Stop::Broke(
                    Failure::OtherFrame,
                    format!("wanted {wanted}, and these came: {came}"),
                ));
            };
            came.remove(index);
        }
        Ok(())
    }

    async fn expect_nothing(&mut self, unwanted: &Unwanted) -> Result<(), Stop> {
        self.barrier().await?;
        let about = unwanted.about.as_ref().map(|id| self.bindings.fill(id));
        let like = unwanted.like.as_ref().map(|pattern| self.choices(pattern));
        let wire_format = self.wire_format()?;
        let foreign = self.is_foreign();
        let bindings = self.bindings.clone();
        let is_unwanted = |frame: &Value| match (&about, &like, wire_format.shape(frame)) {
            (Some(about), _, Shape::Answer { id }) => *about == id,
            (Some(_), _, _) => false,
            (None, Some(like), _) => like.iter().any(|it| matches(it, frame, &mut bindings.clone()).is_ok()),
            (None, None, Shape::Notification { .. }) => !foreign,
            (None, None, _) => true,
        };
        if let Some(frame) = self.line()?.inbox.iter().find(|frame| is_unwanted(frame)) {
            return Err(Stop::Broke(
                Failure::UnexpectedFrame,
                format!("this came, and it must not: {frame}"),
            ));
        }
        Ok(())
    }

    async fn skip(&mut self, pattern: &Value) -> Result<(), Stop> {
        self.barrier().await?;
        let choices = self.choices(pattern);
        let bindings = self.bindings.clone();
        let skipped =
            |frame: &Value| choices.iter().any(|it| matches(it, frame, &mut bindings.clone()).is_ok());
        self.line_mut()?.inbox.retain(|frame| !skipped(frame));
        Ok(())
    }

    async fn expect_closed(&mut self) -> Result<(), Stop> {
        let foreign = self.is_foreign();
        loop {
            match self.next("the end of the connection", &[]).await? {
                Next::Closed(_) => {
                    self.line_mut()?.closed = Closed::Yes;
                    return Ok(());
                }
                Next::Frame(_) if foreign => {}
                Next::Silence => {}
                Next::Frame(frame) => {
                    return Err(Stop::Broke(
                        Failure::UnexpectedFrame,
                        format!("the connection should be closed, and this came: {frame}"),
                    ));
                }
                Next::Nothing => return Err(self.timed_out("the end of the connection")),
            }
        }
    }

    async fn expect_outcome(&mut self, wanted: &OutcomeStep) -> Result<(), Stop> {
        let name = &wanted.name;
        let Some(ended) = self.subject.outcome(name, self.settings.deadline).await? else {
            return Err(self.timed_out(&format!("the end of the call `{name}`")));
        };
        self.cancel_showed();
        self.outcomes.ended(name, &ended);
        match self.outcome_difference(wanted, &ended) {
            Some(why) => Err(Stop::Broke(
                Failure::Subject,
                format!("the call `{name}` ended otherwise: {why} ({ended:?})"),
            )),
            None => Ok(()),
        }
    }

    fn outcome_difference(&mut self, wanted: &OutcomeStep, ended: &Ended) -> Option<String> {
        fn differs<T: PartialEq + std::fmt::Debug>(
            name: &str,
            wanted: Option<&T>,
            seen: Option<&T>,
        ) -> Option<String> {
            let differs = wanted.is_some() && wanted != seen;
            differs.then(|| format!("{name} should be {wanted:?} and is {seen:?}"))
        }
        if wanted.outcome != ended.outcome {
            return Some(format!("it should be {:?}", wanted.outcome));
        }
        differs("confirmed", wanted.confirmed.as_ref(), ended.confirmed.as_ref())
            .or_else(|| differs("cause", wanted.cause.as_ref(), ended.cause.as_ref()))
            .or_else(|| differs("code", wanted.code.as_ref(), ended.code.as_ref()))
            .or_else(|| differs("may_have_run", wanted.may_have_run.as_ref(), ended.may_have_run.as_ref()))
            .or_else(|| differs("acked", wanted.acked.as_ref(), ended.acked.as_ref()))
            .or_else(|| {
                let pattern = wanted.value.as_ref()?;
                matches(pattern, ended.value.as_ref()?, &mut self.bindings).err()
            })
    }

    fn choices(&self, pattern: &Value) -> Vec<Value> {
        let filled = self.bindings.fill(pattern);
        self.translator
            .as_ref()
            .map_or_else(|| vec![filled.clone()], |translator| translator.incoming(&filled))
    }

    fn match_one(&mut self, choices: &[Value], frame: &Value) -> Result<(), String> {
        let mut first = None;
        for choice in choices {
            match matches(choice, frame, &mut self.bindings) {
                Ok(()) => {
                    if says_cancelled(frame) {
                        self.cancel_showed();
                    }
                    return Ok(());
                }
                Err(why) => first = first.or(Some(why)),
            }
        }
        Err(first.unwrap_or_default())
    }

    /// The requests whose answers these patterns expect.
    fn answered_by<'v>(&self, patterns: impl IntoIterator<Item = &'v Value>) -> Result<Vec<Value>, Stop> {
        let wire_format = self.wire_format()?;
        let answered = |pattern: &Value| match wire_format.shape(&self.bindings.fill(pattern)) {
            Shape::Answer { id } => Some(id),
            Shape::Request { .. } | Shape::Notification { .. } | Shape::Cancel { .. } | Shape::Other => None,
        };
        Ok(patterns.into_iter().filter_map(answered).collect())
    }

    async fn next_for(&mut self, wanted: &Value, awaited: &[Value]) -> Result<Value, Stop> {
        let what = self.bindings.fill(wanted).to_string();
        match self.next(&what, awaited).await? {
            Next::Frame(frame) => Ok(frame),
            Next::Closed(how) => Err(closed(&what, how)),
            Next::Silence | Next::Nothing => Err(self.timed_out(&what)),
        }
    }
}

/// Whether the answer is the result of a cancel, in any form.
pub(super) fn says_cancelled(frame: &Value) -> bool {
    let code = frame.pointer("/error/code").and_then(Value::as_i64);
    let flag = |pointer: &str| frame.pointer(pointer).and_then(Value::as_bool) == Some(true);
    let stop = frame.pointer("/result/stopReason").and_then(Value::as_str);
    matches!(code, Some(-32803..=-32800))
        || stop == Some("cancelled")
        || flag("/result/partial")
        || (flag("/payload/cancelled") && frame.pointer("/payload/callId").is_none())
}
