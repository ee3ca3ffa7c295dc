//! The contract of a transport over each binding: our client's end sends, and the server's end reads.
//!
//! The rules are those of the testkit. They send arbitrary bodies, and HTTP carries messages: [`wrapped`] puts each
//! body into a message before it enters a link and takes it out when it is read. It also accepts what is read, as the
//! driver would. The link, its readiness and its end are those of the transport.
//!
//! Two rules need features that HTTP does not have, and are left out by name. A link is a session, a connection of
//! ACP's binding or a whole listener, so the end of one HTTP connection is not the end of its input. And no link can
//! be closed in one direction.
//!
//! The server's end does not send in turn. The frames of the rules are notifications, and a server drops
//! notifications if a stream is read too slowly (N4), so not all of them would arrive.

#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]
#![expect(clippy::expect_used, reason = "what the tests share is part of them")]

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use rescind_core::dialect::{ACP, Dialect, MCP, MCP_2026, Role};
use rescind_core::{
    BoxFuture, CallNumber, CloseReason, ExchangeEnd, ExchangeId, FrameInfo, FrameKind, Inbound, Lane, Link,
    Listener as _, Outbound, Peer, Receiver, RequestId, Sender, Transport, TransportError, TransportEvent,
    Unsupported,
};
use rescind_http::{
    Acp, AcpTransport, HttpClient, HttpListener, HttpServer, LegacySse, LegacySseTransport, Stateless,
    StatelessTransport, Streamable, StreamableTransport,
};
use rescind_testkit::conformance::{Harness, RawBytes};
use rescind_testkit::support::http1::{read_head, read_until};
use rescind_testkit::support::in_time;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Small, so that a frame over the limit can be written whole.
const SMALL: usize = 16 * 1024;

#[derive(Debug)]
struct OverStreamable;

impl Harness for OverStreamable {
    async fn connect(&self) -> (Link, Link) {
        let listener = HttpServer::new(Streamable::new()).bind("127.0.0.1:0").await.unwrap();
        connect(listener, |url| StreamableTransport::new(HttpClient::new(url).unwrap()), Says::Plain).await
    }

    async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
        let small = HttpServer::new(Streamable::new()).max_frame(SMALL);
        let listener = small.bind("127.0.0.1:0").await.unwrap();
        let (raw, link) = serve(RawHttp::opening(&listener, "mcp-session-id"), listener, Says::Plain).await;
        Some((link, Box::new(raw)))
    }
}

#[derive(Debug)]
struct OverAcp;

impl Harness for OverAcp {
    async fn connect(&self) -> (Link, Link) {
        let listener = HttpServer::new(Acp::new()).bind("127.0.0.1:0").await.unwrap();
        let (client, mut server) =
            connect(listener, |url| AcpTransport::new(HttpClient::new(url).unwrap()), Says::Plain).await;
        // The client has opened its stream. The rules ignore the event for it.
        let reported = std::future::poll_fn(|cx| server.rx.as_mut().poll_event(cx)).await;
        assert!(matches!(reported, Some(Ok(TransportEvent::ExchangeResumed { .. }))), "{reported:?}");
        (client, server)
    }

    async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
        let listener = HttpServer::new(Acp::new()).max_frame(SMALL).bind("127.0.0.1:0").await.unwrap();
        let (raw, link) =
            serve(RawHttp::opening(&listener, "acp-connection-id"), listener, Says::Plain).await;
        Some((link, Box::new(raw)))
    }
}

#[derive(Debug)]
struct OverLegacySse;

impl Harness for OverLegacySse {
    async fn connect(&self) -> (Link, Link) {
        let listener = HttpServer::new(LegacySse::new()).bind("127.0.0.1:0").await.unwrap();
        connect(listener, |url| LegacySseTransport::new(HttpClient::new(url).unwrap()), Says::Plain).await
    }

    async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
        let small = HttpServer::new(LegacySse::new()).max_frame(SMALL);
        let listener = small.bind("127.0.0.1:0").await.unwrap();
        let (raw, link) = serve(RawHttp::legacy_sse(&listener), listener, Says::Plain).await;
        Some((link, Box::new(raw)))
    }
}

/// The server's end sends on a request that stays open, because there is no other way.
#[derive(Debug)]
struct OverStateless;

impl Harness for OverStateless {
    async fn connect(&self) -> (Link, Link) {
        let listener = HttpServer::new(Stateless::new()).bind("127.0.0.1:0").await.unwrap();
        connect(listener, |url| StatelessTransport::new(HttpClient::new(url).unwrap()), Says::Version).await
    }

