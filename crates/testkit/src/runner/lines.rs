//! The connections of one play, and the received frames that no step has used yet.

use std::collections::VecDeque;

use serde_json::Value;

use super::subject::Line;

/// One connection.
#[derive(Debug)]
pub(crate) struct LineState {
    /// The vector's name for it.
    pub(crate) name: String,
    pub(crate) line: Line,
    /// Frames that arrived while the play waited for something else.
    pub(crate) inbox: VecDeque<Value>,
    pub(crate) closed: Closed,
    /// Requests that cannot be answered any more, with the transport's reason. `null`: the request is unknown.
    pub(crate) unanswered: Vec<(Value, String)>,
}

/// Whether a connection can still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Both directions are open.
    No,
    /// This side closed its output.
    Half,
    /// It has ended.
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
