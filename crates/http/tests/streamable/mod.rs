//! The binding `streamable`: our client against our server, and HTTP written by hand against our server.
//!
//! # What this file holds
//!
//! A served router, HTTP/1.1 written by hand, our client against our server, and `https`.

#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]
#![expect(clippy::expect_used, reason = "what the tests share is part of them")]
#![expect(clippy::indexing_slicing, reason = "what the tests share is part of them")]

mod refusals;
mod sessions;
mod streams;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rescind_core::dialect::{ABP, ACP, Dialect, LSP, MCP};
use rescind_core::{CallContext, Limits, Listener, Outcome, Peer, Router, Server};
use rescind_http::{HttpClient, HttpCounts, HttpListener, HttpServer, Streamable, StreamableTransport};
use rescind_testkit::support::Serving;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};

pub(crate) use rescind_testkit::support::in_time;

/// `https`, with certificates made for one test.
#[cfg(feature = "rustls")]
mod tls {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rescind_core::Peer;
    use rescind_core::dialect::MCP;
    use rescind_http::{ClientTls, HttpClient, Pem, ServerTls, StreamableTransport};
    use rescind_net::ClientCertificates;
    use serde_json::{Value, json};

    use crate::streamable::{client, in_time, serve, server};

    /// An authority, and a certificate for loopback with its key, all PEM.
    fn certificates() -> (String, String, String) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        (authority.pem(), certificate.pem(), key.serialize_pem())
    }

    #[tokio::test]
    async fn https_is_served_only_to_clients_that_trust_its_authority() {
        let (authority, certificate, key) = certificates();
        let tls = ServerTls::from_pem(Pem::bytes(&certificate), Pem::bytes(&key)).unwrap();
        let served = serve(server().tls(tls), MCP).await;
        assert!(served.url.starts_with("https://"), "{}", served.url);
        for http2 in [false, true] {
            let trusting = client_of(&served.url, &authority);
            let trusting = if http2 { trusting.http2() } else { trusting };
            let peer = client(StreamableTransport::new(trusting), MCP).await;
            let answer = in_time("echo", peer.call::<_, Value>("echo", &json!({"n": 1}))).await;
            assert_eq!(answer.unwrap(), json!({"n": 1}));
        }
        let (other, _, _) = certificates();
        let wary = client_of(&served.url, &other);
        let refused = in_time("opening", Peer::builder(MCP).connect(StreamableTransport::new(wary))).await;
        let why = refused.expect_err("its certificate is another authority's");
        assert!(format!("{why:?}").contains("certificate"), "{why:?}");
    }

    #[test]
    fn an_invalid_certificate_is_reported() {
        assert!(ServerTls::from_pem(Pem::bytes("nothing"), Pem::bytes("nothing")).is_err());
        assert!(ClientTls::trusting(Pem::bytes("nothing")).is_err());
    }

    fn client_of(url: &str, authority: &str) -> HttpClient {
        HttpClient::new(url).unwrap().tls(ClientTls::trusting(Pem::bytes(authority)).unwrap())
    }

    #[tokio::test]
    async fn a_changed_certificate_is_served_by_the_next_handshake_and_a_broken_one_is_not() {
        let folder = std::env::temp_dir().join(format!("rescind-https-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (certificate, key) = (folder.join("server.pem"), folder.join("server.key"));
        let write = |pair: &(String, String, String)| {
            std::fs::write(&certificate, &pair.1).unwrap();
            std::fs::write(&key, &pair.2).unwrap();
        };
        let (old, new) = (certificates(), certificates());
        write(&old);
        let tls = ServerTls::from_pem(Pem::file(&certificate), Pem::file(&key)).unwrap();
        let served = serve(server().tls(tls.check_every(std::time::Duration::ZERO)), MCP).await;
        // Each client makes a connection of its own.
        let opens = async |authority: &str| {
            let transport = StreamableTransport::new(client_of(&served.url, authority));
            in_time("opening", Peer::builder(MCP).connect(transport)).await.is_ok()
        };
        assert!(opens(&old.0).await && !opens(&new.0).await);
        write(&new);
        assert!(opens(&new.0).await && !opens(&old.0).await);
        std::fs::write(&certificate, "no certificate").unwrap();
        assert!(opens(&new.0).await && !opens(&old.0).await);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// With a certificate, with that of another authority, and without one.
    #[tokio::test]
    async fn a_client_shows_its_certificate_to_a_server_that_requests_one() {
        let (ours, other) = (certificates(), certificates());
        for demand in [ClientCertificates::Optional, ClientCertificates::Required] {
            let tls = ServerTls::from_pem(Pem::bytes(&ours.1), Pem::bytes(&ours.2)).unwrap();
            let tls = tls.client_certificates(Pem::bytes(&ours.0), demand).unwrap();
            let served = serve(server().tls(tls), MCP).await;
            let without = || ClientTls::trusting(Pem::bytes(&ours.0)).unwrap();
            let showing = |pair: &(String, String, String)| {
                without().identity(Pem::bytes(&pair.1), Pem::bytes(&pair.2)).unwrap()
            };
            let cases = [
                (showing(&ours), true),
                (showing(&other), false),
                (without(), demand == ClientCertificates::Optional),
            ];
            for (tls, passes) in cases {
                let transport = StreamableTransport::new(HttpClient::new(&served.url).unwrap().tls(tls));
                let answered = async {
                    let peer = Peer::builder(MCP).connect(transport).await.ok()?;
                    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {},
                        "clientInfo": {"name": "test", "version": "0"}});
                    peer.call::<_, Value>("initialize", &hello).await.ok()
                };
                assert_eq!(in_time("initialize", answered).await.is_some(), passes, "{demand:?}");
            }
        }
    }
}

