//! The Model Context Protocol, revision 2025-11-25, over stdio.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::flags::{Flags, Manner};
use super::requests::{Cancel, Peer};
use super::rpc::{self, Answer, Request, notification};
use super::serve::{Ended, Notice, Protocol};

const REVISION: &str = "2025-11-25";
const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", REVISION];

/// A server of tools: `count` (slow), `add` (quick) and `prepare`.
#[derive(Default)]
pub(super) struct Mcp {
    is_open: AtomicBool,
    is_prepared: AtomicBool,
}

impl Protocol for Mcp {
    fn notice(&self, _peer: &Peer, method: &str, params: &Value) -> Notice {
        match method {
            "notifications/initialized" | "notifications/progress" | "notifications/roots/list_changed" => {
                Notice::Known
            }
            "notifications/cancelled" => {
                let id = params.get("requestId").filter(|id| id.is_string() || id.is_number());
                Notice::Cancel(id.cloned())
            }
            _ => Notice::Unknown,
        }
    }

    fn opens(&self, method: &str) -> bool {
        method == "initialize"
    }

    fn is_slow(&self, request: &Request) -> bool {
        request.method == "tools/call" && request.params.get("name") == Some(&json!("count"))
    }

    fn serve(&self, peer: &Peer, key: u64, request: &Request) -> Ended {
        let params = &request.params;
        match request.method.as_str() {
            "ping" => Answer::Result(json!({})).into(),
            "initialize" => self.initialize(params).into(),
            _ if !self.is_open.load(Ordering::Relaxed) => {
                Answer::error(rpc::INVALID_REQUEST, "the session is not initialized").into()
            }
            "tools/list" => {
                Answer::Result(json!({"tools": tools(peer.flags.is(Manner::ReadingTools))})).into()
            }
            "logging/setLevel" => Answer::Result(json!({})).into(),
            "tools/call" => self.call(peer, key, request),
            method => peer.refuse_method(method).into(),
        }
    }

    fn cancelled(&self, _flags: &Flags, _cancel: Cancel, _partial: Option<Value>) -> Option<Answer> {
        None
    }

    fn progress(&self, request: &Request, done: u32, of: u32) -> Option<Value> {
        let token = request.params.pointer("/_meta/progressToken")?;
        let params = json!({"progressToken": token, "progress": done, "total": of, "message": "counting"});
        Some(notification("notifications/progress", &params))
    }

    fn chatter(&self) -> Vec<Value> {
        vec![
            notification(
                "notifications/message",
                &json!({"level": "info", "logger": "foreign-peer", "data": {"text": "at work"}}),
            ),
            notification("notifications/tools/list_changed", &Value::Null),
        ]
    }

    fn question(&self, _request: &Request) -> (&'static str, Value) {
        ("ping", json!({}))
    }
}

impl Mcp {
    fn initialize(&self, params: &Value) -> Answer {
        let Some(wanted) = params.get("protocolVersion").and_then(Value::as_str) else {
            return Answer::error(rpc::INVALID_PARAMS, "`protocolVersion` is missing");
        };
        if self.is_open.swap(true, Ordering::Relaxed) {
            return Answer::error(rpc::INVALID_REQUEST, "the session is initialized already");
        }
        Answer::Result(json!({
            "protocolVersion": if REVISIONS.contains(&wanted) { wanted } else { REVISION },
            "capabilities": {"tools": {"listChanged": true}, "logging": {}},
            "serverInfo": {"name": "foreign-peer", "version": "1.0.0"},
            "instructions": "`count` takes its time.",
        }))
    }

    fn call(&self, peer: &Peer, key: u64, request: &Request) -> Ended {
        let argument = |name: &str| request.params.get("arguments").and_then(|it| it.get(name));
        let needs_setup = peer.flags.is(Manner::NeedsSetup) && !self.is_prepared.load(Ordering::Relaxed);
        match request.params.get("name").and_then(Value::as_str) {
            Some("prepare") => {
                self.is_prepared.store(true, Ordering::Relaxed);
                text("ready").into()
            }
            Some("add" | "count") if needs_setup => failed("call `prepare` first").into(),
            Some("add") if peer.flags.is(Manner::QuickFails) => {
                Answer::error(rpc::INTERNAL_ERROR, "the adder is out of order").into()
            }
            Some("add") => {
                match (argument("a").and_then(Value::as_f64), argument("b").and_then(Value::as_f64)) {
                    (Some(a), Some(b)) => text(&(a + b).to_string()).into(),
                    _ => failed("`a` and `b` are numbers").into(),
                }
            }
            Some("count") => {
                let ms = argument("ms").and_then(Value::as_u64).unwrap_or(peer.flags.work_ms);
                let steps = argument("steps").and_then(Value::as_u64).and_then(|it| u32::try_from(it).ok());
                let steps = steps.unwrap_or(10);
                let worked = peer.work(key, Duration::from_millis(ms), steps, |done| {
                    peer.chat();
                    if let Some(message) = self.progress(request, done, steps) {
                        peer.output.send(&message);
                    }
                });
                match worked {
                    Ok(()) => text(&format!("counted to {steps}")).into(),
                    Err(_) => Ended::Cancelled(None),
                }
            }
            Some(name) => Answer::error(rpc::INVALID_PARAMS, &format!("unknown tool: {name}")).into(),
            None => Answer::error(rpc::INVALID_PARAMS, "`name` is missing").into(),
        }
    }
}

fn text(text: &str) -> Answer {
    Answer::Result(json!({"content": [{"type": "text", "text": text}]}))
}

fn failed(why: &str) -> Answer {
    Answer::Result(json!({"content": [{"type": "text", "text": why}], "isError": true}))
}

fn tools(reading: bool) -> Value {
    let number = json!({"type": "number"});
    json!([
        {
            "name": "count",
            "description": "Counts slowly.",
            "inputSchema": {
                "type": "object",
                "properties": {"ms": {"type": "integer", "minimum": 0}, "steps": {"type": "integer", "minimum": 1}},
            },
        },
        {
            "name": "add",
            "description": "Adds two numbers.",
            "annotations": {"readOnlyHint": reading},
            "inputSchema": {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]},
        },
        {"name": "prepare", "description": "Prepares the server.", "inputSchema": {"type": "object"}},
    ])
}
