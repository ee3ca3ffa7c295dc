//! A scenario as data: what is sent, what must be received, and which sentence of a source it proves. It has steps.

use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

use crate::dialects::{Demand, DialectFacts};
use crate::options::Options;
use crate::wire_format::WireFormat;

/// One scenario in one dialect. `vectors/README.md` describes the file format.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Vector {
    /// The scenario's name, which is also the file's name. It is the same in every dialect that has the scenario.
    pub name: String,
    /// What happens, in one sentence.
    pub title: String,
    /// The rows of `COVERAGE.md` and the invariants that it proves.
    pub covers: Vec<String>,
    /// The sentence that it proves, in our words, after its origin: the number of a document, a protocol, or `ours`.
    pub source: String,
    /// The role in which the subject is tested.
    pub role: Part,
    /// How much that sentence demands. Only what breaks a "must" is a fault of a foreign peer.
    #[serde(default)]
    pub demand: Demand,
    /// What shows that it holds. A foreign peer is asked only if that can be seen of it.
    #[serde(default)]
    pub shown_by: ShownBy,
    /// Why two plays may end differently, for a scenario that is a race by nature. Its outcomes are not compared
    /// between transports (I15).
    pub race: Option<String>,
    /// The options of the fixture. A foreign peer has no such options.
    #[serde(default)]
    pub options: Options,
    /// What it needs of its transport. It is not played on others.
    #[serde(default)]
    pub needs: Vec<Need>,
    /// A decision of this library where the documents leave a choice. A foreign peer may have decided differently and
    /// is not asked.
    pub ours: Option<String>,
    /// What a foreign peer must declare for this vector: pointers (RFC 6901) into its answer to the request that opens a session or
    /// asks what the server can do.
    #[serde(default)]
    pub declared: Vec<String>,
    /// How the session is opened.
    #[serde(default)]
    pub handshake: HandshakeMode,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// What shows that a scenario holds. Counters of the fixture are read in addition, where there are any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShownBy {
    /// The frames that come.
    #[default]
    Frames,
    /// An answer that does not come, though its request would have ended meanwhile without the cancel. A peer that ignores the
    /// cancel is silent too until then.
    Silence,
    /// Only a witness that sees the work stop.
    Work,
}

/// The role in which the subject is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The subject serves: it is the fixture agent or a foreign one. The vector acts as its client.
    Serve,
    /// The subject calls: it opens the session and makes calls. The vector acts as its server.
    Call,
}

/// What a vector needs of its transport, because the protocols require or allow different behaviour there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Need {
    /// Frames keep their order, so that a cancel for an unknown id has no effect and the first of two requests is
    /// served first.
    Order,
    /// Frames may overtake one another, so that a cancel may wait for its request.
    Disorder,
    /// Ids are valid beyond their exchange, so that a message can cancel.
    SessionIds,
    /// Ids are valid only in their exchange: closing a request's exchange is its cancel.
    ExchangeIds,
    /// Batches may be received.
    Batches,
    /// Requests can become tasks.
    Tasks,
}

impl Need {
    /// Why a vector with this need is not played with these abilities. `None`: the need is met.
    pub(crate) const fn unmet(self, abilities: Abilities) -> Option<&'static str> {
        match self {
            Self::Order if !abilities.ordered => Some(
                "on this wire frames may overtake one another, and an early cancel waits for its request",
            ),
            Self::Disorder if abilities.ordered => {
                Some("this wire keeps the order of frames, and an early cancel is for nothing")
            }
            Self::SessionIds if abilities.exchange_scoped => Some(
                "on this wire closing a request's stream is its cancel, and nothing is answered after it",
            ),
            Self::ExchangeIds if !abilities.exchange_scoped => {
                Some("on this wire ids belong to the session, and a message cancels")
            }
            Self::Batches if !abilities.batches => Some("no batches are carried over this wire"),
            Self::Tasks if !abilities.tasks => Some("the machine alone keeps no tasks"),
            Self::Order
            | Self::Disorder
            | Self::SessionIds
            | Self::ExchangeIds
            | Self::Batches
            | Self::Tasks => None,
        }
    }
}

