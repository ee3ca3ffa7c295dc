//! Profiles: they describe how to run the vectors against a foreign peer without changing it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::pattern::{Bindings, matches};
use crate::runner::subset;
use crate::wire_format::WireFormat;

/// The handshake of a foreign peer, which of its requests are slow, quick and so on, and where it shows that work
/// stopped. Read from TOML; see `vectors/README.md`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Profile {
    /// A name for reports.
    pub name: String,
    /// The surroundings of a session.
    #[serde(default)]
    pub session: ProfileSession,
    /// How the session is opened. Without steps: as usual in the dialect.
    #[serde(default)]
    pub handshake: ProfileHandshake,
    /// The peer's requests, by what they are used for.
    #[serde(default)]
    pub requests: BTreeMap<RequestKind, ProfileRequest>,
    /// Methods of the protocol itself (`tools/call`, `session/prompt`) that the peer serves as the fixture does.
    #[serde(default)]
    pub serves: BTreeSet<String>,
    /// The request that returns what is running.
    #[serde(default)]
    pub witness: Option<Witness>,
    /// Vectors that the peer is known to break, with the reason. They are still played and reported.
    #[serde(default)]
    pub deviations: BTreeMap<String, String>,
}

/// The steps that open a session.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ProfileHandshake {
    /// In order.
    #[serde(default)]
    pub steps: Vec<HandshakeStep>,
}

/// One step: a request (`method`) or a notification (`notify`).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HandshakeStep {
    /// The request's method.
    #[serde(default)]
    pub method: Option<String>,
    /// The notification's method.
    #[serde(default)]
    pub notify: Option<String>,
    /// The params.
    #[serde(default = "empty")]
    pub params: Value,
    /// What to wait for. The only value is `answer`, which is also the default for a request.
    #[serde(default)]
    pub expect: Option<ExpectWord>,
    /// What is taken from the answer for later `"${name}"`: name to dotted path.
    #[serde(default)]
    pub bind: BTreeMap<String, String>,
    /// Waits until the peer has sent a notification with this method.
    #[serde(default)]
    pub wait: Option<String>,
    /// How long to wait, in milliseconds.
    #[serde(default)]
    pub within_ms: Option<u64>,
}

/// The surroundings of a session.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ProfileSession {
    /// What is sent after the handshake.
    #[serde(default)]
    pub setup: Vec<HandshakeStep>,
    /// The results that are sent for requests of the peer, by their methods. Others are refused.
    #[serde(default)]
    pub replies: BTreeMap<String, Value>,
}

/// The events that a handshake step can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpectWord {
    /// The answer to its request.
    Answer,
}

/// The purpose of a request of the peer. Each kind means one method of the fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RequestKind {
    /// Runs until it is cancelled (`test/wait`).
    Slow,
    /// Is answered at once (`test/echo`).
    Quick,
    /// Is answered after a delay (`test/sleep`).
    Sleep,
    /// Answers its cancel with a partial result (`test/partial`).
    Partial,
    /// Ignores its cancel (`test/ignore`).
    Deaf,
    /// The same on a blocking thread (`test/block`).
    Block,
    /// Fails when it is cancelled (`test/fail_on_cancel`).
    Fails,
    /// Calls its client and waits (`test/nested`).
    Nested,
    /// Notifies and then answers (`test/progress`).
    Progress,
    /// Panics, or fails in another way (`test/panic`).
    Panic,
}

impl RequestKind {
    /// The kind that a method of the fixture has.
    #[must_use]
    pub fn of_method(method: &str) -> Option<Self> {
        Some(match method {
            "test/wait" => Self::Slow,
            "test/echo" => Self::Quick,
            "test/sleep" => Self::Sleep,
            "test/partial" => Self::Partial,
            "test/ignore" => Self::Deaf,
            "test/block" => Self::Block,
            "test/fail_on_cancel" => Self::Fails,
            "test/nested" => Self::Nested,
            "test/progress" => Self::Progress,
            "test/panic" => Self::Panic,
            _ => return None,
        })
    }
}

/// A request of the peer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ProfileRequest {
    /// Its method.
    pub method: String,
    /// Its params.
    #[serde(default = "empty")]
    pub params: Value,
    /// A subset of its result. Omitted: any.
    #[serde(default)]
    pub result: Option<Value>,
    /// The answers that are allowed after its cancel. Omitted: the dialect's form.
    #[serde(default)]
    pub cancelled: Vec<CancelledForm>,
    /// The request that it sends to its client.
    #[serde(default)]
    pub child: Option<ProfileChild>,
    /// The method of its notifications.
    #[serde(default)]
    pub notification: Option<String>,
}

impl ProfileRequest {
    /// A request without params, about whose answer nothing is known.
    pub(crate) fn plain(method: &str) -> Self {
        Self {
            method: method.to_owned(),
            params: empty(),
            result: None,
            cancelled: Vec::new(),
            child: None,
            notification: None,
        }
    }

