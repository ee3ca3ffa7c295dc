//! Profiles: they describe how to run the vectors against a foreign peer without changing it: how a session is opened and
//! what it needs besides, which requests the peer has, and where it shows that work stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::pattern::{Bindings, matches, subset};
use crate::wire_format::WireFormat;

/// How a foreign peer is started and its session opened, which of its requests are slow, quick and so on, and where it
/// shows that work stopped. Read from TOML; see `crates/check/profiles/README.md`.
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
    /// Becomes a task, if its client takes one (MCP).
    Task,
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
const FIXTURE: &str = include_str!("../profiles/fixture.toml");

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

/// What a session needs beyond its handshake: `[session]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ProfileSession {
    /// A folder beside the profile that is copied for each session. The copy is the peer's working directory. In a
    /// resolved profile it is the path of the copy.
    pub scratch: Option<PathBuf>,
    /// Variables that are added to the peer's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The results of requests that the peer sends, by method. Its other requests get "method not found".
    #[serde(default, deserialize_with = "replies")]
    pub replies: BTreeMap<String, Value>,
    /// Steps after the handshake.
    #[serde(default)]
    pub setup: Vec<HandshakeStep>,
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

/// One step: a request (`method`), a notification (`notify`), or a wait for a notification of the peer (`wait`).
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "StepTable")]
#[non_exhaustive]
pub struct HandshakeStep {
    /// The request's method.
    pub method: Option<String>,
    /// The notification's method.
    pub notify: Option<String>,
    /// The params.
    pub params: Value,
    /// What to wait for. The only value is `answer`, which is also the default for a request.
    pub expect: Option<ExpectWord>,
    /// What is taken from the answer for later `"${name}"`: name to dotted path.
    pub bind: BTreeMap<String, String>,
    /// The method of a notification that the peer must have sent before the next step.
    pub wait: Option<String>,
    /// The longest time for `wait`, in milliseconds. `None`: the time of a step.
    pub within_ms: Option<u64>,
}

/// The events that a handshake step can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpectWord {
    /// The answer to its request.
    Answer,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepTable {
    method: Option<String>,
    notify: Option<String>,
    #[serde(default = "empty")]
    params: Value,
    expect: Option<ExpectWord>,
    #[serde(default)]
    bind: BTreeMap<String, String>,
    wait: Option<String>,
    within_ms: Option<u64>,
}

impl TryFrom<StepTable> for HandshakeStep {
    type Error = String;

    fn try_from(table: StepTable) -> Result<Self, String> {
        // The position of an error is that of the whole list, so the error names the step.
        let kinds = [("method", &table.method), ("notify", &table.notify), ("wait", &table.wait)];
        let has: Vec<String> = kinds
            .into_iter()
            .filter_map(|(kind, value)| value.as_ref().map(|value| format!("{kind} = \"{value}\"")))
            .collect();
        let [step] = &has[..] else {
            let has = if has.is_empty() { "none".to_owned() } else { has.join(" and ") };
            return Err(format!("a step has one of `method`, `notify` and `wait`, and one here has {has}"));
        };
        if table.within_ms.is_some() && table.wait.is_none() {
            return Err(format!("`within_ms` is for a step with `wait`, and one here has {step}"));
        }
        if !table.bind.is_empty() && table.method.is_none() {
            return Err(format!("`bind` is for a step with `method`, and one here has {step}"));
        }
        Ok(Self {
            method: table.method,
            notify: table.notify,
            params: table.params,
            expect: table.expect,
            bind: table.bind,
            wait: table.wait,
            within_ms: table.within_ms,
        })
    }
}

/// TOML has no null, so the string `null` in a reply means it.
fn replies<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Value>, D::Error> {
    let mut replies = BTreeMap::<String, Value>::deserialize(from)?;
    replies.values_mut().for_each(with_nulls);
    Ok(replies)
}