/// How the session is opened.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HandshakeMode {
    /// As usual in the dialect.
    #[default]
    Default,
    /// No handshake: the steps begin on a new connection.
    None,
    /// With these steps.
    Steps(Vec<Step>),
}

/// A vector file that does not follow the format.
#[derive(Debug, thiserror::Error)]
#[error("the vector {dialect}/{name} breaks the format: {source}")]
pub struct BadVector {
    dialect: String,
    name: String,
    source: serde_json::Error,
}

static EMBEDDED: &[(&str, &str, &str)] = include!(concat!(env!("OUT_DIR"), "/vectors.rs"));

/// A vector together with the dialect it is written in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Scenario {
    /// The dialect's name on the command line.
    pub dialect: &'static str,
    /// The vector.
    pub vector: Vector,
    /// What is known of the dialect.
    #[doc(hidden)]
    pub facts: &'static DialectFacts,
}

impl Scenario {
    /// The vector in a dialect that need not be built in.
    #[doc(hidden)]
    #[must_use]
    pub fn new(facts: &'static DialectFacts, vector: Vector) -> Self {
        Self { dialect: facts.name(), vector, facts }
    }

    /// The frames of its dialect.
    #[doc(hidden)]
    #[must_use]
    pub const fn wire_format(&self) -> WireFormat {
        WireFormat { facts: self.facts }
    }
}

/// The vectors compiled into this crate, by dialect and name.
///
/// # Errors
/// The first file that does not follow the format. A test of this crate checks that there is none.
pub fn read_embedded() -> Result<Vec<Scenario>, BadVector> {
    let read = |&(dialect, name, text): &(&str, &str, &str)| {
        serde_json::from_str(text)
            .and_then(|vector| match DialectFacts::by_name(dialect) {
                Some(facts) => Ok(Scenario::new(facts, vector)),
                None => Err(serde::de::Error::custom("there is no such dialect")),
            })
            .map_err(|source| BadVector { dialect: dialect.to_owned(), name: name.to_owned(), source })
    };
    EMBEDDED.iter().map(read).collect()
}

/// The vectors compiled into this crate, read once.
#[must_use]
pub fn scenarios() -> &'static [Scenario] {
    static READ: OnceLock<Vec<Scenario>> = OnceLock::new();
    // `every_file_is_read` checks that none is left out.
    READ.get_or_init(|| read_embedded().unwrap_or_default())
}

/// The vectors of one dialect.
pub fn scenarios_of(dialect: &str) -> impl Iterator<Item = &'static Scenario> {
    scenarios().iter().filter(move |scenario| scenario.dialect == dialect)
}

/// What a subject supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent abilities, each named where it is set")]
pub struct Abilities {
    /// Whether more than one connection to the same fixture can be open.
    pub many_lines: bool,
    /// Whether its input can be ended while its output stays open.
    pub half_close: bool,
    /// Whether it makes calls on request (role `call`).
    pub calls: bool,
    /// Whether it is configured with the vector's options.
    pub options: bool,
    /// Whether its transport keeps the order of frames.
    pub ordered: bool,
    /// Whether its transport may carry batches.
    pub batches: bool,
    /// Whether any frame can be sent on a new connection. Otherwise the dialect's usual opening must come first.
    pub bare: bool,
    /// Whether its ids belong to an exchange, so that closing the exchange is the cancel.
    pub exchange_scoped: bool,
    /// Whether its requests can become tasks.
    pub tasks: bool,
}

