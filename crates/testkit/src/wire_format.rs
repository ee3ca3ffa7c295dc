//! The few frames that the runner makes and reads itself, in each dialect's envelope: its barrier, its witness, the
//! opening. They are written without the library's codecs, so that an error in a codec cannot hide itself. Of a dialect's
//! data only the spelling of its cancel is used.

use rescind_core::dialect::{CapabilityGate, TaskForm};
use serde_json::{Map, Value, json};

use crate::dialects::{DialectFacts, Envelope, ProgressForm, program};

/// The form of a dialect's frames, as far as the runner needs it.
#[derive(Clone, Copy, Debug)]
pub struct WireFormat {
    /// What is known of the dialect.
    pub facts: &'static DialectFacts,
}

/// The name by which an ABP call is cancelled, from either of its two places.
#[must_use]
pub fn call_name(frame: &Value) -> Option<&Value> {
    if frame.get("type")? != "capabilities/call" {
        return None;
    }
    frame.pointer("/payload/options/callId").or_else(|| frame.pointer("/payload/callId"))
}

/// The kind of a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    Request {
        id: Value,
        method: String,
    },
    Notification {
        method: String,
    },
    Answer {
        id: Value,
    },
    /// Names the request that it cancels.
    Cancel {
        key: Value,
    },
    Other,
}

impl WireFormat {
    #[must_use]
    pub fn of(dialect: &str) -> Option<Self> {
        DialectFacts::by_name(dialect).map(|facts| Self { facts })
    }

    /// A request. ABP's handshake is a separate message. Everything else is a call of a capability.
    #[must_use]
    pub fn request(self, id: &str, method: &str, params: Value) -> Value {
        self.request_with(&Value::from(id), method, params)
    }

    /// The id of the request with this number: a number where the envelope allows one.
    #[must_use]
    pub fn id(self, number: u64) -> Value {
        match self.facts.envelope {
            Envelope::JsonRpc | Envelope::JsonRpcWithMeta => Value::from(number),
            Envelope::Abp => Value::from(number.to_string()),
        }
    }

    /// The name by which a cancel names the request with this id.
    #[must_use]
    pub fn cancel_key(self, id: &Value) -> Value {
        match self.facts.envelope {
            Envelope::JsonRpc | Envelope::JsonRpcWithMeta => id.clone(),
            Envelope::Abp => Value::from(format!("call-{}", id.as_str().unwrap_or_default())),
        }
    }

