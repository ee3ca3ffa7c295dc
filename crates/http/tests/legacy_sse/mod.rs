//! The binding `legacy-sse`: our server with HTTP written by hand, our client with servers written by hand, and both
//! together.
//!
//! # What this file holds
//!
//! A stream read by hand, a server of 2024-11-05 that behaves as a test wants, our client with both, and the client of
//! the binding `streamable` with servers that speak only the transport of 2024-11-05.

#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]
#![expect(clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod server;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rescind_core::dialect::{MCP, Role};
use rescind_core::{CallContext, Outcome, Peer, Router, Transport};
use rescind_http::{HttpClient, HttpServer, LegacySse, LegacySseTransport, Streamable, StreamableTransport};
use rescind_testkit::support::http1::{Response, read_head, read_response, read_until, request};
use rescind_testkit::support::{Serving, in_time};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::streamable::{Seen, Served, serve};

fn server() -> HttpServer<Streamable> {
    HttpServer::new(Streamable::new()).path("/mcp").legacy_sse(LegacySse::new())
}

/// Serves MCP at `/mcp`, and at `/sse` in the old way.
async fn served() -> Served {
    serve(server(), MCP).await
}

/// The URL of the old way.
fn sse(served: &Served) -> String {
    served.url.replace("/mcp", "/sse")
}

fn address(url: &str) -> &str {
    let rest = url.trim_start_matches("http://");
    rest.split_once('/').map_or(rest, |(address, _)| address)
}

fn router() -> Router {
    Router::new().method("answer", |_: CallContext, value: Value| async move { Ok(value) })
}

/// A client before the handshake.
async fn attach(transport: impl Transport) -> Peer {
    let builder = Peer::builder(MCP).serve(router()).role(Role::Client);
    in_time("the connection", builder.connect(transport)).await.unwrap()
}