/// The events of the handlers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Started(String),
    Cancelled(String),
    Notified(String),
}

/// A server that serves until it is dropped.
pub(crate) struct Served {
    pub(crate) url: String,
    pub(crate) seen: mpsc::UnboundedReceiver<Seen>,
    /// Allows `gate` to answer.
    pub(crate) gate: Arc<Notify>,
    pub(crate) peers: mpsc::UnboundedReceiver<Peer>,
    pub(crate) running: Arc<AtomicUsize>,
    pub(crate) counts: HttpCounts,
    _serving: Serving,
}

/// Counts a handler as running until it is dropped.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn server() -> HttpServer<Streamable> {
    HttpServer::new(Streamable::new())
}

pub(crate) async fn serve(server: HttpServer<Streamable>, dialect: Dialect) -> Served {
    listen(server.bind("127.0.0.1:0").await.unwrap(), dialect)
}

pub(crate) fn listen(listener: HttpListener, dialect: Dialect) -> Served {
    listen_within(listener, dialect, Limits::default())
}

pub(crate) fn listen_within(listener: HttpListener, dialect: Dialect, limits: Limits) -> Served {
    let (url, counts) = (listener.endpoint().to_string(), listener.counts());
    let (saw, seen) = mpsc::unbounded_channel();
    let (met, peers) = mpsc::unbounded_channel();
    let gate = Arc::new(Notify::new());
    let running = Arc::new(AtomicUsize::new(0));
    let router = router(&saw, &gate, &running);
    let server = Server::builder([dialect])
        .limits(limits)
        .serve(router)
        .on_peer(move |peer| {
            let _ = met.send(peer);
        })
        .listen(listener);
    let serving = Serving::spawn(async move { server.run().await.unwrap() });
    Served { url, seen, gate, peers, running, counts, _serving: serving }
}

fn router(saw: &mpsc::UnboundedSender<Seen>, gate: &Arc<Notify>, running: &Arc<AtomicUsize>) -> Router {
    let waits = saw.clone();
    let (wait_count, gate_count) = (Arc::clone(running), Arc::clone(running));
    let reported = saw.clone();
    let gated = saw.clone();
    let gate = Arc::clone(gate);
    Router::new()
        .method("initialize", |_: CallContext, asked: Value| async move {
            let revision = asked["protocolVersion"].as_str().unwrap_or("2025-11-25");
            Ok(json!({"protocolVersion": revision, "capabilities": {}, "serverInfo": {"name": "t", "version": "1"}}))
        })
        .method("echo", |_: CallContext, value: Value| async move { Ok(value) })
        .method("wait", move |ctx: CallContext, value: Value| {
            let (waits, running) = (waits.clone(), Running::new(&wait_count));
            async move {
                let _running = running;
                let _ = waits.send(Seen::Started(value.to_string()));
                let cause = ctx.cancelled().await;
                let _ = waits.send(Seen::Cancelled(value.to_string()));
                ctx.stopped::<Value>(cause)
            }
        })
        .method("gate", move |ctx: CallContext, value: Value| {
            let (gate, gated, running) = (Arc::clone(&gate), gated.clone(), Running::new(&gate_count));
            async move {
                let _running = running;
                let _ = gated.send(Seen::Started(value.to_string()));
                tokio::select! {
                    () = gate.notified() => Ok(value),
                    cause = ctx.cancelled() => {
                        let _ = gated.send(Seen::Cancelled(value.to_string()));
                        ctx.stopped::<Value>(cause)
                    }
                }
            }
        })
        .method("ticks", |ctx: CallContext, value: Value| async move {
            let count = value["count"].as_u64().unwrap_or(0);
            let filler = "x".repeat(usize::try_from(value["bytes"].as_u64().unwrap_or(0)).unwrap());
            for n in 0..count {
                ctx.notify("tick", &json!({"n": n, "filler": filler})).await?;
            }
            Ok(json!({"ticks": count}))
        })
        .method("ask", |ctx: CallContext, value: Value| async move {
            let answer: Value = ctx.call("answer", &value).await?;
            Ok(answer)
        })
        .notification("reported", move |_, value: Value| {
            let reported = reported.clone();
            async move {
                let _ = reported.send(Seen::Notified(value.to_string()));
            }
        })
}

