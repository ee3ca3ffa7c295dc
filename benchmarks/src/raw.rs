//! The floor of each transport between two processes: an echo of the same bytes with the same underlying library,
//! without our code.

use std::convert::Infallible;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::future::join;
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Channel, Either, Full};
use hyper::client::conn::{http1, http2};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use interprocess::local_socket::tokio::Stream;
use interprocess::local_socket::traits::tokio::{Listener as _, Stream as _};
use interprocess::local_socket::{GenericFilePath, ListenerOptions, ToFsName as _};
use rescind_core::Incoming;
use rescind_core::dialect::{ACP, ReplyTo};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, accept_async_with_config, client_async_with_config};

use crate::clock;
use crate::cross_process::{Far, Wire};

/// The calling side.
#[derive(Debug)]
pub enum RawClient {
    /// One line for each frame.
    Lines(Lines),
    /// A header with its length before each frame.
    Headed(Headed),
    /// One message for each frame.
    WebSocket(Box<Socket>),
    /// One POST for each frame.
    Http(Poster),
}

impl RawClient {
    /// A client of a server of [`Serves::Raw`](crate::cross_process::Serves::Raw).
    ///
    /// # Panics
    /// If it cannot connect.
    pub async fn open(wire: Wire, far: &mut Far) -> Self {
        match wire {
            Wire::Stdio => {
                let (input, output) = far.take_pipes();
                Self::Lines(lines_of_pipes(input, output))
            }
            Wire::ContentLength => {
                let (input, output) = far.take_pipes();
                Self::Headed(headed_of_pipes(input, output))
            }
            Wire::NamedPipe => Self::Lines(connect_lines(&far.endpoint).await),
            Wire::WebSocket => Self::WebSocket(Box::new(connect_websocket(&far.endpoint).await)),
            Wire::Streamable | Wire::Streamable2 | Wire::Stateless | Wire::Stateless2 | Wire::Acp => {
                Self::Http(connect_http(wire, &far.endpoint).await)
            }
        }
    }

    /// One round trip, in nanoseconds.
    ///
    /// # Panics
    /// If the server does not echo.
    pub async fn echo(&mut self, frame: &Bytes) -> u64 {
        let begin = clock();
        let echoed = match self {
            Self::Lines(lines) => lines.echo(frame).await,
            Self::Headed(headed) => headed.exchange(frame).await.len(),
            Self::WebSocket(socket) => exchange_websocket(socket, frame.clone()).await.len(),
            Self::Http(poster) => poster.exchange(frame.clone()).await.len(),
        };
        let took = clock() - begin;
        assert_eq!(echoed, frame.len());
        took
    }

    /// Sends this frame, and returns the answered one.
    ///
    /// # Panics
    /// If the server does not answer.
    pub async fn exchange(&mut self, frame: Bytes) -> Bytes {
        match self {
            Self::Lines(lines) => lines.exchange(&frame).await,
            Self::Headed(headed) => headed.exchange(&frame).await,
            Self::WebSocket(socket) => exchange_websocket(socket, frame).await,
            Self::Http(poster) => poster.exchange(frame).await,
        }
    }
}

/// The frame that our client would send.
#[must_use]
pub fn frame(wire: Wire, bytes: usize) -> Bytes {
    let params = wire.params(bytes);
    Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":1234,"method":"echo","params":{params}}}"#))
}

/// What a server answers a frame with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// The same bytes.
    Same,
    /// The envelope of a request is read, and an answer with its params is written.
    Envelope,
}

impl Answers {
    /// The answer to a frame.
    ///
    /// # Panics
    /// If an envelope is not that of a request with params.
    fn to(self, frame: Bytes) -> Bytes {
        if self == Self::Same {
            return frame;
        }
        let Incoming::Request(request) = ACP.codec().decode(&frame) else { panic!("a request is echoed") };
        let params = request.params.expect("an echo has params");
        let mut out = Vec::with_capacity(params.get().len() + 128);
        let to = ReplyTo { id: &request.id, tag: request.tag, server_cancellable: false };
        ACP.codec().encode_value(ACP.rules(), &mut out, &to, params);
        Bytes::from(out)
    }
}

