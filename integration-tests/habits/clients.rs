//! Clients before `rescind fixture`, as raw bytes or raw requests over HTTP.

use std::io::{BufReader, Write as _};

use libtest_mimic::Trial;
use rescind_testkit::support::http1;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::play::{Program, bytes_of, entries, opening, soon, trial, words};

const CLIENTS: &str = include_str!("clients.json");

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for entry in entries(CLIENTS) {
        let name = entry["name"].as_str().unwrap().to_owned();
        if entry["http"].is_array() {
            let name = format!("clients::{name}::mcp_over_http");
            trials.push(trial(name, move || async move { over_http(&entry).await }));
            continue;
        }
        for dialect in words(&entry, "dialects", &["mcp", "acp", "lsp"]) {
            let (entry, name) = (entry.clone(), format!("clients::{name}::{dialect}_over_stdio"));
            trials.push(trial(name, move || async move { over_stdio(&entry, &dialect) }));
        }
    }
    trials
}

/// Writes what the entry says after a right handshake, and waits for each message that it must see.
fn over_stdio(entry: &Value, dialect: &str) {
    let is_lsp = dialect == "lsp";
    let mut fixture = Program::start(&["fixture", "--dialect", dialect, "--listen", "stdio"]);
    let mut input = fixture.child.stdin.take().unwrap();
    let mut output = BufReader::new(fixture.child.stdout.take().unwrap());
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening(dialect).0});
    let first = if entry["before"].is_string() { vec![json!({"raw": entry["before"]})] } else { Vec::new() };
    let hello = [first, vec![json!({"frame": hello.to_string()})]].concat();
    for item in hello.iter().chain(entry["writes"].as_array().unwrap()) {
        input.write_all(&bytes_of(item, is_lsp, &json!(2))).unwrap();
    }
    input.flush().unwrap();
    for expected in entry["sees"].as_array().unwrap() {
        loop {
            let message = message(&mut output, is_lsp);
            let message = message.unwrap_or_else(|| panic!("the output ended before {expected}"));
            if contains(&message, expected) {
                break;
            }
            assert!(message["id"] != expected["id"], "{message} came, and not {expected}");
        }
    }
    for text in words(entry, "stderr", &[]) {
        let _line = fixture.line(&text);
    }
    if let Some(code) = entry["exit"].as_i64() {
        let status = fixture.child.wait().unwrap();
        assert_eq!(status.code().map(i64::from), Some(code), "its exit code");
    }
}

/// The next message in either framing. `None`: the output has ended.
fn message(output: &mut impl std::io::BufRead, is_lsp: bool) -> Option<Value> {
    let mut line = String::new();
    if !is_lsp {
        return (output.read_line(&mut line).unwrap() > 0).then(|| serde_json::from_str(&line).unwrap());
    }
    let mut length = 0;
    loop {
        line.clear();
        if output.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        match line.trim_end().split_once(": ") {
            Some((_, value)) => length = value.parse().unwrap(),
            None => break,
        }
    }
    let mut body = vec![0; length];
    output.read_exact(&mut body).unwrap();
    Some(serde_json::from_slice(&body).unwrap())
}

/// Whether a message has all members that are expected. A text is expected as a part of the text.
fn contains(message: &Value, expected: &Value) -> bool {
    match (message, expected) {
        (Value::Object(message), Value::Object(expected)) => {
            expected.iter().all(|(name, value)| message.get(name).is_some_and(|found| contains(found, value)))
        }
        (Value::String(message), Value::String(expected)) => message.contains(expected.as_str()),
        (message, expected) => message == expected,
    }
}

/// Sends each request on a connection of its own, with the session of the first answer that opens one.
async fn over_http(entry: &Value) {
    let options = words(entry, "options", &[]);
    let mut arguments = vec!["fixture", "--dialect", "mcp", "--listen", "http://127.0.0.1:0/mcp"];
    arguments.extend(options.iter().map(String::as_str));
    let mut fixture = Program::start(&arguments);
    let endpoint = fixture.endpoint();
    let address = endpoint.trim_start_matches("http://").split('/').next().unwrap().to_owned();
    let mut session = None::<String>;
    for step in entry["http"].as_array().unwrap() {
        let mut headers: Vec<(String, String)> = vec![
            ("Accept".into(), "application/json, text/event-stream".into()),
            ("Connection".into(), "close".into()),
        ];
        if step["body"] != Value::Null {
            headers.push(("Content-Type".into(), "application/json".into()));
        }
        if let Some(session) = &session {
            headers.push(("Mcp-Session-Id".into(), session.clone()));
        }
        let mut host = address.clone();
        for (name, value) in step["headers"].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap().to_owned();
            if name == "Host" { host = value } else { headers.push((name.clone(), value)) }
        }
        let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let body = step["body"].as_str().map_or_else(
            || if step["body"].is_null() { String::new() } else { step["body"].to_string() },
            ToOwned::to_owned,
        );
        let path = step["path"].as_str().unwrap_or("/mcp");
        let request = http1::request(step["method"].as_str().unwrap_or("POST"), path, &host, &headers, &body);
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut all = Vec::new();
        soon("the response", tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut all)).await.unwrap();
        let response = String::from_utf8_lossy(&all).into_owned();
        let status = response.split(' ').nth(1).and_then(|status| status.parse::<u64>().ok());
        assert_eq!(status, step["status"].as_u64(), "to {request}\n{response}");
        for text in words(step, "sees", &[]) {
            assert!(response.contains(&text), "{text:?} is not in {response}");
        }
        let opened = response.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("mcp-session-id").then(|| value.trim().to_owned())
        });
        session = session.or(opened);
    }
}