pub(crate) fn transport(url: &str) -> StreamableTransport {
    StreamableTransport::new(HttpClient::new(url).unwrap()).retry(Duration::from_millis(20))
}

/// A client after the handshake.
pub(crate) async fn client(transport: StreamableTransport, dialect: Dialect) -> Peer {
    let router = Router::new().method("answer", |_: CallContext, value: Value| async move { Ok(value) });
    let builder = Peer::builder(dialect).serve(router).role(rescind_core::dialect::Role::Client);
    let peer = builder.connect(transport).await.unwrap();
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    in_time("the handshake", peer.call::<_, Value>("initialize", &hello)).await.unwrap();
    peer
}

pub(crate) async fn mcp() -> (Served, Peer) {
    let served = serve(server(), MCP).await;
    let peer = client(transport(&served.url), MCP).await;
    (served, peer)
}

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

async fn echo(peer: &Peer, value: Value) -> Value {
    in_time("echo", peer.call::<_, Value>("echo", &value)).await.unwrap()
}

#[tokio::test]
async fn calls_are_answered() {
    let (_served, peer) = mcp().await;
    for n in 0..20 {
        assert_eq!(echo(&peer, json!({"n": n})).await, json!({"n": n}));
    }
    let calls: Vec<_> =
        (0..100).map(|n| peer.call::<_, Value>("echo", &json!({"n": n})).start().unwrap()).collect();
    for (n, call) in calls.into_iter().enumerate() {
        assert!(matches!(call.outcome().await, Outcome::Completed(value) if value == json!({"n": n})));
    }
}

#[tokio::test]
async fn a_cancel_reaches_its_handler_and_silence_ends_the_stream() {
    let (mut served, peer) = mcp().await;
    let call = peer.call::<_, Value>("wait", &json!({"n": 1})).start().unwrap();
    let stop = call.canceller();
    assert_eq!(
        in_time("the start", served.seen.recv()).await,
        Some(Seen::Started(json!({"n": 1}).to_string()))
    );
    stop.cancel("enough");
    assert_eq!(
        in_time("the cancel", served.seen.recv()).await,
        Some(Seen::Cancelled(json!({"n": 1}).to_string()))
    );
    assert!(matches!(in_time("the outcome", call.outcome()).await, Outcome::Cancelled(_)));
    assert_eq!(echo(&peer, json!({"still": "open"})).await, json!({"still": "open"}));
}