/// One step. In JSON an object with one member, the step's name.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Step {
    /// Sends one frame. `"${x}"` is replaced with what `$bind:x` captured.
    Send(Value),
    /// Sends this text as one frame, whatever it contains.
    SendRaw(String),
    /// Sends these frames in one write, so that the subject reads them together.
    SendTogether(Vec<Value>),
    /// The next frame matches this pattern.
    Expect(Value),
    /// The next frames match these patterns, one each, in any order.
    ExpectAnyOrder(Vec<Value>),
    /// A frame matches, after any number of frames that match another pattern.
    ExpectThrough(Through),
    /// No frame has arrived that matches. A barrier proves it.
    ExpectNothing(Unwanted),
    /// The subject closes the connection.
    ExpectClosed(bool),
    /// A barrier that drops the matching frames before it.
    Skip(Value),
    /// Waits until the fixture's counters have these values.
    Work(Work),
    /// A `test/echo` of the runner is answered: the subject has read what was sent before.
    Barrier(bool),
    /// Ends the input of the subject. Its output stays open.
    HalfClose(bool),
    /// Closes the connection.
    Disconnect(bool),
    /// Continues with the connection of this name, and opens it if it is new. The first one is `"first"`.
    On(String),
    /// The subject makes a call.
    Call(CallStep),
    /// The subject cancels a call.
    CancelCall(CancelCallStep),
    /// The subject drops a call.
    DropCall(CallName),
    /// A call of the subject ends with this outcome.
    ExpectOutcome(OutcomeStep),
    /// The subject shuts down.
    Shutdown(bool),
}

impl Step {
    /// Calls `change` with each frame and pattern of this step.
    #[doc(hidden)]
    pub fn each_frame(&mut self, change: &mut impl FnMut(&mut Value)) {
        match self {
            Self::Send(frame) | Self::Expect(frame) | Self::Skip(frame) => change(frame),
            Self::SendTogether(frames) | Self::ExpectAnyOrder(frames) => frames.iter_mut().for_each(change),
            Self::ExpectThrough(through) => {
                change(&mut through.skipping);
                change(&mut through.frame);
            }
            Self::ExpectNothing(unwanted) => {
                if let Some(like) = &mut unwanted.like {
                    change(like);
                }
            }
            Self::SendRaw(_)
            | Self::ExpectClosed(_)
            | Self::Work(_)
            | Self::Barrier(_)
            | Self::HalfClose(_)
            | Self::Disconnect(_)
            | Self::On(_)
            | Self::Call(_)
            | Self::CancelCall(_)
            | Self::DropCall(_)
            | Self::ExpectOutcome(_)
            | Self::Shutdown(_) => {}
        }
    }

    /// Whether the session, with its one connection, can be used for another scenario after this step.
    #[doc(hidden)]
    #[must_use]
    pub fn keeps_session(&self) -> bool {
        match self {
            Self::HalfClose(_)
            | Self::Disconnect(_)
            | Self::ExpectClosed(_)
            | Self::On(_)
            | Self::SendRaw(_)
            | Self::Shutdown(_) => false,
            Self::Send(frame) => !ends_the_session(frame),
            Self::SendTogether(frames) => !frames.iter().any(ends_the_session),
            Self::Expect(_)
            | Self::ExpectAnyOrder(_)
            | Self::ExpectThrough(_)
            | Self::ExpectNothing(_)
            | Self::Skip(_)
            | Self::Work(_)
            | Self::Barrier(_)
            | Self::Call(_)
            | Self::CancelCall(_)
            | Self::DropCall(_)
            | Self::ExpectOutcome(_) => true,
        }
    }
}

fn ends_the_session(frame: &Value) -> bool {
    matches!(frame.get("method").and_then(Value::as_str), Some("shutdown" | "exit"))
}

/// See [`Step::ExpectThrough`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Through {
    /// Frames that match this pattern may come first.
    pub skipping: Value,
    /// This frame ends the step.
    pub frame: Value,
}

/// Frames that must not have arrived. Without members: any frame.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Unwanted {
    /// An answer to the request with this id.
    pub about: Option<Value>,
    /// A frame that matches this pattern.
    pub like: Option<Value>,
}

