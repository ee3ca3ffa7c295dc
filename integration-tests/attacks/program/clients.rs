//! The clients: one that follows the protocol, and those that attack.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request};
use rescind::dialect::Role;
use rescind::http::{AcpTransport, HttpClient, StatelessTransport, StreamableTransport};
use rescind::named_pipe::NamedPipeTransport;
use rescind::transport::{Link, Transport};
use rescind::{Call, Outcome, Peer};
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::task::JoinSet;

use crate::target::{Target, Wire};
use crate::{in_time, poll_until};

// A client that follows the protocol. It must be served during an attack and after it.

pub(crate) struct Honest {
    peer: Peer,
    wire: Wire,
}

impl Honest {
    /// Connects from 127.0.0.1, and opens a session if the protocol has sessions.
    pub(crate) async fn connect(target: &Target) -> Self {
        let url = &target.endpoint;
        let http = || HttpClient::new(url).unwrap();
        let transport: Box<dyn Transport> = match target.wire {
            Wire::Stdio => panic!("stdio has one client"),
            Wire::NamedPipe => {
                Box::new(NamedPipeTransport::new(url.parse().unwrap()).framing(target.framing))
            }
            Wire::WebSocket => Box::new(rescind::websocket::connect(url)),
            Wire::Streamable => Box::new(StreamableTransport::new(http())),
            Wire::Stateless => Box::new(StatelessTransport::new(http())),
            Wire::Acp => Box::new(AcpTransport::new(http())),
        };
        let link = in_time("the honest client's connection", transport.open()).await.unwrap();
        Self::over(target, link).await
    }

    /// Uses an open connection.
    pub(crate) async fn over(target: &Target, link: Link) -> Self {
        let peer = Peer::builder(target.dialect.clone()).role(Role::Client).attach(link).unwrap();
        let honest = Self { peer, wire: target.wire };
        if target.wire != Wire::Stateless {
            honest.ask("initialize", hello(target.dialect.name())).await;
            if target.dialect.name().starts_with("mcp") {
                honest.peer.try_notify("notifications/initialized", &json!({})).unwrap();
            }
        }
        honest
    }

    async fn ask(&self, method: &'static str, params: Value) -> Value {
        let call = self.peer.call::<_, Value>(method, &params).start().unwrap();
        match in_time(method, call.outcome()).await {
            Outcome::Completed(value) => value,
            other => panic!("{method} of an honest client: {other:?}"),
        }
    }

    fn params(&self, params: Value) -> Value {
        if self.wire == Wire::Stateless { with_meta(params) } else { params }
    }

    /// Checks an echo and the cancel of a running request.
    pub(crate) async fn is_served(&self) {
        let value = json!({"value": "an honest client"});
        let echoed = self.ask("test/echo", self.params(value.clone())).await;
        assert_eq!(echoed["value"], value["value"]);
        self.can_cancel().await;
    }

    async fn can_cancel(&self) {
        let call = self.begin().await;
        self.cancel(call).await;
    }

    /// A request that runs until it is cancelled.
    pub(crate) async fn begin(&self) -> Call<Value> {
        let before = self.stats().await;
        let call = self.peer.call::<_, Value>("test/wait", &self.params(json!({}))).start().unwrap();
        poll_until("the honest client's request runs", async || {
            self.stats().await["started"].as_u64() > before["started"].as_u64()
        })
        .await;
        call
    }

    pub(crate) async fn cancel(&self, call: Call<Value>) {
        let _sent = call.canceller().cancel("the honest client cancels");
        match in_time("the honest client's cancel", call.outcome()).await {
            Outcome::Cancelled(_) => {}
            other => panic!("a cancelled request of an honest client: {other:?}"),
        }
    }

    pub(crate) async fn stats(&self) -> Value {
        self.ask("test/stats", self.params(json!({}))).await
    }

    /// Waits until nothing runs, waits or drains in the fixture.
    pub(crate) async fn nothing_is_left(&self) {
        poll_until("nothing runs in the fixture", async || {
            let stats = self.stats().await;
            ["running", "queued", "draining", "slots"].iter().all(|count| stats[count] == 0)
        })
        .await;
    }
}