/// Echoes until this process is asked to end.
pub(crate) async fn serve(wire: Wire, answers: Answers, listens: fn(&str)) {
    match wire {
        Wire::Stdio => {
            let (input, output) = crate::cross_process::own_pipes();
            let pipes = lines_of_pipes(input, output);
            listens("stdio");
            pipes.answer_all(answers).await;
        }
        Wire::ContentLength => {
            let (input, output) = crate::cross_process::own_pipes();
            let pipes = headed_of_pipes(input, output);
            listens("stdio");
            pipes.answer_all(answers).await;
        }
        Wire::NamedPipe => serve_lines(answers, listens).await,
        Wire::WebSocket => serve_websocket(answers, listens).await,
        Wire::Streamable | Wire::Streamable2 | Wire::Stateless | Wire::Stateless2 | Wire::Acp => {
            serve_http(wire, answers, listens).await;
        }
    }
}

// One line for each frame, over pipes or a local socket.

/// Both directions of a connection.
pub struct Lines {
    reader: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    line: Vec<u8>,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lines")
    }
}

impl Lines {
    fn new(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        let reader = BufReader::new(Box::new(reader) as Box<dyn AsyncRead + Send + Unpin>);
        Self { reader, writer: Box::new(writer), line: Vec::new() }
    }

    pub(super) async fn echo(&mut self, frame: &Bytes) -> usize {
        self.line.clear();
        self.line.extend_from_slice(frame);
        self.line.push(b'\n');
        self.writer.write_all(&self.line).await.expect("the wire is open");
        self.line.clear();
        self.reader.read_until(b'\n', &mut self.line).await.expect("the wire is open") - 1
    }

    /// The same, and returns the line.
    pub(super) async fn exchange(&mut self, frame: &Bytes) -> Bytes {
        self.echo(frame).await;
        self.line.pop();
        Bytes::from(std::mem::take(&mut self.line))
    }

    async fn answer_all(mut self, answers: Answers) {
        loop {
            self.line.clear();
            let Ok(1..) = self.reader.read_until(b'\n', &mut self.line).await else { return };
            let written = match answers {
                Answers::Same => self.writer.write_all(&self.line).await,
                Answers::Envelope => {
                    self.line.pop();
                    let mut answer = Vec::from(answers.to(Bytes::from(std::mem::take(&mut self.line))));
                    answer.push(b'\n');
                    self.writer.write_all(&answer).await
                }
            };
            if written.is_err() {
                return;
            }
        }
    }
}

fn lines_of_pipes(input: OwnedFd, output: OwnedFd) -> Lines {
    let input = pipe::Receiver::from_owned_fd(input).expect("a pipe to read");
    let output = pipe::Sender::from_owned_fd(output).expect("a pipe to write");
    Lines::new(input, output)
}

fn lines_of_stream(stream: Stream) -> Lines {
    let Stream::UdSocket(stream) = stream;
    let (reader, writer) = UnixStream::from(stream).into_split();
    Lines::new(reader, writer)
}

async fn connect_lines(endpoint: &str) -> Lines {
    let name = endpoint.to_fs_name::<GenericFilePath>().expect("a path");
    lines_of_stream(Stream::connect(name).await.expect("the server listens"))
}

async fn serve_lines(answers: Answers, listens: fn(&str)) {
    let file = std::env::temp_dir().join(format!("rescind-raw-{}", std::process::id()));
    let name = file.as_path().to_fs_name::<GenericFilePath>().expect("a path");
    let listener = ListenerOptions::new().name(name).create_tokio().expect("a socket");
    listens(file.to_str().expect("a text"));
    while let Ok(stream) = listener.accept().await {
        tokio::spawn(lines_of_stream(stream).answer_all(answers));
    }
}

// A header with its length before each frame, over pipes.

/// Both directions of a connection.
#[derive(Debug)]
pub struct Headed {
    reader: BufReader<pipe::Receiver>,
    writer: pipe::Sender,
    header: String,
}

fn headed_of_pipes(input: OwnedFd, output: OwnedFd) -> Headed {
    let input = pipe::Receiver::from_owned_fd(input).expect("a pipe to read");
    let writer = pipe::Sender::from_owned_fd(output).expect("a pipe to write");
    Headed { reader: BufReader::new(input), writer, header: String::new() }
}