    async fn connect_raw(&self) -> Option<(Link, Box<dyn RawBytes>)> {
        let small = HttpServer::new(Stateless::new()).max_frame(SMALL);
        let listener = small.bind("127.0.0.1:0").await.unwrap();
        let (raw, link) = serve(RawHttp::stateless(&listener), listener, Says::Version).await;
        Some((link, Box::new(raw)))
    }

    /// Each POST is separate, and notifications are posted concurrently.
    fn keeps_order(&self) -> bool {
        false
    }
}

mod streamable {
    rescind_testkit::conformance!(
        super::OverStreamable,
        without {
            end_of_input_inside_a_frame: "a session outlives its connections: the end of one is not the end of its input",
            a_closed_side_still_reads: "a session ends both ways at once",
        }
    );
}

mod acp {
    rescind_testkit::conformance!(
        super::OverAcp,
        without {
            end_of_input_inside_a_frame: "ACP's connection outlives those of HTTP: the end of one is not the end of its input",
            a_closed_side_still_reads: "ACP's connection ends both ways at once",
        }
    );
}

mod stateless {
    rescind_testkit::conformance!(
        super::OverStateless,
        without {
            end_of_input_inside_a_frame: "the link is the listener's: no connection's end is the end of its input",
            a_closed_side_still_reads: "the link is the listener's: a client cannot close its side of it",
        }
    );
}

mod legacy_sse {
    rescind_testkit::conformance!(
        super::OverLegacySse,
        without {
            end_of_input_inside_a_frame: "the input is POSTs: the end of one connection is not its end",
            a_closed_side_still_reads: "a session ends both ways at once, with its stream",
        }
    );
}

/// A client of one binding, and its dialect.
type Row = (fn(HttpClient) -> Box<dyn Transport>, Dialect);

#[tokio::test]
async fn the_first_request_uses_the_connection_of_the_reachability_check() {
    let rows: [Row; 3] = [
        (|client| Box::new(StreamableTransport::new(client)), MCP),
        (|client| Box::new(StatelessTransport::new(client)), MCP_2026),
        (|client| Box::new(AcpTransport::new(client).http1()), ACP),
    ];
    for (transport, dialect) in rows {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = HttpClient::new(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let (link, accepted) = tokio::join!(transport(client).open(), listener.accept());
        let (mut first, _) = accepted.unwrap();
        let peer = Peer::builder(dialect).role(Role::Client).attach(link.unwrap()).unwrap();
        let _call = peer.call::<_, Value>("initialize", &json!({"protocolVersion": 1})).start().unwrap();
        let mut head = [0; 5];
        let read =
            tokio::time::timeout(std::time::Duration::from_secs(30), first.read_exact(&mut head)).await;
        assert!(read.expect("it hangs").is_ok(), "the first connection was thrown away");
        assert_eq!(&head, b"POST ");
    }
}

/// The driver aborts an exchange only if ids belong to it. Otherwise a message cancels.
#[tokio::test]
async fn an_exchange_can_be_aborted_only_if_that_is_how_requests_are_cancelled() {
    type Over = fn(HttpClient) -> Box<dyn Transport>;
    let rows: [(Over, bool); 3] = [
        (|client| Box::new(StreamableTransport::new(client)), false),
        (|client| Box::new(StatelessTransport::new(client)), true),
        (|client| Box::new(AcpTransport::new(client).http1()), false),
    ];
    for (transport, is_scope) in rows {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = HttpClient::new(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let mut link = transport(client).open().await.unwrap();
        assert!(link.traits.opens_exchanges);
        let given_up = link.tx.as_mut().abort_exchange(ExchangeId::of_call(CallNumber(1)));
        assert_eq!((link.traits.exchange_scoped, given_up.is_ok()), (is_scope, is_scope));
    }
}

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

/// The additional content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    Plain,
    /// Its revision, as each message of MCP 2026-07-28 does.
    Version,
}

const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},"#;