/// The params of `initialize`.
pub(crate) fn hello(dialect: &str) -> Value {
    if dialect == "mcp" {
        json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "attacks", "version": "1"}})
    } else {
        json!({"protocolVersion": 1, "clientCapabilities": {}})
    }
}

/// These params with the members that each request of MCP 2026-07-28 carries.
pub(crate) fn with_meta(mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    params
}

// A client that writes arbitrary bytes, from a separate address.

/// The address of attacks over TCP, which differs from the honest client's.
const ATTACKER: &str = "127.0.0.2:0";

pub(crate) async fn tcp(target: &Target) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(ATTACKER.parse().unwrap()).unwrap();
    let address: SocketAddr = target.address().parse().unwrap();
    let stream = in_time("a connection", socket.connect(address)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// One connection of frames. Not for HTTP.
pub(crate) struct Stream {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
}

pub(crate) struct Reader {
    wire: Wire,
    pub(crate) bytes: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
}

pub(crate) struct Writer {
    wire: Wire,
    bytes: Box<dyn AsyncWrite + Send + Unpin>,
}

impl Stream {
    /// Connects. Over WebSocket this includes its handshake.
    pub(crate) async fn connect(target: &mut Target) -> Self {
        let wire = target.wire;
        let (input, output): (Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>) =
            match wire {
                Wire::Stdio => {
                    let (output, input) = target.standard_streams();
                    (Box::new(output), Box::new(input))
                }
                Wire::NamedPipe => {
                    let (input, output) = UnixStream::connect(&target.endpoint).await.unwrap().into_split();
                    (Box::new(input), Box::new(output))
                }
                Wire::WebSocket | Wire::Streamable | Wire::Stateless | Wire::Acp => {
                    let (input, output) = tcp(target).await.into_split();
                    (Box::new(input), Box::new(output))
                }
            };
        let reader = Reader { wire, bytes: BufReader::new(input) };
        let mut stream = Self { reader, writer: Writer { wire, bytes: output } };
        if wire == Wire::WebSocket {
            stream.writer.write(upgrade(target.address()).as_bytes()).await.unwrap();
            let head = stream.reader.head().await;
            assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        }
        stream
    }

    /// Opens the session.
    pub(crate) async fn initialize(&mut self, dialect: &str) {
        self.writer.send(&[request(0, "initialize", &hello(dialect)).into()]).await.unwrap();
        let answer = in_time("the answer to initialize", self.reader.message()).await.unwrap();
        assert_eq!(answer["id"], 0, "{answer}");
        if dialect == "mcp" {
            let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
            self.writer.send(&[Bytes::from_static(initialized.as_bytes())]).await.unwrap();
        }
    }
}

impl Writer {
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.write_all(bytes).await?;
        self.bytes.flush().await
    }

    /// Writes a message that consists of these pieces.
    pub(crate) async fn send(&mut self, pieces: &[Bytes]) -> io::Result<()> {
        if self.wire == Wire::WebSocket {
            self.write(&websocket_head(0x81, pieces.iter().map(Bytes::len).sum())).await?;
        }
        for piece in pieces {
            self.write(piece).await?;
        }
        if self.wire == Wire::WebSocket { Ok(()) } else { self.write(b"\n").await }
    }
}

impl Reader {
    /// Everything up to the empty line.
    pub(crate) async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match in_time("a head", self.bytes.read_u8()).await {
                Ok(byte) => head.push(byte),
                Err(_) => break,
            }
        }
        String::from_utf8_lossy(&head).into_owned()
    }

    /// The next message. `None` at the end. Null if an echo has a value that is no JSON value here: 1e400, half a
    /// surrogate pair.
    pub(crate) async fn message(&mut self) -> Option<Value> {
        let bytes = if self.wire == Wire::WebSocket { self.websocket().await? } else { self.line().await? };
        Some(serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    async fn line(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        match self.bytes.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line),
        }
    }

    /// The payload of the next text message. Pings are not answered.
    async fn websocket(&mut self) -> Option<Vec<u8>> {
        loop {
            let kind = self.bytes.read_u8().await.ok()?;
            let length = match self.bytes.read_u8().await.ok()? {
                126 => self.bytes.read_u16().await.ok()?.into(),
                127 => self.bytes.read_u64().await.ok()?,
                short => short.into(),
            };
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            self.bytes.read_exact(&mut payload).await.ok()?;
            match kind & 0xf {
                1 => return Some(payload),
                8 => return None,
                _ => {}
            }
        }
    }
}