fn with_nulls(value: &mut Value) {
    match value {
        Value::String(text) if text == "null" => *value = Value::Null,
        Value::Array(items) => items.iter_mut().for_each(with_nulls),
        Value::Object(members) => members.values_mut().for_each(with_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The request that returns what is running, or a command that prints how much work was done.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "WitnessTable")]
#[non_exhaustive]
pub struct Witness {
    /// The request. Empty: the command is the witness.
    pub method: String,
    /// A program of the user and its arguments. It prints how much work was done so far, as a number.
    pub command: Vec<String>,
    /// The params of the request.
    pub params: Value,
    /// Dotted path in its result to the number of running handlers.
    pub running: Option<String>,
    /// Dotted path in its result to the number of cancelled handlers.
    pub cancelled: Option<String>,
    /// Dotted path in its result to the number of handlers that run on although their request was answered.
    pub draining: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WitnessTable {
    method: Option<String>,
    #[serde(default = "empty")]
    params: Value,
    running: Option<String>,
    cancelled: Option<String>,
    draining: Option<String>,
    command: Option<Vec<String>>,
}

impl TryFrom<WitnessTable> for Witness {
    type Error = &'static str;

    fn try_from(table: WitnessTable) -> Result<Self, &'static str> {
        let WitnessTable { method, params, running, cancelled, draining, command } = table;
        if method.is_none() && command.is_none() {
            return Err("a witness has a `method`, a `command`, or both");
        }
        if command.as_ref().is_some_and(Vec::is_empty) {
            return Err("a witness's `command` names a program");
        }
        let (method, command) = (method.unwrap_or_default(), command.unwrap_or_default());
        Ok(Self { method, command, params, running, cancelled, draining })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Profile, *};

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

    #[test]
    fn a_session_has_a_scratch_folder_an_environment_replies_and_a_setup() {
        let text = r#"
            name = "x"
            [session]
            scratch = "workspace"
            env = { NODE_OPTIONS = "" }
            replies = { "workspace/configuration" = [ {}, "null" ], "client/registerCapability" = "null" }
            setup = [
              { notify = "textDocument/didOpen", params = { uri = { file-uri = "big.py" } } },
              { wait = "textDocument/publishDiagnostics", within_ms = 20000 },
              { method = "m", bind = { x = "result.y" } },
            ]
        "#;
        let session = Profile::from_toml(text).unwrap().session;
        assert_eq!(session.scratch.as_deref(), Some(std::path::Path::new("workspace")));
        assert_eq!(session.env["NODE_OPTIONS"], "");
        assert_eq!(session.replies["workspace/configuration"], json!([{}, null]));
        assert_eq!(session.replies["client/registerCapability"], json!(null));
        let [opened, waits, asks] = &session.setup[..] else { panic!("{session:?}") };
        assert_eq!(opened.notify.as_deref(), Some("textDocument/didOpen"));
        assert_eq!(waits.wait.as_deref(), Some("textDocument/publishDiagnostics"));
        assert_eq!(waits.within_ms, Some(20_000));
        assert_eq!((asks.method.as_deref(), asks.bind["x"].as_str()), (Some("m"), "result.y"));
    }

    #[test]
    fn a_witness_is_a_request_or_a_command_or_both() {
        let read = |members: &str| {
            let text = format!("name = \"x\"\n[witness]\n{members}");
            Profile::from_toml(&text).unwrap().witness.unwrap()
        };
        let command = read("command = [\"cat\", \"counter.txt\"]");
        assert_eq!(command.command, ["cat", "counter.txt"]);
        assert!(command.method.is_empty());
        let both = read("command = [\"count\"]\nmethod = \"stats\"\nrunning = \"a.b\"");
        assert_eq!(both.command, ["count"]);
        assert_eq!((both.method.as_str(), both.running.as_deref()), ("stats", Some("a.b")));
        assert!(read("method = \"stats\"").command.is_empty());
    }
}
