//! Servers over HTTP behind `rescind bridge --listen stdio`. A right server answers, except where a rule of the entry matches.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::play::{HANG, Program, entries, is_seen, opening, trial, words};

const SERVERS: &str = include_str!("servers.json");

pub(crate) fn trials() -> Vec<Trial> {
    let play = |entry: Value| {
        let name = format!("servers::{}::mcp_over_http", entry["name"].as_str().unwrap());
        trial(name, move || async move { play(&entry).await })
    };
    entries(SERVERS).into_iter().map(play).collect()
}

async fn play(entry: &Value) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Arc::new(Server {
        address: address.clone(),
        rules: entry["rules"].as_array().unwrap().clone(),
        state: Mutex::default(),
    });
    let serving = Arc::clone(&server);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(Arc::clone(&serving).serve(stream));
        }
    });
    let entry = entry.clone();
    let played = tokio::task::spawn_blocking(move || calls(&entry, &address));
    tokio::time::timeout(2 * HANG, played).await.expect("the bridge does not hang").unwrap();
    let state = server.state.lock().unwrap();
    assert!(state.wrong.is_empty(), "the server was asked wrongly: {:#?}", state.wrong);
}

/// A client on stdio makes the calls of the entry.
fn calls(entry: &Value, address: &str) {
    let url = format!("http://{address}/mcp");
    let options = words(entry, "options", &[]);
    let mut arguments = vec!["bridge", "--dialect", "mcp", "--listen", "stdio"];
    arguments.extend(options.iter().map(String::as_str));
    arguments.push(&url);
    let mut bridge = Program::start(&arguments);
    let mut input = bridge.child.stdin.take().unwrap();
    let mut output = BufReader::new(bridge.child.stdout.take().unwrap());
    let mut ask = |id: usize, method: &str, params: Value| -> Value {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        writeln!(input, "{call}").unwrap();
        if method == "initialize" {
            writeln!(input, "{}", json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).unwrap();
        }
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                output.read_line(&mut line).unwrap() > 0,
                "the bridge ended before the answer to {method}"
            );
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id && message["method"].is_null() {
                return message;
            }
        }
    };
    assert!(ask(1, "initialize", opening("mcp").0)["result"].is_object());
    for (id, call) in (2..).zip(entry["calls"].as_array().unwrap()) {
        let answer = ask(id, call["method"].as_str().unwrap(), json!({}));
        assert!(is_seen(&call["sees"], &answer), "the client sees {answer}, and not {}", call["sees"]);
    }
    assert_eq!(ask(1000, "echo", json!({}))["result"], json!({"echo": true}), "the next call");
    for text in words(entry, "stderr", &[]) {
        let _line = bridge.line(&text);
    }
}

struct Server {
    address: String,
    rules: Vec<Value>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How often each rule was used.
    used: Vec<u64>,
    sessions: u64,
    wrong: Vec<String>,
}

struct Request {
    http: String,
    path: String,
    headers: Vec<(String, String)>,
    message: Value,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }
}

impl Server {
    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let mut stream = tokio::io::BufReader::new(stream);
        // Each response is on a connection of its own, so that its end can be the end of the connection.
        if let Some(request) = read(&mut stream).await {
            let response = self.response(&request);
            let _ = stream.get_mut().write_all(response.as_bytes()).await;
            let _ = stream.get_mut().shutdown().await;
        }
    }

    /// The response of the first rule that matches, or that of a right server.
    fn response(&self, request: &Request) -> String {
        let mut state = self.state.lock().unwrap();
        state.used.resize(self.rules.len(), 0);
        for (name, value) in [("Accept-Encoding", "identity")] {
            if request.header(name) != Some(value) {
                state.wrong.push(format!("{} {}: no {name}: {value}", request.http, request.path));
            }
        }
        let method = request.message["method"].as_str().unwrap_or_default();
        for (place, rule) in self.rules.iter().enumerate() {
            let is = |name: &str, value: &str| rule[name].as_str().is_none_or(|wanted| wanted == value);
            let matches = is("http", &request.http)
                && is("path", &request.path)
                && is("method", method)
                && is("session", request.header("mcp-session-id").unwrap_or_default())
                && is("authorization", request.header("authorization").unwrap_or_default());
            if matches && state.used[place] < rule["times"].as_u64().unwrap_or(u64::MAX) {
                state.used[place] += 1;
                return self.written(&rule["respond"], &request.message["id"]);
            }
        }
        let id = &request.message["id"];
        let answer = |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result});
        match (request.http.as_str(), method) {
            ("GET", _) => self.written(&json!({"status": 405}), id),
            ("DELETE", _) => self.written(&json!({"status": 200}), id),
            (_, "initialize") => {
                state.sessions += 1;
                let headers = json!({"Mcp-Session-Id": format!("s{}", state.sessions)});
                self.written(&json!({"headers": headers, "body": answer(opening("mcp").1)}), id)
            }
            _ if id.is_null() => self.written(&json!({"status": 202}), id),
            (_, "echo") => self.written(&json!({"body": answer(json!({"echo": true}))}), id),
            _ => self.written(&json!({"body": answer(json!(5))}), id),
        }
    }

    /// `<id>` is the id of the request, `<here>` this server.
    fn written(&self, response: &Value, id: &Value) -> String {
        let status = response["status"].as_u64().unwrap_or(200);
        let filled = |text: &str| text.replace("<id>", &id.to_string()).replace("<here>", &self.address);
        let body = match &response["body"] {
            Value::Null => String::new(),
            Value::String(text) => filled(text),
            body => filled(&body.to_string()),
        };
        let mut head = format!("HTTP/1.1 {status} Habit\r\nConnection: close\r\n");
        let mut has_type = false;
        for (name, value) in response["headers"].as_object().into_iter().flatten() {
            has_type |= name == "Content-Type";
            let _ = write!(head, "{name}: {}\r\n", filled(value.as_str().unwrap()));
        }
        if !has_type && status < 300 && !body.is_empty() {
            head.push_str("Content-Type: application/json\r\n");
        }
        // With `cut` the response ends before its body does.
        let cut = response["cut"].as_u64().unwrap_or_default();
        let _ = write!(head, "Content-Length: {}\r\n\r\n", body.len() as u64 + cut);
        head + &body
    }
}

async fn read(stream: &mut tokio::io::BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    let mut words = line.split(' ');
    let (http, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => break,
        }
    }
    let request = Request { http, path, headers, message: Value::Null };
    let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let message = serde_json::from_slice(&body).unwrap_or_default();
    Some(Request { message, ..request })
}