/// A request as text.
pub(crate) fn request(id: u64, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

/// The handshake of a WebSocket.
pub(crate) fn upgrade(host: &str) -> String {
    format!(
        "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
}

/// The head of a masked frame. Its mask is zero, so the payload follows unchanged.
pub(crate) fn websocket_head(kind: u8, length: usize) -> Vec<u8> {
    let mut head = vec![kind];
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..=125), _) => head.push(0x80 | short),
        (_, Ok(length)) => {
            head.push(0xfe);
            head.extend(length.to_be_bytes());
        }
        _ => {
            head.push(0xff);
            head.extend((length as u64).to_be_bytes());
        }
    }
    head.extend([0; 4]);
    head
}

// A client that sends large requests over one connection and records the result of each.

/// How many bytes may wait in the windows of HTTP/2.
const WINDOW: u32 = 1 << 20;

/// The received messages.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// By id. A refusal with an HTTP status has its `status` and `body`.
    pub(crate) answers: BTreeMap<u64, Value>,
    /// Responses that ended without an answer, as for cancelled requests of MCP.
    pub(crate) ended: BTreeSet<u64>,
    pub(crate) notifications: Vec<Value>,
}

impl Heard {
    fn add(&mut self, message: Value) {
        match message["id"].as_u64() {
            Some(id) => drop(self.answers.insert(id, message)),
            None => self.notifications.push(message),
        }
    }

    pub(crate) fn is_settled(&self, id: u64) -> bool {
        self.answers.contains_key(&id) || self.ended.contains(&id)
    }

    /// The number of refusals. Each of them must name the limit that was reached.
    pub(crate) fn refused(&self) -> usize {
        let refusals = self.answers.values().filter(|answer| answer.get("result").is_none());
        let refusals = refusals.filter(|answer| answer["error"]["code"] != CANCELLED);
        let names_a_limit = |answer: &Value| {
            let text = answer.to_string();
            ["memory", "too many messages", "more than 4096 values"].iter().any(|limit| text.contains(limit))
        };
        refusals.inspect(|answer| assert!(names_a_limit(answer), "{answer}")).count()
    }
}

/// The code of ACP and LSP for a cancelled request.
const CANCELLED: i64 = -32_800;

enum Way {
    Stream(Writer),
    Http2(Http2),
}

pub(crate) struct RequestClient {
    wire: Wire,
    way: Way,
    heard: Arc<Mutex<Heard>>,
    tasks: JoinSet<()>,
}

impl RequestClient {
    pub(crate) async fn connect(target: &mut Target) -> Self {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let mut tasks = JoinSet::new();
        let wire = target.wire;
        let name = target.dialect.name();
        let kept = Arc::clone(&heard);
        let way = if wire.is_http() {
            let mut client = Http2::connect(target, WINDOW).await;
            client.initialize(name).await;
            if wire == Wire::Acp {
                let mut events = client.events().await;
                tasks.spawn(async move {
                    while let Some(message) = events.message().await {
                        lock(&kept).add(message);
                    }
                });
            }
            Way::Http2(client)
        } else {
            let mut stream = Stream::connect(target).await;
            stream.initialize(name).await;
            let Stream { mut reader, writer } = stream;
            tasks.spawn(async move {
                while let Some(message) = reader.message().await {
                    lock(&kept).add(message);
                }
            });
            Way::Stream(writer)
        };
        Self { wire, way, heard, tasks }
    }

