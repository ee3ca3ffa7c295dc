//! What a protocol decides, and how a request is served from its arrival to its answer.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use serde_json::{Value, json};

use super::flags::{Fault, Flags, Manner};
use super::requests::{Cancel, Peer, Taken};
use super::rpc::{self, Answer, Message, Request};

/// One of the three protocols.
pub(super) trait Protocol: Send + Sync {
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
pub(super) enum Notice {
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
pub(super) enum Ended {
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
    pub(super) fn recv(self: &Arc<Self>, frame: &[u8]) -> Option<ExitCode> {
        match Message::read(frame) {
            Message::Request(request) => {
                self.recv_request(request);
                None
            }
            Message::Notification { method, params } => match self.protocol.notice(self, &method, &params) {
                Notice::Known => None,
                Notice::Unknown => {
                    if self.flags.has(Fault::AnswersNotification) {
                        self.output.send(&Answer::method_not_found(&method).message(&Value::Null, false));
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
                let answer = Answer::error(rpc::INVALID_REQUEST, "this is no message of JSON-RPC 2.0");
                self.output.send(&answer.message(&Value::Null, false));
                None
            }
            Message::NotJson => {
                if self.flags.is(Manner::AnswersBadJson) {
                    let answer = Answer::error(rpc::PARSE_ERROR, "this is no JSON");
                    self.output.send(&answer.message(&Value::Null, false));
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
                    Answer::error(rpc::BUSY, "a request of this kind is running, and one is the limit");
                self.output.send(&answer.message(&id, false));
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
    pub(super) fn chat(&self) {
        if self.flags.is(Manner::Chatty) {
            for message in self.protocol.chatter() {
                self.output.send(&message);
            }
        }
    }

    pub(super) fn refuse_method(&self, method: &str) -> Answer {
        if self.flags.has(Fault::WrongUnknownMethod) {
            return Answer::Result(Value::Null);
        }
        if method.starts_with("$/") && self.flags.has(Fault::ReservedCode) {
            return Answer::error(rpc::INVALID_REQUEST, "a request in $/");
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
