//! HTTP/1.1 written by hand, byte by byte.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::streamable::support::in_time;

pub(crate) const BOTH: &str = "application/json, text/event-stream";

/// One connection.
pub(crate) struct Raw {
    stream: BufReader<TcpStream>,
    host: String,
}

/// A response's head.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// A request that a test can change.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) method: &'static str,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Ask {
    pub(crate) fn post(body: impl Into<String>) -> Self {
        let ask = Self { method: "POST", headers: Vec::new(), body: body.into() };
        ask.with("Content-Type", "application/json").with("Accept", BOTH)
    }

    pub(crate) fn get() -> Self {
        Self { method: "GET", headers: Vec::new(), body: String::new() }.with("Accept", "text/event-stream")
    }

    pub(crate) fn delete() -> Self {
        Self { method: "DELETE", headers: Vec::new(), body: String::new() }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    pub(crate) fn of(self, session: &str) -> Self {
        self.with("Mcp-Session-Id", session)
    }

    pub(crate) fn bytes(&self, host: &str) -> Vec<u8> {
        let mut text = format!("{} / HTTP/1.1\r\n", self.method);
        let has = |name: &str| self.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
        if !has("Host") {
            let _ = write!(text, "Host: {host}\r\n");
        }
        if self.method == "POST" && !has("Content-Length") && !has("Transfer-Encoding") && !has("No-Length") {
            let _ = write!(text, "Content-Length: {}\r\n", self.body.len());
        }
        for (name, value) in &self.headers {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        format!("{text}\r\n{}", self.body).into_bytes()
    }
}

impl Raw {
    pub(crate) async fn connect(url: &str) -> Self {
        Self::connect_from(url, "127.0.0.1").await
    }

    /// Connects from this address of the machine.
    pub(crate) async fn connect_from(url: &str, from: &str) -> Self {
        let host = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        let stream = socket.connect(host.parse().unwrap()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream), host }
    }

    pub(crate) async fn send(&mut self, ask: &Ask) {
        let bytes = ask.bytes(&self.host);
        self.write(&bytes).await;
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).await.unwrap();
    }

    pub(crate) async fn end(&mut self) {
        self.stream.get_mut().shutdown().await.unwrap();
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        in_time("a line", self.stream.read_line(&mut line)).await.unwrap();
        assert!(line.ends_with('\n'), "the connection ended inside a line: {line:?}");
        line.trim_end().to_owned()
    }

    pub(crate) async fn head(&mut self) -> Head {
        let line = self.line().await;
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = HashMap::new();
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.split_once(": ") else { return Head { status, headers } };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
    }

    /// The whole body after a head. On a busy machine the answer may be a stream.
    pub(crate) async fn body(&mut self, head: &Head) -> String {
        if head.header("transfer-encoding") == "chunked" {
            let mut body = String::new();
            while let Some(chunk) = self.chunk().await {
                body.push_str(&chunk);
            }
            return body;
        }
        let length = head.header("content-length").parse().unwrap_or(0);
        let mut body = vec![0; length];
        in_time("a body", self.stream.read_exact(&mut body)).await.unwrap();
        String::from_utf8(body).unwrap()
    }

    /// Sends a request and reads its whole response, which must not be a stream without an end.
    pub(crate) async fn ask(&mut self, ask: &Ask) -> (Head, String) {
        self.send(ask).await;
        let head = self.head().await;
        let body = self.body(&head).await;
        (head, body)
    }

    /// The next piece of a chunked body; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Option<String> {
        let size = self.line().await;
        let size = usize::from_str_radix(&size, 16).unwrap();
        let mut chunk = vec![0; size + 2];
        in_time("a chunk", self.stream.read_exact(&mut chunk)).await.unwrap();
        chunk.truncate(size);
        (size > 0).then(|| String::from_utf8(chunk).unwrap())
    }

    /// The next event of a stream: its id and its data. Comments are skipped.
    pub(crate) async fn event(&mut self) -> Option<(String, String)> {
        loop {
            // A large event comes in several pieces.
            let mut chunk = self.chunk().await?;
            while !chunk.ends_with("\n\n") {
                chunk.push_str(&self.chunk().await?);
            }
            let field = |name: &str| {
                let line = chunk.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap_or_default().trim_start().to_owned()
            };
            if !chunk.starts_with(':') {
                return Some((field("id:"), field("data:")));
            }
        }
    }

    /// The single message of a response, in JSON or as the first of a stream, which is read to its end.
    pub(crate) async fn answer(&mut self) -> Value {
        let head = self.head().await;
        assert_eq!(head.status, 200);
        let text = if head.header("content-type") == "application/json" {
            self.body(&head).await
        } else {
            let (_, text) = self.event().await.expect("a message");
            assert_eq!(self.event().await, None);
            text
        };
        serde_json::from_str(&text).unwrap()
    }

    /// Waits until the server has closed the connection.
    pub(crate) async fn is_closed(&mut self) {
        let mut rest = Vec::new();
        let _ = in_time("the end of the connection", self.stream.read_to_end(&mut rest)).await;
    }
}

pub(crate) fn initialize() -> Ask {
    initialize_in("2025-11-25")
}

pub(crate) fn initialize_in(revision: &str) -> Ask {
    let client = serde_json::json!({"name": "raw", "version": "1"});
    request(
        0,
        "initialize",
        &serde_json::json!({"protocolVersion": revision, "capabilities": {}, "clientInfo": client}),
    )
}

pub(crate) fn request(id: u64, method: &str, params: &Value) -> Ask {
    let message = serde_json::json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    Ask::post(message.to_string())
}

pub(crate) fn cancel(id: u64) -> Ask {
    let params = serde_json::json!({"requestId": id});
    let message =
        serde_json::json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
    Ask::post(message.to_string())
}

/// Opens a session and returns its id.
pub(crate) async fn open(url: &str) -> (Raw, String) {
    open_in(url, "2025-11-25").await
}

/// The same in this revision.
pub(crate) async fn open_in(url: &str, revision: &str) -> (Raw, String) {
    let mut raw = Raw::connect(url).await;
    let (head, body) = raw.ask(&initialize_in(revision)).await;
    assert_eq!(head.status, 200, "{body}");
    let session = head.header("mcp-session-id").to_owned();
    assert_eq!(session.len(), 32, "128 bits in hexadecimal");
    (raw, session)
}
