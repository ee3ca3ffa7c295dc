//! The three protocols: MCP, LSP and ACP.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::peer::flags::{Fault, Flags, Manner};
use crate::peer::requests::{Cancel, Peer};
use crate::peer::wire::{self, Answer, Request, notification};
use crate::peer::{Ended, Notice, Protocol};

// The Model Context Protocol, revision 2025-11-25, over stdio.

const REVISION: &str = "2025-11-25";
const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", REVISION];

/// A server of tools: `count` (slow), `add` (quick) and `prepare`.
#[derive(Default)]
pub(super) struct Mcp {
    is_open: AtomicBool,
    is_prepared: AtomicBool,
    /// The status of each task.
    tasks: Mutex<Vec<&'static str>>,
    /// Make its id of its place.
    task_ids: [RandomState; 2],
    /// Notified when a task has ended.
    task_ended: Condvar,
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
        request.method == "tasks/result"
            || (request.method == "tools/call" && request.params.get("name") == Some(&json!("count")))
    }

    fn serve(&self, peer: &Peer, key: u64, request: &Request) -> Ended {
        let params = &request.params;
        match request.method.as_str() {
            "ping" => Answer::Result(json!({})).into(),
            "initialize" => self.initialize(peer, params).into(),
            _ if !self.is_open.load(Ordering::Relaxed) => {
                Answer::error(wire::INVALID_REQUEST, "the session is not initialized").into()
            }
            "tools/list" => {
                Answer::Result(json!({"tools": tools(peer.flags.is(Manner::ReadingTools))})).into()
            }
            "logging/setLevel" => Answer::Result(json!({})).into(),
            "tools/call" if peer.flags.is(Manner::Tasks) && params.get("task").is_some() => {
                self.run_task(peer, key, request)
            }
            "tools/call" => self.call(peer, key, request),
            "tasks/get" | "tasks/result" | "tasks/cancel" if peer.flags.is(Manner::Tasks) => {
                self.answer_about_task(peer, request).into()
            }
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
    fn initialize(&self, peer: &Peer, params: &Value) -> Answer {
        let Some(wanted) = params.get("protocolVersion").and_then(Value::as_str) else {
            return Answer::error(wire::INVALID_PARAMS, "`protocolVersion` is missing");
        };
        if self.is_open.swap(true, Ordering::Relaxed) {
            return Answer::error(wire::INVALID_REQUEST, "the session is initialized already");
        }
        let capabilities = if peer.flags.is(Manner::Tasks) {
            let tasks = json!({"cancel": {}, "requests": {"tools": {"call": {}}}});
            json!({"tools": {"listChanged": true}, "logging": {}, "tasks": tasks})
        } else {
            json!({"tools": {"listChanged": true}, "logging": {}})
        };
        Answer::Result(json!({
            "protocolVersion": if REVISIONS.contains(&wanted) { wanted } else { REVISION },
            "capabilities": capabilities,
            "serverInfo": {"name": "foreign-peer", "version": "1.0.0"},
            "instructions": "`count` takes its time.",
        }))
    }

    /// Answers with the task, then works. The thread is the request's, which is answered and has ended for its client.
    fn run_task(&self, peer: &Peer, key: u64, request: &Request) -> Ended {
        let at = {
            let mut tasks = self.tasks();
            tasks.push("working");
            tasks.len() - 1
        };
        let handle = Answer::Result(json!({"task": self.task(at, "working")}));
        peer.output.send(&handle.message(&request.id));
        let argument =
            |name: &str| request.params.pointer(&format!("/arguments/{name}")).and_then(Value::as_u64);
        let steps = argument("steps").and_then(|it| u32::try_from(it).ok()).unwrap_or(10).max(1);
        let total = Duration::from_millis(argument("ms").unwrap_or(peer.flags.work_ms));
        let goes_on = [Fault::TaskWorkGoesOn, Fault::TaskCompletesLater].iter().any(|it| peer.flags.has(*it));
        for done in 1..=steps {
            // One step of work, which a cancel ends unless the work goes on.
            let works = |tasks: &mut Vec<&'static str>| goes_on || tasks.get(at) == Some(&"working");
            drop(self.task_ended.wait_timeout_while(self.tasks(), total / steps, works));
            if peer.flags.has(Fault::TaskEndsWithRequest) && peer.is_stopped(key) {
                self.end_task(at, "cancelled");
            }
            if self.status(at) == Some("cancelled") && !goes_on {
                break;
            }
            if let Some(message) = self.progress(request, done, steps) {
                peer.output.send(&message);
            }
        }
        if peer.flags.has(Fault::TaskCompletesLater) && self.status(at) == Some("cancelled") {
            self.set_status(at, "completed");
        }
        self.end_task(at, "completed");
        // There is no other answer.
        Ended::Cancelled(None)
    }

    fn answer_about_task(&self, peer: &Peer, request: &Request) -> Answer {
        let id = request.params.get("taskId").and_then(Value::as_str);
        let at = id.and_then(|id| (0..self.tasks().len()).find(|at| self.task_id(*at) == id));
        let status = at.and_then(|at| Some((at, self.status(at)?)));
        match (status, request.method.as_str()) {
            (None, _) if peer.flags.has(Fault::TaskUnknownFound) => Answer::Result(self.task(0, "failed")),
            (None, _) => Answer::error(wire::INVALID_PARAMS, "there is no such task"),
            (Some((at, status)), "tasks/get") => Answer::Result(self.task(at, status)),
            (Some((at, "working")), "tasks/result") => {
                let works = |tasks: &mut Vec<&'static str>| tasks.get(at) == Some(&"working");
                drop(self.task_ended.wait_while(self.tasks(), works));
                self.answer_about_task(peer, request)
            }
            (Some((at, "completed")), "tasks/result") => {
                let related = json!({"taskId": self.task_id(at)});
                Answer::Result(json!({
                    "content": [{"type": "text", "text": "counted"}],
                    "_meta": {"io.modelcontextprotocol/related-task": related},
                }))
            }
            (Some(_), "tasks/result") => Answer::error(wire::INTERNAL_ERROR, "the task was cancelled"),
            (Some((at, "working")), _) => {
                if !peer.flags.has(Fault::TaskNotCancelled) {
                    self.end_task(at, "cancelled");
                }
                Answer::Result(self.task(at, self.status(at).unwrap_or("failed")))
            }
            (Some((at, status)), _) if peer.flags.has(Fault::TaskCancelledTwice) => {
                Answer::Result(self.task(at, status))
            }
            (Some(_), _) => Answer::error(wire::INVALID_PARAMS, "the task has ended"),
        }
    }

    /// A task as messages have it.
    fn task(&self, at: usize, status: &str) -> Value {
        json!({
            "taskId": self.task_id(at), "status": status, "ttl": null, "pollInterval": 100,
            "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z",
        })
    }

    fn task_id(&self, at: usize) -> String {
        let [first, second] = self.task_ids.each_ref().map(|half| half.hash_one(at));
        format!("{first:016x}{second:016x}")
    }

    fn tasks(&self) -> MutexGuard<'_, Vec<&'static str>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self, at: usize) -> Option<&'static str> {
        self.tasks().get(at).copied()
    }

    fn set_status(&self, at: usize, status: &'static str) {
        if let Some(task) = self.tasks().get_mut(at) {
            *task = status;
        }
    }

    /// Ends a task that works.
    fn end_task(&self, at: usize, status: &'static str) {
        if let Some(task) = self.tasks().get_mut(at).filter(|task| **task == "working") {
            *task = status;
            self.task_ended.notify_all();
        }
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
                Answer::error(wire::INTERNAL_ERROR, "the adder is out of order").into()
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
            Some(name) => Answer::error(wire::INVALID_PARAMS, &format!("unknown tool: {name}")).into(),
            None => Answer::error(wire::INVALID_PARAMS, "`name` is missing").into(),
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

// The Language Server Protocol, 3.17, over stdio.

const SERVER_NOT_INITIALIZED: i64 = -32002;
const REQUEST_FAILED: i64 = -32803;

/// How long a step of the search takes.
const LSP_STEP: Duration = Duration::from_millis(100);

/// A language server with references (slow) and hovers (quick).
#[derive(Default)]
pub(super) struct Lsp {
    state: Mutex<LspState>,
}

#[derive(Default)]
struct LspState {
    phase: Phase,
    documents: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    New,
    Open,
    ShutDown,
}

impl Protocol for Lsp {
    fn notice(&self, peer: &Peer, method: &str, params: &Value) -> Notice {
        let phase = self.lock().phase;
        let uri = || params.pointer("/textDocument/uri").and_then(Value::as_str);
        match method {
            "exit" if phase == Phase::ShutDown => Notice::Exit(ExitCode::SUCCESS),
            "exit" => Notice::Exit(ExitCode::FAILURE),
            _ if phase == Phase::New => Notice::Known,
            "$/cancelRequest" => {
                Notice::Cancel(params.get("id").filter(|id| id.is_string() || id.is_number()).cloned())
            }
            "textDocument/didOpen" => {
                if let Some(uri) = uri() {
                    self.lock().documents.insert(uri.to_owned());
                    let params = json!({"uri": uri, "diagnostics": []});
                    peer.output.send(&notification("textDocument/publishDiagnostics", &params));
                }
                Notice::Known
            }
            "textDocument/didClose" => {
                if let Some(uri) = uri() {
                    self.lock().documents.remove(uri);
                }
                Notice::Known
            }
            "initialized" | "textDocument/didChange" | "$/setTrace" => Notice::Known,
            _ => Notice::Unknown,
        }
    }

    fn opens(&self, method: &str) -> bool {
        method == "initialize"
    }

    fn is_slow(&self, request: &Request) -> bool {
        request.method == "textDocument/references" && self.lock().phase == Phase::Open
    }

    fn serve(&self, peer: &Peer, key: u64, request: &Request) -> Ended {
        let phase = self.lock().phase;
        match (request.method.as_str(), phase) {
            ("initialize", Phase::New) => {
                self.lock().phase = Phase::Open;
                Answer::Result(json!({
                    "capabilities": {
                        "textDocumentSync": 1,
                        "hoverProvider": true,
                        "referencesProvider": {"workDoneProgress": true},
                    },
                    "serverInfo": {"name": "foreign-peer", "version": "1.0.0"},
                }))
                .into()
            }
            (_, Phase::New) => Answer::error(SERVER_NOT_INITIALIZED, "`initialize` comes first").into(),
            // One that works already came before the shutdown.
            (_, Phase::ShutDown) if !peer.is_working(key) => {
                Answer::error(wire::INVALID_REQUEST, "the server is shut down").into()
            }
            ("initialize", Phase::Open) => {
                Answer::error(wire::INVALID_REQUEST, "the server is initialized already").into()
            }
            ("shutdown", Phase::Open) => {
                self.lock().phase = Phase::ShutDown;
                Answer::Result(Value::Null).into()
            }
            ("textDocument/hover", Phase::Open) => match self.document(peer, request) {
                Ok(_) if peer.flags.is(Manner::QuickFails) => {
                    Answer::error(REQUEST_FAILED, "no hover while the index is read").into()
                }
                Ok(_) => Answer::Result(json!({"contents": {"kind": "plaintext", "value": "a name"}})).into(),
                Err(refused) => refused.into(),
            },
            ("textDocument/references", Phase::Open | Phase::ShutDown) => {
                match self.document(peer, request) {
                    Ok(uri) => self.references(peer, key, request, &uri),
                    Err(refused) => refused.into(),
                }
            }
            (method, Phase::Open | Phase::ShutDown) => peer.refuse_method(method).into(),
        }
    }

    fn cancelled(&self, flags: &Flags, _cancel: Cancel, partial: Option<Value>) -> Option<Answer> {
        Some(match partial.filter(|_| flags.is(Manner::PartialResults)) {
            Some(partial) => Answer::Result(partial),
            None => Answer::error(wire::REQUEST_CANCELLED, "the request was cancelled"),
        })
    }

    fn progress(&self, request: &Request, done: u32, of: u32) -> Option<Value> {
        let value = json!({"kind": "report", "message": format!("{done} of {of} files")});
        Self::work_done(request, &value)
    }

    fn chatter(&self) -> Vec<Value> {
        vec![
            notification("window/logMessage", &json!({"type": 3, "message": "searching"})),
            notification("telemetry/event", &json!({"searched": 1})),
        ]
    }

    fn question(&self, _request: &Request) -> (&'static str, Value) {
        ("workspace/configuration", json!({"items": [{"section": "foreign-peer"}]}))
    }
}

impl Lsp {
    fn lock(&self) -> MutexGuard<'_, LspState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URI of the request's document, or the refusal.
    fn document(&self, peer: &Peer, request: &Request) -> Result<String, Answer> {
        let uri = request.params.pointer("/textDocument/uri").and_then(Value::as_str);
        let uri = uri.ok_or_else(|| Answer::error(wire::INVALID_PARAMS, "`textDocument.uri` is missing"))?;
        if peer.flags.is(Manner::NeedsSetup) && !self.lock().documents.contains(uri) {
            return Err(Answer::error(wire::INVALID_PARAMS, &format!("{uri} is not open")));
        }
        Ok(uri.to_owned())
    }

    fn references(&self, peer: &Peer, key: u64, request: &Request, uri: &str) -> Ended {
        let total = Duration::from_millis(peer.flags.work_ms);
        let steps = u32::try_from(total.as_millis() / LSP_STEP.as_millis()).unwrap_or(1).max(1);
        let place = |line: u32| {
            let position = |character: u32| json!({"line": line, "character": character});
            json!({"uri": uri, "range": {"start": position(0), "end": position(4)}})
        };
        let places = |of: u32| (1..=of).map(place).collect::<Vec<_>>();
        let partial = request.params.get("partialResultToken");
        let send = |message: Option<Value>| {
            if let Some(message) = message {
                peer.output.send(&message);
            }
        };
        send(Self::work_done(request, &json!({"kind": "begin", "title": "Searching"})));
        let worked =
            peer.work(key, total, steps, |done| {
                peer.chat();
                send(self.progress(request, done, steps));
                send(partial.map(|token| {
                    notification("$/progress", &json!({"token": token, "value": [place(done)]}))
                }));
            });
        send(Self::work_done(request, &json!({"kind": "end"})));
        // Once parts were sent, the answer repeats none of them.
        let found = |done: u32| json!(places(if partial.is_some() { 0 } else { done }));
        match worked {
            Ok(()) => Answer::Result(found(steps)).into(),
            Err(done) => Ended::Cancelled(Some(found(done))),
        }
    }

    fn work_done(request: &Request, value: &Value) -> Option<Value> {
        let token = request.params.get("workDoneToken")?;
        Some(notification("$/progress", &json!({"token": token, "value": value})))
    }
}

// The Agent Client Protocol, version 1, over stdio.

const AUTHENTICATION_REQUIRED: i64 = -32000;

/// How long a step of a turn takes.
const ACP_STEP: Duration = Duration::from_millis(100);

/// An agent whose turns write a text, slowly.
#[derive(Default)]
pub(super) struct Acp {
    state: Mutex<AcpState>,
}

#[derive(Default)]
struct AcpState {
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
            _ if !is_open => Answer::error(wire::INVALID_REQUEST, "`initialize` comes first").into(),
            "authenticate" if params.get("methodId") == Some(&json!("token")) => {
                self.lock().is_logged_in = true;
                Answer::Result(json!({})).into()
            }
            "authenticate" => Answer::error(wire::INVALID_PARAMS, "`methodId` is `token`").into(),
            "session/new" => self.new_session(peer, params).into(),
            "session/prompt" | "session/set_mode" if !self.has_session(params) => {
                Answer::error(wire::INVALID_PARAMS, "there is no such session").into()
            }
            "session/prompt" => self.prompt(peer, key, request),
            "session/set_mode" if peer.flags.is(Manner::QuickFails) => {
                Answer::error(wire::INTERNAL_ERROR, "the mode is locked").into()
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
            Cancel::Turn if flags.has(Fault::TurnFails) => Answer::error(wire::INTERNAL_ERROR, "aborted"),
            Cancel::Request if !flags.is(Manner::PartialResults) => {
                Answer::error(wire::REQUEST_CANCELLED, "the request was cancelled")
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
    fn lock(&self) -> MutexGuard<'_, AcpState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn initialize(&self, peer: &Peer, params: &Value) -> Answer {
        if !params.get("protocolVersion").is_some_and(Value::is_u64) {
            return Answer::error(wire::INVALID_PARAMS, "`protocolVersion` is missing");
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
            return Answer::error(wire::INVALID_PARAMS, "`cwd` is an absolute path, `mcpServers` a list");
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
            return Answer::error(wire::INVALID_PARAMS, "`prompt` has no text").into();
        };
        let wanted = text.split_whitespace().find_map(|word| word.parse().ok());
        let total = Duration::from_millis(wanted.unwrap_or(peer.flags.work_ms));
        let steps = u32::try_from(total.as_millis() / ACP_STEP.as_millis()).unwrap_or(1).max(1);
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
