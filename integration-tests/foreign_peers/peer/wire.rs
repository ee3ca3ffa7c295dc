//! JSON-RPC 2.0: what a message is, and how answers are written.

use serde_json::{Value, json};

/// What a frame holds.
#[derive(Debug)]
pub(super) enum Message {
    Request(Request),
    Notification {
        method: String,
        params: Value,
    },
    /// An answer to a request of this peer.
    Response {
        id: Value,
    },
    /// JSON, but not a message.
    Invalid,
    /// Not JSON.
    NotJson,
}

/// A request of the client.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) id: Value,
    pub(super) method: String,
    pub(super) params: Value,
}

/// An answer, without its id.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Result(Value),
    Error(i64, String),
}

pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const INVALID_PARAMS: i64 = -32602;
pub(super) const INTERNAL_ERROR: i64 = -32603;
pub(super) const PARSE_ERROR: i64 = -32700;
pub(super) const REQUEST_CANCELLED: i64 = -32800;
/// LSP's code for a request whose result nobody needs any more.
pub(super) const CONTENT_MODIFIED: i64 = -32801;
/// Of the range that is left to servers.
pub(super) const BUSY: i64 = -32000;

impl Message {
    pub(super) fn read(frame: &[u8]) -> Self {
        let Ok(message) = serde_json::from_slice::<Value>(frame) else {
            return Self::NotJson;
        };
        if !message.is_object() || message.get("jsonrpc") != Some(&json!("2.0")) {
            return Self::Invalid;
        }
        let id = message.get("id").filter(|id| id.is_string() || id.is_number()).cloned();
        let method = message.get("method").map(|method| method.as_str().map(str::to_owned));
        let params = message.get("params").cloned().unwrap_or(Value::Null);
        match (method, id, message.get("id").is_some()) {
            (Some(Some(method)), Some(id), _) => Self::Request(Request { id, method, params }),
            (Some(Some(method)), None, false) => Self::Notification { method, params },
            (None, Some(id), _) => Self::Response { id },
            _ => Self::Invalid,
        }
    }
}

impl Answer {
    pub(super) fn error(code: i64, message: &str) -> Self {
        Self::Error(code, message.to_owned())
    }

    pub(super) fn method_not_found(method: &str) -> Self {
        Self::Error(METHOD_NOT_FOUND, format!("method not found: {method}"))
    }

    /// The message that answers the request with this id.
    pub(super) fn message(self, id: &Value, error_null: bool) -> Value {
        match self {
            Self::Result(result) if error_null => {
                json!({"jsonrpc": "2.0", "id": id, "result": result, "error": null})
            }
            Self::Result(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            Self::Error(code, message) => {
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
            }
        }
    }
}

pub(super) fn notification(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}
