//! The trials: children behind a bridge, servers behind a bridge, and clients before the fixture.

use std::fmt::Write as _;
use std::future::Future;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use rescind::dialect::{Dialect, Role};
use rescind::http::{HttpClient, StreamableTransport};
use rescind::named_pipe::NamedPipeTransport;
use rescind::transport::Transport;
use rescind::{Outcome, Peer};
use rescind_testkit::support::http1;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

// Children behind a bridge: a client makes the call `work`, which the child answers as its entry says, and then `echo`, which
// it answers as it should.

pub(super) const CHILDREN: &str = include_str!("children.json");
/// The argument with which this program is a child.
pub(crate) const ROLE: &str = "--as-child";

pub(crate) fn child_trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for entry in entries(CHILDREN) {
        for dialect in words(&entry, "dialects", &["mcp", "acp", "lsp"]) {
            for over in words(&entry, "over", &["ws", "http", "pipe"]) {
                // ACP over HTTP is another binding, and clients of LSP do not speak over HTTP.
                if over == "http" && dialect != "mcp" {
                    continue;
                }
                let (entry, dialect) = (entry.clone(), dialect.clone());
                let name = format!("children::{}::{dialect}_over_{over}", entry["name"].as_str().unwrap());
                trials.push(trial(&name, move || async move { play_child(&entry, &dialect, &over).await }));
            }
        }
    }
    trials
}

async fn play_child(entry: &Value, dialect: &str, over: &str) {
    let exe = std::env::current_exe().unwrap().display().to_string();
    let name = entry["name"].as_str().unwrap();
    let listen = match over {
        "ws" => "ws://127.0.0.1:0/habits".to_owned(),
        "http" => "http://127.0.0.1:0/habits".to_owned(),
        _ => format!("pipe:habits-{}-{dialect}-{name}", std::process::id()),
    };
    let mut bridge = Program::start(&[
        "bridge",
        "--dialect",
        dialect,
        "--listen",
        &listen,
        "--",
        &exe,
        ROLE,
        dialect,
        name,
    ]);
    let endpoint = bridge.endpoint();
    let transport: Box<dyn Transport> = match over {
        "ws" => Box::new(rescind::websocket::connect(&endpoint)),
        "http" => Box::new(StreamableTransport::new(HttpClient::new(&endpoint).unwrap()).in_order()),
        _ => Box::new(NamedPipeTransport::new(endpoint.strip_prefix("pipe:").unwrap().parse().unwrap())),
    };
    let link = soon("the connection", transport.open()).await.unwrap();
    let client = Peer::builder(Dialect::by_name(dialect).unwrap()).role(Role::Client).attach(link).unwrap();
    let (params, _) = opening(dialect);
    let _: Value = soon("the handshake", client.call("initialize", &params)).await.unwrap();
    let answer = ask(&client, "work").await;
    assert!(is_seen(&entry["sees"], &answer), "{name}: the client sees {answer}");
    let said = answer["error"]["message"].as_str().unwrap_or_default();
    if said.contains("cannot be passed on") {
        assert!(
            said.contains(&format!("the answer of `{exe}`")) && said.ends_with("(request 2)"),
            "{name}: {said}"
        );
    }
    for text in words(entry, "stderr", &[]) {
        let _line = bridge.line(&text);
    }
    if !entry["next"].is_null() {
        let answer = ask(&client, "echo").await;
        assert!(is_seen(&entry["next"], &answer), "{name}: the next call sees {answer}");
    }
    if entry["then"] != "ended" {
        assert_eq!(ask(&client, "echo").await["result"], json!({"echo": true}), "{name}: the next call");
    }
}

/// The answer to a call, as a message.
async fn ask(client: &Peer, method: &str) -> Value {
    let call = client.call::<_, Value>(method, &json!({})).start().unwrap();
    match soon(method, call.outcome()).await {
        Outcome::Completed(value) => json!({"result": value}),
        Outcome::Failed(error) => json!({"error": {"code": error.code.0, "message": error.message}}),
        other => panic!("{method}: {other:?}"),
    }
}

/// This program as the child of a bridge.
pub(crate) fn run(dialect: &str, name: &str) -> ExitCode {
    let entries = entries(CHILDREN);
    let entry = entries.iter().find(|entry| entry["name"] == name).expect("the habit is known");
    let is_lsp = dialect == "lsp";
    let mut input = std::io::stdin().lock();
    let mut output = std::io::stdout().lock();
    while let Some(message) = read_frame(&mut input, is_lsp) {
        for item in &items_for(entry, dialect, &message) {
            output.write_all(&bytes_of(item, is_lsp, &message["id"])).unwrap();
        }
        output.flush().unwrap();
    }
    ExitCode::SUCCESS
}