async fn shake_hands(peer: &Peer) -> Value {
    let hello = json!({"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    in_time("the handshake", peer.call::<_, Value>("initialize", &hello)).await.unwrap()
}

/// The value of a call that was answered.
fn value(outcome: Outcome<Value>) -> Value {
    match outcome {
        Outcome::Completed(value) => value,
        other => panic!("no answer: {other:?}"),
    }
}

/// A client after the handshake.
async fn client(transport: impl Transport) -> Peer {
    let peer = attach(transport).await;
    shake_hands(&peer).await;
    peer
}

/// A stream opened by hand, and the path for POSTs that it has named.
struct Stream {
    socket: TcpStream,
    address: String,
    endpoint: String,
    /// What was read and not looked at yet.
    text: String,
}

impl Stream {
    async fn open(url: &str) -> Self {
        let address = address(url).to_owned();
        let mut socket = TcpStream::connect(&address).await.unwrap();
        let get = request("GET", "/sse", &address, &[("Accept", "text/event-stream")], "");
        socket.write_all(get.as_bytes()).await.unwrap();
        let head = read_head(&mut socket).await.to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        let mut stream = Self { socket, address, endpoint: String::new(), text: String::new() };
        let (name, endpoint) = stream.event().await;
        assert_eq!(name, "endpoint");
        stream.endpoint = endpoint;
        stream
    }

    /// The next event: its name and its data.
    async fn event(&mut self) -> (String, String) {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let event: String = self.text.drain(..end + 2).collect();
                let field = |name: &str| {
                    let line = event.lines().find_map(|line| line.strip_prefix(name));
                    line.map(|value| value.trim_start().to_owned())
                };
                // Comments and the frames of the chunked body are skipped.
                let Some(data) = field("data:") else { continue };
                return (field("event:").unwrap_or_default(), data);
            }
            let more = read_until(&mut self.socket, "\n").await;
            self.text.push_str(&more);
        }
    }

    /// The next message.
    async fn message(&mut self) -> Value {
        let (name, data) = self.event().await;
        assert_eq!(name, "message");
        serde_json::from_str(&data).unwrap()
    }

    /// Waits until the server has ended the stream.
    async fn is_ended(&mut self) {
        let mut rest = Vec::new();
        let _ = in_time("the end of the stream", self.socket.read_to_end(&mut rest)).await;
    }

    async fn post(&self, message: &Value) -> Response {
        post(&self.address, &self.endpoint, &[], &message.to_string()).await
    }

    /// Posts a message that must be accepted.
    async fn send(&self, message: &Value) {
        let response = self.post(message).await;
        assert_eq!((response.status, response.body.as_str()), (202, ""), "{message}");
    }

    /// Sends a request and waits for its answer, which must be the next message.
    async fn ask(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.send(&call(id, method, params)).await;
        let answer = self.message().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    async fn shake_hands(&mut self) {
        let hello = json!({"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}});
        let answer = self.ask(0, "initialize", &hello).await;
        assert!(answer["result"].is_object(), "{answer}");
    }
}

fn call(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn cancel(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
}

async fn post(address: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Response {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let usual = [("Content-Type", "application/json"), ("Connection", "close")];
    let usual = usual.iter().filter(|(name, _)| headers.iter().all(|(other, _)| other != name));
    let headers: Vec<_> = usual.chain(headers).copied().collect();
    let post = request("POST", target, address, &headers, body);
    socket.write_all(post.as_bytes()).await.unwrap();
    read_response(&mut socket).await
}

/// A request that the server of a test got: its request line and its body.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Got {
    line: String,
    body: String,
}

/// What a server of a test answers. `None`: nothing, and the connection stays open.
type Answers = Arc<dyn Fn(&Got) -> Option<String> + Send + Sync>;

/// A server that answers each request as a test wants.
struct Fake {
    url: String,
    got: mpsc::UnboundedReceiver<Got>,
    /// Writes to the newest stream, or ends it if it is `None`.
    stream: mpsc::UnboundedSender<Option<String>>,
    _serving: Serving,
}

impl Fake {
    /// The response to a GET is a stream that is kept open if it is one of `stream`.
    async fn serve(answers: impl Fn(&Got) -> Option<String> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/sse", listener.local_addr().unwrap());
        let (tell, got) = mpsc::unbounded_channel();
        let (stream, mut written) = mpsc::unbounded_channel::<Option<String>>();
        let answers: Answers = Arc::new(answers);
        let newest: Arc<Mutex<Option<mpsc::UnboundedSender<Option<String>>>>> = Arc::default();
        let writes_to = Arc::clone(&newest);
        let serving = Serving::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let (socket, _) = accepted.unwrap();
                        connections.spawn(serve_one(socket, Arc::clone(&answers), tell.clone(), Arc::clone(&newest)));
                    }
                    Some(text) = written.recv() => {
                        if let Some(stream) = &*writes_to.lock().unwrap() {
                            let _ = stream.send(text);
                        }
                    }
                }
            }
        });
        Self { url, got, stream, _serving: serving }
    }

    async fn next(&mut self) -> Got {
        in_time("a request", self.got.recv()).await.unwrap()
    }

    fn message(&self, message: &Value) {
        self.stream.send(Some(format!("event: message\r\ndata: {message}\r\n\r\n"))).unwrap();
    }
}

async fn serve_one(
    mut socket: TcpStream,
    answers: Answers,
    tell: mpsc::UnboundedSender<Got>,
    newest: Arc<Mutex<Option<mpsc::UnboundedSender<Option<String>>>>>,
) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = socket.read_u8().await else { return };
            head.push(byte);
        }
        let head = String::from_utf8(head).unwrap();
        let length = head.to_ascii_lowercase();
        let length = length.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        if socket.read_exact(&mut body).await.is_err() {
            return;
        }
        let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
        let got = Got { line, body: String::from_utf8(body).unwrap() };
        let answer = answers(&got);
        let _ = tell.send(got);
        let Some(answer) = answer else {
            let _ = socket.read_u8().await;
            return;
        };
        let is_stream = answer.contains("text/event-stream");
        let (sender, mut texts) = mpsc::unbounded_channel();
        if is_stream {
            *newest.lock().unwrap() = Some(sender);
        }
        if socket.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        if is_stream {
            while let Some(Some(text)) = texts.recv().await {
                if socket.write_all(text.as_bytes()).await.is_err() {
                    return;
                }
            }
            return;
        }
    }
}

/// The head of a stream and its first bytes.
fn stream_of(text: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{text}")
}

/// The beginning of a stream that names this endpoint.
fn endpoint(target: &str) -> String {
    stream_of(&format!(": hello\n\nevent: ping\ndata: 1\n\nevent: endpoint\ndata: {target}\n\n"))
}

