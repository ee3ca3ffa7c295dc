//! Sending and receiving the frames of a play.

use std::time::Instant;

use serde_json::Value;

use super::deviations::{AsMeant, DeviationSeen, as_meant};
use super::play::{Play, Stop};
use super::slow_requests::SlowRequest;
use super::subject::{Seen, Subject};
use super::verdict::{Direction, Failure, TraceLine};
use crate::wire_format::Shape;

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
            let (Some(wire_format), Some(on)) = (self.wire_format, self.lines.get_mut(self.current)) else {
                continue;
            };
            self.outcomes.sent(&on.name, wire_format, &frame);
            match wire_format.shape(&frame) {
                Shape::Cancel { key } => {
                    for one in self.slow.iter_mut().filter(|one| wire_format.cancel_key(&one.id) == key) {
                        one.cancelled = true;
                    }
                    self.silenced.push(key);
                    self.has_sent_a_cancel = true;
                }
                // The request is sent again.
                Shape::Request { id, .. } => {
                    if !self.asked.contains(&id) {
                        self.asked.push(id.clone());
                    }
                    on.unanswered.retain(|(of, _)| *of != id);
                    let sent = self.subject.now();
                    if self.translator.as_ref().is_some_and(|translator| translator.is_slow(&id)) {
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
            return self.take(frame);
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
                self.line_mut()?.unanswered.extend(why.map(|why| (id, why)));
                return Ok(Next::Silence);
            }
            Seen::GivenUp(id) => {
                let text = format!("(stream closed: that of {id} was aborted)");
                self.trace.push(TraceLine::new(Direction::Received, text));
                if !self.subject.abilities().exchange_scoped {
                    return Ok(Next::Silence);
                }
                let cancel = self.wire_format()?.cancel(&id);
                if let (Some(wire_format), Some(on)) = (self.wire_format, self.lines.get(self.current)) {
                    self.outcomes.received(&on.name, wire_format, &cancel);
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
            Some(frame) => self.take(frame),
            None => Ok(Next::Silence),
        }
    }

    /// Reads the messages of a frame. Those of a foreign peer are read as they were meant.
    fn read(&mut self, text: &str) -> Result<(), Stop> {
        let read = match self.wire_format.filter(|_| self.is_foreign()) {
            Some(wire_format) => as_meant(text, wire_format, &self.asked, self.has_sent_a_batch),
            None => serde_json::from_str(text)
                .map(|frame| AsMeant { messages: vec![frame], deviations: Vec::new() }),
        };
        let read = read.map_err(|error| {
            Stop::Broke(
                Failure::Unreadable,
                format!("the peer sent something that is not JSON ({error}): {text}"),
            )
        })?;
        self.meant.extend(read.messages);
        self.deviations.extend(read.deviations);
        Ok(())
    }

    /// Takes a message, unless it is none of this scenario.
    fn take(&mut self, frame: Value) -> Result<Next, Stop> {
        if self.is_of_an_earlier_scenario(&frame)? {
            self.strays.push(frame);
            return Ok(Next::Silence);
        }
        if let (Some(wire_format), Some(on)) = (self.wire_format, self.lines.get(self.current)) {
            self.outcomes.received(&on.name, wire_format, &frame);
        }
        self.note_a_normal_end(&frame)?;
        if self.is_cancelled_without_answer(&frame)? {
            return Ok(Next::Silence);
        }
        Ok(Next::Frame(frame))
    }

    /// Waits for one frame and keeps the others. `awaited` is as in [`Self::next`].
    pub(super) async fn wait_for(
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
