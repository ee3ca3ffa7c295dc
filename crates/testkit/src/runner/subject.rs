//! The subjects of vectors.

use std::future::Future;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::DeviationSeen;
use crate::step::{CallStep, CancelWord, OutcomeWord};
use crate::vector::Abilities;

/// One connection to a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line(pub usize);

/// An event on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A frame, as text.
    Frame(String),
    /// An event that is not a frame, with a description.
    Noise(String),
    /// Input that the transport dropped or changed because it is against the protocol. The connection goes on.
    Deviation(DeviationSeen),
    /// On a transport of exchanges: the exchange of a request has ended without an answer.
    Unanswered {
        /// The request. `null`: the exchange had none, or an answered one.
        id: Value,
        /// The transport's reason. `None`: a request with the same id is still open.
        why: Option<String>,
    },
    /// On a transport of exchanges: the subject has closed the exchange of this request. `null`: it had none.
    GivenUp(Value),
    /// The subject closed the connection, with a description if it was not a regular close.
    Closed(Option<String>),
    /// Nothing within the given time.
    Nothing,
}

/// Why a subject did not do what a step requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectError {
    /// It cannot, and it need not: the vector is not played.
    Unable(String),
    /// It should have done it.
    Failed(String),
}

/// How a call of the subject ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Ended {
    /// The outcome.
    pub outcome: OutcomeWord,
    /// For a cancelled call: whether the peer confirmed it.
    pub confirmed: Option<bool>,
    /// For a cancelled call: the kind of its first cause, in lower case.
    pub cause: Option<String>,
    /// The value.
    pub value: Option<Value>,
    /// The error's code.
    pub code: Option<i64>,
    /// For a lost call: whether it had been written.
    pub may_have_run: Option<bool>,
    /// The peer's acknowledgement of the cancel, if the dialect has acknowledgements.
    pub acked: Option<bool>,
}

impl Ended {
    /// An outcome without further details.
    #[must_use]
    pub const fn new(outcome: OutcomeWord) -> Self {
        Self {
            outcome,
            confirmed: None,
            cause: None,
            value: None,
            code: None,
            may_have_run: None,
            acked: None,
        }
    }
}

/// The party that a vector tests: the bare machine, a transport, a foreign peer, a `Peer` of this library.
///
/// The methods about calls are for role `call`. A subject that makes no calls keeps the provided ones.
pub trait Subject: Send {
    /// What it supports.
    fn abilities(&self) -> Abilities;

    /// The subject's time.
    fn now(&self) -> Instant;

    /// Opens a connection.
    fn open(&mut self) -> impl Future<Output = Result<Line, SubjectError>> + Send;

    /// Sends frames in one write.
    fn send(
        &mut self,
        line: Line,
        frames: Vec<String>,
    ) -> impl Future<Output = Result<(), SubjectError>> + Send;

    /// Waits at most this long for the next event.
    fn recv(&mut self, line: Line, within: Duration) -> impl Future<Output = Seen> + Send;

    /// Ends the subject's input.
    fn half_close(&mut self, line: Line) -> impl Future<Output = Result<(), SubjectError>> + Send;

    /// Closes the connection.
    fn disconnect(&mut self, line: Line) -> impl Future<Output = Result<(), SubjectError>> + Send;

    /// Waits briefly between two reads of a counter.
    fn pause(&mut self) -> impl Future<Output = ()> + Send;

    /// Makes a call.
    fn call(&mut self, line: Line, call: &CallStep) -> impl Future<Output = Result<(), SubjectError>> + Send {
        let _ = (line, call);
        async { Err(makes_no_calls()) }
    }

    /// Cancels a call and returns the canceller's result.
    fn cancel_call(
        &mut self,
        name: &str,
        reason: Option<&str>,
    ) -> impl Future<Output = Result<CancelWord, SubjectError>> + Send {
        let _ = (name, reason);
        async { Err(makes_no_calls()) }
    }

    /// Drops a call.
    fn drop_call(&mut self, name: &str) -> impl Future<Output = Result<(), SubjectError>> + Send {
        let _ = name;
        async { Err(makes_no_calls()) }
    }

    /// Waits at most this long and returns how a call ended. `None`: it has not ended.
    fn outcome(
        &mut self,
        name: &str,
        within: Duration,
    ) -> impl Future<Output = Result<Option<Ended>, SubjectError>> + Send {
        let _ = (name, within);
        async { Err(makes_no_calls()) }
    }

    /// Starts the shutdown and does not wait for it.
    fn shutdown(&mut self, line: Line) -> impl Future<Output = Result<(), SubjectError>> + Send {
        let _ = line;
        async { Err(makes_no_calls()) }
    }
}

fn makes_no_calls() -> SubjectError {
    SubjectError::Unable("the subject cannot be instructed to make calls".to_owned())
}
