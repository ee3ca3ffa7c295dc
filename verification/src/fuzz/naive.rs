//! The kind of a message according to a naive reader of JSON values. It also finds a reader that refuses too much.

use rescind_core::dialect::{CancelName, JsonRpc};
use rescind_core::{Incoming, MAX_ID_BYTES};
use serde_json::Value;

/// The most messages in a batch.
const BATCH: usize = 1024;

/// The kind of a decoded message, as a word.
pub(super) fn kind(message: &Incoming<'_>) -> &'static str {
    match message {
        Incoming::Request(_) => "request",
        Incoming::Notification { .. } => "notification",
        Incoming::Answer { .. } => "answer",
        Incoming::Cancel(_) => "cancel",
        Incoming::Ack { .. } => "ack",
        Incoming::PeerError(_) => "peer error",
        Incoming::Batch(_) => "batch",
        Incoming::BadRequest { .. } => "bad request",
        Incoming::Bad(_) => "bad",
        _ => "unknown",
    }
}

/// The kind of a JSON-RPC value in which each member occurs once.
pub(super) fn json_rpc(codec: &JsonRpc, value: &Value) -> &'static str {
    if let Some(members) = value.as_array() {
        return if (1..=BATCH).contains(&members.len()) { "batch" } else { "bad" };
    }
    let of = |name: &str| value.get(name);
    let has = |name: &str| of(name).is_some_and(|value| !value.is_null());
    let is_answer = of("result").is_some() || of("error").is_some();
    let id = of("id");
    let Some(method) = of("method").filter(|method| !(method.is_null() && is_answer)) else {
        return match id.filter(|id| !id.is_null()) {
            Some(_) if is_answer => "answer",
            None if is_error(of("error")) && of("result").is_none_or(Value::is_null) => "peer error",
            _ => "bad",
        };
    };
    // Of a request or a notification the version is required.
    let is_named = of("jsonrpc").and_then(Value::as_str) == Some("2.0");
    let is_asked = is_named && !has("result") && !has("error");
    let Some(method) = method.as_str().filter(|_| is_asked) else { return "bad" };
    let has_params =
        of("params").is_none_or(|params| params.is_null() || params.is_object() || params.is_array());
    let is_cancel = |name: &CancelName| name.method == method;
    match id {
        None if is_cancel(&codec.cancel) || codec.also_accepted.iter().any(is_cancel) => "cancel",
        None if has_params => "notification",
        Some(id) if has_params && (id.is_i64() || is_text(Some(id), 0)) => "request",
        // Whether it is whole, and how large, its text says.
        Some(id) if has_params && id.is_f64() => "request or bad",
        _ => "bad",
    }
}

fn is_error(error: Option<&Value>) -> bool {
    error.is_some_and(|error| {
        let of = |name: &str| error.get(name);
        of("code").is_some_and(Value::is_i64) && of("message").is_some_and(Value::is_string)
    })
}

/// Whether the value is text that may be an id, with at least this many bytes.
fn is_text(value: Option<&Value>, least: usize) -> bool {
    value.and_then(Value::as_str).is_some_and(|text| (least..=MAX_ID_BYTES).contains(&text.len()))
}

/// The kind of an ABP value in which each member occurs once.
pub(super) fn abp(value: &Value) -> &'static str {
    let Some(kind) = value.get("type").and_then(Value::as_str) else { return "bad" };
    let payload = value.get("payload").filter(|payload| !payload.is_null());
    let has_id = is_text(value.get("id"), 0);
    let is_object = payload.is_none_or(Value::is_object);
    let of = |name: &str| payload.and_then(|payload| payload.get(name));
    match kind {
        "initialize" if has_id && is_object => "request",
        "capabilities/call" if has_id => {
            let inner = of("options").and_then(|options| options.get("callId"));
            let there = |value: &&Value| !value.is_null();
            let key = inner.filter(there).or(of("callId").filter(there));
            let method = of("capability").and_then(Value::as_str);
            let is_named = method.is_some_and(|method| method != "initialize");
            if is_named && (key.is_none() || is_text(key, 1)) { "request" } else { "bad request" }
        }
        "capabilities/cancel" if has_id => "cancel",
        "initialize" | "capabilities/call" | "capabilities/cancel" => "bad",
        "capabilities/cancel-result" => "ack",
        "notification" => match of("event").or(of("method")) {
            Some(name) if name.is_string() => "notification",
            None if is_object => "notification",
            _ => "bad",
        },
        "progress" | "shutdown" if is_object => "notification",
        _ if kind.ends_with("-result") || kind == "capabilities/result" => "answer",
        _ => "bad",
    }
}