/// Counters of `test/stats`. An omitted one may have any value. Counters count from the end of the handshake, without
/// the runner's own requests. Gauges are not adjusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Work {
    /// Handlers started.
    pub started: Option<u64>,
    /// Handlers that have ended.
    pub finished: Option<u64>,
    /// Handlers that ended because they were signalled or aborted.
    pub cancelled: Option<u64>,
    /// Gauge: handlers running.
    pub running: Option<u64>,
    /// Gauge: requests waiting.
    pub queued: Option<u64>,
    /// Gauge: handlers that still run although their request is settled.
    pub draining: Option<u64>,
    /// Gauge: requests that have a slot.
    pub slots: Option<u64>,
    /// Cancels that named no open request.
    pub unknown_cancels: Option<u64>,
    /// Answers that came too late.
    pub late_answers: Option<u64>,
}

/// A call of the subject.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CallStep {
    /// Its name in later steps.
    pub name: String,
    /// Its method.
    pub method: String,
    /// Its params.
    pub params: Option<Value>,
    /// The time after which it is cancelled.
    pub timeout_ms: Option<u64>,
    /// The id of the runner's request of which it is a child.
    pub child_of: Option<Value>,
    /// Whether it outlives its parent.
    #[serde(default)]
    pub detach: bool,
    /// The behaviour of the caller after its cancel.
    pub after_cancel: Option<AfterCancelStep>,
    /// Whether its token is cancelled before the call starts.
    #[serde(default)]
    pub token_cancelled: bool,
}

impl CallStep {
    /// A call with params and no further settings.
    #[must_use]
    pub fn plain(name: &str, method: &str, params: Value) -> Self {
        Self {
            name: name.to_owned(),
            method: method.to_owned(),
            params: Some(params),
            timeout_ms: None,
            child_of: None,
            detach: false,
            after_cancel: None,
            token_cancelled: false,
        }
    }
}

/// The behaviour of a caller after its cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterCancelStep {
    /// It waits for the peer's answer.
    Wait,
    /// It returns at once.
    ReturnNow,
}

/// Names a call of the subject.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CallName {
    /// Its name.
    pub name: String,
}

/// A call the subject cancels.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CancelCallStep {
    /// Its name.
    pub name: String,
    /// The reason for the cancel.
    pub reason: Option<String>,
    /// The canceller's result.
    pub result: Option<CancelWord>,
}

/// The results of a canceller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelWord {
    /// A cancel goes to the peer.
    Sent,
    /// The request is never sent.
    TakenBack,
    /// The peer does not accept cancels.
    NotSupported,
    /// The call had ended.
    AlreadySettled,
}

/// How a call of the subject must end.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OutcomeStep {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub outcome: OutcomeWord,
    /// For `cancelled`: whether the peer confirmed it.
    pub confirmed: Option<bool>,
    /// For `cancelled`: the first cause, in lower case.
    pub cause: Option<String>,
    /// For `completed` and `completed_after_cancel`: a pattern of the value.
    pub value: Option<Value>,
    /// For `failed`: the error's code.
    pub code: Option<i64>,
    /// For `disconnected`: whether the request had been written.
    pub may_have_run: Option<bool>,
    /// Whether the peer acknowledged the cancel, and how.
    pub acked: Option<bool>,
}

/// The names of outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeWord {
    /// A value, without a cancel.
    Completed,
    /// A value in spite of a cancel.
    CompletedAfterCancel,
    /// Cancelled.
    Cancelled,
    /// Another error.
    Failed,
    /// An answer that cannot be read.
    Unreadable,
    /// The connection was lost.
    Disconnected,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read() {
        let read = read_embedded().unwrap();
        assert_eq!(read.len(), EMBEDDED.len());
        for (scenario, (_, name, _)) in read.iter().zip(EMBEDDED) {
            assert_eq!(
                scenario.vector.name, *name,
                "{}: the file is named after its vector",
                scenario.dialect
            );
        }
    }

    #[test]
    fn a_vector_with_an_unknown_member_is_refused() {
        let text = r#"{"name":"a","title":"b","covers":[],"source":"c","role":"serve","steps":[],"more":1}"#;
        assert!(serde_json::from_str::<Vector>(text).is_err());
    }
}
