//! `rescind check --client` against one right and many wrong clients. This program is those clients too: it is started
//! again with the name of a fault.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "what the tests share is part of them")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, ExitCode, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::{Value, json};

/// The argument with which this program is a client.
const ROLE: &str = "--as-client";

/// A fault, the fact that shows it, and the answer.
const FAULTS: [(&str, &str, &str); 17] = [
    ("never-cancels", "sends_cancel", "no"),
    ("wrong-id", "names_request", "no"),
    ("id-as-text", "keeps_id_type", "no"),
    ("twice", "cancels_once", "no"),
    ("before-its-request", "cancel_follows_request", "no"),
    ("other-spelling", "spells_cancel", "no"),
    ("cancels-initialize", "never_cancels_initialize", "no"),
    ("hangs-after-cancel", "goes_on", "no"),
    ("dies-on-late-answer", "late_result_ignored", "no"),
    ("dies-on-late-answer", "late_error_ignored", "no"),
    ("cancels-what-is-answered", "no_cancel_when_answered", "no"),
    ("reuses-id", "ids_not_reused", "no"),
    ("cancels-both", "other_calls_untouched", "no"),
    ("silent-timeout", "timeout_sends_cancel", "no"),
    ("fails-to-close", "closes_cleanly", "no"),
    ("no-version", "message_form", "no"),
    ("byte-order-mark", "message_form", "no"),
];

/// This program as a client. `None`: its arguments do not say so.
pub(crate) fn run(words: &[&str]) -> Option<ExitCode> {
    let [ROLE, fault, ..] = *words else { return None };
    Some(run_client(fault))
}

/// All trials.
pub(crate) fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = FAULTS
        .iter()
        .map(|&(fault, fact, answer)| {
            Trial::test(format!("client_check::{fault}_is_told_by_{fact}"), move || {
                told_by(fault, fact, answer);
                Ok(())
            })
        })
        .collect();
    for (name, test) in [
        ("a_right_client_has_no_fault_over_stdio", right_over_stdio as fn()),
        ("a_client_that_does_not_connect_is_reported_in_one_sentence", not_connected),
        ("a_client_that_makes_no_slow_request_is_reported_with_what_it_made", no_slow_request),
        ("a_client_that_cannot_be_started_is_reported", not_started),
        ("a_scenario_that_is_skipped_is_not_asked", skipped),
        ("placeholders_are_filled", placeholders),
        ("a_placeholder_of_the_other_kind_is_wrong_usage", wrong_placeholder),
        ("a_dialect_without_this_check_is_reported", unknown_dialect),
    ] {
        trials.push(Trial::test(format!("client_check::{name}"), move || {
            test();
            Ok(())
        }));
    }
    trials
}

fn check(options: &[&str], client: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rescind"))
        .args(["check", "--client"])
        .args(options)
        .arg("--")
        .args(client)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn check_fault(fault: &str) -> (Value, Output) {
    let this = std::env::current_exe().unwrap();
    // The check waits this long for each step of a client that hangs, fifteen times.
    let step_timeout = if fault == "hangs-after-cancel" { "1000" } else { "2000" };
    let output = check(
        &["--dialect", "mcp", "--json", "--step-timeout", step_timeout],
        &[this.to_str().unwrap(), ROLE, fault],
    );
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (report, output)
}

fn fact<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["facts"].as_array().unwrap().iter().find(|fact| fact["name"] == name).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn told_by(fault: &str, name: &str, answer: &str) {
    let (report, output) = check_fault(fault);
    let found = fact(&report, name);
    assert_eq!(found["answer"], answer, "{fault}: {found:#}");
    assert!(!found["trace"].as_array().unwrap().is_empty(), "no frames: {found:#}");
    let detail = found["detail"].as_str().unwrap();
    assert_eq!(found["demand"] != "open", detail.contains("3 times of 3"), "{found:#}");
    let faults = report["summary"]["faults"].as_u64().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(faults > 0)), "{}", stderr(&output));
    assert_eq!(found["demand"] == "must", faults > 0, "{report:#}");
}

fn right_over_stdio() {
    let (report, output) = check_fault("none");
    for fact in report["facts"].as_array().unwrap() {
        assert_eq!(fact["answer"], "yes", "{fact:#}");
    }
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

fn refused(output: &Output, words: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(output.stdout.is_empty());
}

fn this_client(fault: &str, more: &[&str]) -> Output {
    let this = std::env::current_exe().unwrap();
    check(&[&["--dialect", "mcp"], more].concat(), &[this.to_str().unwrap(), ROLE, fault])
}

fn not_connected() {
    refused(
        &this_client("does-not-connect", &[]),
        &["did not connect", "RESCIND_COMMAND", "exit status: 4", "why"],
    );
    refused(&this_client("does-not-connect", &["--listen", "ws://127.0.0.1:0/"]), &["RESCIND_ENDPOINT"]);
}

fn no_slow_request() {
    refused(&this_client("no-slow-request", &[]), &["RESCIND_SLOW", "initialize"]);
}

fn not_started() {
    refused(&check(&["--dialect", "mcp"], &["no-such-program-here"]), &["no-such-program-here"]);
}

fn skipped() {
    refused(&this_client("skips-cancel", &[]), &["skips", "77"]);
    let (report, output) = check_fault("skips-timeout");
    assert_eq!(fact(&report, "timeout_sends_cancel")["answer"], "not-asked", "{report:#}");
    assert_eq!(output.status.code(), Some(0));
}

fn placeholders() {
    let this = std::env::current_exe().unwrap();
    let output = check(
        &["--dialect", "mcp", "--json"],
        &[this.to_str().unwrap(), ROLE, "by-arguments", "{scenario}", "{command}"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

fn wrong_placeholder() {
    refused(&check(&["--dialect", "mcp"], &["x", "{endpoint}"]), &["--listen"]);
    refused(
        &check(&["--dialect", "mcp", "--listen", "ws://127.0.0.1:0/"], &["x", "{command}"]),
        &["{endpoint}"],
    );
}

fn unknown_dialect() {
    refused(&check(&["--dialect", "abp"], &["x"]), &["abp", "lsp, mcp"]);
}

// A small MCP client with one fault, written without this project's library.

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

fn run_client(fault: &str) -> ExitCode {
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
