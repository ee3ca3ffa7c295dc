//! A client without code of the library, and its session with a foreign peer.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

// An open session with a foreign peer, the same for the three dialects.

/// How long a slow request takes, and the number of its steps.
const WORK_MS: u64 = 600;
pub(crate) const STEPS: usize = 6;

const DOCUMENT: &str = "file:///a.txt";

pub(crate) struct Session {
    pub(crate) dialect: &'static str,
    pub(crate) client: Client,
    last_id: u64,
    /// The next request has the id 0.
    pub(crate) is_next_zero: bool,
}

/// A slow request.
pub(crate) struct Slow {
    pub(crate) id: Value,
    /// What its progress names.
    token: Value,
    /// The number of frames that had come before it.
    since: usize,
}

impl Session {
    /// Starts a peer and opens the session, with whatever it needs before it works.
    pub(crate) fn open(dialect: &'static str, flags: &[&str]) -> Self {
        let mut session = Self::start(dialect, flags);
        match dialect {
            "mcp" => {
                let info = json!({"name": "driver", "version": "1"});
                let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
                session.accepted("initialize", &params);
                session.notify("notifications/initialized", &json!({}));
                session.accepted("tools/call", &json!({"name": "prepare", "arguments": {}}));
            }
            "lsp" => {
                session
                    .accepted("initialize", &json!({"processId": null, "rootUri": null, "capabilities": {}}));
                session.notify("initialized", &json!({}));
                let document =
                    json!({"uri": DOCUMENT, "languageId": "plaintext", "version": 1, "text": "name"});
                session.notify("textDocument/didOpen", &json!({"textDocument": document}));
            }
            _ => {
                session.accepted("initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
                session.accepted("authenticate", &json!({"methodId": "token"}));
                for number in 1..=2 {
                    let answer = session.accepted("session/new", &json!({"cwd": "/", "mcpServers": []}));
                    assert_eq!(answer["result"]["sessionId"], json!(format!("session-{number}")), "{answer}");
                }
            }
        }
        session
    }

    /// Starts a peer.
    pub(crate) fn start(dialect: &'static str, flags: &[&str]) -> Self {
        let work = format!("--work={WORK_MS}");
        let flags = [&[work.as_str()], flags].concat();
        Self { dialect, client: Client::start(dialect, &flags), last_id: 10, is_next_zero: false }
    }

    pub(crate) fn request(&mut self, method: &str, params: &Value) -> Value {
        self.last_id += 1;
        let id = json!(if std::mem::take(&mut self.is_next_zero) { 0 } else { self.last_id });
        self.client.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    pub(crate) fn notify(&mut self, method: &str, params: &Value) {
        self.client.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    fn accepted(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params);
        let answer = self.answer(&id).unwrap();
        assert!(answer.get("result").is_some(), "{method}: {answer}");
        answer
    }

    /// Begins a slow request. `line` tells the requests apart that run at once: 1 or 2.
    pub(crate) fn slow(&mut self, line: u64) -> Slow {
        let token = json!(format!("token-{}", self.last_id));
        let (method, params, token) = match self.dialect {
            "mcp" => {
                let arguments = json!({"ms": WORK_MS, "steps": STEPS});
                let meta = json!({"progressToken": token});
                ("tools/call", json!({"name": "count", "arguments": arguments, "_meta": meta}), token)
            }
            "lsp" => {
                let position = json!({"line": line, "character": 0});
                let context = json!({"includeDeclaration": true});
                let params = json!({
                    "textDocument": {"uri": DOCUMENT}, "position": position, "context": context,
                    "workDoneToken": token,
                });
                ("textDocument/references", params, token)
            }
            _ => {
                let session = json!(format!("session-{line}"));
                let prompt = json!([{"type": "text", "text": format!("write for {WORK_MS} ms")}]);
                ("session/prompt", json!({"sessionId": session, "prompt": prompt}), session)
            }
        };
        let since = self.client.frames.len();
        Slow { id: self.request(method, &params), token, since }
    }

    /// Begins a slow request of MCP as a task.
    pub(crate) fn slow_task(&mut self) -> Slow {
        let token = json!(format!("token-{}", self.last_id));
        let params = json!({
            "name": "count", "arguments": {"ms": WORK_MS, "steps": STEPS}, "task": {},
            "_meta": {"progressToken": token},
        });
        let since = self.client.frames.len();
        Slow { id: self.request("tools/call", &params), token, since }
    }

    pub(crate) fn quick(&mut self) -> Value {
        let at = json!({"textDocument": {"uri": DOCUMENT}, "position": {"line": 0, "character": 0}});
        match self.dialect {
            "mcp" => self.request("tools/call", &json!({"name": "add", "arguments": {"a": 1, "b": 2}})),
            "lsp" => self.request("textDocument/hover", &at),
            _ => self.request("session/set_mode", &json!({"sessionId": "session-1", "modeId": "ask"})),
        }
    }

    pub(crate) fn cancel(&mut self, id: &Value) {
        let (method, member) = self.cancel_form();
        self.notify(method, &json!({member: id}));
    }

    /// The method of a cancel, and the member with the id.
    pub(crate) fn cancel_form(&self) -> (&'static str, &'static str) {
        match self.dialect {
            "mcp" => ("notifications/cancelled", "requestId"),
            "lsp" => ("$/cancelRequest", "id"),
            _ => ("$/cancel_request", "requestId"),
        }
    }

    pub(crate) fn answer(&mut self, id: &Value) -> Result<Value, String> {
        let came = self.client.wait_for(0, |frame| is_answer(frame, id));
        came.ok_or_else(|| format!("the request {id} is not answered; {:?}", self.client.frames))
    }

    /// The answers to this request that have come.
    pub(crate) fn answers(&self, id: &Value) -> usize {
        self.client.frames.iter().filter(|frame| is_answer(frame, id)).count()
    }

    /// Waits until the slow request works.
    pub(crate) fn works(&mut self, slow: &Slow) -> Result<(), String> {
        let came = self.client.wait_for(slow.since, |frame| is_progress(frame, &slow.token));
        came.map(drop).ok_or_else(|| format!("the request {} does not begin", slow.id))
    }

    /// The steps of a slow request that were reported.
    pub(crate) fn steps(&self, slow: &Slow) -> usize {
        self.client.frames.iter().skip(slow.since).filter(|frame| is_progress(frame, &slow.token)).count()
    }
}

fn is_answer(frame: &Value, id: &Value) -> bool {
    frame.get("method").is_none() && frame.get("id") == Some(id)
}

/// Whether the frame reports a step of the request with this token.
fn is_progress(frame: &Value, token: &Value) -> bool {
    let params = frame.get("params");
    let member = |name: &str| params.and_then(|params| params.get(name)) == Some(token);
    match frame.get("method").and_then(Value::as_str) {
        Some("notifications/progress") => member("progressToken"),
        Some("$/progress") => {
            member("token") && frame.pointer("/params/value/kind") == Some(&json!("report"))
        }
        Some("session/update") => member("sessionId"),
        _ => false,
    }
}

// A client that knows nothing of the library: it writes frames to a foreign peer and keeps all that comes back.

/// How long an answer is awaited: much longer than any takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running peer.
pub(crate) struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<Came>,
    content_length: bool,
    /// All messages, in their order.
    pub(crate) frames: Vec<Value>,
    /// What was written to stdout beside messages.
    pub(crate) noise: Vec<String>,
}

enum Came {
    Frame(Value),
    Noise(String),
}

impl Client {
    pub(crate) fn start(dialect: &str, flags: &[&str]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(crate::AS_PEER)
            .arg(dialect)
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let content_length = dialect == "lsp";
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (came, output) = channel();
        thread::spawn(move || {
            let mut stdout = stdout;
            while let Some(next) = if content_length { after_headers(&mut stdout) } else { line(&mut stdout) }
            {
                if came.send(next).is_err() {
                    break;
                }
            }
        });
        let input = child.stdin.take();
        Self { child, input, output, content_length, frames: Vec::new(), noise: Vec::new() }
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string());
    }

