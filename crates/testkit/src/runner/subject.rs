//! Whom a vector is played against.

use std::future::Future;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::step::{CallStep, CancelWord, OutcomeWord};

/// One connection to a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line(pub usize);

/// What came on a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A frame, as text.
    Frame(String),
    /// Something that is no frame; the words say what.
    Noise(String),
    /// On a wire of exchanges, what a request went out on has ended without an answer.
    Unanswered {
        /// The request. `null`: it carried none, or one that was answered.
        id: Value,
        /// What the wire says of that. `None`: a request of the same id is still open.
        why: Option<String>,
    },
    /// On a wire of exchanges, the subject has given up the exchange of this request. `null`: it carried none.
    GivenUp(Value),
    /// The subject closed the line; the words say how, if it was not in good order.
    Closed(Option<String>),
    /// Nothing in the time given.
    Nothing,
}

/// Why a subject did not do what a step asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It cannot, and nobody says it should: the vector is not asked.
    Unable(String),
    /// It should have.
    Failed(String),
}

/// How a call of the subject ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Ended {
    /// The outcome.
    pub outcome: OutcomeWord,
    /// For a cancelled call: the peer confirmed it.
    pub confirmed: Option<bool>,
    /// For a cancelled call: the kind of its first cause, in small letters.
    pub cause: Option<String>,
    /// The value.
    pub value: Option<Value>,
    /// The error's code.
    pub code: Option<i64>,
    /// For a lost call: it had been written.
    pub may_have_run: Option<bool>,
    /// What the peer said of the cancel, where cancels are acknowledged.
    pub acked: Option<bool>,
}

impl Ended {
    /// An outcome of which nothing more is known.
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

/// What a subject can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent abilities, each named where it is set")]
pub struct Abilities {
    /// More than one connection to the same fixture can be open.
    pub many_lines: bool,
    /// Its input can be ended while its output stays open.
    pub half_close: bool,
    /// It makes calls when it is told to (role `call`).
    pub calls: bool,
    /// It is set up with the vector's options.
    pub options: bool,
    /// Its wire keeps the order of frames.
    pub ordered: bool,
    /// Its wire may carry batches.
    pub batches: bool,
    /// Anything can be said on a fresh line; else the dialect's usual opening has to come first.
    pub bare: bool,
    /// Its wire's ids mean nothing beyond their exchange, so that closing the exchange is its cancel.
    pub exchange_scoped: bool,
}

/// Whom a vector is played against: the bare machine, a wire, a foreign peer, a `Peer` of ours.
///
/// The methods about calls are for role `call`; a subject that makes no calls keeps the provided ones.
pub trait Subject: Send {
    /// What it can be asked.
    fn abilities(&self) -> Abilities;

    /// The subject's time.
    fn now(&self) -> Instant;

    /// Opens a connection.
    fn open(&mut self) -> impl Future<Output = Result<Line, Trouble>> + Send;

    /// Sends frames in one write.
    fn send(&mut self, line: Line, frames: Vec<String>) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// The next thing that comes, waiting this long at most.
    fn recv(&mut self, line: Line, within: Duration) -> impl Future<Output = Seen> + Send;

    /// Ends the subject's input.
    fn half_close(&mut self, line: Line) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// Closes the connection.
    fn disconnect(&mut self, line: Line) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// Lets a little time pass between two looks at a counter.
    fn pause(&mut self) -> impl Future<Output = ()> + Send;

    /// Makes a call.
    fn call(&mut self, line: Line, call: &CallStep) -> impl Future<Output = Result<(), Trouble>> + Send {
        let _ = (line, call);
        async { Err(makes_no_calls()) }
    }

    /// Cancels a call; says what the canceller said.
    fn cancel_call(
        &mut self,
        name: &str,
        reason: Option<&str>,
    ) -> impl Future<Output = Result<CancelWord, Trouble>> + Send {
        let _ = (name, reason);
        async { Err(makes_no_calls()) }
    }

    /// Drops a call.
    fn drop_call(&mut self, name: &str) -> impl Future<Output = Result<(), Trouble>> + Send {
        let _ = name;
        async { Err(makes_no_calls()) }
    }

    /// How a call ended, waiting this long at most; `None`: it has not.
    fn outcome(
        &mut self,
        name: &str,
        within: Duration,
    ) -> impl Future<Output = Result<Option<Ended>, Trouble>> + Send {
        let _ = (name, within);
        async { Err(makes_no_calls()) }
    }

    /// Begins the shutdown and does not wait for it.
    fn shutdown(&mut self, line: Line) -> impl Future<Output = Result<(), Trouble>> + Send {
        let _ = line;
        async { Err(makes_no_calls()) }
    }
}

fn makes_no_calls() -> Trouble {
    Trouble::Unable("the subject makes no calls of its own when told to".to_owned())
}
