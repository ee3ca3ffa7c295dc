//! A stream read by hand, and a server of 2024-11-05 that behaves as a test wants.

use std::sync::{Arc, Mutex};

use rescind_core::dialect::{MCP, Role};
use rescind_core::{CallContext, Outcome, Peer, Router, Transport};
use rescind_http::{HttpServer, LegacySse, Streamable};
use rescind_testkit::support::http1::{Response, read_head, read_response, read_until, request};
use rescind_testkit::support::{Serving, in_time};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::streamable::support::{Seen, Served, serve};

pub(super) fn server() -> HttpServer<Streamable> {
    HttpServer::new(Streamable::new()).path("/mcp").legacy_sse(LegacySse::new())
}

/// Serves MCP at `/mcp`, and at `/sse` in the old way.
pub(super) async fn served() -> Served {
    serve(server(), MCP).await
}

/// The URL of the old way.
pub(super) fn sse(served: &Served) -> String {
    served.url.replace("/mcp", "/sse")
}

pub(super) fn address(url: &str) -> &str {
    let rest = url.trim_start_matches("http://");
    rest.split_once('/').map_or(rest, |(address, _)| address)
}

pub(super) fn router() -> Router {
    Router::new().method("answer", |_: CallContext, value: Value| async move { Ok(value) })
}

/// A client before the handshake.
pub(super) async fn attach(transport: impl Transport) -> Peer {
    let builder = Peer::builder(MCP).serve(router()).role(Role::Client);
    in_time("the connection", builder.connect(transport)).await.unwrap()
}

pub(super) async fn shake_hands(peer: &Peer) -> Value {
    let hello = json!({"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    in_time("the handshake", peer.call::<_, Value>("initialize", &hello)).await.unwrap()
}

/// The value of a call that was answered.
pub(super) fn value(outcome: Outcome<Value>) -> Value {
    match outcome {
        Outcome::Completed(value) => value,
        other => panic!("no answer: {other:?}"),
    }
}

/// A client after the handshake.
pub(super) async fn client(transport: impl Transport) -> Peer {
    let peer = attach(transport).await;
    shake_hands(&peer).await;
    peer
}

/// A stream opened by hand, and the path for POSTs that it has named.
pub(super) struct Stream {
    socket: TcpStream,
    address: String,
    pub(super) endpoint: String,
    /// What was read and not looked at yet.
    text: String,
}

impl Stream {
    pub(super) async fn open(url: &str) -> Self {
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
    pub(super) async fn event(&mut self) -> (String, String) {
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
    pub(super) async fn message(&mut self) -> Value {
        let (name, data) = self.event().await;
        assert_eq!(name, "message");
        serde_json::from_str(&data).unwrap()
    }

    /// Waits until the server has ended the stream.
    pub(super) async fn is_ended(&mut self) {
        let mut rest = Vec::new();
        let _ = in_time("the end of the stream", self.socket.read_to_end(&mut rest)).await;
    }

    pub(super) async fn post(&self, message: &Value) -> Response {
        post(&self.address, &self.endpoint, &[], &message.to_string()).await
    }

    /// Posts a message that must be accepted.
    pub(super) async fn send(&self, message: &Value) {
        let response = self.post(message).await;
        assert_eq!((response.status, response.body.as_str()), (202, ""), "{message}");
    }

    /// Sends a request and waits for its answer, which must be the next message.
    pub(super) async fn ask(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.send(&call(id, method, params)).await;
        let answer = self.message().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    pub(super) async fn shake_hands(&mut self) {
        let hello = json!({"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}});
        let answer = self.ask(0, "initialize", &hello).await;
        assert!(answer["result"].is_object(), "{answer}");
    }
}

pub(super) fn call(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

pub(super) fn cancel(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
}

pub(super) async fn post(address: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Response {
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
pub(super) struct Got {
    pub(super) line: String,
    pub(super) body: String,
}

/// What a server of a test answers. `None`: nothing, and the connection stays open.
type Answers = Arc<dyn Fn(&Got) -> Option<String> + Send + Sync>;

/// A server that answers each request as a test wants.
pub(super) struct Fake {
    pub(super) url: String,
    pub(super) got: mpsc::UnboundedReceiver<Got>,
    /// Writes to the newest stream, or ends it if it is `None`.
    pub(super) stream: mpsc::UnboundedSender<Option<String>>,
    _serving: Serving,
}

impl Fake {
    /// The response to a GET is a stream that is kept open if it is one of `stream`.
    pub(super) async fn serve(answers: impl Fn(&Got) -> Option<String> + Send + Sync + 'static) -> Self {
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

    pub(super) async fn next(&mut self) -> Got {
        in_time("a request", self.got.recv()).await.unwrap()
    }

    pub(super) fn message(&self, message: &Value) {
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
pub(super) fn stream_of(text: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{text}")
}

/// The beginning of a stream that names this endpoint.
pub(super) fn endpoint(target: &str) -> String {
    stream_of(&format!(": hello\n\nevent: ping\ndata: 1\n\nevent: endpoint\ndata: {target}\n\n"))
}

pub(super) fn status(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Calls in both directions, and a cancel that reaches its handler.
pub(super) async fn calls_and_cancels(peer: &Peer, served: &mut Served) {
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