fn status(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Calls in both directions, and a cancel that reaches its handler.
async fn calls_and_cancels(peer: &Peer, served: &mut Served) {
    assert_eq!(peer.call::<_, Value>("echo", &json!({"a": 1})).await.unwrap(), json!({"a": 1}));
    assert_eq!(peer.call::<_, Value>("ask", &json!({"b": 2})).await.unwrap(), json!({"b": 2}));
    let call = peer.call::<_, Value>("wait", &json!({"w": "long"})).start().unwrap();
    let seen = in_time("the start", served.seen.recv()).await.unwrap();
    assert_eq!(seen, Seen::Started(json!({"w": "long"}).to_string()));
    call.canceller().cancel("enough");
    let seen = in_time("the cancel", served.seen.recv()).await.unwrap();
    assert_eq!(seen, Seen::Cancelled(json!({"w": "long"}).to_string()));
    assert!(in_time("the outcome", call.outcome()).await.is_cancelled());
}

fn transport(url: &str) -> LegacySseTransport {
    LegacySseTransport::new(HttpClient::new(url).unwrap())
}

#[tokio::test]
async fn calls_and_cancels_work_in_both_directions() {
    let mut served = served().await;
    let peer = client(transport(&sse(&served))).await;
    calls_and_cancels(&peer, &mut served).await;
    // A cancel that follows its request at once does not overtake it.
    for n in 0..20 {
        let call = peer.call::<_, Value>("wait", &json!({"w": n})).start().unwrap();
        call.canceller().cancel("at once");
        assert!(in_time("the outcome", call.outcome()).await.is_cancelled());
    }
    assert_eq!(peer.call::<_, Value>("echo", &json!({"c": 3})).await.unwrap(), json!({"c": 3}));
    let running = || served.running.load(std::sync::atomic::Ordering::SeqCst) == 0;
    rescind_testkit::support::until(Duration::from_secs(30), "the end of all", running).await;
    // The end of the client ends the session.
    let other = in_time("the peer", served.peers.recv()).await.unwrap();
    in_time("the end of the client", peer.shutdown(Duration::from_secs(5))).await;
    in_time("the end of the link", other.closed()).await.unwrap();
}

#[tokio::test]
async fn many_calls_at_once_are_answered() {
    let served = served().await;
    let peer = client(transport(&sse(&served))).await;
    let calls = (0..200).map(|n| {
        let peer = peer.clone();
        async move { peer.call::<_, Value>("echo", &json!({"n": n})).await.unwrap() }
    });
    for (n, answer) in in_time("the answers", futures_util::future::join_all(calls)).await.iter().enumerate()
    {
        assert_eq!(answer["n"], n);
    }
}

/// Why a stream was not opened.
async fn refused(url: &str) -> String {
    let client = HttpClient::new(url).unwrap().connect_timeout(Duration::from_millis(500));
    let opened = in_time("the refusal", Box::new(LegacySseTransport::new(client)).open()).await;
    opened.err().unwrap().source.to_string()
}

#[tokio::test]
async fn an_endpoint_of_another_origin_is_refused() {
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = format!("http://{}/messages", other.local_addr().unwrap());
    for (target, reason) in [
        (elsewhere.as_str(), "another origin"),
        ("file:///etc/passwd", "its scheme is neither http nor https"),
        ("//evil.example/messages", "another origin"),
    ] {
        let answer = endpoint(target);
        let mut fake = Fake::serve(move |_| Some(answer.clone())).await;
        let why = refused(&fake.url).await;
        assert!(why.contains(reason) && why.contains(target), "{target}: {why}");
        assert_eq!(fake.next().await.line, "GET /sse");
        assert!(fake.got.try_recv().is_err(), "nothing is posted");
    }
    let connected = tokio::time::timeout(Duration::from_millis(1), other.accept()).await;
    assert!(connected.is_err(), "the other origin gets no connection");
}

#[tokio::test]
async fn a_stream_without_an_endpoint_is_refused_with_the_reason() {
    let long = format!("event: endpoint\ndata: /{}\n\n", "x".repeat(10_000));
    let not_found = format!("{}{}", "no such page ".repeat(5), "<b>".repeat(1000));
    for (answer, wanted) in [
        (stream_of("data: {}\n\n"), "begins with a message"),
        (stream_of("event: hello\ndata: x\n\n"), "within 500ms"),
        (stream_of(&long), "too long"),
        (stream_of(": nothing else\n\n"), "within 500ms"),
        (status("404 Not Found", &not_found), "404 Not Found and text/plain: no such page"),
        (status("200 OK", "hello"), "200 OK and text/plain: hello; an event stream was expected"),
    ] {
        let fake = Fake::serve(move |_| Some(answer.clone())).await;
        let why = refused(&fake.url).await;
        assert!(why.contains(wanted), "{wanted}: {why}");
        assert!(why.len() < 500, "only the beginning is shown: {why}");
    }
    let silent = Fake::serve(|_| None).await;
    let why = refused(&silent.url).await;
    assert!(why.contains("within 500ms"), "{why}");
}

/// A server whose stream names `/messages`, and whose POSTs are answered like this.
async fn posts(answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Fake {
    Fake::serve(move |got| {
        if got.line.starts_with("GET") { Some(endpoint("/messages?sessionId=7")) } else { answer(&got.body) }
    })
    .await
}

#[tokio::test]
async fn a_post_that_is_refused_ends_its_call_with_the_reason() {
    let page = "x".repeat(1000);
    let fake = posts(move |_| Some(status("500 Internal Server Error", &page))).await;
    let (tell, mut failures) = mpsc::unbounded_channel();
    let builder = Peer::builder(MCP).role(Role::Client).on_call_failure(move |error| {
        let _ = tell.send(error.source.to_string());
    });
    let peer = builder.connect(transport(&fake.url)).await.unwrap();
    let outcome =
        in_time("the end", peer.call::<_, Value>("initialize", &json!({})).start().unwrap().outcome()).await;
    assert!(matches!(outcome, Outcome::Disconnected { .. }), "{outcome:?}");
    let why = in_time("the reason", failures.recv()).await.unwrap();
    let address = fake.url.replace("/sse", "/messages");
    assert_eq!(
        why,
        format!(
            "POST {address} was answered with 500 Internal Server Error and text/plain: {}",
            "x".repeat(200)
        )
    );
    assert!(!peer.is_closed(), "the next call may succeed");
}

#[tokio::test]
async fn a_post_that_is_answered_with_a_page_ends_its_call_with_the_page() {
    let fake = posts(move |_| Some(status("200 OK", "<html>Sign in</html>"))).await;
    let (tell, mut failures) = mpsc::unbounded_channel();
    let builder = Peer::builder(MCP).role(Role::Client).on_call_failure(move |error| {
        let _ = tell.send(error.source.to_string());
    });
    let peer = builder.connect(transport(&fake.url)).await.unwrap();
    let outcome =
        in_time("the end", peer.call::<_, Value>("initialize", &json!({})).start().unwrap().outcome()).await;
    assert!(matches!(outcome, Outcome::Disconnected { .. }), "{outcome:?}");
    let why = in_time("the reason", failures.recv()).await.unwrap();
    assert!(why.contains("was answered with 200 OK") && why.contains("Sign in"), "{why}");
}

#[tokio::test]
async fn an_answer_in_the_response_to_a_post_is_taken_and_other_bodies_are_not_messages() {
    let fake = posts(|body| {
        let message: Value = serde_json::from_str(body).unwrap();
        let id = &message["id"];
        let (status, body) = match message["method"].as_str() {
            Some("initialize") => ("200 OK", json!({"jsonrpc": "2.0", "id": id, "result": {}})),
            Some("refused") => (
                "400 Bad Request",
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": 7, "message": "no"}}),
            ),
            _ => ("202 Accepted", json!({"accepted": true})),
        };
        let body = body.to_string();
        let length = body.len();
        Some(format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
    })
    .await;
    let peer = attach(transport(&fake.url)).await;
    shake_hands(&peer).await;
    let outcome =
        in_time("the refusal", peer.call::<_, Value>("refused", &json!({})).start().unwrap().outcome()).await;
    assert!(matches!(&outcome, Outcome::Failed(error) if error.code.0 == 7), "{outcome:?}");
    let call = peer.call::<_, Value>("later", &json!({})).start().unwrap();
    let mut fake = fake;
    let id = loop {
        let got = fake.next().await;
        if got.body.contains("later") {
            break serde_json::from_str::<Value>(&got.body).unwrap()["id"].clone();
        }
    };
    fake.message(&json!({"jsonrpc": "2.0", "id": id, "result": {"on": "the stream"}}));
    let outcome = in_time("the answer", call.outcome()).await;
    assert_eq!(value(outcome)["on"], "the stream");
}

#[tokio::test]
async fn the_end_of_the_stream_ends_the_connection_and_every_call() {
    let mut fake = posts(|_| Some(status("202 Accepted", "Accepted"))).await;
    let peer = attach(transport(&fake.url)).await;
    let call = peer.call::<_, Value>("initialize", &json!({})).start().unwrap();
    assert_eq!(fake.next().await.line, "GET /sse");
    assert_eq!(fake.next().await.line, "POST /messages?sessionId=7");
    fake.stream.send(None).unwrap();
    let outcome = in_time("the end", call.outcome()).await;
    assert!(matches!(outcome, Outcome::Disconnected { .. }), "{outcome:?}");
    let ended = in_time("the end of the link", peer.closed()).await;
    let why = ended.unwrap_err().to_string();
    assert!(why.contains(&fake.url) && why.contains("ended its event stream"), "{why}");
}

#[tokio::test]
async fn an_error_without_an_id_on_the_stream_ends_the_only_open_call() {
    let mut fake = posts(|_| Some(status("202 Accepted", ""))).await;
    let peer = attach(transport(&fake.url)).await;
    let call = peer.call::<_, Value>("initialize", &json!({})).start().unwrap();
    fake.next().await;
    fake.next().await;
    fake.message(&json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32603, "message": "it failed"}}));
    match in_time("the error", call.outcome()).await {
        Outcome::Failed(error) => assert_eq!((error.code.0, &*error.message), (-32603, "it failed")),
        other => panic!("{other:?}"),
    }
}