impl Headed {
    async fn write(&mut self, frame: &Bytes) -> std::io::Result<()> {
        let mut out = format!("Content-Length: {}\r\n\r\n", frame.len()).into_bytes();
        out.extend_from_slice(frame);
        self.writer.write_all(&out).await
    }

    /// The next frame. `None` at the end.
    async fn read(&mut self) -> Option<Bytes> {
        let mut length = 0;
        loop {
            self.header.clear();
            if self.reader.read_line(&mut self.header).await.ok()? == 0 {
                return None;
            }
            match self.header.trim().split_once(": ") {
                Some((_, value)) => length = value.parse().ok()?,
                None => break,
            }
        }
        let mut frame = vec![0; length];
        self.reader.read_exact(&mut frame).await.ok()?;
        Some(Bytes::from(frame))
    }

    pub(super) async fn exchange(&mut self, frame: &Bytes) -> Bytes {
        self.write(frame).await.expect("the wire is open");
        self.read().await.expect("the server answers")
    }

    async fn answer_all(mut self, answers: Answers) {
        while let Some(frame) = self.read().await {
            if self.write(&answers.to(frame)).await.is_err() {
                return;
            }
        }
    }
}

// One text message for each frame.

pub(super) type Socket = WebSocketStream<TcpStream>;

/// tungstenite clears its read buffer before each read, so the floor has one of the size that Rescind sets.
fn websocket_config() -> WebSocketConfig {
    WebSocketConfig::default().read_buffer_size(12 * 1024)
}

async fn connect_websocket(endpoint: &str) -> Socket {
    let stream = TcpStream::connect(endpoint).await.expect("the server listens");
    stream.set_nodelay(true).expect("a socket");
    let opened =
        client_async_with_config(format!("ws://{endpoint}/"), stream, Some(websocket_config())).await;
    opened.expect("the server upgrades").0
}

async fn exchange_websocket(socket: &mut Socket, frame: Bytes) -> Bytes {
    let text = Utf8Bytes::try_from(frame).expect("a frame is text");
    socket.send(Message::Text(text)).await.expect("the wire is open");
    socket.next().await.expect("the server answers").expect("a message").into_data()
}

async fn serve_websocket(answers: Answers, listens: fn(&str)) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    listens(&listener.local_addr().expect("a socket").to_string());
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).expect("a socket");
        tokio::spawn(async move {
            let mut socket = accept_async_with_config(stream, Some(websocket_config()))
                .await
                .expect("the client upgrades");
            while let Some(Ok(message)) = socket.next().await {
                let answer = match (answers, message) {
                    (Answers::Same, message) if message.is_text() => message,
                    (Answers::Envelope, Message::Text(text)) => {
                        let answer = Utf8Bytes::try_from(answers.to(text.into())).expect("JSON is text");
                        Message::Text(answer)
                    }
                    _ => return,
                };
                if socket.send(answer).await.is_err() {
                    return;
                }
            }
        });
    }
}

// One POST for each frame, on one connection: with the headers that the binding has on each of its own, and with the
// answer where the binding sends it, in the response or on a separate event stream.

const ID: &str = "0123456789abcdef0123456789abcdef";

/// The headers of the binding on each POST, in addition to those of all HTTP requests.
fn headers(wire: Wire) -> HeaderMap {
    let named: &[(&'static str, &'static str)] = match wire {
        Wire::Streamable | Wire::Streamable2 => {
            &[("mcp-session-id", ID), ("mcp-protocol-version", "2025-11-25")]
        }
        Wire::Stateless | Wire::Stateless2 => {
            &[("mcp-protocol-version", "2026-07-28"), ("mcp-method", "echo")]
        }
        Wire::Acp => &[("acp-connection-id", ID)],
        Wire::Stdio | Wire::ContentLength | Wire::NamedPipe | Wire::WebSocket => &[],
    };
    let usual = [
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (ACCEPT, HeaderValue::from_static("application/json, text/event-stream")),
    ];
    let named =
        named.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    usual.into_iter().chain(named).collect()
}

/// Sends POSTs.
#[derive(Debug)]
pub struct Poster {
    /// The target of the requests.
    uri: String,
    host: String,
    headers: HeaderMap,
    sender: Sender,
    /// The source of the answers, if they are not in the responses.
    events: Option<hyper::body::Incoming>,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    async fn send(&mut self, request: Request<Full<Bytes>>) -> Response<hyper::body::Incoming> {
        let response = match self {
            Self::Http1(sender) => {
                sender.ready().await.expect("the wire is open");
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await.expect("the wire is open");
                sender.send_request(request).await
            }
        };
        response.expect("the server answers")
    }
}

