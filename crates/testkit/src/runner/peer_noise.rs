//! Frames that a foreign peer may send in addition to the vector: its own requests and notifications, and its form of
//! a missing answer.

use serde_json::Value;

use super::lines::Closed;
use super::play::{Play, Stop};
use super::subject::Subject;
use super::verdict::Failure;
use crate::vector::Abilities;
use crate::wire_format::Shape;

impl<S: Subject> Play<'_, S> {
    /// Whether the frame is an additional notification or request of a foreign peer, which is allowed.
    pub(super) async fn is_unrelated_frame(&mut self, frame: &Value) -> Result<bool, Stop> {
        let wire_format = self.wire_format()?;
        if !self.is_foreign() {
            return Ok(false);
        }
        match wire_format.shape(frame) {
            Shape::Notification { .. } => Ok(true),
            Shape::Request { id, method } => {
                self.decline(id, &method).await?;
                Ok(true)
            }
            Shape::Cancel { .. } => self.is_unrelated_request(frame).await,
            Shape::Answer { .. } | Shape::Other => Ok(false),
        }
    }

    /// Whether the frame is a request that the vector does not contain, or the cancel of one. The request is refused,
    /// so that the peer can continue.
    pub(super) async fn is_unrelated_request(&mut self, frame: &Value) -> Result<bool, Stop> {
        let wire_format = self.wire_format()?;
        let Some(translator) = self.translator.as_ref().filter(|translator| translator.is_foreign()) else {
            return Ok(false);
        };
        match wire_format.shape(frame) {
            Shape::Request { id, method } => {
                self.refused.retain(|refused| *refused != id);
                if translator.waits_for(&method, &self.requirements) {
                    return Ok(false);
                }
                self.decline(id, &method).await?;
                Ok(true)
            }
            Shape::Cancel { key } => Ok(self.refused.contains(&key)),
            Shape::Notification { .. } | Shape::Answer { .. } | Shape::Other => Ok(false),
        }
    }

    /// Refuses a request, except a ping, which must be answered. After this side has closed its output, no answer can
    /// be sent.
    async fn decline(&mut self, id: Value, method: &str) -> Result<(), Stop> {
        if self.line()?.closed == Closed::No {
            let wire_format = self.wire_format()?;
            let answer = match wire_format.answer_to_any(method) {
                Some(value) => wire_format.answer(&id, method, &value),
                None => wire_format.refusal(&id),
            };
            self.send(vec![answer]).await?;
        }
        self.refused.push(id);
        Ok(())
    }

    /// Whether the frame answers a request of an earlier scenario in the same session.
    pub(super) fn is_of_an_earlier_scenario(&self, frame: &Value) -> Result<bool, Stop> {
        let Shape::Answer { id } = self.wire_format()?.shape(frame) else { return Ok(false) };
        let session = self.settings.calibration.as_ref().and_then(|known| known.session.as_ref());
        Ok(session.is_some_and(|session| session.earlier.contains(&id)))
    }

    /// A POST that is answered in JSON cannot end without an answer. A cancelled one has the error -32800, once.
    pub(super) fn is_cancelled_without_answer(&mut self, frame: &Value) -> Result<bool, Stop> {
        let wire_format = self.wire_format()?;
        let Abilities { ordered, exchange_scoped, .. } = self.subject.abilities();
        // The transport with exchanges in a session.
        let by_post = !ordered && !exchange_scoped;
        let code = frame.pointer("/error/code").and_then(Value::as_i64);
        let in_its_form = by_post && code == Some(-32800);
        // The documents recommend silence. A peer that is known to answer is not blamed in each scenario.
        let known = self.settings.calibration.as_ref().is_some_and(|known| known.answers_cancelled);
        if !(self.is_foreign() && wire_format.owes_silence() && (in_its_form || known)) {
            return Ok(false);
        }
        let cancelled = self.silenced.iter().position(|key| frame.get("id") == Some(key));
        if let Some(index) = cancelled {
            self.silenced.remove(index);
        }
        Ok(cancelled.is_some())
    }

    /// Describes a frame that may be the awaited answer with another id or in another form.
    fn unexpected_frames(&self) -> String {
        let (Some(wire_format), Ok(line)) = (self.wire_format, self.line()) else { return String::new() };
        let is_answer =
            |frame: &&Value| matches!(wire_format.shape(frame), Shape::Answer { .. } | Shape::Other);
        // The latest is the most likely one.
        line.inbox
            .iter()
            .rfind(is_answer)
            .map_or_else(String::new, |frame| format!("; meanwhile this came: {frame}"))
    }

    /// Fails at once if the transport has reported that one of these requests will not be answered.
    pub(super) fn can_come(&self, what: &str, awaited: &[Value]) -> Result<(), Stop> {
        // Answers without an id belong to requests that were not understood. Each has a separate exchange.
        let mut known = self.line()?.unanswered.iter().filter(|(id, _)| !id.is_null());
        match known.find(|(id, _)| awaited.contains(id)) {
            Some((_, why)) => Err(Stop::Broke(
                Failure::Unanswered,
                format!("{what} cannot come: {why}{}", self.unexpected_frames()),
            )),
            None => Ok(()),
        }
    }

    pub(super) fn timed_out(&self, what: &str) -> Stop {
        let deadline = self.settings.deadline;
        let mut came = self.unexpected_frames();
        if let (true, Some((_, why))) =
            (came.is_empty(), self.line().ok().and_then(|line| line.unanswered.last()))
        {
            came = format!("; meanwhile an exchange ended without an answer: {why}");
        }
        Stop::Broke(Failure::Unanswered, format!("waited {deadline:?} for {what}, and it did not come{came}"))
    }
}
