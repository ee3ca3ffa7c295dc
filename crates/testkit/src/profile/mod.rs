//! Profiles: they describe how to run the vectors against a foreign peer without changing it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::pattern::subset;
use crate::pattern::{Bindings, matches};
use crate::wire_format::WireFormat;

mod file_uri;
mod resolve;
mod session;
mod witness;

pub use resolve::UnresolvedProfile;
pub use session::{ExpectWord, HandshakeStep, ProfileHandshake, ProfileSession};
pub use witness::Witness;

/// How a foreign peer is started and its session opened, which of its requests are slow, quick and so on, and where it
/// shows that work stopped. Read from TOML; see `vectors/README.md`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Profile {
    /// A name for reports.
    pub name: String,
    /// What a session needs beyond its handshake.
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
    /// Where the peer shows that work stopped.
    pub witness: Option<Witness>,
    /// Vectors that the peer is known to break, with the reason. They are still played and reported.
    #[serde(default)]
    pub deviations: BTreeMap<String, String>,
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
    pub result: Option<Value>,
    /// The answers that are allowed after its cancel. Omitted: the dialect's form.
    #[serde(default)]
    pub cancelled: Vec<CancelledForm>,
    /// The request that it sends to its client.
    pub child: Option<ProfileChild>,
    /// The method of its notifications.
    pub notification: Option<String>,
}

impl ProfileRequest {
    /// Creates a request with these params. Any result is allowed, and after a cancel the dialect's answers.
    #[must_use]
    pub fn new(method: impl Into<String>, params: Value) -> Self {
        let method = method.into();
        Self { method, params, result: None, cancelled: Vec::new(), child: None, notification: None }
    }

    /// Whether an answer has one of the forms that the profile names for a cancelled request.
    #[doc(hidden)]
    #[must_use]
    pub fn says_cancelled(&self, wire_format: WireFormat, answer: &Value) -> bool {
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

/// A profile that does not follow the format.
#[derive(Clone, Debug, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct BadProfile {
    line: usize,
    column: usize,
    reason: String,
}

/// The profile of the fixture's methods, played as against a foreign peer.
const FIXTURE: &str = include_str!("../../profiles/fixture.toml");

impl Profile {
    /// Creates a profile without requests, for a peer whose session is opened as usual in its dialect.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Reads a profile from TOML.
    ///
    /// # Errors
    /// If the text does not follow the format. The error has the line and the column, and for a wrong key the known ones.
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
#[must_use]
pub fn follow<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
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
    fn a_wrong_key_is_reported_with_the_known_ones_and_its_position() {
        for (text, told) in [
            (
                "name = \"x\"\n[sesion]\n",
                "line 2, column 2: unknown field `sesion`, expected one of `name`, `session`,",
            ),
            (
                "name = \"x\"\n[session]\nscrach = \"w\"\n",
                "line 3, column 1: unknown field `scrach`, expected one of `scratch`, `env`, `replies`, `setup`",
            ),
            (
                "name = \"x\"\n[requests.slo]\nmethod = \"m\"\n",
                "line 2, column 11: unknown variant `slo`, expected one of `slow`, `quick`,",
            ),
            (
                "name = \"x\"\n[requests.slow]\nmethod = \"m\"\nparms = {}\n",
                "line 4, column 1: unknown field `parms`, expected one of `method`, `params`,",
            ),
            ("name = \"x\"\n[requests.slow]\nparams = {}\n", "line 2, column 1: missing field `method`"),
            (
                "name = \"x\"\n[witness]\nrunning = \"a\"\n",
                "line 2, column 1: a witness has a `method`, a `command`, or both",
            ),
            (
                "name = \"x\"\n[witness]\ncommand = []\n",
                "line 2, column 1: a witness's `command` names a program",
            ),
            (
                "name = \"x\"\n[witness]\ncomand = [\"a\"]\n",
                "line 3, column 1: unknown field `comand`, expected one of",
            ),
            (
                "name = \"x\"\n[handshake]\nsteps = [\n  { wait = \"a\", notify = \"b\" } ]\n",
                "line 3, column 9: a step has one of `method`, `notify` and `wait`, and one here has notify = \"b\" and wait = \"a\"",
            ),
            (
                "name = \"x\"\n[handshake]\nsteps = [ { method = \"a\", within_ms = 1 } ]\n",
                "line 3, column 9: `within_ms` is for a step with `wait`, and one here has method = \"a\"",
            ),
            (
                "name = \"x\"\n[session]\nsetup = [ { notify = \"a\", bind = { x = \"result\" } } ]\n",
                "line 3, column 9: `bind` is for a step with `method`",
            ),
        ] {
            let error = Profile::from_toml(text).unwrap_err().to_string();
            assert!(error.starts_with(told), "{error}\nand not {told}");
        }
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
