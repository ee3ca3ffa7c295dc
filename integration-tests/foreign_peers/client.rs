//! A client that knows nothing of the library: it writes frames to a foreign peer and keeps all that comes back.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

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
