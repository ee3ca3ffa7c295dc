//! The implementation of each step of a vector, and the counters of a subject, or of a foreign peer's witness, while a
//! scenario runs.

use std::time::Duration;

use serde::Deserialize as _;
use serde_json::{Value, json};

use super::outcomes::Failure;
use super::play::{Closed, LineState, Next, Play, Stop, closed};
use super::subject::{Ended, Subject};
use crate::fixture::Handled;
use crate::pattern::matches;
use crate::profile::{Profile, Witness, follow};
use crate::vector::{OutcomeStep, Step, Through, Unwanted, Work};
use crate::wire_format::Shape;

impl<S: Subject> Play<'_, S> {
    pub(crate) async fn step(&mut self, step: &Step) -> Result<(), Stop> {
        match step {
            Step::Send(frame) => {
                self.until_begun(frame).await?;
                self.send_frames(std::slice::from_ref(frame)).await
            }
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
        let wire_format = self.wire_format;
        for template in templates {
            let frame = self.translator.outgoing(self.bindings.fill(template), &self.bindings);
            if matches!(wire_format.shape(&frame), Shape::Cancel { .. }) {
                self.cancel_at = Some(self.subject.now());
            }
            frames.push(frame);
        }
        self.send(frames).await
    }

    /// On a transport that cancels by closing an exchange, waits before a cancel until the fixture has its request: otherwise
    /// the exchange may be closed before the fixture reads it.
    async fn until_begun(&mut self, frame: &Value) -> Result<(), Stop> {
        if !self.subject.abilities().exchange_scoped || self.is_foreign() {
            return Ok(());
        }
        let Shape::Cancel { key } = self.wire_format.shape(&self.bindings.fill(frame)) else {
            return Ok(());
        };
        let sent = self.outcomes.open_requests(&self.line()?.name, &key);
        let until = self.subject.now() + self.settings.deadline;
        let before = self.trace.len();
        while sent > 0 && self.subject.now() < until {
            let answer = self.request("test/handlers", json!({})).await?;
            self.trace.truncate(before);
            let Some(reported) = self.wire_format.value(&answer) else { break };
            let handlers = reported.get("handlers").map(Vec::<Handled>::deserialize);
            let Some(Ok(handlers)) = handlers else { break };
            let id = key.to_string();
            if handlers.iter().filter(|handler| handler.id == id).count() >= sent {
                return Ok(());
            }
            self.subject.pause().await;
        }
        Ok(())
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
        let awaited = self.answered_by([pattern]);
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
        let awaited = self.answered_by([&through.frame]);
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
        let mut awaited = self.answered_by(patterns);
        while came.len() < patterns.len() {
            let wanted = Value::Array(patterns.to_vec());
            let frame = self.next_for(&wanted, &awaited).await?;
            if let Shape::Answer { id } = self.wire_format.shape(&frame) {
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
        self.barrier_on_every_stream().await?;
        let about = unwanted.about.as_ref().map(|id| self.bindings.fill(id));
        let like = unwanted.like.as_ref().map(|pattern| self.choices(pattern));
        let wire_format = self.wire_format;
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
        self.barrier_on_every_stream().await?;
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
        self.translator.incoming(&self.bindings.fill(pattern))
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
    fn answered_by<'v>(&self, patterns: impl IntoIterator<Item = &'v Value>) -> Vec<Value> {
        let answered = |pattern: &Value| match self.wire_format.shape(&self.bindings.fill(pattern)) {
            Shape::Answer { id } => Some(id),
            Shape::Request { .. } | Shape::Notification { .. } | Shape::Cancel { .. } | Shape::Other => None,
        };
        patterns.into_iter().filter_map(answered).collect()
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

/// How long work that earlier scenarios left is waited for, if a slow request has no end of its own.
const ENDLESS_WORK_WAIT: Duration = Duration::from_secs(1);

impl<S: Subject> Play<'_, S> {
    /// Whether there are counters to read. The frames of a foreign peer are checked without them too.
    pub(super) fn has_witness(&self) -> bool {
        let witness =
            |profile: &Profile| profile.witness.as_ref().is_some_and(|witness| !witness.method.is_empty());
        self.settings.profile.as_ref().is_none_or(witness)
    }

    /// The counters now. `None`: the subject refused the request.
    async fn stats(&mut self) -> Result<Option<Work>, Stop> {
        let witness = self.settings.profile.as_ref().and_then(|profile| profile.witness.as_ref());
        let (method, params) = match witness {
            Some(witness) => (witness.method.as_str(), self.bindings.fill(&witness.params)),
            None => ("test/stats", json!({})),
        };
        let answer = self.request(method, params).await?;
        Ok(self.wire_format.value(&answer).map(|result| read_counters(result, witness)))
    }

    /// The counters before the first step. In a check, requests that earlier scenarios left at the peer are counted when
    /// they end. They are waited for, at most as long as a slow request takes.
    pub(super) async fn counters_before(&mut self) -> Result<Work, Stop> {
        let Some(known) = &self.settings.calibration else {
            return Ok(self.stats().await?.unwrap_or_default());
        };
        let wait = known.slow_takes.unwrap_or(ENDLESS_WORK_WAIT).min(self.settings.deadline);
        let until = self.subject.now() + wait;
        loop {
            let before = self.trace.len();
            let counters = self.stats().await?.unwrap_or_default();
            let nothing_runs = counters.running.is_none_or(|running| running == 0);
            if nothing_runs || self.subject.now() >= until {
                return Ok(counters);
            }
            // Only the last look is kept, as in `counters_become`.
            if self.trace.len() == before + 2 {
                self.trace.truncate(before);
            }
            self.subject.pause().await;
        }
    }

    async fn counters_become(&mut self, wanted: Work) -> Result<(), Stop> {
        if !self.has_witness() {
            return Ok(());
        }
        let until = self.subject.now() + self.settings.deadline;
        let shown = if self.is_foreign() { Shown::Some } else { Shown::All };
        let mut looks: u32 = 0;
        loop {
            let before = self.trace.len();
            let difference = match self.stats().await? {
                Some(now) => {
                    let counted = counts_since(now, self.baseline, self.echoes, shown);
                    counter_difference(wanted, counted, shown)
                }
                None => Some("the counters were refused".to_owned()),
            };
            let Some(difference) = difference else {
                // If no answer is allowed, the witness shows that the cancel worked.
                if wanted.cancelled.is_some_and(|count| count > 0) {
                    self.cancel_showed();
                }
                return Ok(());
            };
            if self.subject.now() >= until {
                return Err(Stop::Broke(
                    Failure::Counters,
                    format!("after {:?} {difference}", self.settings.deadline),
                ));
            }
            // Of the requests for counters between the first and the last, those with the same result are removed
            // from the trace.
            looks += 1;
            if looks > 1 && self.trace.len() == before + 2 {
                self.trace.truncate(before);
            }
            self.subject.pause().await;
        }
    }
}

/// Reads the result of `test/stats`, or of a foreign peer's witness.
fn read_counters(result: &Value, witness: Option<&Witness>) -> Work {
    let count = |path: &str| follow(result, path).and_then(Value::as_u64);
    match witness {
        None => Work {
            started: count("started"),
            finished: count("finished"),
            cancelled: count("cancelled"),
            running: count("running"),
            queued: count("queued"),
            draining: count("draining"),
            slots: count("slots"),
            unknown_cancels: count("unknown_cancels"),
            late_answers: count("late_answers"),
        },
        Some(witness) => Work {
            running: witness.running.as_deref().and_then(count),
            cancelled: witness.cancelled.as_deref().and_then(count),
            draining: witness.draining.as_deref().and_then(count),
            ..Work::default()
        },
    }
}

/// Returns the counts since `baseline`, without `own` echoes of the runner. Gauges are not changed, except by what
/// ran at a foreign peer before: a peer that already runs may do work for other clients or still for a vector that it
/// failed.
fn counts_since(now: Work, baseline: Work, own: u64, shown: Shown) -> Work {
    let less = |now: Option<u64>, then: Option<u64>, own: u64| {
        now.map(|now| now.saturating_sub(then.unwrap_or_default()).saturating_sub(own))
    };
    Work {
        started: less(now.started, baseline.started, own),
        finished: less(now.finished, baseline.finished, own),
        cancelled: less(now.cancelled, baseline.cancelled, 0),
        unknown_cancels: less(now.unknown_cancels, baseline.unknown_cancels, 0),
        late_answers: less(now.late_answers, baseline.late_answers, 0),
        running: match shown {
            Shown::All => now.running,
            Shown::Some => less(now.running, baseline.running, 0),
        },
        draining: match shown {
            Shown::All => now.draining,
            Shown::Some => less(now.draining, baseline.draining, 0),
        },
        ..now
    }
}

/// The first counter that differs. A foreign peer need not have all of them.
fn counter_difference(wanted: Work, seen: Work, all: Shown) -> Option<String> {
    let pairs = [
        ("started", wanted.started, seen.started),
        ("finished", wanted.finished, seen.finished),
        ("cancelled", wanted.cancelled, seen.cancelled),
        ("running", wanted.running, seen.running),
        ("queued", wanted.queued, seen.queued),
        ("draining", wanted.draining, seen.draining),
        ("slots", wanted.slots, seen.slots),
        ("unknown_cancels", wanted.unknown_cancels, seen.unknown_cancels),
        ("late_answers", wanted.late_answers, seen.late_answers),
    ];
    pairs.into_iter().find_map(|(name, wanted, seen)| match (wanted?, seen) {
        (wanted, Some(seen)) if wanted == seen => None,
        (wanted, Some(seen)) => Some(format!("`{name}` should be {wanted} and is {seen}")),
        (_, None) if all == Shown::Some => None,
        (_, None) => Some(format!("`{name}` is not shown")),
    })
}

/// Which counters a subject has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// All of them.
    All,
    /// Those that its profile names.
    Some,
}
