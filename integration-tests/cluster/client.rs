//! A client of HTTP/1.1 that chooses the replica of each of its requests.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use rescind_testkit::support::http1::request;
use rescind_testkit::support::in_time;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// A response whose body is read as it comes.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// In lower case.
    head: String,
    body: Body,
}

/// An event of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    /// `Null`: it has no message.
    pub(crate) message: Value,
}

#[derive(Debug)]
struct Body {
    stream: BufReader<TcpStream>,
    length: Length,
    text: Vec<u8>,
}

/// How the end of a body is known.
#[derive(Debug)]
enum Length {
    Bytes(u64),
    Chunks,
    Over,
}

/// Sends a request on a connection of its own and waits for the head of its response.
pub(crate) async fn send(
    to: SocketAddr,
    method: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<Response> {
    let headers = [&[("Connection", "close")], headers].concat();
    exchange(connect(to).await?, to, method, &headers, body).await
}

/// A connection for several requests.
pub(crate) async fn connect(to: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

/// Makes a request on an open connection, and returns the body of its response.
pub(crate) async fn ask_on(
    stream: &mut Option<BufReader<TcpStream>>,
    to: SocketAddr,
    headers: &[(&str, &str)],
    body: &str,
) -> Vec<u8> {
    let response = exchange(stream.take().unwrap(), to, "POST", headers, body).await.unwrap();
    assert_eq!(response.status, 200);
    let (text, open) = response.whole().await.unwrap();
    *stream = Some(open);
    text
}

/// Sends a request on this connection and waits for the head of its response.
async fn exchange(
    mut stream: BufReader<TcpStream>,
    to: SocketAddr,
    method: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<Response> {
    let mut all = vec![("Accept", "application/json, text/event-stream")];
    if !body.is_empty() {
        all.push(("Content-Type", "application/json"));
    }
    all.extend_from_slice(headers);
    let text = request(method, "/rpc", &to.to_string(), &all, body);
    stream.get_mut().write_all(text.as_bytes()).await?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let head = head.to_ascii_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no response: {head}")))?;
    let mut response =
        Response { status, head, body: Body { stream, length: Length::Over, text: Vec::new() } };
    response.body.length = match response.header("content-length").map(str::parse) {
        Some(Ok(length)) => Length::Bytes(length),
        _ if response.header("transfer-encoding").is_some() => Length::Chunks,
        _ => Length::Over,
    };
    Ok(response)
}

impl Response {
    /// A header, its value in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(known, _)| *known == name).map(|(_, value)| value.trim())
    }

    /// Reads the body to its end.
    pub(crate) async fn text(mut self) -> io::Result<String> {
        while self.body.more().await? {}
        Ok(String::from_utf8_lossy(&self.body.text).into_owned())
    }

    /// Reads the body to its end, and returns it with the connection.
    async fn whole(mut self) -> io::Result<(Vec<u8>, BufReader<TcpStream>)> {
        while self.body.more().await? {}
        Ok((self.body.text, self.body.stream))
    }

    /// The next event with a message or an id. `None`: the stream has ended.
    pub(crate) async fn event(&mut self) -> io::Result<Option<Event>> {
        loop {
            while let Some(end) = self.body.text.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.body.text.drain(..end + 2).collect();
                let event = Event::read(&String::from_utf8_lossy(&event));
                if event.id.is_some() || !event.message.is_null() {
                    return Ok(Some(event));
                }
            }
            if !self.body.more().await? {
                return Ok(None);
            }
        }
    }

    /// The message that answers a request: the body, or an event in it. `None`: the body ended without one.
    pub(crate) async fn answer(mut self, id: u64) -> io::Result<Option<Value>> {
        if self.header("content-type").is_some_and(|kind| kind.starts_with("application/json")) {
            return Ok(serde_json::from_str(&self.text().await?).ok());
        }
        self.answer_of(id).await
    }

    /// The next message of an event stream that answers this request.
    pub(crate) async fn answer_of(&mut self, id: u64) -> io::Result<Option<Value>> {
        while let Some(event) = self.event().await? {
            if event.message["id"] == id && event.message.get("method").is_none() {
                return Ok(Some(event.message));
            }
        }
        Ok(None)
    }
}

impl Event {
    fn read(text: &str) -> Self {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let message = field("data:").and_then(|data| serde_json::from_str(data).ok());
        Self { id: field("id:").map(str::to_owned), message: message.unwrap_or_default() }
    }
}

impl Body {
    /// Reads some more. `false`: it has ended.
    async fn more(&mut self) -> io::Result<bool> {
        let mut part = match self.length {
            Length::Over => return Ok(false),
            Length::Bytes(0) => {
                self.length = Length::Over;
                return Ok(false);
            }
            Length::Bytes(left) => {
                self.length = Length::Over;
                vec![0; usize::try_from(left).map_err(io::Error::other)?]
            }
            Length::Chunks => {
                let mut size = String::new();
                if self.stream.read_line(&mut size).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
                if size == 0 {
                    self.length = Length::Over;
                    return Ok(false);
                }
                vec![0; size + 2]
            }
        };
        self.stream.read_exact(&mut part).await?;
        if matches!(self.length, Length::Chunks) {
            part.truncate(part.len() - 2);
        }
        self.text.append(&mut part);
        Ok(true)
    }
}

/// How a session is bound to HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    /// MCP with sessions.
    Streamable,
    Acp,
    /// MCP 2026-07-28, which has no sessions.
    Stateless,
}