/// The items that a child or a server writes after a message.
pub(super) fn items_for(entry: &Value, dialect: &str, message: &Value) -> Vec<Value> {
    let answer = |result: Value| json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
    match message["method"].as_str() {
        Some("initialize") => vec![json!({"frame": answer(opening(dialect).1)})],
        Some("echo") => vec![json!({"frame": answer(json!({"echo": true}))})],
        Some("work") => entry["writes"].as_array().expect("a child writes something").clone(),
        _ => Vec::new(),
    }
}

fn read_frame(input: &mut impl std::io::BufRead, is_lsp: bool) -> Option<Value> {
    let mut line = String::new();
    if !is_lsp {
        return (input.read_line(&mut line).ok()? > 0).then(|| serde_json::from_str(&line).unwrap());
    }
    let mut length = 0;
    loop {
        line.clear();
        if input.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end().split_once(": ") {
            Some((_, value)) => length = value.parse().unwrap(),
            None => break,
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).ok()?;
    Some(serde_json::from_slice(&body).unwrap())
}

// Servers over HTTP behind `rescind bridge --listen stdio`. A right server answers, except where a rule of the entry matches.

const SERVERS: &str = include_str!("servers.json");

pub(crate) fn server_trials() -> Vec<Trial> {
    let play = |entry: Value| {
        let over = if is_legacy(&entry) { "legacy_sse" } else { "http" };
        let name = format!("servers::{}::mcp_over_{over}", entry["name"].as_str().unwrap());
        trial(&name, move || async move { play(&entry).await })
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
        stream: is_legacy(entry).then(|| {
            let (sender, written) = unbounded_channel();
            (sender, tokio::sync::Mutex::new(written))
        }),
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
    let mut ask = |id: usize, method: &str, params: Value, waits: bool| -> Value {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        writeln!(input, "{call}").unwrap();
        if !waits {
            return Value::Null;
        }
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
    assert!(ask(1, "initialize", opening("mcp").0, true)["result"].is_object());
    for (id, call) in (2..).zip(entry["calls"].as_array().unwrap()) {
        let waits = !call["sees"].is_null();
        let answer = ask(id, call["method"].as_str().unwrap(), json!({}), waits);
        if !waits {
            continue;
        }
        assert!(is_seen(&call["sees"], &answer), "the client sees {answer}, and not {}", call["sees"]);
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        if said.contains(address) {
            assert!(
                said.ends_with(&format!("(request {id})")),
                "the error does not name its request: {said}"
            );
        }
    }
    if entry["then"] != "waits" {
        assert_eq!(ask(1000, "echo", json!({}), true)["result"], json!({"echo": true}), "the next call");
    }
    for text in words(entry, "stderr", &[]) {
        let _line = bridge.line(&text);
    }
}

/// The head of the stream of the transport of MCP 2024-11-05.
const STREAM: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n";

/// Whether the server speaks the transport of MCP 2024-11-05.
fn is_legacy(entry: &Value) -> bool {
    words(entry, "options", &[]).iter().any(|option| option == "legacy-sse")
}

struct Server {
    address: String,
    rules: Vec<Value>,
    state: Mutex<State>,
    /// What is written on the stream of the transport of MCP 2024-11-05, if the server speaks that.
    stream: Option<(UnboundedSender<String>, tokio::sync::Mutex<UnboundedReceiver<String>>)>,
}

#[derive(Default)]
struct State {
    /// How often each rule was used.
    used: Vec<u64>,
    sessions: u64,
    wrong: Vec<String>,
}

pub(super) struct Request {
    pub(super) http: String,
    pub(super) path: String,
    headers: Vec<(String, String)>,
    pub(super) message: Value,
}

struct Response {
    bytes: String,
    /// The connection stays open until the client closes it.
    waits: bool,
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
            let Response { bytes, waits } = self.response(&request);
            let _ = stream.get_mut().write_all(bytes.as_bytes()).await;
            if let (Some((_, written)), "GET") = (&self.stream, &*request.http) {
                let mut written = written.lock().await;
                while let Some(text) = written.recv().await {
                    let _ = stream.get_mut().write_all(text.as_bytes()).await;
                }
            }
            if waits {
                let _ = stream.read_u8().await;
            }
            let _ = stream.get_mut().shutdown().await;
        }
    }

    /// The response of the first rule that matches, or that of a right server.
    fn response(&self, request: &Request) -> Response {
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
                && is("last", request.header("last-event-id").unwrap_or_default())
                && is("authorization", request.header("authorization").unwrap_or_default());
            if matches && state.used[place] < rule["times"].as_u64().unwrap_or(u64::MAX) {
                state.used[place] += 1;
                if let (Some((stream, _)), Some(text)) = (&self.stream, rule["respond"]["stream"].as_str()) {
                    stream.send(text.replace("<id>", &request.message["id"].to_string())).unwrap();
                    if request.http == "GET" {
                        return Response { bytes: STREAM.to_owned(), waits: true };
                    }
                }
                return self.written(&rule["respond"], &request.message["id"]);
            }
        }
        let id = &request.message["id"];
        let answer = |result: Value| json!({"jsonrpc": "2.0", "id": id, "result": result});
        if let Some((stream, _)) = &self.stream {
            let event = match (request.http.as_str(), method) {
                ("GET", _) => "event: endpoint\ndata: /messages?sessionId=1\n\n".to_owned(),
                (_, "initialize") => format!("data: {}\n\n", answer(opening("mcp").1)),
                (_, "echo") => format!("data: {}\n\n", answer(json!({"echo": true}))),
                _ if id.is_null() => String::new(),
                _ => format!("data: {}\n\n", answer(json!(5))),
            };
            stream.send(event).unwrap();
            if request.http == "GET" {
                return Response { bytes: STREAM.to_owned(), waits: true };
            }
            return self.written(
                &json!({"status": 202, "body": "Accepted", "headers": {"Content-Type": "text/plain"}}),
                id,
            );
        }
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

    /// `<id>` is the id of the request, `<here>` this server, and `<large>` a text above the limit.
    fn written(&self, response: &Value, id: &Value) -> Response {
        if response["silent"] == true {
            return Response { bytes: String::new(), waits: true };
        }
        if response["closed"] == true {
            return Response { bytes: String::new(), waits: false };
        }
        let status = response["status"].as_u64().unwrap_or(200);
        let filled = |text: &str| text.replace("<id>", &id.to_string()).replace("<here>", &self.address);
        let filled = |text: &str| {
            let text = filled(text);
            if text.contains("<large>") { text.replace("<large>", &"x".repeat(17 << 20)) } else { text }
        };
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
        // With `cut` the response ends before its body does, with `open` it does not end.
        let waits = response["open"].is_u64();
        let missing = response["cut"].as_u64().or(response["open"].as_u64()).unwrap_or_default();
        let _ = write!(head, "Content-Length: {}\r\n\r\n", body.len() as u64 + missing);
        Response { bytes: head + &body, waits }
    }
}

pub(super) async fn read(stream: &mut tokio::io::BufReader<TcpStream>) -> Option<Request> {
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

// Clients before `rescind fixture`, as raw bytes or raw requests over HTTP.

const CLIENTS: &str = include_str!("clients.json");

pub(crate) fn client_trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for entry in entries(CLIENTS) {
        let name = entry["name"].as_str().unwrap().to_owned();
        if entry["http"].is_array() {
            let name = format!("clients::{name}::mcp_over_http");
            trials.push(trial(&name, move || async move { over_http(&entry).await }));
            continue;
        }
        for dialect in words(&entry, "dialects", &["mcp", "acp", "lsp"]) {
            let (entry, name) = (entry.clone(), format!("clients::{name}::{dialect}_over_stdio"));
            trials.push(trial(&name, move || async move {
                let played = tokio::task::spawn_blocking(move || over_stdio(&entry, &dialect));
                soon("the end of the test", played).await.unwrap();
            }));
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
pub(super) fn message(output: &mut impl std::io::BufRead, is_lsp: bool) -> Option<Value> {
    let mut line = String::new();
    if !is_lsp {
        return (output.read_line(&mut line).unwrap() > 0).then(|| parsed(&line));
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
    Some(parsed(std::str::from_utf8(&body).unwrap()))
}

/// A message. Half a character is passed on as it is, and a text of Rust cannot hold it.
fn parsed(message: &str) -> Value {
    serde_json::from_str(&message.replace("\\ud800", "\\ufffd")).unwrap()
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

// What the three sides share: what is written, what must be seen, and the programs.

/// A test of one entry.
pub(super) fn trial<F: Future<Output = ()>>(name: &str, play: impl FnOnce() -> F + Send + 'static) -> Trial {
    Trial::test(format!("habits::{name}"), move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let played = catch_unwind(AssertUnwindSafe(|| runtime.block_on(play())));
        // A thread may still wait for a program that answers nothing.
        runtime.shutdown_timeout(Duration::from_secs(1));
        if let Err(panic) = played {
            resume_unwind(panic);
        }
        Ok::<_, Failed>(())
    })
}

/// The entries of a file.
pub(super) fn entries(json: &str) -> Vec<Value> {
    serde_json::from_str(json).expect("a file of habits is an array of entries")
}

/// The texts of a list, or those that count if there is none.
pub(super) fn words(entry: &Value, name: &str, otherwise: &[&str]) -> Vec<String> {
    match entry[name].as_array() {
        Some(list) => list.iter().map(|word| word.as_str().unwrap().to_owned()).collect(),
        None => otherwise.iter().map(|&word| word.to_owned()).collect(),
    }
}

/// The bytes of one item of `writes`: `frame`, a message in the framing of the dialect; `characters`, one whose length
/// counts characters; `raw`, bytes as they are. `<id>` is the id as it came, `<number>` its digits, and `<ff>` one byte.
pub(super) fn bytes_of(item: &Value, is_lsp: bool, id: &Value) -> Vec<u8> {
    let (kind, text) = item.as_object().and_then(|item| item.iter().next()).expect("an item has a kind");
    let text = text.as_str().unwrap().replace("<id>", &id.to_string());
    let text = text.replace("<number>", id.to_string().trim_matches('"'));
    let mut body = Vec::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('<') {
        body.extend_from_slice(before.as_bytes());
        match after.split_once('>').map(|(hex, after)| (hex, u8::from_str_radix(hex, 16), after)) {
            Some((hex, Ok(byte), left)) if hex.len() == 2 => {
                body.push(byte);
                rest = left;
            }
            _ => {
                body.push(b'<');
                rest = after;
            }
        }
    }
    body.extend_from_slice(rest.as_bytes());
    let header = |length: usize| format!("Content-Length: {length}\r\n\r\n").into_bytes();
    match (kind.as_str(), is_lsp) {
        ("raw", _) => body,
        ("frame", true) => [header(body.len()), body].concat(),
        ("characters", true) => {
            [header(String::from_utf8_lossy(&body).encode_utf16().count()), body].concat()
        }
        ("frame", false) => [body, b"\n".to_vec()].concat(),
        (kind, _) => panic!("{kind} is no kind of what is written"),
    }
}

/// Whether an answer is what an entry says: `result` is the result, `error` has texts that the error's message contains.
pub(super) fn is_seen(sees: &Value, answer: &Value) -> bool {
    match (&sees["result"], sees["error"].as_array()) {
        (Value::Null, Some(texts)) => {
            let message = answer["error"]["message"].as_str().unwrap_or_default();
            answer["error"].is_object() && texts.iter().all(|text| message.contains(text.as_str().unwrap()))
        }
        (result, None) => answer.get("result") == Some(result),
        (_, Some(_)) => panic!("an answer is a result or an error: {sees}"),
    }
}

/// A running `rescind`. It is killed on drop.
pub(super) struct Program {
    pub(super) child: Child,
    lines: mpsc::Receiver<String>,
    /// The lines of its stderr so far.
    seen: Vec<String>,
    /// The file of the pipe at which it listens.
    pipe: Option<String>,
}

impl Program {
    /// Starts `rescind` with these arguments, and with pipes for its input and output.
    pub(super) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rescind"));
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stderr);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                if sender.send(text).is_err() {
                    // Its pipe stays open.
                    let _ = reader.read_to_end(&mut Vec::new());
                    return;
                }
            }
        });
        Self { child, lines, seen: Vec::new(), pipe: None }
    }

    /// The endpoint that it prints when it listens.
    fn endpoint(&mut self) -> String {
        let line = self.line("listening on ");
        let endpoint = line.strip_prefix("listening on ").unwrap_or_else(|| panic!("it said: {line}"));
        self.pipe = endpoint.strip_prefix("pipe:").map(str::to_owned);
        endpoint.to_owned()
    }

    /// Waits for a line of its stderr that contains this text.
    pub(super) fn line(&mut self, text: &str) -> String {
        if let Some(line) = self.seen.iter().find(|line| line.contains(text)) {
            return line.clone();
        }
        loop {
            match self.lines.recv_timeout(HANG) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(why) => panic!("its stderr has no {text:?} ({why}): {:#?}", self.seen),
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
        // It was killed, so it leaves them.
        if let Some(pipe) = &self.pipe {
            drop(std::fs::remove_file(pipe));
            drop(std::fs::remove_file(format!("{pipe}.lock")));
        }
    }
}

/// Every wait ends: a test that hangs has failed.
pub(super) const HANG: Duration = Duration::from_secs(40);

async fn soon<F: IntoFuture>(what: &str, future: F) -> F::Output {
    let Ok(output) = tokio::time::timeout(HANG, future).await else { panic!("{what} does not come") };
    output
}

/// The opening request of a dialect: its params, and the result of a right server.
pub(super) fn opening(dialect: &str) -> (Value, Value) {
    use serde_json::json;
    match dialect {
        "mcp" => (
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "habits", "version": "1"}}),
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "habits", "version": "1"}}),
        ),
        "lsp" => {
            (json!({"processId": null, "rootUri": null, "capabilities": {}}), json!({"capabilities": {}}))
        }
        "acp" => (
            json!({"protocolVersion": 1, "clientCapabilities": {}}),
            json!({"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []}),
        ),
        _ => panic!("the habits of {dialect} are not known"),
    }
}
