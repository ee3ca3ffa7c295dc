//! A client that writes arbitrary bytes, from a separate address.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{TcpSocket, TcpStream, UnixStream};

use crate::honest_client::hello;
use crate::in_time;
use crate::target::{Target, Wire};

/// The address of attacks over TCP, which differs from the honest client's.
pub(crate) const ATTACKER: &str = "127.0.0.2:0";

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
