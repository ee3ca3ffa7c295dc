//! The messages of `children.json` that need no framing, from a server behind `rescind bridge`: over WebSocket, over the
//! transport of MCP 2024-11-05, and over ACP's streamable HTTP.

use std::io::{BufReader, Write as _};
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response};
use libtest_mimic::Trial;
use rescind::transport::{Listener as _, TransportEvent};
use rescind::websocket::WebSocketListener;
use rescind_testkit::support::frames;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};

use super::peers::{self, HANG, Program, bytes_of, is_seen, items_for, opening, words};

pub(super) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for entry in peers::entries(peers::CHILDREN) {
        let items = entry["writes"].as_array().unwrap();
        if entry["upstreams"] == false || items.iter().any(|item| item["frame"].is_null()) {
            continue;
        }
        for dialect in words(&entry, "dialects", &["mcp", "acp", "lsp"]) {
            let http = match &*dialect {
                "mcp" => Some("legacy-sse"),
                "acp" => Some("acp"),
                _ => None,
            };
            for over in http.into_iter().chain(["ws"]) {
                // Another text than UTF-8 breaks the framing of a WebSocket.
                if over == "ws"
                    && items.iter().any(|item| std::str::from_utf8(&frame(item, &json!(2))).is_err())
                {
                    continue;
                }
                let (entry, dialect) = (entry.clone(), dialect.clone());
                let name = format!("upstreams::{}::{dialect}_over_{over}", entry["name"].as_str().unwrap());
                trials.push(peers::trial(&name, move || async move { play(&entry, &dialect, over).await }));
            }
        }
    }
    for dialect in ["mcp", "acp", "lsp"] {
        let entry = json!({
            "writes": [{"frame": "Internal Server Error"}, {"frame": r#"{"jsonrpc":"2.0","id":<id>,"result":5}"#}],
            "sees": {"result": 5},
            "stderr": ["output that is not a message was dropped: Internal Server Error"],
        });
        let name = format!("upstreams::text_that_names_no_call::{dialect}_over_ws");
        trials.push(peers::trial(&name, move || async move { play(&entry, dialect, "ws").await }));
    }
    for (dialect, over) in [("mcp", "legacy-sse"), ("acp", "acp")] {
        let entry = json!({
            "writes": [{"frame": r#"{"jsonrpc":"2.0","id":<id>,"resu<half>"#}],
            "sees": {"error": ["it stopped in its middle"]},
        });
        let name = format!("upstreams::half_an_event::{dialect}_over_{over}");
        trials.push(peers::trial(&name, move || async move { play(&entry, dialect, over).await }));
    }
    trials
}

async fn play(entry: &Value, dialect: &str, over: &'static str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Arc::new(Server::new(entry, dialect));
    tokio::spawn(async move {
        if over == "ws" {
            return server.serve_websocket(listener).await;
        }
        while let Ok((stream, _)) = listener.accept().await {
            let server = Arc::clone(&server);
            tokio::spawn(async move {
                match over {
                    "acp" => server.serve_http2(stream).await,
                    _ => server.serve_old_http(stream).await,
                }
            });
        }
    });
    let (entry, dialect) = (entry.clone(), dialect.to_owned());
    let played = tokio::task::spawn_blocking(move || call(&entry, &dialect, over, &address));
    tokio::time::timeout(2 * HANG, played).await.expect("the bridge does not hang").unwrap();
}

/// A client on stdio calls `work`, and then `echo`.
fn call(entry: &Value, dialect: &str, over: &str, address: &str) {
    let is_lsp = dialect == "lsp";
    let mut arguments = vec!["bridge", "--dialect", dialect, "--listen", "stdio"];
    let url = match over {
        "ws" => format!("ws://{address}/habits"),
        binding => {
            arguments.extend(["--to-binding", binding]);
            format!("http://{address}/habits")
        }
    };
    arguments.push(&url);
    let mut bridge = Program::start(&arguments);
    let mut input = bridge.child.stdin.take().unwrap();
    let mut output = BufReader::new(bridge.child.stdout.take().unwrap());
    let mut ask = |id: u64, method: &str, params: Value| -> Value {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        input.write_all(&bytes_of(&json!({"frame": call.to_string()}), is_lsp, &json!(id))).unwrap();
        loop {
            let message = peers::message(&mut output, is_lsp);
            let message = message.unwrap_or_else(|| panic!("the bridge ended before the answer to {method}"));
            if message["id"] == id && message["method"].is_null() {
                return message;
            }
        }
    };
    let opened = ask(1, "initialize", opening(dialect).0);
    assert!(opened["result"].is_object(), "{opened}");
    let answer = ask(2, "work", json!({}));
    assert!(is_seen(&entry["sees"], &answer), "the client sees {answer}, and not {}", entry["sees"]);
    let said = answer["error"]["message"].as_str().unwrap_or_default();
    if said.contains("cannot be passed on") {
        assert!(said.contains(address) && said.ends_with("(request 2)"), "{said}");
    }
    for text in words(entry, "stderr", &[]) {
        let line = bridge.line(&text);
        assert!(line.contains(address), "the line names the server: {line}");
    }
    assert_eq!(ask(3, "echo", json!({}))["result"], json!({"echo": true}), "the next call");
}

/// A message as its bytes.
fn frame(item: &Value, id: &Value) -> Vec<u8> {
    let mut line = bytes_of(item, false, id);
    line.pop();
    line
}

struct Server {
    entry: Value,
    dialect: String,
    /// What the stream of the client carries.
    sender: mpsc::UnboundedSender<Vec<u8>>,
    messages: Mutex<mpsc::UnboundedReceiver<Vec<u8>>>,
}

impl Server {
    fn new(entry: &Value, dialect: &str) -> Self {
        let (sender, messages) = mpsc::unbounded_channel();
        let messages = Mutex::new(messages);
        Self { entry: entry.clone(), dialect: dialect.to_owned(), sender, messages }
    }

    fn replies(&self, message: &Value) -> Vec<Vec<u8>> {
        let items = items_for(&self.entry, &self.dialect, message);
        items.iter().map(|item| frame(item, &message["id"])).collect()
    }

    async fn serve_websocket(&self, listener: TcpListener) {
        let mut listener = WebSocketListener::builder().listen_on(listener.into_std().unwrap()).unwrap();
        let mut link = listener.accept().await.unwrap().unwrap();
        while let Some(Ok(event)) = frames::event(&mut link).await {
            let TransportEvent::Message(inbound) = event else { continue };
            for reply in self.replies(&serde_json::from_slice(&inbound.body).unwrap()) {
                frames::send(&mut link, reply).await.unwrap();
            }
        }
    }

    /// A GET opens the stream. POSTs are answered on it.
    async fn serve_old_http(&self, stream: TcpStream) {
        let mut stream = tokio::io::BufReader::new(stream);
        let Some(request) = peers::read(&mut stream).await else { return };
        if request.http == "POST" {
            for reply in self.replies(&request.message) {
                self.sender.send(reply).unwrap();
            }
            let head = "HTTP/1.1 202 Accepted\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            return;
        }
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(b"event: endpoint\ndata: /messages?sessionId=1\n\n").await.unwrap();
        let mut messages = self.messages.lock().await;
        while let Some(message) = messages.recv().await {
            if stream.write_all(&event(&message)).await.is_err() {
                return;
            }
        }
    }

    /// `initialize` is answered on its POST. Other POSTs are answered on the stream that a GET opens.
    async fn serve_http2(self: &Arc<Self>, stream: TcpStream) {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let server = Arc::clone(self);
            tokio::spawn(async move {
                let is_post = request.method() == Method::POST;
                if request.method() == Method::GET {
                    let head =
                        Response::builder().header("content-type", "text/event-stream").body(()).unwrap();
                    let mut body = respond.send_response(head, false).unwrap();
                    let mut messages = server.messages.lock().await;
                    while let Some(message) = messages.recv().await {
                        if body.send_data(event(&message).into(), false).is_err() {
                            return;
                        }
                    }
                }
                let mut body = request.into_body();
                let mut read = Vec::new();
                while let Some(Ok(data)) = body.data().await {
                    read.extend_from_slice(&data);
                }
                let message: Value = serde_json::from_slice(&read).unwrap_or_default();
                let mut replies = server.replies(&message);
                if is_post && message["method"] == "initialize" {
                    let head = Response::builder()
                        .header("content-type", "application/json")
                        .header("acp-connection-id", "habits");
                    let mut body = respond.send_response(head.body(()).unwrap(), false).unwrap();
                    body.send_data(Bytes::from(replies.remove(0)), true).unwrap();
                    return;
                }
                for reply in replies {
                    server.sender.send(reply).unwrap();
                }
                let head = Response::builder().status(202).body(()).unwrap();
                let _ = respond.send_response(head, true);
            });
        }
    }
}

/// A message as an event, whose end is missing after `<half>`.
fn event(message: &[u8]) -> Vec<u8> {
    if let Some(half) = message.strip_suffix(b"<half>") {
        return [b"data: ", half].concat();
    }
    // The end of an event before it, if that has none.
    let mut event = b"\n\n".to_vec();
    for line in message.split(|byte| *byte == b'\n') {
        event.extend_from_slice(&[b"data: ", line, b"\n"].concat());
    }
    event.push(b'\n');
    event
}
