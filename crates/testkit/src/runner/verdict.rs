//! The result of playing a vector.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::deviations::DeviationSeen;
use super::outcomes::Outcomes;

/// The result of one vector, with everything that was sent and received.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Played {
    /// Whether it passed.
    pub verdict: Verdict,
    /// How it is known that it passed. Empty if it did not.
    pub evidence: Vec<Evidence>,
    /// What was sent and received, in order.
    pub trace: Vec<TraceLine>,
    /// The time from the cancel to its first visible effect.
    pub cancel: Option<Duration>,
    /// The result of each request, in a form that is the same on every transport.
    pub outcomes: Outcomes,
    /// Answers to requests of earlier scenarios in the same session of a foreign peer.
    pub strays: Vec<Value>,
    /// What a foreign peer did against the form of messages.
    pub deviations: Vec<DeviationSeen>,
}

impl Played {
    /// The result of a vector of which nothing was played.
    #[must_use]
    pub fn unplayed(verdict: Verdict) -> Self {
        Self {
            verdict,
            evidence: Vec::new(),
            trace: Vec::new(),
            cancel: None,
            outcomes: Outcomes::default(),
            strays: Vec::new(),
            deviations: Vec::new(),
        }
    }
}

/// Whether a vector passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All steps passed.
    Held,
    /// A step failed.
    Broke {
        /// The kind of the difference.
        failure: Failure,
        /// The expected and the actual result.
        why: String,
        /// The number of the step, from 1. 0: the opening; one above the last: the end.
        step: usize,
    },
    /// It could not be brought about, and nothing wrong was seen.
    Unsure {
        /// Why, and what to change.
        why: String,
    },
    /// It cannot be played against this subject.
    NotAsked {
        /// Why not.
        why: String,
    },
}

/// In which way a subject differed from a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// The session could not be opened.
    Opening,
    /// An answer or another frame did not come in time.
    Unanswered,
    /// A frame came in another form than expected.
    OtherFrame,
    /// A frame came that must not come: a second answer, an answer where silence is owed.
    UnexpectedFrame,
    /// The connection or the program ended.
    Closed,
    /// Something came that is not a frame, or the peer stopped reading.
    Unreadable,
    /// The counters of a witness show other values.
    Counters,
    /// A call of the subject, or the subject itself, did not do what a step demands.
    Subject,
}

/// One frame on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TraceLine {
    /// The direction.
    pub direction: Direction,
    /// The content, as text.
    pub text: String,
}

impl TraceLine {
    /// Creates the line of one frame.
    pub fn new(direction: Direction, text: impl Into<String>) -> Self {
        Self { direction, text: text.into() }
    }

    /// The line without the middle of a very long frame.
    #[doc(hidden)]
    #[must_use]
    pub fn shortened(&self) -> Self {
        let mut line = self.clone();
        shorten(&mut line.text);
        line
    }
}

/// The longest text that is kept whole in the report about a foreign peer, in bytes.
const LONGEST_TEXT: usize = 4_096;

/// Takes the middle out of a very long text and says how much is missing.
pub fn shorten(text: &mut String) {
    if text.len() <= LONGEST_TEXT {
        return;
    }
    let boundary =
        |from: usize| (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let (from, to) = (boundary(LONGEST_TEXT * 3 / 4), boundary(text.len() - LONGEST_TEXT / 4));
    let left_out = format!(" [{} bytes left out] ", to - from);
    text.replace_range(from..to, &left_out);
}

/// The direction of a frame, seen from the runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// To the subject.
    Sent,
    /// From the subject.
    Received,
}

/// How an outcome is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// By the messages that came and those that did not.
    Wire,
    /// A request of the peer counts its work.
    Request,
    /// Progress notifications ceased.
    Progress,
    /// The next request of a peer that serves one at a time was answered sooner than the work would have allowed.
    Serial,
    /// The processes of the peer used no more processor time.
    Processor,
    /// A command of the user counts the peer's work.
    Command,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_long_frame_is_left_out() {
        let short = TraceLine::new(Direction::Sent, "a".repeat(LONGEST_TEXT));
        assert_eq!(short.shortened(), short);
        // Each character has three bytes, and no cut falls between them.
        let long = format!("<{}>", "\u{20ac}".repeat(10_000));
        let text = TraceLine::new(Direction::Received, long.clone()).shortened().text;
        assert!(text.len() < LONGEST_TEXT + 50);
        assert!(text.starts_with("<\u{20ac}") && text.ends_with("\u{20ac}>"));
        let (kept, left_out) = (text.matches('\u{20ac}').count(), text.split(['[', ' ']).nth(2).unwrap());
        assert_eq!(kept * 3 + 2 + left_out.parse::<usize>().unwrap(), long.len());
    }
}
