//! A client that writes HTTP/1.1 by hand.

use std::io::{self, ErrorKind};

use rescind_core::{BoxFuture, FrameKind, Listener as _};
use rescind_http::HttpListener;
use rescind_testkit::conformance::RawBytes;
use rescind_testkit::support::http1::{read_head, read_until};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::contract::wrapped::{Says, wrap};

/// A connection with one POST after another, and the headers that each of them has.
pub(crate) struct RawHttp {
    path: String,
    address: String,
    headers: String,
    says: Says,
    stream: TcpStream,
    /// The connections of requests that stay open.
    kept: Vec<TcpStream>,
}

const USUAL: &str = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";

impl RawHttp {
    async fn new(endpoint: String, headers: String, says: Says) -> Self {
        let authority = endpoint.strip_prefix("http://").expect("an endpoint without TLS");
        let (address, path) = authority.split_once('/').unwrap_or((authority, ""));
        let stream = TcpStream::connect(address).await.unwrap();
        let (address, path) = (address.to_owned(), format!("/{path}"));
        Self { path, address, headers, says, stream, kept: Vec::new() }
    }

    /// Opens the session or connection whose id the response has in this header.
    pub(crate) fn opening(listener: &HttpListener, header: &str) -> impl Future<Output = Self> + use<> {
        let (endpoint, header) = (listener.endpoint().to_string(), header.to_owned());
        async move {
            let mut raw = Self::new(endpoint, USUAL.to_owned(), Says::Plain).await;
            let hello = raw.post(&wrap(Says::Plain, FrameKind::Request, b"{}"));
            raw.stream.write_all(&hello).await.unwrap();
            let head = read_head(&mut raw.stream).await.to_ascii_lowercase();
            let named = head.lines().find_map(|line| line.strip_prefix(&format!("{header}: ")));
            raw.headers = format!("{USUAL}{header}: {}\r\n", named.expect("a name for what was opened"));
            raw.stream = TcpStream::connect(&raw.address).await.unwrap();
            raw
        }
    }

    /// Opens a stream, which stays open, and posts to the endpoint that it names.
    pub(crate) fn legacy_sse(listener: &HttpListener) -> impl Future<Output = Self> + use<> {
        let endpoint = listener.endpoint().to_string();
        async move {
            let mut raw = Self::new(endpoint, USUAL.to_owned(), Says::Plain).await;
            let Self { path, address, .. } = &raw;
            let get = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\r\n");
            raw.stream.write_all(get.as_bytes()).await.unwrap();
            let text = read_until(&mut raw.stream, "\n\n").await;
            let named = text.lines().find_map(|line| line.strip_prefix("data: "));
            raw.path = named.expect("an endpoint").to_owned();
            let stream = TcpStream::connect(&raw.address).await.unwrap();
            raw.kept.push(std::mem::replace(&mut raw.stream, stream));
            let hello = raw.post(&wrap(Says::Plain, FrameKind::Request, b"{}"));
            raw.stream.write_all(&hello).await.unwrap();
            read_head(&mut raw.stream).await;
            raw.stream = TcpStream::connect(&raw.address).await.unwrap();
            raw
        }
    }

    /// Leaves a request open for the server's messages, and continues on another connection.
    pub(crate) fn stateless(listener: &HttpListener) -> impl Future<Output = Self> + use<> {
        let endpoint = listener.endpoint().to_string();
        async move {
            let headers =
                |method| format!("{USUAL}MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n");
            let mut raw = Self::new(endpoint, headers("initialize"), Says::Version).await;
            let hello = raw.post(&wrap(Says::Version, FrameKind::Request, b"{}"));
            raw.stream.write_all(&hello).await.unwrap();
            raw.headers = headers("conformance");
            let stream = TcpStream::connect(&raw.address).await.unwrap();
            raw.kept.push(std::mem::replace(&mut raw.stream, stream));
            raw
        }
    }

    fn post(&self, message: &[u8]) -> Vec<u8> {
        let Self { path, address, headers, .. } = self;
        let length = message.len();
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: {address}\r\n{headers}Content-Length: {length}\r\n\r\n");
        [head.as_bytes(), message].concat()
    }
}

impl RawBytes for RawHttp {
    fn frame(&self, body: &[u8]) -> Vec<u8> {
        self.post(&wrap(self.says, FrameKind::Notification, body))
    }

    fn write<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            match self.stream.write_all(bytes).await {
                // A server need not read the rest of a request that it refuses by its head. The answer can still be
                // read.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    Ok(())
                }
                written => written,
            }
        })
    }

    fn end(&mut self) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(self.stream.shutdown())
    }

    /// A server may close the connection of a refused request. The next request uses another one.
    fn refused(&mut self) -> BoxFuture<'_, bool> {
        Box::pin(async {
            let head = read_head(&mut self.stream).await;
            self.stream = TcpStream::connect(&self.address).await.unwrap();
            head.starts_with("HTTP/1.1 4")
        })
    }
}
