//! A small MCP client with one fault, written without this project's library.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

pub(crate) fn run(fault: &str) -> ExitCode {
    let scenario = variable("RESCIND_SCENARIO");
    if fault == "does-not-connect" {
        eprintln!("no licence\nthat is why");
        return ExitCode::from(4);
    }
    if fault.strip_prefix("skips-") == Some(&scenario) {
        return ExitCode::from(77);
    }
    let words: Vec<String> = if fault == "by-arguments" {
        assert_eq!(std::env::args().nth(3), Some(scenario.clone()));
        std::env::args().skip(4).collect()
    } else {
        serde_json::from_str(&variable("RESCIND_COMMAND")).unwrap()
    };
    let mut client = Client::start(fault.to_owned(), &words);
    let code = client.play(&scenario);
    client.close();
    ExitCode::from(code)
}

struct Client {
    fault: String,
    server: Child,
    stdin: Option<ChildStdin>,
    frames: Receiver<Value>,
    last_id: u64,
    wait: Duration,
    /// The slow requests that were cancelled.
    cancelled: Vec<u64>,
}

impl Client {
    fn start(fault: String, words: &[String]) -> Self {
        let mut server = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(server.stdout.take().unwrap());
        let (sender, frames) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let Ok(line) = line else { return };
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        let wait = Duration::from_millis(variable("RESCIND_WAIT_MS").parse().unwrap());
        let stdin = server.stdin.take();
        Self { fault, server, stdin, frames, last_id: 0, wait, cancelled: Vec::new() }
    }

    fn has(&self, fault: &str) -> bool {
        self.fault == fault
    }

    fn send(&mut self, frame: &Value) {
        let mut stdin = self.stdin.as_ref().unwrap();
        let mut frame = frame.clone();
        if self.fault == "no-version" {
            frame.as_object_mut().unwrap().remove("jsonrpc");
        }
        let mark = if self.fault == "byte-order-mark" { "\u{feff}" } else { "" };
        stdin.write_all(format!("{mark}{frame}\n").as_bytes()).unwrap();
    }

    fn ask_as(&mut self, id: u64, method: &str, params: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    fn ask(&mut self, which: &str) -> u64 {
        self.last_id += 1;
        let request: Value = serde_json::from_str(&variable(which)).unwrap();
        self.ask_as(self.last_id, request["method"].as_str().unwrap(), &request["params"]);
        self.last_id
    }

    fn cancel(&mut self, id: u64) {
        let (method, named) = match self.fault.as_str() {
            "never-cancels" => return,
            "wrong-id" => ("notifications/cancelled", json!(999)),
            "id-as-text" => ("notifications/cancelled", json!(id.to_string())),
            "other-spelling" => ("$/cancelRequest", json!(id)),
            _ => ("notifications/cancelled", json!(id)),
        };
        for _ in 0..if self.has("twice") { 2 } else { 1 } {
            self.send(&json!({"jsonrpc": "2.0", "method": method, "params": {"requestId": named}}));
        }
        self.cancelled.push(id);
    }

    /// Waits for the answer to this request. `None`: not in this time.
    fn answer(&mut self, id: u64, within: Option<Duration>) -> Option<Value> {
        loop {
            let frame = match within {
                Some(within) => self.frames.recv_timeout(within),
                None => self.frames.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let frame = match frame {
                Ok(frame) => frame,
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => std::process::exit(5),
            };
            if frame["id"] == json!(id) && frame.get("method").is_none() {
                return Some(frame);
            }
            let late = self.cancelled.iter().any(|cancelled| frame["id"] == json!(cancelled));
            if late && self.has("dies-on-late-answer") {
                eprintln!("an answer to nobody");
                std::process::exit(3);
            }
            if frame["method"] == "notifications/cancelled" {
                // The handler of the server's request has ended.
                let quick = self.ask("RESCIND_QUICK");
                assert!(self.answer(quick, None).is_some());
            }
        }
    }

    fn play(&mut self, scenario: &str) -> u8 {
        let opening = json!({"protocolVersion": "2025-11-25", "capabilities": {"roots": {}}, "clientInfo": {"name": "x", "version": "0"}});
        self.ask_as(0, "initialize", &opening);
        let opened = self.answer(0, (scenario == "initialize").then_some(self.wait));
        if opened.is_none() {
            if self.has("cancels-initialize") {
                self.cancel(0);
            }
            return 0;
        }
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        if self.has("no-slow-request") {
            return 0;
        }
        if self.has("before-its-request") {
            self.cancel(self.last_id + 1);
        }
        let slow = self.ask("RESCIND_SLOW");
        match scenario {
            "cancel" => {
                if self.answer(slow, Some(self.wait)).is_none() {
                    self.cancel(slow);
                } else if self.has("cancels-what-is-answered") {
                    let quick = self.ask("RESCIND_QUICK");
                    self.cancel(slow);
                    return u8::from(self.answer(quick, None).is_none());
                }
                if self.has("hangs-after-cancel") {
                    assert!(self.answer(slow, None).is_some());
                }
            }
            "pair" => {
                let other = self.ask("RESCIND_SLOW");
                assert!(self.answer(slow, Some(self.wait)).is_none());
                self.cancel(slow);
                if self.has("cancels-both") {
                    self.cancel(other);
                } else {
                    assert!(self.answer(other, None).is_some());
                }
            }
            "serve" => assert!(self.answer(slow, None).is_some()),
            "timeout" => {
                assert!(self.answer(slow, Some(self.wait)).is_none());
                if !self.has("silent-timeout") {
                    self.cancel(slow);
                }
            }
            "close" => {
                assert!(self.answer(slow, Some(self.wait)).is_none());
                return if self.has("fails-to-close") { 3 } else { 0 };
            }
            other => panic!("there is no scenario {other}"),
        }
        if self.has("reuses-id") {
            self.last_id = slow - 1;
        }
        let quick = self.ask("RESCIND_QUICK");
        let answer = self.answer(quick, None).unwrap();
        u8::from(answer.pointer("/result/content/0/text") != Some(&json!("quick")))
    }

    fn close(mut self) {
        drop(self.stdin.take());
        drop(self.server.wait());
    }
}
