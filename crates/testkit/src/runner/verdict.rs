//! What came of playing a vector.

use std::time::Duration;

use serde::Serialize;

use super::outcomes::Outcomes;

/// The result of one vector, with all that was sent and received.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Played {
    /// Whether it held.
    pub verdict: Verdict,
    /// What was sent and received, in order.
    pub trace: Vec<TraceLine>,
    /// From the cancel to what showed that it had worked.
    pub cancel: Option<Duration>,
    /// What came of each request, in words that no wire changes.
    pub outcomes: Outcomes,
}

/// Whether a vector held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All steps went as they should.
    Held,
    /// One did not.
    Broke {
        /// What was wanted and what came.
        why: String,
        /// Which step, counted from 1; 0: the opening; one past the last: the end.
        step: usize,
    },
    /// It could not be asked of this subject.
    NotAsked {
        /// Why not.
        why: String,
    },
}

/// One frame that went over a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TraceLine {
    /// Which way.
    pub direction: Direction,
    /// What, as text.
    pub text: String,
}

impl TraceLine {
    /// One frame.
    pub fn new(direction: Direction, text: impl Into<String>) -> Self {
        Self { direction, text: text.into() }
    }
}

/// Which way a frame went, seen from the runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// To the subject.
    Sent,
    /// From the subject.
    Received,
}
