//! How a session with a foreign peer is opened, and what it needs besides.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

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
    #[serde(default = "super::empty")]
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::profile::Profile;

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
}
