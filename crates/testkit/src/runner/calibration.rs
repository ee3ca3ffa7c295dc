//! What the check of a foreign peer knows about it before it plays scenarios.

use std::time::Duration;

use serde_json::Value;

use super::subject::Line;
use crate::pattern::Bindings;

/// What is known about a foreign peer, and the session in which a scenario is played.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    /// The open session. `None`: the scenario opens its own.
    pub session: Option<OpenSession>,
    /// The code with which the quick request is answered. `None`: a result.
    pub quick_error: Option<Value>,
    /// How long the slow request takes without a cancel. `None`: it does not end.
    pub slow_takes: Option<Duration>,
    /// The error with which a cancelled request is answered, if it is not the dialect's.
    pub cancelled_error: Option<Value>,
    /// Whether a cancelled request is answered where silence is owed.
    pub answers_cancelled: bool,
    /// Whether a value may answer a cancelled request.
    pub value_may_answer: bool,
}

/// A session that is open already.
#[derive(Clone, Debug)]
pub struct OpenSession {
    /// Its connection.
    pub line: Line,
    /// The values from its handshake.
    pub bindings: Bindings,
    /// The answer to `initialize`.
    pub opening: Option<Value>,
    /// The number of the first request that the runner itself sends.
    pub first_request: u64,
    /// The requests of earlier scenarios, whose answers may still come.
    pub earlier: Vec<Value>,
}