    /// A request with an id of any type.
    #[must_use]
    pub fn request_with(self, id: &Value, method: &str, params: Value) -> Value {
        match self.facts.envelope {
            Envelope::JsonRpc => json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}),
            Envelope::JsonRpcWithMeta => {
                json!({"jsonrpc": "2.0", "id": id, "method": method, "params": with_meta(params)})
            }
            Envelope::Abp if method == "initialize" => {
                json!({"type": "initialize", "id": id, "timestamp": 0, "payload": params})
            }
            Envelope::Abp => json!({
                "type": "capabilities/call", "id": id, "timestamp": 0,
                "payload": {"capability": method, "params": params, "options": {"callId": self.cancel_key(id)}},
            }),
        }
    }

    /// Params with the members that every request of the dialect must carry.
    #[must_use]
    pub fn params(self, params: Value) -> Value {
        match self.facts.envelope {
            Envelope::JsonRpcWithMeta => with_meta(params),
            Envelope::JsonRpc | Envelope::Abp => params,
        }
    }

    #[must_use]
    pub fn notification(self, method: &str, params: Value) -> Value {
        match self.facts.envelope {
            Envelope::JsonRpc => json!({"jsonrpc": "2.0", "method": method, "params": params}),
            Envelope::JsonRpcWithMeta => {
                json!({"jsonrpc": "2.0", "method": method, "params": with_meta(params)})
            }
            Envelope::Abp => {
                json!({"type": "notification", "id": "n", "timestamp": 0, "payload": {"method": method, "params": params}})
            }
        }
    }

    /// An answer with a value to a request with this method.
    #[must_use]
    pub fn answer(self, id: &Value, method: &str, value: &Value) -> Value {
        match self.facts.envelope {
            Envelope::JsonRpc | Envelope::JsonRpcWithMeta => {
                json!({"jsonrpc": "2.0", "id": id, "result": value})
            }
            Envelope::Abp if method == "initialize" => {
                json!({"type": "initialize-result", "id": id, "timestamp": 0, "payload": value})
            }
            Envelope::Abp => json!({
                "type": "capabilities/call-result", "id": id, "timestamp": 0,
                "payload": {"success": true, "data": value},
            }),
        }
    }

    /// The cancel of a request, without a reason.
    #[must_use]
    pub fn cancel(self, id: &Value) -> Value {
        match self.facts.cancel_name() {
            Some(name) => json!({"jsonrpc": "2.0", "method": name.method, "params": {name.key: id}}),
            None => {
                json!({"type": "capabilities/cancel", "id": "c", "timestamp": 0, "payload": {"callId": id}})
            }
        }
    }

    /// The refusal of a request that a foreign peer sends to the runner: no such method.
    #[must_use]
    pub fn refusal(self, id: &Value) -> Value {
        match self.facts.envelope {
            Envelope::JsonRpc | Envelope::JsonRpcWithMeta => {
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "Method not found"}})
            }
            Envelope::Abp => json!({
                "type": "capabilities/call-result", "id": id, "timestamp": 0,
                "payload": {"success": false, "error": {"code": "NOT_FOUND", "message": "Not served", "retryable": false}},
            }),
        }
    }

    /// Whether an answer to the opening is a refusal.
    #[must_use]
    pub fn is_refusal(self, answer: &Value) -> bool {
        let error = match self.facts.envelope {
            Envelope::JsonRpc | Envelope::JsonRpcWithMeta => answer.get("error"),
            Envelope::Abp => answer.pointer("/payload/error"),
        };
        let says_no = answer.pointer("/payload/success") == Some(&Value::Bool(false));
        error.is_some_and(|error| !error.is_null()) || says_no
    }

    /// Whether a request that its peer cancelled must not be answered.
    #[must_use]
    pub fn owes_silence(self) -> bool {
        self.facts.owes_silence()
    }

    /// Whether its messages are those of JSON-RPC.
    #[must_use]
    pub const fn is_json_rpc(self) -> bool {
        self.facts.is_json_rpc()
    }

    /// The answer to a request that every peer must answer.
    #[must_use]
    pub fn answer_to_any(self, method: &str) -> Option<Value> {
        (self.facts.ping == Some(method)).then(|| json!({}))
    }

    /// Whether an answer to `initialize` lacks a declaration without which no cancel may be sent.
    #[must_use]
    pub fn declares_no_cancels(self, answer: &Value) -> bool {
        let declaration = self.facts.json_rpc().and_then(|codec| codec.declaration);
        let gated = self.facts.dialect.rules().gate == CapabilityGate::Declared;
        let Some(declaration) = declaration.filter(|_| gated) else { return false };
        // Either of its two names, in the order of their places (ACPDRAFT-14 to ACPDRAFT-16, ACPDRAFT-63).
        let capabilities = answer.pointer("/result").and_then(|result| result.get(declaration.in_result));
        let declared = [
            capabilities.and_then(|declared| declared.pointer("/cancellation/request")),
            capabilities.and_then(|declared| declared.pointer("/cancellation/supportsRequestCancellation")),
            capabilities.and_then(|declared| declared.get("supportsRequestCancellation")),
            answer.pointer("/result/supportsRequestCancellation"),
        ];
        declared.into_iter().flatten().find(|said| !said.is_null()) != Some(&Value::Bool(true))
    }

    /// The method of the request that opens a session, or that would.
    #[must_use]
    pub fn opening_method(self) -> &'static str {
        self.facts.dialect.rules().handshake.unwrap_or("initialize")
    }

    /// The request that opens a session and its params.
    #[must_use]
    pub fn opening(self) -> Option<(&'static str, Value)> {
        let opening = self.facts.opening?;
        Some((self.opening_method(), (opening.params)(&program(NAME))))
    }

    /// The request whose answer declares what a peer can do.
    #[must_use]
    pub fn declaring_method(self) -> &'static str {
        self.facts.discovery.unwrap_or_else(|| self.opening_method())
    }

    /// Where the answer to [`declaring_method`](Self::declaring_method) says that requests can become tasks.
    #[must_use]
    pub fn task_declaration(self) -> Option<&'static str> {
        Some(match self.facts.dialect.rules().tasks? {
            TaskForm::AskedByClient => "/result/capabilities/tasks/requests/tools/call",
            TaskForm::DecidedByServer => "/result/capabilities/extensions/io.modelcontextprotocol~1tasks",
        })
    }

    /// A server's answer to [`opening`](Self::opening).
    #[must_use]
    pub fn opening_result(self) -> Value {
        self.facts.opening.map_or_else(|| json!({}), |opening| (opening.result)(&program(NAME)))
    }

    /// The notification that ends the opening.
    #[must_use]
    pub fn opened(self) -> Option<&'static str> {
        self.facts.opening?.opened
    }

    /// The kind of a frame.
    #[must_use]
    pub fn shape(self, frame: &Value) -> Shape {
        let text = |name: &str| frame.get(name).and_then(Value::as_str).map(str::to_owned);
        let id = frame.get("id").cloned();
        if self.facts.envelope == Envelope::Abp {
            return match (text("type").as_deref(), id) {
                (Some("capabilities/call"), Some(id)) => {
                    let method = frame.pointer("/payload/capability").and_then(Value::as_str);
                    Shape::Request { id, method: method.unwrap_or_default().to_owned() }
                }
                (Some("initialize"), Some(id)) => Shape::Request { id, method: "initialize".to_owned() },
                (Some("capabilities/cancel"), _) => Shape::Cancel { key: at(frame, "/payload/callId") },
                (Some("capabilities/call-result" | "initialize-result"), Some(id)) => Shape::Answer { id },
                (Some(kind @ ("notification" | "progress")), _) => {
                    Shape::Notification { method: kind.to_owned() }
                }
                _ => Shape::Other,
            };
        }
        match (text("method"), id) {
            (Some(method), Some(id)) => Shape::Request { id, method },
            (Some(method), None) if self.facts.is_cancel(&method) => {
                let keys =
                    self.facts.cancel_keys().into_iter().filter_map(|key| frame.get("params")?.get(key));
                Shape::Cancel {
                    key: keys.into_iter().find(|key| !key.is_null()).cloned().unwrap_or_default(),
                }
            }
            (Some(method), None) => Shape::Notification { method },
            (None, Some(id)) => Shape::Answer { id },
            (None, None) => Shape::Other,
        }
    }

    /// The value in an answer.
    #[must_use]
    pub fn value(self, answer: &Value) -> Option<&Value> {
        match self.facts.envelope {
            Envelope::JsonRpc | Envelope::JsonRpcWithMeta => answer.get("result"),
            Envelope::Abp => answer.pointer("/payload/data"),
        }
    }

    /// The same request with another method and other params. Its `_meta` stays, beside that of the other params. Only the
    /// progress token is theirs, and there is one only if the request has one.
    #[must_use]
    pub fn with_method(self, request: &Value, method: &str, params: &Value) -> Value {
        let mut request = request.clone();
        let (home, name) = match self.facts.envelope {
            Envelope::JsonRpc | Envelope::JsonRpcWithMeta => (Some(&mut request), "method"),
            Envelope::Abp => (request.get_mut("payload"), "capability"),
        };
        if let Some(members) = home.and_then(Value::as_object_mut) {
            let meta = members.get("params").and_then(|params| params.get("_meta")).cloned();
            let mut params = params.clone();
            if let Some(members) = params.as_object_mut() {
                self.merge_meta(members, meta);
            }
            members.insert(name.to_owned(), Value::from(method));
            members.insert("params".to_owned(), params);
        }
        request
    }

    fn merge_meta(self, params: &mut Map<String, Value>, own: Option<Value>) {
        let Some(Value::Object(mut own)) = own.or_else(|| self.asks_by_token().then(|| json!({}))) else {
            return;
        };
        let asks = own.remove(PROGRESS_TOKEN).is_some();
        let is_new = !params.contains_key("_meta");
        let meta = params.entry("_meta").or_insert_with(|| json!({}));
        if let Some(meta) = meta.as_object_mut() {
            meta.extend(own);
            if self.asks_by_token() && !asks {
                meta.remove(PROGRESS_TOKEN);
            }
        }
        if is_new && meta.as_object().is_some_and(Map::is_empty) {
            params.remove("_meta");
        }
    }

    /// Whether progress is reported only for a token in `_meta`.
    fn asks_by_token(self) -> bool {
        self.facts.progress.form == ProgressForm::MetaToken
    }
}

