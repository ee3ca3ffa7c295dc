//! A program that speaks MCP (2025-11-25), LSP (3.17) or ACP (version 1) over its stdin and stdout, written from the
//! specifications with threads of the standard library. It uses no code of the library that tests it.
//!
//! `foreign-peer DIALECT [--work=MS] [--MANNER].. [--FAULT]..`: a manner is correct and awkward, a fault is wrong.
//! `flags.rs` lists both.
//!
//! The main thread reads stdin. It does not wait for a request that works. Such a request has a thread of its own, or with
//! `--serial` they share one. All that they share is in `requests.rs`, behind one lock and one condition variable.

mod dialects;
mod flags;
mod requests;
mod wire;

use std::io::{BufReader, stdin};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::peer::dialects::{Acp, Lsp, Mcp};
use crate::peer::flags::{DIALECTS, Fault, Flags, Manner};
use crate::peer::requests::{Cancel, Helper, Peer, Taken};
use crate::peer::wire::{Answer, Framing, Message, Request};

/// Runs until stdin ends or the protocol says that the program exits.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let dialect = arguments.next().unwrap_or_default();
    if dialect == requests::HELPER_ARGUMENT {
        return requests::run_helper();
    }
    let flags = match Flags::read(arguments) {
        Ok(flags) => flags,
        Err(unknown) => {
            wire::log(&format!("`{unknown}` is no option of foreign-peer"));
            return ExitCode::from(2);
        }
    };
    let (framing, protocol): (_, Box<dyn Protocol>) = match dialect.as_str() {
        "mcp" => (Framing::Newline, Box::new(Mcp::default())),
        "lsp" => (Framing::ContentLength, Box::new(Lsp::default())),
        "acp" => (Framing::Newline, Box::new(Acp::default())),
        _ => {
            wire::log(&format!("the first argument is one of {DIALECTS:?}, not `{dialect}`"));
            return ExitCode::from(2);
        }
    };
    if flags.is(Manner::StderrNoise) {
        // More than a pipe holds: a client that does not read it blocks this program.
        for line in 0..2000 {
            wire::log(&format!("[{line}] loading the modules of foreign-peer, which takes many lines"));
        }
    }
    let helper = flags.is(Manner::Forks).then(Helper::start).flatten();
    let peer = Arc::new(Peer::new(flags, framing, protocol, helper));
    if peer.flags.is(Manner::SlowStart) {
        thread::sleep(Duration::from_secs(2));
    }
    let code = serve(&peer, framing);
    peer.output.close();
    code
}

fn serve(peer: &Arc<Peer>, framing: Framing) -> ExitCode {
    let mut input = BufReader::new(stdin().lock());
    loop {
        match framing.read(&mut input) {
            Ok(Some(frame)) => {
                if let Some(code) = peer.recv(&frame) {
                    return code;
                }
            }
            Ok(None) => break,
            Err(error) => {
                wire::log(&format!("stdin: {error}"));
                return ExitCode::FAILURE;
            }
        }
    }
    if peer.flags.is(Manner::Lingers) {
        thread::sleep(Duration::from_secs(30));
    }
    ExitCode::SUCCESS
}

// What a protocol decides, and how a request is served from its arrival to its answer.

/// One of the three protocols.
trait Protocol: Send + Sync {
    /// Handles a notification.
    fn notice(&self, peer: &Peer, method: &str, params: &Value) -> Notice;

    /// Whether the method belongs to the opening of the session.
    fn opens(&self, method: &str) -> bool;

    /// Whether the request works for long.
    fn is_slow(&self, request: &Request) -> bool;

    /// Serves a request to its end.
    fn serve(&self, peer: &Peer, key: u64, request: &Request) -> Ended;

    /// The answer to a cancelled request, of which `partial` is done. `None`: silence.
    fn cancelled(&self, flags: &Flags, cancel: Cancel, partial: Option<Value>) -> Option<Answer>;

    /// The notification that this many steps are done.
    fn progress(&self, request: &Request, done: u32, of: u32) -> Option<Value>;

    /// Notifications that no one asked for.
    fn chatter(&self) -> Vec<Value>;