/// Some servers answer a POST only when its request is done.
#[tokio::test]
async fn a_cancel_waits_for_no_other_post_and_only_briefly_for_its_own() {
    let mut fake = posts(|body| (!body.contains("slow")).then(|| status("202 Accepted", ""))).await;
    let transport = transport(&fake.url).cancel_after(Duration::from_millis(20));
    let peer = attach(transport).await;
    assert_eq!(fake.next().await.line, "GET /sse");
    let first = peer.call::<_, Value>("initialize", &json!({})).start().unwrap();
    let hello: Value = serde_json::from_str(&fake.next().await.body).unwrap();
    fake.message(&json!({"jsonrpc": "2.0", "id": hello["id"], "result": {}}));
    value(in_time("the handshake", first.outcome()).await);
    let calls: Vec<_> =
        (0..3).map(|n| peer.call::<_, Value>("slow", &json!({"n": n})).start().unwrap()).collect();
    let mut ids = Vec::new();
    while ids.len() < calls.len() {
        let body: Value = serde_json::from_str(&fake.next().await.body).unwrap();
        if body["method"] == "slow" {
            ids.push((body["params"]["n"].clone(), body["id"].clone()));
        }
    }
    calls[1].canceller().cancel("enough");
    let cancel: Value = serde_json::from_str(&fake.next().await.body).unwrap();
    assert_eq!(cancel["method"], "notifications/cancelled", "no POST before it was answered");
    let id = ids.iter().find(|(n, _)| n == 1).map(|(_, id)| id);
    assert_eq!(Some(&cancel["params"]["requestId"]), id);
}