    pub(crate) fn heard(&self) -> MutexGuard<'_, Heard> {
        lock(&self.heard)
    }

    /// Sends a request. `FILLER` in its params is replaced with these bytes.
    pub(crate) async fn ask(&mut self, id: u64, method: &'static str, params: Value, filler: &Bytes) {
        let params = if self.wire == Wire::Stateless { with_meta(params) } else { params };
        let text = request(id, method, &params);
        let mut pieces: Vec<Bytes> = Vec::new();
        for part in text.split("FILLER") {
            if !pieces.is_empty() {
                pieces.push(filler.clone());
            }
            pieces.push(part.to_owned().into());
        }
        self.say(Some(id), method, pieces).await;
    }

    /// Cancels a request, as its protocol does.
    pub(crate) async fn cancel(&mut self, id: u64) {
        let (method, params) = match self.wire {
            // Closing the exchange is the cancel. All exchanges are closed together.
            Wire::Stateless => return,
            Wire::Streamable => ("notifications/cancelled", json!({"requestId": id})),
            Wire::Stdio | Wire::NamedPipe | Wire::WebSocket | Wire::Acp => {
                ("$/cancel_request", json!({"requestId": id}))
            }
        };
        let text = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
        self.say(None, method, vec![text.into()]).await;
    }

    async fn say(&mut self, id: Option<u64>, method: &'static str, pieces: Vec<Bytes>) {
        match &mut self.way {
            Way::Stream(writer) => {
                crate::in_time("a request is written", writer.send(&pieces)).await.unwrap();
            }
            Way::Http2(client) => {
                let (client, heard) = (client.clone(), Arc::clone(&self.heard));
                let wire = self.wire;
                self.tasks.spawn(async move {
                    let response = client.post(method, pieces).await;
                    let Some(id) = id else { return };
                    let mut heard = lock(&heard);
                    match response {
                        Ok(response) if response.status >= 400 => {
                            let body = String::from_utf8_lossy(&response.body).into_owned();
                            heard.answers.insert(id, json!({"status": response.status, "body": body}));
                        }
                        Ok(response) => {
                            for message in messages(&response.body) {
                                heard.add(message);
                            }
                            if wire != Wire::Acp {
                                heard.ended.insert(id);
                            }
                        }
                        Err(error) => {
                            heard.answers.insert(id, json!({"broken": error.to_string()}));
                        }
                    }
                });
            }
        }
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

// An HTTP/2 client that chooses its windows and sends any part of a body.

/// How much of the connection's window one stream reserves at once.
const PIECE: usize = 64 * 1024;

/// One connection.
#[derive(Clone)]
pub(crate) struct Http2 {
    send: SendRequest<Bytes>,
    url: String,
    wire: Wire,
    _connection: Arc<JoinSet<()>>,
    /// The headers that name the session.
    pub(crate) session: Vec<(&'static str, String)>,
}

/// A response that was read completely.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Http2 {
    /// `window`: how many bytes of each response the server may send before it is read.
    pub(crate) async fn connect(target: &Target, window: u32) -> Self {
        let stream = tcp(target).await;
        let opening = Builder::new()
            .initial_window_size(window)
            .initial_connection_window_size(1 << 30)
            .handshake(stream);
        let (send, connection) = in_time("HTTP/2", opening).await.unwrap();
        // The socket closes when the last handle is dropped, regardless of open streams.
        let mut task = JoinSet::new();
        task.spawn(async move { drop(connection.await) });
        Self {
            _connection: Arc::new(task),
            send,
            url: target.endpoint.clone(),
            wire: target.wire,
            session: Vec::new(),
        }
    }

    /// Opens a session if the protocol has sessions.
    pub(crate) async fn initialize(&mut self, dialect: &str) {
        if self.wire == Wire::Stateless {
            return;
        }
        let response = self.post("initialize", vec![request(0, "initialize", &hello(dialect)).into()]).await;
        let response = response.unwrap();
        assert_eq!(response.status, 200, "{response:?}");
        let name = if self.wire == Wire::Acp { "acp-connection-id" } else { "mcp-session-id" };
        self.session = vec![(name, response.headers[name].to_str().unwrap().to_owned())];
    }

    fn head(&self, method: Method, rpc: &str) -> Request<()> {
        let mut head = Request::builder().method(method).uri(&self.url);
        head = head.header("content-type", "application/json");
        head = head.header("accept", "application/json, text/event-stream");
        if self.wire == Wire::Stateless {
            head = head.header("mcp-protocol-version", "2026-07-28").header("mcp-method", rpc);
        }
        for (name, value) in &self.session {
            head = head.header(*name, value);
        }
        head.body(()).unwrap()
    }

    /// A POST of which only the head was sent.
    pub(crate) async fn begin(
        &self,
        rpc: &str,
        length: usize,
    ) -> Result<(h2::client::ResponseFuture, SendStream<Bytes>), h2::Error> {
        let mut head = self.head(Method::POST, rpc);
        head.headers_mut().insert("content-length", length.into());
        self.send.clone().ready().await?.send_request(head, false)
    }

    /// A POST with these pieces as its body, and its response.
    pub(crate) async fn post(&self, rpc: &str, pieces: Vec<Bytes>) -> Result<Response, h2::Error> {
        let length = pieces.iter().map(Bytes::len).sum();
        let (response, mut stream) = self.begin(rpc, length).await?;
        let sent = async {
            for piece in pieces {
                send_all(&mut stream, piece).await;
            }
            let _sent = stream.send_data(Bytes::new(), true);
        };
        let answered = async {
            let response = response.await?;
            let (head, body) = response.into_parts();
            let body = read(body).await?;
            Ok(Response { status: head.status.as_u16(), headers: head.headers, body })
        };
        // A refusal may arrive before everything was sent.
        let mut answered = std::pin::pin!(answered);
        tokio::select! {
            biased;
            response = &mut answered => response,
            () = sent => answered.await,
        }
    }

    /// The event stream of the connection (ACP), or of the session.
    pub(crate) async fn events(&self) -> Events {
        let head = self.head(Method::GET, "");
        let (response, _) = self.send.clone().ready().await.unwrap().send_request(head, true).unwrap();
        let response = in_time("an event stream", response).await.unwrap();
        assert_eq!(response.status(), 200);
        Events { stream: response.into_body(), text: Vec::new() }
    }
}

/// Sends as the windows allow. Ends early if the stream is reset.
pub(crate) async fn send_all(stream: &mut SendStream<Bytes>, mut body: Bytes) {
    while !body.is_empty() {
        // The present capacity is used first, because no further event announces it.
        let room = stream.capacity();
        if room == 0 {
            stream.reserve_capacity(body.len().min(PIECE));
            match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(Ok(_)) => continue,
                Some(Err(_)) | None => return,
            }
        }
        if stream.send_data(body.split_to(room.min(body.len())), false).is_err() {
            return;
        }
    }
}

async fn read(mut body: RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut whole = Vec::new();
    while let Some(part) = body.data().await {
        let part = part?;
        body.flow_control().release_capacity(part.len())?;
        whole.extend_from_slice(&part);
    }
    Ok(whole)
}

/// An event stream.
pub(crate) struct Events {
    stream: RecvStream,
    text: Vec<u8>,
}

impl Events {
    /// The next message.
    pub(crate) async fn message(&mut self) -> Option<Value> {
        loop {
            while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                let data = line.strip_prefix(b"data: ").and_then(|data| serde_json::from_slice(data).ok());
                if data.is_some() {
                    return data;
                }
            }
            let part = self.stream.data().await?.ok()?;
            self.stream.flow_control().release_capacity(part.len()).ok()?;
            self.text.extend_from_slice(&part);
        }
    }
}

/// The messages in a response: one as JSON, or those of its events.
pub(crate) fn messages(body: &[u8]) -> Vec<Value> {
    if let Ok(message) = serde_json::from_slice(body) {
        return vec![message];
    }
    let lines = body.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data: "));
    lines.filter_map(|data| serde_json::from_slice(data).ok()).collect()
}