/// A body as part of a message.
pub(crate) fn wrap(says: Says, kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let meta = if says == Says::Version { META } else { "" };
    let start = match kind {
        FrameKind::Answer => r#"{"jsonrpc":"2.0","id":"of nothing","result":{"body":"#.to_owned(),
        FrameKind::Request => {
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{{meta}"body":"#)
        }
        FrameKind::Notification | FrameKind::Cancel => {
            format!(r#"{{"jsonrpc":"2.0","method":"conformance","params":{{{meta}"body":"#)
        }
    };
    [start.as_bytes(), body, b"}}"].concat()
}

/// The body unchanged: reading must not split the body of any rule.
fn unwrap(message: &Bytes) -> Bytes {
    let mark = b"\"body\":";
    let start =
        message.windows(mark.len()).position(|part| part == mark).expect("a message that was wrapped");
    message.slice(start + mark.len()..message.len() - 2)
}

async fn message(link: &mut Link) -> Inbound {
    match in_time("a message", poll_fn(|cx| link.rx.as_mut().poll_event(cx))).await {
        Some(Ok(TransportEvent::Message(inbound))) => inbound,
        other => panic!("expected a message, got {other:?}"),
    }
}

/// Both ends, after the server has accepted the client's first request.
pub(crate) async fn connect<T: Transport>(
    listener: HttpListener,
    transport: impl FnOnce(&str) -> T,
    says: Says,
) -> (Link, Link) {
    let mut client = Box::new(transport(&listener.endpoint().to_string())).open().await.unwrap();
    let head = FrameInfo {
        kind: FrameKind::Request,
        id: Some(RequestId::number(1)),
        method: Some("initialize".into()),
        trace: None,
    };
    let body = wrap(says, FrameKind::Request, b"{}").into();
    let exchange = ExchangeId::of_call(CallNumber(1));
    client.tx.as_mut().start_send(Outbound { body, exchange, lane: Lane::Data, head, last: false }).unwrap();
    let opened = async {
        if says == Says::Plain {
            message(&mut client).await;
        }
        client
    };
    let (client, server) = serve(opened, listener, says).await;
    (wrapped(client, says, None, None), server)
}

/// The server's end, after `opened` has sent its first request. If the binding has requests only, this request stays
/// open for the server's messages.
pub(crate) async fn serve<C>(
    opened: impl Future<Output = C>,
    mut listener: HttpListener,
    says: Says,
) -> (C, Link) {
    let served = async {
        let mut link = listener.accept().await.unwrap().unwrap();
        let asked = message(&mut link).await;
        if says == Says::Version {
            return (link, Some(asked.exchange));
        }
        let head =
            FrameInfo { kind: FrameKind::Answer, id: Some(RequestId::number(1)), method: None, trace: None };
        let body = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.into();
        let answer = Outbound { body, exchange: asked.exchange, lane: Lane::Data, head, last: true };
        link.tx.as_mut().start_send(answer).unwrap();
        (link, None)
    };
    let (opened, (link, open)) = in_time("the opening", async { tokio::join!(opened, served) }).await;
    (opened, wrapped(link, says, open, Some(listener)))
}

/// `listener`: that of the server's end, which accepts what it reads. `open`: the exchange on which the end sends.
fn wrapped(link: Link, says: Says, open: Option<ExchangeId>, listener: Option<HttpListener>) -> Link {
    let (traits, meta) = (link.traits, link.meta.clone());
    let tx = Arc::new(Mutex::new(link.tx));
    let reader = Unwrapping { rx: link.rx, tx: Arc::clone(&tx), listener };
    Link::new(reader, Wrapping { tx, says, open }, traits, meta)
}

type Half = Arc<Mutex<Pin<Box<dyn Sender>>>>;

struct Unwrapping {
    rx: Pin<Box<dyn Receiver>>,
    tx: Half,
    listener: Option<HttpListener>,
}

impl Receiver for Unwrapping {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let mut event = self.rx.as_mut().poll_event(cx);
        if let Poll::Ready(Some(Ok(TransportEvent::Message(inbound)))) = &mut event {
            inbound.body = unwrap(&inbound.body);
            if self.listener.is_some() {
                self.tx.lock().unwrap().as_mut().finish_exchange(inbound.exchange, ExchangeEnd::Accepted);
            }
        }
        event
    }
}

struct Wrapping {
    tx: Half,
    says: Says,
    open: Option<ExchangeId>,
}

impl Sender for Wrapping {
    fn poll_ready(
        self: Pin<&mut Self>,
        lane: Lane,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.tx.lock().unwrap().as_mut().poll_ready(lane, cx)
    }

    fn start_send(self: Pin<&mut Self>, out: Outbound) -> Result<(), TransportError> {
        let body = wrap(self.says, out.head.kind, &out.body).into();
        let exchange = self.open.unwrap_or(out.exchange);
        self.tx.lock().unwrap().as_mut().start_send(Outbound { body, exchange, ..out })
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.tx.lock().unwrap().as_mut().poll_flush(cx)
    }

    fn finish_exchange(self: Pin<&mut Self>, exchange: ExchangeId, how: ExchangeEnd) {
        self.tx.lock().unwrap().as_mut().finish_exchange(exchange, how);
    }

    fn abort_exchange(self: Pin<&mut Self>, exchange: ExchangeId) -> Result<(), Unsupported> {
        self.tx.lock().unwrap().as_mut().abort_exchange(exchange)
    }

    fn poll_close(
        self: Pin<&mut Self>,
        why: &CloseReason,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        self.tx.lock().unwrap().as_mut().poll_close(why, cx)
    }
}
