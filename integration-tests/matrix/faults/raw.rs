//! A client without the library that writes arbitrary data.

use futures_util::{SinkExt as _, StreamExt as _};
use rescind::transport::{ExchangeId, FrameInfo, FrameKind, Lane, Link, Outbound, Transport, TransportEvent};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use crate::in_time;
use crate::wires::Wire;

/// The type of a named pipe on this system.
#[cfg(unix)]
type Local = tokio::net::UnixStream;
#[cfg(not(unix))]
type Local = tokio::net::windows::named_pipe::NamedPipeClient;

#[cfg(unix)]
async fn local(place: &str) -> std::io::Result<Local> {
    Local::connect(place).await
}

#[cfg(not(unix))]
async fn local(place: &str) -> std::io::Result<Local> {
    /// Every instance of the pipe is in use. The listener makes another one.
    const BUSY: i32 = 231;
    loop {
        match tokio::net::windows::named_pipe::ClientOptions::new().open(place) {
            Err(error) if error.raw_os_error() == Some(BUSY) => tokio::task::yield_now().await,
            opened => return opened,
        }
    }
}

/// One connection. In HTTP one session.
pub(crate) enum Raw {
    Frames(Box<Link>),
    Text(Box<WebSocketStream<TcpStream>>),
    Lines(BufReader<Local>),
    Posts { stream: BufReader<TcpStream>, host: String, session: Option<String> },
}

/// A received message, in HTTP with its status.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: Option<u16>,
    pub(crate) message: Value,
}

impl Raw {
    /// Returns `None` if the wire does not support such a client.
    pub(crate) async fn connect(wire: Wire, place: &str, transport: Box<dyn Transport>) -> Option<Self> {
        let place = place.to_owned();
        Some(match wire.name {
            "memory" => Self::Frames(Box::new(in_time("connecting", transport.open()).await.unwrap())),
            "websocket" => {
                let tcp = TcpStream::connect(&place).await.unwrap();
                let url = format!("ws://{place}/");
                let opening = tokio_tungstenite::client_async(url, tcp);
                Self::Text(Box::new(in_time("the upgrade", opening).await.unwrap().0))
            }
            "named-pipe" => Self::Lines(BufReader::new(local(&place).await.unwrap())),
            "http-streamable" => {
                let stream = BufReader::new(TcpStream::connect(&place).await.unwrap());
                Self::Posts { stream, host: place, session: None }
            }
            _ => return None,
        })
    }

    /// Opens the session.
    pub(crate) async fn shake_hands(&mut self) {
        let hello = json!({"jsonrpc": "2.0", "id": "hello", "method": "initialize",
            "params": {"protocolVersion": 1, "clientCapabilities": {}}});
        self.say(hello.to_string().as_bytes()).await;
        assert_eq!(self.hear().await.message["id"], "hello");
    }

    /// The session of a client of HTTP.
    pub(crate) fn session(&self) -> Option<String> {
        match self {
            Self::Posts { session, .. } => session.clone(),
            Self::Frames(_) | Self::Text(_) | Self::Lines(_) => None,
        }
    }

    /// Continues in the session of another connection.
    pub(crate) fn take_up(&mut self, of: Option<String>) {
        if let Self::Posts { session, .. } = self {
            *session = of;
        }
    }

    /// The framed bytes of this body.
    pub(crate) fn framed(&self, body: &[u8]) -> Vec<u8> {
        match self {
            Self::Frames(_) => body.to_vec(),
            Self::Lines(_) => [body, b"\n"].concat(),
            Self::Text(_) => {
                let mut frame = Frame::message(body.to_vec(), OpCode::Data(Data::Text), true);
                frame.header_mut().mask = Some([1, 2, 3, 4]);
                let mut bytes = Vec::new();
                frame.format(&mut bytes).unwrap();
                bytes
            }
            Self::Posts { host, session, .. } => {
                let known =
                    session.as_ref().map_or_else(String::new, |id| format!("Mcp-Session-Id: {id}\r\n"));
                let head = format!(
                    "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nAccept: application/json, \
                     text/event-stream\r\n{known}Content-Length: {}\r\n\r\n",
                    body.len()
                );
                [head.as_bytes(), body].concat()
            }
        }
    }

