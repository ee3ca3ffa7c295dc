//! The connections of one play, and the frames that came and were not asked for yet.

use std::collections::VecDeque;

use serde_json::Value;

use super::subject::Line;

/// One connection.
#[derive(Debug)]
pub(crate) struct LineState {
    /// What the vector calls it.
    pub(crate) name: String,
    pub(crate) line: Line,
    /// Frames that came while something else was waited for.
    pub(crate) inbox: VecDeque<Value>,
    pub(crate) closed: Closed,
    /// Requests that cannot be answered any more, and what the wire says of that. `null`: it is not known which.
    pub(crate) unanswered: Vec<(Value, String)>,
}

/// Whether a connection can still be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Both ways are open.
    No,
    /// We ended what we send.
    Half,
    /// It is over.
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
        }
    }
}