impl Binding {
    pub(crate) const fn dialect(self) -> &'static str {
        match self {
            Self::Streamable => "mcp",
            Self::Acp => "acp",
            Self::Stateless => "mcp-2026",
        }
    }

    const fn session_header(self) -> &'static str {
        match self {
            Self::Streamable | Self::Stateless => "mcp-session-id",
            Self::Acp => "acp-connection-id",
        }
    }

    fn hello(self) -> Value {
        match self {
            Self::Streamable | Self::Stateless => json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": { "name": "cluster", "version": "1" },
            }),
            Self::Acp => json!({ "protocolVersion": 1, "clientCapabilities": {} }),
        }
    }

    const fn cancel(self) -> &'static str {
        match self {
            Self::Streamable | Self::Stateless => "notifications/cancelled",
            Self::Acp => "$/cancel_request",
        }
    }
}

/// A session, which any replica serves.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) binding: Binding,
    pub(crate) id: String,
    token: Option<String>,
}

impl Session {
    /// Opens a session at this replica.
    pub(crate) async fn open(at: SocketAddr, binding: Binding) -> Self {
        Self::open_as(at, binding, None).await
    }

    /// Opens a session with a bearer token.
    pub(crate) async fn open_as(at: SocketAddr, binding: Binding, token: Option<&str>) -> Self {
        in_time("a session", Self::try_open(at, binding, token)).await.unwrap()
    }

    pub(crate) async fn try_open(at: SocketAddr, binding: Binding, token: Option<&str>) -> io::Result<Self> {
        let mut session = Self { binding, id: String::new(), token: token.map(str::to_owned) };
        let hello = message(Some(0), "initialize", &binding.hello());
        let response = session.post(at, &hello).await?;
        if response.status != 200 {
            let status = response.status;
            return Err(io::Error::other(format!("initialize got {status}: {}", response.text().await?)));
        }
        let id = response.header(binding.session_header()).map(str::to_owned);
        session.id = id.ok_or_else(|| io::Error::other("initialize named no session"))?;
        response.text().await?;
        if binding == Binding::Streamable {
            let done = message(None, "notifications/initialized", &json!({}));
            let response = session.post(at, &done).await?;
            if response.status != 202 {
                return Err(io::Error::other(format!("initialized got {}", response.status)));
            }
        }
        Ok(session)
    }

    /// A client with a bearer token of a server without sessions.
    pub(crate) fn without_id(binding: Binding, token: &str) -> Self {
        Self { binding, id: String::new(), token: Some(token.to_owned()) }
    }