    /// A request that the client may be sent at any time: method and params.
    fn question(&self, request: &Request) -> (&'static str, Value);
}

/// What a notification means for requests.
#[derive(Debug)]
enum Notice {
    Known,
    Unknown,
    /// The cancel of the request with this id. `None`: there is no valid id.
    Cancel(Option<Value>),
    /// The cancel of each slow request whose params have this session. `None`: there is no valid session.
    CancelSession(Option<String>),
    Exit(ExitCode),
}

/// How the work for a request ended.
#[derive(Debug)]
enum Ended {
    Answered(Answer),
    /// It was cancelled, and this much is done.
    Cancelled(Option<Value>),
}

impl From<Answer> for Ended {
    fn from(answer: Answer) -> Self {
        Self::Answered(answer)
    }
}

impl Peer {
    /// Handles a frame. Returns the exit code if it is the last one.
    fn recv(self: &Arc<Self>, frame: &[u8]) -> Option<ExitCode> {
        match Message::read(frame) {
            Message::Request(request) => {
                self.recv_request(request);
                None
            }
            Message::Notification { method, params } => match self.protocol.notice(self, &method, &params) {
                Notice::Known => None,
                Notice::Unknown => {
                    if self.flags.has(Fault::AnswersNotification) {
                        self.output.send(&Answer::method_not_found(&method).message(&Value::Null));
                    }
                    None
                }
                Notice::Cancel(id) => self.recv_cancel(id.as_ref()),
                Notice::CancelSession(session) => self.recv_cancel_of_session(session.as_deref()),
                Notice::Exit(code) => Some(code),
            },
            Message::Response { id } => {
                self.recv_reply(id);
                None
            }
            Message::Invalid => {
                let answer = Answer::error(wire::INVALID_REQUEST, "this is no message of JSON-RPC 2.0");
                self.output.send(&answer.message(&Value::Null));
                None
            }
            Message::NotJson => {
                if self.flags.is(Manner::AnswersBadJson) {
                    let answer = Answer::error(wire::PARSE_ERROR, "this is no JSON");
                    self.output.send(&answer.message(&Value::Null));
                }
                None
            }
        }
    }

    fn recv_request(self: &Arc<Self>, request: Request) {
        let drops_zero = request.id == 0 && self.flags.has(Fault::ZeroIdNotServed);
        let drops_reserved = request.method.starts_with("$/") && self.flags.has(Fault::ReservedNotAnswered);
        if drops_zero || drops_reserved {
            return;
        }
        let slow = self.protocol.is_slow(&request);
        let id = request.id.clone();
        match self.take(request, slow) {
            Taken::Dropped => {}
            Taken::Refused => {
                let answer =
                    Answer::error(wire::BUSY, "a request of this kind is running, and one is the limit");
                self.output.send(&answer.message(&id));
            }
            Taken::Queued(is_first) => {
                if is_first {
                    let peer = Arc::clone(self);
                    thread::spawn(move || {
                        loop {
                            peer.serve(peer.next_queued());
                        }
                    });
                }
            }
            Taken::Running(key) if slow => {
                let peer = Arc::clone(self);
                thread::spawn(move || peer.serve(key));
            }
            Taken::Running(key) => self.serve(key),
        }
    }

    fn serve(&self, key: u64) {
        let Some(request) = self.request(key) else { return };
        if !self.protocol.opens(&request.method) {
            self.load();
        }
        let slow = self.protocol.is_slow(&request);
        let goes_on = (!slow || self.take_slot(key)) && !self.is_stopped(key);
        if goes_on && slow {
            self.before_work();
        }
        let goes_on = goes_on && (!slow || !self.flags.is(Manner::Asks) || self.ask(key, &request));
        let ended = if goes_on { self.protocol.serve(self, key, &request) } else { Ended::Cancelled(None) };
        self.finish(key, ended);
    }

    fn before_work(&self) {
        if self.flags.has(Fault::StdoutNoise) {
            self.output.write(b"counting...\n");
        }
        self.chat();
    }

    /// Sends notifications, if it is chatty.
    fn chat(&self) {
        if self.flags.is(Manner::Chatty) {
            for message in self.protocol.chatter() {
                self.output.send(&message);
            }
        }
    }

    fn refuse_method(&self, method: &str) -> Answer {
        if self.flags.has(Fault::WrongUnknownMethod) {
            return Answer::Result(Value::Null);
        }
        if method.starts_with("$/") && self.flags.has(Fault::ReservedCode) {
            return Answer::error(wire::INVALID_REQUEST, "a request in $/");
        }
        Answer::method_not_found(method)
    }

    /// Sends a request and waits for its answer, whatever it is. `false`: cancelled before.
    fn ask(&self, key: u64, request: &Request) -> bool {
        let id = self.own_id();
        let (method, params) = self.protocol.question(request);
        self.output.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        self.wait_for_reply(key, &json!(id))
    }
}