#[tokio::test]
async fn events_of_other_names_are_messages_if_they_have_one() {
    let mut fake = posts(|_| Some(status("202 Accepted", ""))).await;
    let peer = attach(transport(&fake.url)).await;
    let call = peer.call::<_, Value>("initialize", &json!({})).start().unwrap();
    fake.next().await;
    let id = serde_json::from_str::<Value>(&fake.next().await.body).unwrap()["id"].clone();
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"of": "the message"}});
    for text in [
        ": comment\n\n".to_owned(),
        "event: ping\ndata: 1\n\n".to_owned(),
        format!("event: log\ndata: {}\n\n", json!({"id": id, "method": "GET"})),
        format!("event: endpoint\ndata: {}\n\n", json!({"jsonrpc": "2.0", "id": id, "result": {}})),
        "event: endpoint\ndata: http://evil.example/\n\n".to_owned(),
        format!("id: 4\nevent: other\ndata: {answer}\n\n"),
    ] {
        fake.stream.send(Some(text)).unwrap();
    }
    let outcome = in_time("the answer", call.outcome()).await;
    assert_eq!(value(outcome)["of"], "the message");
    let _later = peer.call::<_, Value>("tools/list", &json!({})).start().unwrap();
    assert_eq!(
        fake.next().await.line,
        "POST /messages?sessionId=7",
        "the endpoint is that of the first event"
    );
}

fn falling_back(url: &str) -> StreamableTransport {
    StreamableTransport::new(HttpClient::new(url).unwrap())
}