    /// A session with this id, which this client did not open.
    pub(crate) fn named(&self, id: impl Into<String>) -> Self {
        Self { id: id.into(), ..self.clone() }
    }

    /// The same session with another bearer token.
    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// The name of the node that made it.
    pub(crate) fn node(&self) -> &str {
        self.id.split('.').next().unwrap_or_default()
    }

    pub(crate) async fn request(
        &self,
        through: SocketAddr,
        method: &str,
        more: &[(&str, &str)],
        body: &str,
    ) -> io::Result<Response> {
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let mut headers = more.to_vec();
        if !self.id.is_empty() {
            headers.push((self.binding.session_header(), &self.id));
        }
        if let Some(bearer) = &bearer {
            headers.push(("Authorization", bearer));
        }
        send(through, method, &headers, body).await
    }

    pub(crate) async fn post(&self, through: SocketAddr, body: &str) -> io::Result<Response> {
        self.request(through, "POST", &[], body).await
    }

    /// Begins a request of MCP. Its answer is in the response.
    pub(crate) async fn begin(
        &self,
        through: SocketAddr,
        id: u64,
        method: &str,
        params: &Value,
    ) -> io::Result<Response> {
        self.post(through, &message(Some(id), method, params)).await
    }

    /// Makes a request of MCP and returns its answer.
    pub(crate) async fn ask(&self, through: SocketAddr, id: u64, method: &str, params: Value) -> Value {
        let asking = async {
            let response = self.begin(through, id, method, &params).await.unwrap();
            assert_eq!(response.status, 200, "{method} through {through}: {response:?}");
            response.answer(id).await.unwrap()
        };
        in_time(method, asking).await.unwrap_or_else(|| panic!("{method} was not answered"))
    }

    /// Makes a request on an open connection, and returns the body of its response.
    pub(crate) async fn ask_on(
        &self,
        stream: &mut Option<BufReader<TcpStream>>,
        to: SocketAddr,
        body: &str,
    ) -> Vec<u8> {
        ask_on(stream, to, &[(self.binding.session_header(), self.id.as_str())], body).await
    }

    /// The status of an echo.
    pub(crate) async fn status(&self, through: SocketAddr) -> u16 {
        // The one before may still run: its answer is not read.
        static NEXT: AtomicU64 = AtomicU64::new(3_000_000);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let params = json!({ "value": 1 });
        in_time("an echo", self.begin(through, id, "test/echo", &params)).await.unwrap().status
    }

    /// Cancels a request, as its protocol does.
    pub(crate) async fn cancel(&self, through: SocketAddr, id: u64) {
        let cancel = message(None, self.binding.cancel(), &json!({ "requestId": id }));
        let response = in_time("a cancel", self.post(through, &cancel)).await.unwrap();
        assert_eq!(response.status, 202, "{response:?}");
    }

    /// Opens the event stream of the session, or resumes a stream after this event.
    pub(crate) async fn events(&self, through: SocketAddr, after: Option<&str>) -> Response {
        let last = after.map(|id| ("Last-Event-ID", id));
        let opening = self.request(through, "GET", last.as_slice(), "");
        in_time("an event stream", opening).await.unwrap()
    }

    /// Ends the session.
    pub(crate) async fn delete(&self, through: SocketAddr) -> u16 {
        in_time("DELETE", self.request(through, "DELETE", &[], "")).await.unwrap().status
    }

    /// The key of a running request.
    pub(crate) async fn key(&self, through: SocketAddr, id: u64) -> String {
        let answer = self.ask(through, 1_000_000 + id, "test/key", json!({ "id": id })).await;
        let key = answer["result"]["key"].as_str();
        key.unwrap_or_else(|| panic!("no key: {answer}")).to_owned()
    }
}

/// A message of JSON-RPC.
pub(crate) fn message(id: Option<u64>, method: &str, params: &Value) -> String {
    let mut message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
    if let Some(id) = id {
        message["id"] = id.into();
    }
    message.to_string()
}