#[tokio::test]
async fn an_owed_answer_to_a_cancelled_call_arrives() {
    let mut served = serve(server(), ACP).await;
    let peer = client(transport(&served.url), ACP).await;
    let call = peer.call::<_, Value>("wait", &json!({"n": 1})).start().unwrap();
    let stop = call.canceller();
    in_time("the start", served.seen.recv()).await;
    stop.cancel("enough");
    match in_time("the outcome", call.outcome()).await {
        Outcome::Cancelled(cancelled) => assert!(cancelled.confirmed),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_call_that_is_cancelled_at_once_is_cancelled_on_the_other_side_too() {
    let (mut served, peer) = mcp().await;
    for n in 0..20 {
        let call = peer.call::<_, Value>("wait", &json!({"n": n})).start().unwrap();
        tokio::task::yield_now().await;
        call.canceller().cancel("never mind");
        drop(call);
    }
    // The started handlers are cancelled, and nothing is left running.
    peer.call::<_, Value>("echo", &json!({})).await.unwrap();
    in_time("all handlers end", async {
        while served.running.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            served.seen.recv().await;
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn notifications_of_a_call_come_before_its_answer() {
    let (_served, peer) = mcp().await;
    let call = peer.call::<_, Value>("ticks", &json!({"count": 50})).start().unwrap();
    let mut ticks = call.notifications_where(|events| events.method() == "tick");
    let answer = in_time("the answer", call.outcome()).await;
    assert!(matches!(answer, Outcome::Completed(value) if value == json!({"ticks": 50})));
    let mut count = 0;
    while in_time("a tick", ticks.next()).await.is_some() {
        count += 1;
    }
    assert_eq!(count, 50);
}

#[tokio::test]
async fn the_server_sends_requests_within_a_request_and_outside_of_one() {
    let (mut served, peer) = mcp().await;
    let answer = in_time("the nested call", peer.call::<_, Value>("ask", &json!({"n": 7}))).await.unwrap();
    assert_eq!(answer, json!({"n": 7}));
    let theirs = served.peers.recv().await.unwrap();
    peer.try_notify("notifications/initialized", &json!({})).unwrap();
    let asked = theirs.call::<_, Value>("answer", &json!({"n": 8}));
    assert_eq!(in_time("the server's own call", asked).await.unwrap(), json!({"n": 8}));
}

#[tokio::test]
async fn notifications_keep_their_order() {
    let (mut served, peer) = mcp().await;
    for n in 0..50 {
        peer.try_notify("reported", &json!({"n": n})).unwrap();
    }
    for n in 0..50 {
        let seen = in_time("a notification", served.seen.recv()).await;
        assert_eq!(seen, Some(Seen::Notified(json!({"n": n}).to_string())));
    }
}

#[tokio::test]
async fn every_protocol_is_carried_in_http2_too() {
    for dialect in [MCP, ACP, LSP] {
        let served = serve(server(), dialect.clone()).await;
        let http2 = rescind_http::StreamableTransport::new(HttpClient::new(&served.url).unwrap().http2());
        let peer = client(http2, dialect).await;
        assert_eq!(echo(&peer, json!({"n": 1})).await, json!({"n": 1}));
    }
}

#[tokio::test]
async fn an_envelope_of_its_own_is_carried() {
    let served = serve(server(), ABP).await;
    let peer = client(transport(&served.url), ABP).await;
    assert_eq!(echo(&peer, json!({"n": 1})).await, json!({"n": 1}));
}

#[tokio::test]
async fn closing_ends_the_session_on_both_sides() {
    let (mut served, peer) = mcp().await;
    let theirs = served.peers.recv().await.unwrap();
    in_time("the shutdown", peer.shutdown(Duration::ZERO)).await;
    in_time("their end", theirs.closed()).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_dropped_ends_everything() {
    let (mut served, peer) = mcp().await;
    let theirs = served.peers.recv().await.unwrap();
    let call = peer.call::<_, Value>("wait", &json!({"n": 1})).start().unwrap();
    in_time("the start", served.seen.recv()).await;
    let url = served.url.clone();
    drop(served);
    assert!(matches!(
        in_time("the call", call.outcome()).await,
        Outcome::Disconnected { may_have_run: true }
    ));
    in_time("their end", theirs.closed()).await.unwrap();
    let again = Peer::builder(MCP).connect(transport(&url)).await;
    assert!(again.is_err(), "the port is closed");
}

/// The server closes the connection of an answer and does not report whether it read it. This happens if the idle
/// limit of the connection ends at that moment.
#[tokio::test]
async fn an_answer_lost_with_its_connection_is_sent_again() {
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", socket.local_addr().unwrap());
    let (events_tx, mut events) = tokio::sync::mpsc::unbounded_channel();
    let lost = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let serving = tokio::spawn(async move {
        loop {
            let (stream, _) = socket.accept().await.unwrap();
            let (events_tx, lost) = (events_tx.clone(), lost.clone());
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                loop {
                    let (mut length, mut line, mut method) = (0, String::new(), None);
                    while stream.read_line(&mut line).await.unwrap_or(0) > 2 {
                        method.get_or_insert_with(|| line.split(' ').next().unwrap_or_default().to_owned());
                        if let Some((name, value)) = line.split_once(": ")
                            && name.eq_ignore_ascii_case("content-length")
                        {
                            length = value.trim_end().parse().unwrap();
                        }
                        line.clear();
                    }
                    let mut body = vec![0; length];
                    if method.is_none() || stream.read_exact(&mut body).await.is_err() {
                        return;
                    }
                    if method.as_deref() == Some("GET") {
                        let ask = json!({"jsonrpc": "2.0", "id": 77, "method": "answer", "params": [1]});
                        let events = format!("data: {ask}\n\n");
                        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
                        let _ = stream.write_all(format!("{head}{events}").as_bytes()).await;
                        std::future::pending::<()>().await;
                    }
                    let said = String::from_utf8(body).unwrap();
                    if said.contains("77") {
                        let _ = events_tx.send(said.clone());
                        if !lost.swap(true, std::sync::atomic::Ordering::SeqCst) {
                            return;
                        }
                    }
                    let response = if said.contains("initialize\"") {
                        let result =
                            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {}});
                        let id: Value = serde_json::from_str::<Value>(&said).unwrap()["id"].clone();
                        let body = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
                        let length = body.len();
                        format!(
                            "HTTP/1.1 200 OK\r\nMcp-Session-Id: s\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
                        )
                    } else {
                        "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".to_owned()
                    };
                    if stream.write_all(response.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let peer = client(transport(&url), MCP).await;
    let first = in_time("the answer", events.recv()).await;
    assert!(first.as_deref().is_some_and(|said| said.contains("\"result\":[1]")), "{first:?}");
    assert_eq!(in_time("the answer again", events.recv()).await, first);
    drop(peer);
    serving.abort();
}