async fn connect_http(wire: Wire, endpoint: &str) -> Poster {
    let stream = TcpStream::connect(endpoint).await.expect("the server listens");
    stream.set_nodelay(true).expect("a socket");
    let io = TokioIo::new(stream);
    let (sender, uri) = if wire.is_http2() {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.expect("a connection");
        tokio::spawn(connection);
        (Sender::Http2(sender), format!("http://{endpoint}/"))
    } else {
        let (sender, connection) = http1::handshake(io).await.expect("a connection");
        tokio::spawn(connection);
        (Sender::Http1(sender), "/".to_owned())
    };
    let host = endpoint.to_owned();
    let mut poster = Poster { uri, host, headers: headers(wire), sender, events: None };
    if wire == Wire::Acp {
        let request = poster.request(Method::GET, Bytes::new());
        poster.events = Some(poster.sender.send(request).await.into_body());
    }
    poster
}

impl Poster {
    fn request(&self, method: Method, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.uri.parse().expect("a target");
        *request.headers_mut() = self.headers.clone();
        if let Sender::Http1(_) = self.sender {
            let host = self.host.parse().expect("a host");
            request.headers_mut().insert(HOST, host);
        }
        request
    }

    pub(super) async fn exchange(&mut self, frame: Bytes) -> Bytes {
        let request = self.request(Method::POST, frame);
        let Some(events) = &mut self.events else {
            let body = self.sender.send(request).await.into_body();
            return body.collect().await.expect("a body").to_bytes();
        };
        let (response, event) = join(self.sender.send(request), event(events)).await;
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        event.slice(EVENT.len()..event.len() - END.len())
    }
}

/// The next event, which may arrive in several parts.
async fn event(events: &mut hyper::body::Incoming) -> Bytes {
    let mut parts = Vec::new();
    loop {
        let part = events.frame().await.expect("the stream is open").expect("an event");
        let part = part.into_data().expect("data");
        if part.ends_with(END) && parts.is_empty() {
            return part;
        }
        parts.extend_from_slice(&part);
        if parts.ends_with(END) {
            return Bytes::from(parts);
        }
    }
}

const EVENT: &[u8] = b"data: ";
const END: &[u8] = b"\n\n";

/// The body of a response: one frame, or the stream of events.
type Echoed = Either<Full<Bytes>, Channel<Bytes>>;
/// The destination of the answers, if they are not in the responses.
type Events = Arc<Mutex<Option<http_body_util::channel::Sender<Bytes>>>>;

async fn echo_http(
    request: Request<hyper::body::Incoming>,
    apart: bool,
    events: Events,
    answers: Answers,
) -> Result<Response<Echoed>, Infallible> {
    if request.method() == Method::GET {
        let (sender, body) = Channel::new(16);
        *events.lock().expect("no panic") = Some(sender);
        let response = Response::builder().header(CONTENT_TYPE, "text/event-stream");
        return Ok(response.body(Either::Right(body)).expect("a response"));
    }
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
    let body = answers.to(body.unwrap_or_default());
    if apart {
        let event = Bytes::from([EVENT, &body, END].concat());
        let mut events = events.lock().expect("no panic");
        events.as_mut().expect("a stream").try_send(http_body::Frame::data(event)).expect("there is room");
        let response = Response::builder().status(StatusCode::ACCEPTED);
        return Ok(response.body(Either::Left(Full::default())).expect("a response"));
    }
    let response = Response::builder().header(CONTENT_TYPE, "application/json");
    Ok(response.body(Either::Left(Full::new(body))).expect("a response"))
}

pub(super) async fn serve_http(wire: Wire, answers: Answers, listens: fn(&str)) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    listens(&listener.local_addr().expect("a socket").to_string());
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).expect("a socket");
        let io = TokioIo::new(stream);
        tokio::spawn(async move {
            let events = Events::default();
            let service = service_fn(move |request| {
                echo_http(request, wire == Wire::Acp, Arc::clone(&events), answers)
            });
            if wire.is_http2() {
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(io, service).await;
            } else {
                let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
            }
        });
    }
}