    /// Writes bytes unchanged. A wire of frames has no bytes.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let written = match self {
            Self::Frames(_) => panic!("the memory wire has no bytes"),
            Self::Text(stream) => stream.get_mut().write_all(bytes).await,
            Self::Lines(stream) => stream.get_mut().write_all(bytes).await,
            Self::Posts { stream, .. } => stream.get_mut().write_all(bytes).await,
        };
        written.unwrap();
    }

    pub(crate) async fn say(&mut self, body: &[u8]) {
        if let Self::Frames(link) = self {
            let head = FrameInfo { kind: FrameKind::Notification, id: None, method: None, trace: None };
            let body = body.to_vec().into();
            let out = Outbound { body, exchange: ExchangeId::NONE, lane: Lane::Data, head, last: false };
            std::future::poll_fn(|cx| link.tx.as_mut().poll_ready(Lane::Data, cx)).await.unwrap();
            return link.tx.as_mut().start_send(out).unwrap();
        }
        let bytes = self.framed(body);
        self.write(&bytes).await;
    }

    /// The next message.
    pub(crate) async fn hear(&mut self) -> Said {
        in_time("a message", self.next()).await
    }

    async fn next(&mut self) -> Said {
        let mut status = None;
        let bytes = match self {
            Self::Frames(link) => {
                let event = std::future::poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await;
                let Some(Ok(TransportEvent::Message(inbound))) = event else { panic!("{event:?}") };
                inbound.body.to_vec()
            }
            Self::Text(stream) => loop {
                match stream.next().await {
                    Some(Ok(Message::Text(text))) => break text.as_bytes().to_vec(),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    other => panic!("expected a message, got {other:?}"),
                }
            },
            Self::Lines(stream) => {
                let mut line = Vec::new();
                stream.read_until(b'\n', &mut line).await.unwrap();
                line
            }
            Self::Posts { stream, session, .. } => {
                let (code, body) = response(stream, session).await;
                status = Some(code);
                body
            }
        };
        let message = serde_json::from_slice(&bytes)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&bytes)));
        Said { status, message }
    }

    /// Closes the connection in good order.
    pub(crate) async fn close(self) {
        match self {
            Self::Text(mut stream) => drop(stream.close().await),
            Self::Frames(_) | Self::Lines(_) | Self::Posts { .. } => {}
        }
    }
}

async fn response(stream: &mut BufReader<TcpStream>, session: &mut Option<String>) -> (u16, Vec<u8>) {
    let mut length = Some(0);
    let mut status = None;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        let line = line.trim_end();
        let Some(code) = status else {
            status = Some(line.split(' ').nth(1).unwrap().parse().unwrap());
            continue;
        };
        let Some((name, value)) = line.split_once(": ") else {
            let Some(length) = length else { return (code, event(stream).await) };
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.unwrap();
            return (code, body);
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = Some(value.parse().unwrap()),
            "transfer-encoding" => length = None,
            "mcp-session-id" => *session = Some(value.to_owned()),
            _ => {}
        }
    }
}

/// The single message of an event stream, which carries an answer that is not ready at once.
async fn event(stream: &mut BufReader<TcpStream>) -> Vec<u8> {
    let mut text = Vec::new();
    loop {
        let mut size = String::new();
        stream.read_line(&mut size).await.unwrap();
        let size = usize::from_str_radix(size.trim_end(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk).await.unwrap();
        if size == 0 {
            break;
        }
        text.extend_from_slice(&chunk[..size]);
    }
    let text = String::from_utf8(text).unwrap();
    let message =
        text.lines().filter_map(|line| line.strip_prefix("data: ")).find(|data| data.starts_with('{'));
    message.unwrap_or_default().as_bytes().to_vec()
}