    pub(crate) fn send_text(&mut self, text: &str) {
        let frame = if self.content_length {
            format!("Content-Length: {}\r\n\r\n{text}", text.len())
        } else {
            format!("{text}\n")
        };
        // The peer may have exited, which shows when its answer is awaited.
        if let Some(input) = &mut self.input {
            drop(input.write_all(frame.as_bytes()));
            drop(input.flush());
        }
    }

    /// Reads until a frame like this has come after the first `seen`, and returns it. `None`: the peer has ended, or
    /// it was not in time.
    pub(crate) fn wait_for(&mut self, mut seen: usize, is_it: impl Fn(&Value) -> bool) -> Option<Value> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(frame) = self.frames.iter().skip(seen).find(|frame| is_it(frame)) {
                return Some(frame.clone());
            }
            seen = self.frames.len();
            match self.output.recv_timeout(until.saturating_duration_since(Instant::now())).ok()? {
                Came::Frame(frame) => {
                    if let (Some(id), Some(_)) = (frame.get("id"), frame.get("method")) {
                        let error = json!({"code": -32601, "message": "method not found"});
                        self.send(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
                    }
                    self.frames.push(frame);
                }
                Came::Noise(text) => self.noise.push(text),
            }
        }
    }

    /// Closes the peer's input, reads the rest of its output and returns its exit code.
    pub(crate) fn end(&mut self) -> Option<i32> {
        self.input = None;
        while self.wait_for(0, |_| false).is_some() {}
        self.child.wait().unwrap().code()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn line(stdout: &mut BufReader<ChildStdout>) -> Option<Came> {
    let mut line = String::new();
    if stdout.read_line(&mut line).ok()? == 0 {
        return None;
    }
    Some(serde_json::from_str(&line).map_or(Came::Noise(line), Came::Frame))
}

fn after_headers(stdout: &mut BufReader<ChildStdout>) -> Option<Came> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stdout.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().ok()?;
            }
            Some(("Content-Type", _)) => {}
            _ if line == "\r\n" => break,
            _ => return Some(Came::Noise(line)),
        }
    }
    let mut body = vec![0; length];
    stdout.read_exact(&mut body).ok()?;
    Some(Came::Frame(serde_json::from_slice(&body).ok()?))
}
