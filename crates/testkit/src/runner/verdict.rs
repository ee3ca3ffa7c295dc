//! The result of playing a vector.

use std::time::Duration;

use serde::Serialize;

use super::outcomes::Outcomes;

/// The result of one vector, with everything that was sent and received.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Played {
    /// Whether it passed.
    pub verdict: Verdict,
    /// What was sent and received, in order.
    pub trace: Vec<TraceLine>,
    /// The time from the cancel to its first visible effect.
    pub cancel: Option<Duration>,
    /// The result of each request, in a form that is the same on every transport.
    pub outcomes: Outcomes,
}

/// Whether a vector passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All steps passed.
    Held,
    /// A step failed.
    Broke {
        /// The expected and the actual result.
        why: String,
        /// The number of the step, from 1. 0: the opening; one above the last: the end.
        step: usize,
    },
    /// It cannot be played against this subject.
    NotAsked {
        /// Why not.
        why: String,
    },
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
