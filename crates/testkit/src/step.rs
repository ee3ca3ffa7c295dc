//! The steps of a vector.

use serde::Deserialize;
use serde_json::Value;

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
