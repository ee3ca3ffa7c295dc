//! The Agent Client Protocol, version 1, over stdio.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::flags::{Fault, Flags, Manner};
use super::requests::{Cancel, Peer};
use super::rpc::{self, Answer, Request, notification};
use super::serve::{Ended, Notice, Protocol};

const AUTHENTICATION_REQUIRED: i64 = -32000;

/// How long a step of a turn takes.
const STEP: Duration = Duration::from_millis(100);

/// An agent whose turns write a text, slowly.
#[derive(Default)]
pub(super) struct Acp {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_open: bool,
    is_logged_in: bool,
    sessions: u64,
}

impl Protocol for Acp {
    fn notice(&self, _peer: &Peer, method: &str, params: &Value) -> Notice {
        match method {
            "session/cancel" => {
                Notice::CancelSession(params.get("sessionId").and_then(Value::as_str).map(str::to_owned))
            }
            "$/cancel_request" => {
                Notice::Cancel(params.get("requestId").filter(|id| id.is_string() || id.is_number()).cloned())
            }
            _ => Notice::Unknown,
        }
    }

    fn opens(&self, method: &str) -> bool {
        matches!(method, "initialize" | "authenticate" | "session/new")
    }

    fn is_slow(&self, request: &Request) -> bool {
        request.method == "session/prompt" && self.has_session(&request.params)
    }

    fn serve(&self, peer: &Peer, key: u64, request: &Request) -> Ended {
        let params = &request.params;
        let is_open = self.lock().is_open;
        match request.method.as_str() {
            "initialize" => self.initialize(peer, params).into(),
            _ if !is_open => Answer::error(rpc::INVALID_REQUEST, "`initialize` comes first").into(),
            "authenticate" if params.get("methodId") == Some(&json!("token")) => {
                self.lock().is_logged_in = true;
                Answer::Result(json!({})).into()
            }
            "authenticate" => Answer::error(rpc::INVALID_PARAMS, "`methodId` is `token`").into(),
            "session/new" => self.new_session(peer, params).into(),
            "session/prompt" | "session/set_mode" if !self.has_session(params) => {
                Answer::error(rpc::INVALID_PARAMS, "there is no such session").into()
            }
            "session/prompt" => self.prompt(peer, key, request),
            "session/set_mode" if peer.flags.is(Manner::QuickFails) => {
                Answer::error(rpc::INTERNAL_ERROR, "the mode is locked").into()
            }
            "session/set_mode" => Answer::Result(json!({})).into(),
            method => peer.refuse_method(method).into(),
        }
    }

    fn cancelled(&self, flags: &Flags, cancel: Cancel, _partial: Option<Value>) -> Option<Answer> {
        Some(match cancel {
            Cancel::Turn if flags.has(Fault::TurnEndsNormally) => {
                Answer::Result(json!({"stopReason": "end_turn"}))
            }
            Cancel::Turn if flags.has(Fault::TurnFails) => Answer::error(rpc::INTERNAL_ERROR, "aborted"),
            Cancel::Request if !flags.is(Manner::PartialResults) => {
                Answer::error(rpc::REQUEST_CANCELLED, "the request was cancelled")
            }
            Cancel::Request | Cancel::Turn => Answer::Result(json!({"stopReason": "cancelled"})),
        })
    }

    fn progress(&self, request: &Request, done: u32, _of: u32) -> Option<Value> {
        let text = format!("word {done} ");
        let update =
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}});
        let params = json!({"sessionId": request.params.get("sessionId")?, "update": update});
        Some(notification("session/update", &params))
    }

    fn chatter(&self) -> Vec<Value> {
        vec![notification("_foreign/log", &json!({"text": "at work"}))]
    }

    fn question(&self, request: &Request) -> (&'static str, Value) {
        let call =
            json!({"toolCallId": "call-1", "title": "Write a word", "kind": "other", "status": "pending"});
        let options = json!([
            {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
            {"optionId": "no", "name": "Refuse", "kind": "reject_once"},
        ]);
        let session = request.params.get("sessionId");
        ("session/request_permission", json!({"sessionId": session, "toolCall": call, "options": options}))
    }
}

impl Acp {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn initialize(&self, peer: &Peer, params: &Value) -> Answer {
        if !params.get("protocolVersion").is_some_and(Value::is_u64) {
            return Answer::error(rpc::INVALID_PARAMS, "`protocolVersion` is missing");
        }
        self.lock().is_open = true;
        let methods = if peer.flags.is(Manner::NeedsSetup) {
            json!([{"id": "token", "name": "A token", "description": "Log in with a token"}])
        } else {
            json!([])
        };
        Answer::Result(json!({
            "protocolVersion": 1,
            "agentCapabilities": {"loadSession": false, "promptCapabilities": {"image": false}},
            "agentInfo": {"name": "foreign-peer", "title": "Foreign peer", "version": "1.0.0"},
            "authMethods": methods,
        }))
    }

    fn new_session(&self, peer: &Peer, params: &Value) -> Answer {
        let mut state = self.lock();
        if peer.flags.is(Manner::NeedsSetup) && !state.is_logged_in {
            return Answer::error(AUTHENTICATION_REQUIRED, "log in first");
        }
        let is_absolute = |path: &str| std::path::Path::new(path).is_absolute();
        let cwd = params.get("cwd").and_then(Value::as_str);
        if !cwd.is_some_and(is_absolute) || !params.get("mcpServers").is_some_and(Value::is_array) {
            return Answer::error(rpc::INVALID_PARAMS, "`cwd` is an absolute path, `mcpServers` a list");
        }
        state.sessions += 1;
        let modes = json!([{"id": "write", "name": "Write"}, {"id": "ask", "name": "Ask"}]);
        Answer::Result(json!({
            "sessionId": format!("session-{}", state.sessions),
            "modes": {"currentModeId": "write", "availableModes": modes},
        }))
    }

    fn has_session(&self, params: &Value) -> bool {
        let session = params.get("sessionId").and_then(Value::as_str);
        let number = session.and_then(|it| it.strip_prefix("session-")).and_then(|it| it.parse::<u64>().ok());
        number.is_some_and(|number| (1..=self.lock().sessions).contains(&number))
    }

    /// The prompt `write for 900 ms` takes that long.
    fn prompt(&self, peer: &Peer, key: u64, request: &Request) -> Ended {
        let text = request.params.pointer("/prompt/0/text").and_then(Value::as_str);
        let Some(text) = text else {
            return Answer::error(rpc::INVALID_PARAMS, "`prompt` has no text").into();
        };
        let wanted = text.split_whitespace().find_map(|word| word.parse().ok());
        let total = Duration::from_millis(wanted.unwrap_or(peer.flags.work_ms));
        let steps = u32::try_from(total.as_millis() / STEP.as_millis()).unwrap_or(1).max(1);
        let worked = peer.work(key, total, steps, |done| {
            peer.chat();
            if let Some(message) = self.progress(request, done, steps) {
                peer.output.send(&message);
            }
        });
        match worked {
            Ok(()) => Answer::Result(json!({"stopReason": "end_turn"})).into(),
            Err(_) => Ended::Cancelled(None),
        }
    }
}