    /// Whether an answer has one of the forms that the profile names for a cancelled request.
    pub(crate) fn says_cancelled(&self, wire_format: WireFormat, answer: &Value) -> bool {
        let code = ["/error/code", "/payload/error/code"].into_iter().find_map(|at| answer.pointer(at));
        self.cancelled.iter().any(|form| match form {
            CancelledForm::Code(named) => code == Some(named),
            CancelledForm::Result(named) => wire_format
                .value(answer)
                .is_some_and(|value| matches(&subset(named), value, &mut Bindings::default()).is_ok()),
        })
    }
}

/// One form of a cancelled answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CancelledForm {
    /// An error with this code.
    Code(Value),
    /// A result with these members.
    Result(Value),
}

/// The request that a nested request sends to its client.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ProfileChild {
    /// The method.
    pub method: String,
}

/// The request that returns what is running.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Witness {
    /// The request. Empty: the command is the witness.
    #[serde(default)]
    pub method: String,
    /// A command that prints how much work was done so far, as a number. It is run beside the peer.
    #[serde(default)]
    pub command: Vec<String>,
    /// Its params.
    #[serde(default = "empty")]
    pub params: Value,
    /// Dotted path in its result to the number of running handlers.
    #[serde(default)]
    pub running: Option<String>,
    /// Dotted path in its result to the number of cancelled handlers.
    #[serde(default)]
    pub cancelled: Option<String>,
}

/// A profile that does not follow the format.
#[derive(Clone, Debug, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct BadProfile {
    line: usize,
    column: usize,
    reason: String,
}

/// The profile of the fixture's methods, played as against a foreign peer.
const FIXTURE: &str = include_str!("../profiles/fixture.toml");

impl Profile {
    /// Reads a profile from TOML.
    ///
    /// # Errors
    /// If the text does not follow the format.
    pub fn from_toml(text: &str) -> Result<Self, BadProfile> {
        toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let before = text.get(..at).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            let reason = error.message().lines().collect::<Vec<_>>().join(", ");
            BadProfile { line, column, reason }
        })
    }

    /// The profile of a peer that serves the fixture's methods, in any dialect. Its bytes need not be equal to the
    /// fixture's.
    ///
    /// # Errors
    /// None. A test of this crate checks this.
    pub fn fixture() -> Result<Self, BadProfile> {
        Self::from_toml(FIXTURE)
    }
}

/// Follows a dotted path, such as `result.sessionId` or `content.0.text`.
pub(crate) fn follow<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, name| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        _ => value.get(name),
    })
}

fn empty() -> Value {
    Value::Object(serde_json::Map::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read_from_toml() {
        let text = r#"
            name = "x"
            [handshake]
            steps = [
              { method = "initialize", params = { protocolVersion = 1 }, expect = "answer", bind = { session = "result.sessionId" } },
              { notify = "initialized", params = {} },
            ]
            [requests.slow]
            method = "session/prompt"
            params = { sessionId = "${session}" }
            cancelled = [ { code = -32800 }, { result = { stopReason = "cancelled" } } ]
            [requests.nested]
            method = "n"
            child = { method = "c" }
            [witness]
            method = "stats"
            running = "a.b"
            [deviations]
            cancel_twice = "it answers twice"
        "#;
        let profile = Profile::from_toml(text).unwrap();
        assert_eq!(profile.requests[&RequestKind::Slow].cancelled.len(), 2);
        assert_eq!(profile.handshake.steps.len(), 2);
    }

    #[test]
    fn an_invalid_profile_is_reported_in_one_sentence_with_its_position() {
        for (text, place) in
            [("name = 1", "line 1, column 8: "), ("name = \"x\"\nfoo = 1\n", "line 2, column 1: ")]
        {
            let reported = Profile::from_toml(text).unwrap_err().to_string();
            assert!(reported.starts_with(place) && reported.lines().count() == 1, "{reported}");
        }
    }

    #[test]
    fn the_fixtures_own_profile_has_every_kind_of_request() {
        let profile = Profile::fixture().unwrap();
        for method in [
            "wait",
            "echo",
            "sleep",
            "partial",
            "ignore",
            "block",
            "fail_on_cancel",
            "nested",
            "progress",
            "panic",
        ] {
            let kind = RequestKind::of_method(&format!("test/{method}")).unwrap();
            assert_eq!(profile.requests[&kind].method, format!("test/{method}"));
        }
    }

    #[test]
    fn a_path_can_lead_through_objects_and_arrays() {
        let value = serde_json::json!({"a": [{"b": 7}]});
        assert_eq!(follow(&value, "a.0.b"), Some(&Value::from(7)));
        assert_eq!(follow(&value, "a.1.b"), None);
    }
}