#[tokio::test]
async fn a_server_of_2024_is_found_and_spoken_to() {
    let mut served = served().await;
    for transport in [falling_back(&sse(&served)), falling_back(&sse(&served)).in_order()] {
        let peer = client(transport).await;
        calls_and_cancels(&peer, &mut served).await;
    }
}

#[tokio::test]
async fn each_status_that_mcp_names_leads_to_the_old_transport() {
    for refusal in ["400 Bad Request", "404 Not Found", "405 Method Not Allowed"] {
        let mut fake = Fake::serve(move |got| {
            Some(match got.line.as_str() {
                "GET /sse" => endpoint("messages/?session_id=7"),
                "POST /messages/?session_id=7" => status("202 Accepted", "Accepted"),
                _ => status(refusal, "Cannot POST /sse"),
            })
        })
        .await;
        let peer = attach(falling_back(&fake.url)).await;
        let call = peer.call::<_, Value>("initialize", &json!({"n": 1})).start().unwrap();
        let lines = [fake.next().await, fake.next().await, fake.next().await];
        let names: Vec<_> = lines.iter().map(|got| got.line.as_str()).collect();
        assert_eq!(names, ["POST /sse", "GET /sse", "POST /messages/?session_id=7"], "{refusal}");
        assert_eq!(lines[0].body, lines[2].body, "the same request");
        let id = serde_json::from_str::<Value>(&lines[2].body).unwrap()["id"].clone();
        fake.message(&json!({"jsonrpc": "2.0", "id": id, "result": {"ok": true}}));
        let outcome = in_time("the answer", call.outcome()).await;
        assert_eq!(value(outcome)["ok"], true);
        let again = peer.call::<_, Value>("tools/list", &json!({})).start().unwrap();
        assert_eq!(fake.next().await.line, "POST /messages/?session_id=7", "it is not tried twice");
        drop(again);
    }
}

/// Why the first call failed, and the requests that the server got.
async fn failure(transport: StreamableTransport, fake: &mut Fake) -> (String, Vec<String>) {
    let (tell, mut failures) = mpsc::unbounded_channel();
    let builder = Peer::builder(MCP).role(Role::Client).on_call_failure(move |error| {
        let _ = tell.send(error.source.to_string());
    });
    let peer = builder.connect(transport).await.unwrap();
    let outcome =
        in_time("the end", peer.call::<_, Value>("initialize", &json!({})).start().unwrap().outcome()).await;
    assert!(matches!(outcome, Outcome::Disconnected { .. }), "{outcome:?}");
    let why = in_time("the reason", failures.recv()).await.unwrap();
    let mut lines = Vec::new();
    while let Ok(got) = fake.got.try_recv() {
        lines.push(got.line);
    }
    (why, lines)
}

#[tokio::test]
async fn a_server_that_speaks_neither_transport_fails_the_call_with_its_first_refusal() {
    for (get, second) in [
        (Some(status("404 Not Found", "")), "404 Not Found"),
        (Some(status("200 OK", "hello")), "an event stream was expected"),
        (Some(stream_of("data: {}\n\n")), "begins with a message"),
        (Some(endpoint("http://evil.example/messages")), "another origin"),
        // The stream never names an endpoint, or the GET is never answered.
        (Some(stream_of(": waiting\n\nevent: ping\ndata: 1\n\n")), "no event `endpoint` within 2s"),
        (None, "no event `endpoint` within 2s"),
    ] {
        let mut fake = Fake::serve(move |got| {
            if got.line == "GET /sse" { get.clone() } else { Some(status("405 Method Not Allowed", "")) }
        })
        .await;
        let (why, lines) = failure(falling_back(&fake.url), &mut fake).await;
        assert!(why.contains("405"), "{why}");
        assert!(why.contains("with the transport of MCP 2024-11-05: ") && why.contains(second), "{why}");
        assert_eq!(lines, ["POST /sse", "GET /sse"]);
    }
}

#[tokio::test]
async fn other_refusals_and_a_client_without_the_fallback_open_no_stream() {
    for (refusal, falls_back) in
        [("401 Unauthorized", true), ("500 Internal Server Error", true), ("405 Method Not Allowed", false)]
    {
        let mut fake = Fake::serve(move |_| Some(status(refusal, ""))).await;
        let transport = falling_back(&fake.url).cancel_after(Duration::from_millis(20));
        let transport = if falls_back { transport } else { transport.no_fallback() };
        let (_, lines) = failure(transport, &mut fake).await;
        assert_eq!(lines, ["POST /sse"], "{refusal}");
    }
}
