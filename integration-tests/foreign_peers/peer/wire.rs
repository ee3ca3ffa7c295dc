//! The bytes on stdin, stdout and stderr: frames, messages of JSON-RPC, and logs.

use std::io::{self, BufRead, ErrorKind, Write as _, stderr, stdout};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::peer::flags::{Fault, Flags, Manner};

// Frames over a byte stream: a line each (MCP, ACP), or after a `Content-Length` header (LSP).

/// How frames are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Newline,
    ContentLength,
}

impl Framing {
    /// The next frame. `None`: the input has ended.
    pub(super) fn read(self, input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Newline => loop {
                let mut line = Vec::new();
                if input.read_until(b'\n', &mut line)? == 0 {
                    return Ok(None);
                }
                if !line.trim_ascii().is_empty() {
                    return Ok(Some(line));
                }
            },
            Self::ContentLength => read_after_headers(input),
        }
    }

    /// The bytes of a frame with this text.
    pub(super) fn frame(self, text: &str, other_framing: bool) -> Vec<u8> {
        match (self, other_framing) {
            (Self::Newline, false) => format!("{text}\n"),
            (Self::Newline, true) => format!("{text}\r\n"),
            (Self::ContentLength, false) => format!("Content-Length: {}\r\n\r\n{text}", text.len()),
            (Self::ContentLength, true) => format!(
                "Content-Type: application/vscode-jsonrpc; charset=utf-8\r\ncontent-length:{}\r\n\r\n{text}",
                text.len()
            ),
        }
        .into_bytes()
    }
}

fn read_after_headers(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut length = None;
    let mut is_first = true;
    loop {
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return if is_first { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
        }
        is_first = false;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse::<usize>().ok();
        }
    }
    let Some(length) = length else {
        return Err(io::Error::new(ErrorKind::InvalidData, "a header without a Content-Length"));
    };
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    Ok(Some(body))
}

// JSON-RPC 2.0: what a message is, and how answers are written.

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
const METHOD_NOT_FOUND: i64 = -32601;
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
    pub(super) fn message(self, id: &Value) -> Value {
        match self {
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

// What is written: frames to stdout, logs to stderr.

/// Writes whole frames, from any thread.
#[derive(Debug)]
pub(super) struct Output {
    framing: Framing,
    other_framing: bool,
    pieces: bool,
    /// The faults in the form of messages.
    faults: Vec<Fault>,
    whole: Mutex<()>,
}

const FORMS: [Fault; 8] = [
    Fault::TextIds,
    Fault::FractionIds,
    Fault::NoVersion,
    Fault::AnswersInArray,
    Fault::ErrorIsText,
    Fault::ErrorNull,
    Fault::ByteOrderMark,
    Fault::LoneSurrogate,
];

impl Output {
    pub(super) fn new(framing: Framing, flags: &Flags) -> Self {
        Self {
            framing,
            other_framing: flags.is(Manner::OtherFraming),
            pieces: flags.is(Manner::Pieces),
            faults: FORMS.into_iter().filter(|fault| flags.has(*fault)).collect(),
            whole: Mutex::new(()),
        }
    }

    pub(super) fn send(&self, message: &Value) {
        let mut text = message.to_string();
        if message.get("method").is_none() && message.get("id").is_some() {
            text = self.misspelt(message.clone());
        }
        if self.faults.contains(&Fault::ByteOrderMark) {
            text.insert(0, '\u{feff}');
        }
        self.write(&self.framing.frame(&text, self.other_framing));
    }

    /// An answer, with the faults that all answers of this peer have.
    fn misspelt(&self, mut answer: Value) -> String {
        let mut text = None;
        for fault in &self.faults {
            let Some(members) = answer.as_object_mut() else { break };
            let id = members.get("id").filter(|id| id.is_number()).cloned();
            match (fault, id) {
                (Fault::TextIds, Some(id)) => drop(members.insert("id".to_owned(), id.to_string().into())),
                (Fault::FractionIds, Some(id)) => drop(members.insert("id".to_owned(), json!(id.as_f64()))),
                (Fault::NoVersion, _) => drop(members.remove("jsonrpc")),
                (Fault::AnswersInArray, _) => answer = json!([answer]),
                (Fault::ErrorIsText, _) => {
                    if let Some(error) = members.get_mut("error") {
                        *error = error.get("message").cloned().unwrap_or_default();
                    }
                }
                (Fault::ErrorNull, _) if members.contains_key("result") => {
                    drop(members.insert("error".to_owned(), Value::Null));
                }
                (Fault::LoneSurrogate, _) => {
                    if let Some(result) = members.get_mut("result").and_then(Value::as_object_mut) {
                        result.insert("half".to_owned(), json!("HALF"));
                        text = Some(answer.to_string().replace("\"HALF\"", "\"\\ud83d\""));
                    }
                }
                _ => {}
            }
        }
        text.unwrap_or_else(|| answer.to_string())
    }

    pub(super) fn write(&self, bytes: &[u8]) {
        let _whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let (head, tail) = bytes.split_at(if self.pieces { bytes.len() / 2 } else { 0 });
        // A client that is gone needs no answer.
        for part in [head, tail] {
            drop(stdout().write_all(part));
            drop(stdout().flush());
        }
    }

    /// Waits for the frame that is being written, and writes no other: the program is about to exit.
    pub(super) fn close(&self) {
        std::mem::forget(self.whole.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A line on stderr, which both protocols leave to logs.
pub(super) fn log(line: &str) {
    drop(writeln!(stderr(), "{line}"));
}
