//! The Language Server Protocol, 3.17, over stdio.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::flags::{Flags, Manner};
use super::requests::{Cancel, Peer};
use super::rpc::{self, Answer, Request, notification};
use super::serve::{Ended, Notice, Protocol};

const SERVER_NOT_INITIALIZED: i64 = -32002;
const REQUEST_FAILED: i64 = -32803;

/// How long a step of the search takes.
const STEP: Duration = Duration::from_millis(100);

/// A language server with references (slow) and hovers (quick).
#[derive(Default)]
pub(super) struct Lsp {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
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
                Answer::error(rpc::INVALID_REQUEST, "the server is shut down").into()
            }
            ("initialize", Phase::Open) => {
                Answer::error(rpc::INVALID_REQUEST, "the server is initialized already").into()
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
            None => Answer::error(rpc::REQUEST_CANCELLED, "the request was cancelled"),
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URI of the request's document, or the refusal.
    fn document(&self, peer: &Peer, request: &Request) -> Result<String, Answer> {
        let uri = request.params.pointer("/textDocument/uri").and_then(Value::as_str);
        let uri = uri.ok_or_else(|| Answer::error(rpc::INVALID_PARAMS, "`textDocument.uri` is missing"))?;
        if peer.flags.is(Manner::NeedsSetup) && !self.lock().documents.contains(uri) {
            return Err(Answer::error(rpc::INVALID_PARAMS, &format!("{uri} is not open")));
        }
        Ok(uri.to_owned())
    }

    fn references(&self, peer: &Peer, key: u64, request: &Request, uri: &str) -> Ended {
        let total = Duration::from_millis(peer.flags.work_ms);
        let steps = u32::try_from(total.as_millis() / STEP.as_millis()).unwrap_or(1).max(1);
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