/// How the runner names itself.
const NAME: &str = "rescind-testkit";

const PROGRESS_TOKEN: &str = "progressToken";

fn at(frame: &Value, pointer: &str) -> Value {
    frame.pointer(pointer).cloned().unwrap_or_default()
}

/// Params whose `_meta` has what each request of MCP 2026 must carry, beside what it has already.
fn with_meta(params: Value) -> Value {
    let required = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": program(NAME),
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mut members = match params {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    let meta = members.entry("_meta").or_insert_with(|| json!({}));
    if let (Some(meta), Value::Object(required)) = (meta.as_object_mut(), required) {
        for (name, value) in required {
            meta.entry(name).or_insert(value);
        }
    }
    Value::Object(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_a_profile_with_a_progress_token_still_declares_its_revision() {
        let wire_format = WireFormat::of("mcp-2026").unwrap();
        let params = json!({ "_meta": {"progressToken": "check"} });
        let request = wire_format.request_with(&json!(1), "tools/call", params);
        let meta = &request["params"]["_meta"];
        assert_eq!(meta["progressToken"], "check");
        assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    }

    #[test]
    fn the_meta_of_a_profile_is_added_to_that_of_the_dialect() {
        let required = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28" });
        let request = |meta: Value| json!({ "id": 1, "method": "test/progress", "params": {"count": 2, "_meta": meta} });
        let mut asks = required.clone();
        asks["progressToken"] = json!("token-1");
        let of_profile = json!({ "name": "long", "_meta": {"progressToken": "check", "mine": 1} });
        let both = WireFormat::of("mcp-2026").unwrap();
        let sent = both.with_method(&request(asks), "tools/call", &of_profile);
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28", "progressToken": "check", "mine": 1,
        });
        assert_eq!(sent["params"], json!({ "name": "long", "_meta": meta }));
        // A request that asks for no progress has no token.
        let sent = both.with_method(&request(required.clone()), "tools/call", &of_profile);
        let mut meta = required.clone();
        meta["mine"] = json!(1);
        assert_eq!(sent["params"]["_meta"], meta);
        let sent = both.with_method(&request(required.clone()), "tools/call", &json!({ "name": "long" }));
        assert_eq!(sent["params"]["_meta"], required);
        // Other dialects require nothing there.
        let plain = json!({ "id": 1, "method": "test/progress", "params": {"count": 2} });
        let mcp = WireFormat::of("mcp").unwrap();
        assert_eq!(mcp.with_method(&plain, "m", &json!({ "a": 1 }))["params"], json!({ "a": 1 }));
        assert_eq!(mcp.with_method(&plain, "m", &of_profile)["params"]["_meta"], json!({ "mine": 1 }));
        let lsp = WireFormat::of("lsp").unwrap();
        assert_eq!(lsp.with_method(&plain, "m", &of_profile)["params"], of_profile);
    }
}
