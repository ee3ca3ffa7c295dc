//! The tables of refusals in the crate's docs: the tests provoke each status that they name for a binding over a
//! socket, and find no other.
//!
//! # CORS
//!
//! The requests and responses with which a browser permits a page of another origin to use a server. On every binding
//! they work for allowed origins, and for any other origin the response has no CORS header.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::time::Duration;

use rescind_core::dialect::{ACP, Dialect, MCP, MCP_2026};
use rescind_core::{
    CallContext, ErrorCode, ErrorObject, Limits, Listener, Principal, Router, Server, ServerLimits,
};
use rescind_http::{
    Acp, HttpListener, HttpServer, LegacySse, McpRevisions, ServerBinding, Stateless, Streamable,
};
use rescind_net::{AuthRefusal, Credential};
use rescind_testkit::support::http1::{Response, read_head, read_response, read_until};
use rescind_testkit::support::{Serving, in_time, mcp_meta};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};

const TABLE: &str = include_str!("../src/refusals.md");

/// The statuses that the tables name: those of every binding, and those of this column, where `-` means none.
fn documented(column: Column) -> BTreeSet<u16> {
    let rows = TABLE.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let reported = rows.filter(|cells| cells.len() == 4 || cells.len() == 7 && cells[column as usize] != "-");
    reported.filter_map(|cells| cells[1].split(',').next()?.parse().ok()).collect()
}

/// The refusals that every binding has in common, each as a change of a valid request: the changes, the body if it
/// differs, the status, a part of the head.
type Row<'a> = (&'a [Change<'a>], Option<&'a str>, u16, &'a str);

/// Two messages in a body. Its response can answer only one of them.
const TWO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}
{"jsonrpc":"2.0","id":2,"method":"ping"}"#;

const ALIKE: &[Row<'static>] = &[
    (&[("Host", "")], None, 400, ""),
    (&[("Host", "127.0.0.1\r\nHost: 127.0.0.1")], None, 400, ""),
    (&[], Some(""), 400, ""),
    (&[], Some("7"), 400, ""),
    (&[], Some("{"), 400, ""),
    (&[], Some(TWO), 400, ""),
    (&[("X-User", "nobody")], None, 401, "www-authenticate: bearer"),
    (&[("Origin", "https://evil.example")], None, 403, ""),
    (&[("Origin", "null")], None, 403, ""),
    (&[(":path", "/elsewhere")], None, 404, ""),
    (&[("Content-Length", "")], None, 411, ""),
    (&[("Content-Length", "5000")], None, 413, ""),
    (&[("Content-Type", "")], None, 415, ""),
    (&[("Content-Type", "text/plain")], None, 415, ""),
    (&[("Content-Type", "application/json; charset=latin1")], None, 415, ""),
    (&[("Host", "evil.example")], None, 421, ""),
    (&[("Host", "192.0.2.1")], None, 421, ""),
];

/// Sends the requests that every binding refuses, then these. Returns the statuses.
async fn play(served: &Served, rows: &[Row<'_>]) -> BTreeSet<u16> {
    let mut seen = BTreeSet::new();
    for (changes, body, status, holds) in ALIKE.iter().chain(rows) {
        let got = served.refused(changes, *body).await;
        assert_eq!(got.status, *status, "{changes:?} {body:?}: {}", got.body);
        assert!(*body != Some(TWO) || got.body.contains("a body has one message"), "{}", got.body);
        assert!(got.head.contains(holds), "{changes:?} must hold {holds:?}: {}", got.head);
        seen.insert(got.status);
    }
    seen
}

/// A server whose clients are too slow.
async fn too_slow(served: &Served) -> u16 {
    served.refused(&[("Content-Length", "4000")], None).await.status
}

#[tokio::test]
async fn streamable_refuses_as_the_table_says() {
    let served = serve(HttpServer::new(Streamable::new()).sessions(1), &[MCP], Column::Streamable).await;
    let session = served.open("mcp-session-id").await;
    let of = ("Mcp-Session-Id", session.as_str());
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let wait = r#"{"jsonrpc":"2.0","id":5,"method":"wait"}"#;
    let batch = format!("[{ping}]");
    let held = begin(&served.address, &served.request(&[of], Some(wait))).await;
    served.started().await;
    let events = ("Accept", "text/event-stream");
    let mut seen = play(
        &served,
        &[
            (&[of], Some("{}"), 400, ""),
            (&[of], Some(&batch), 400, ""),
            (&[], Some(ping), 400, ""),
            (&[of, ("MCP-Protocol-Version", "1999-01-01")], Some(ping), 400, ""),
            (&[of, events, (":method", "GET"), ("Last-Event-ID", "7-1")], Some(""), 400, ""),
            (&[("Mcp-Session-Id", "00000000000000000000000000000000")], Some(ping), 404, ""),
            (&[of, ("X-User", "bert")], Some(ping), 404, ""),
            (&[(":method", "PUT")], None, 405, "allow: get, post, delete"),
            (&[("Accept", "application/json")], None, 406, ""),
            (&[events], None, 406, ""),
            (&[of, (":method", "GET"), ("Accept", "application/json")], Some(""), 406, ""),
            (&[of], Some(wait), 409, ""),
            (&[], None, 429, "retry-after: 1"),
        ],
    )
    .await;
    drop(held);
    let slow = HttpServer::new(Streamable::new()).body_timeout(Duration::from_millis(50));
    seen.insert(too_slow(&serve(slow, &[MCP], Column::Streamable).await).await);
    seen.insert(full(HttpServer::new(Streamable::new()), Column::Streamable).await);
    assert_eq!(seen, documented(Column::Streamable));
}

/// A server whose application accepts no sessions.
async fn full<B: rescind_http::ServerBinding>(http: HttpServer<B>, column: Column) -> u16 {
    let mut none = ServerLimits::default();
    none.max_connections = 0;
    let served = serve_with(http, &[MCP, ACP], column, Limits::default(), none).await;
    let got = served.refused(&[], None).await;
    assert!(got.head.contains("retry-after: 1"), "{}", got.head);
    got.status
}

#[tokio::test]
async fn stateless_refuses_as_the_table_says() {
    let mut limits = Limits::default();
    (limits.max_running_handlers, limits.max_queued_requests) = (1, 0);
    let http = HttpServer::new(Stateless::new());
    let served = serve_with(http, &[MCP_2026], Column::Stateless, limits, ServerLimits::default()).await;
    let list = served.good();
    let (batch, other) = (format!("[{list}]"), list.replace("2026-07-28", "v999"));
    let bare = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;
    let of = |method: &str| list.replace("tools/list", method);
    let (picky, nobody, wait) = (of("picky"), of("nobody/serves"), of("wait"));
    let mut seen = play(
        &served,
        &[
            (&[], Some(&batch), 400, ""),
            (&[], Some(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), 400, ""),
            (&[("Mcp-Method", "")], None, 400, ""),
            (&[("Mcp-Method", "tools/call")], None, 400, ""),
            (&[("MCP-Protocol-Version", "")], None, 400, ""),
            (&[], Some(&other), 400, ""),
            (&[("MCP-Protocol-Version", "v999")], Some(&other), 400, ""),
            (&[], Some(bare), 400, ""),
            (&[("Mcp-Method", "picky")], Some(&picky), 400, ""),
            (&[("Mcp-Method", "nobody/serves")], Some(&nobody), 404, ""),
            (&[(":method", "GET")], Some(""), 405, "allow: post"),
            (&[(":method", "DELETE")], Some(""), 405, "allow: post"),
            (&[("Accept", "application/json")], None, 406, ""),
            (&[("Accept", "text/event-stream")], None, 406, ""),
        ],
    )
    .await;
    let held = begin(&served.address, &served.request(&[("Mcp-Method", "wait")], Some(&wait))).await;
    served.started().await;
    seen.insert(served.refused(&[], None).await.status);
    drop(held);
    let slow = HttpServer::new(Stateless::new()).body_timeout(Duration::from_millis(50));
    seen.insert(too_slow(&serve(slow, &[MCP_2026], Column::Stateless).await).await);
    seen.insert(ended(HttpServer::new(Stateless::new()), Column::Stateless).await);
    assert_eq!(seen, documented(Column::Stateless));
}

#[tokio::test]
async fn acp_refuses_as_the_table_says() {
    let served = serve(HttpServer::new(Acp::new()).sessions(1), &[ACP], Column::Acp).await;
    let connection = served.open("acp-connection-id").await;
    let of = ("Acp-Connection-Id", connection.as_str());
    let new = r#"{"jsonrpc":"2.0","id":1,"method":"session/new"}"#;
    let prompt = r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"s1"}}"#;
    let (batch, events) = (format!("[{new}]"), ("Accept", "text/event-stream"));
    // A connection that is in use is not closed to make room for another.
    let mut using = begin(&served.address, &served.request(&[of], Some(new))).await;
    assert!(head_of(&mut using).await.starts_with("http/1.1 202"));
    let mut seen = play(
        &served,
        &[
            (&[of], Some("[]"), 400, ""),
            (&[of], None, 400, ""),
            (&[], Some(new), 400, ""),
            (&[of], Some(prompt), 400, ""),
            (&[of, ("Acp-Session-Id", "s2")], Some(prompt), 400, ""),
            (&[of, events, (":method", "GET"), ("Last-Event-ID", "7-1")], Some(""), 400, ""),
            (&[of, events, (":method", "GET"), ("Last-Event-ID", "0-9")], Some(""), 400, ""),
            (&[("Acp-Connection-Id", "0")], Some(new), 404, ""),
            (&[of, ("X-User", "bert")], Some(new), 404, ""),
            (&[of, (":method", "PUT")], None, 405, "allow: get, post, delete"),
            (&[of, (":method", "GET"), ("Accept", "application/json")], Some(""), 406, ""),
            (&[], None, 429, "retry-after: 1"),
            (&[of], Some(&batch), 501, ""),
        ],
    )
    .await;
    let slow = HttpServer::new(Acp::new()).body_timeout(Duration::from_millis(50));
    seen.insert(too_slow(&serve(slow, &[ACP], Column::Acp).await).await);
    seen.insert(full(HttpServer::new(Acp::new()), Column::Acp).await);
    assert_eq!(ended(HttpServer::new(Acp::new()), Column::Acp).await, 503);
    assert_eq!(seen, documented(Column::Acp));
}

#[tokio::test]
async fn legacy_sse_refuses_as_the_table_says() {
    const GET: [Change<'static>; 2] = [(":method", "GET"), ("Accept", "text/event-stream")];
    let opens = [GET[0], GET[1], (":path", "/here")];
    let mut served = serve(HttpServer::new(LegacySse::new()).sessions(1), &[MCP], Column::LegacySse).await;
    let mut stream = begin(&served.address, &served.request(&opens, Some(""))).await;
    let named = read_until(&mut stream, "\n\n").await;
    served.target = named.lines().find_map(|line| line.strip_prefix("data: ")).unwrap().to_owned();
    // A session that is in use is not ended to make room for another.
    for _ in 0..2 {
        let mut socket = begin(&served.address, &served.request(&[], None)).await;
        assert!(head_of(&mut socket).await.starts_with("http/1.1 202"));
    }
    let batch = format!("[{}]", served.good());
    let guessed = format!("/here?sessionId={}", "0".repeat(32));
    let mut seen = play(
        &served,
        &[
            (&[], Some("[]"), 400, ""),
            (&[], Some(&batch), 400, ""),
            (&[(":path", "/here")], None, 400, ""),
            (&[("X-User", "bert")], None, 403, ""),
            (&[(":path", guessed.as_str())], None, 404, ""),
            (&[(":method", "DELETE")], None, 405, "allow: get, post"),
            (&[(":method", "GET"), ("Accept", "application/json")], Some(""), 406, ""),
            (&opens, Some(""), 429, "retry-after: 1"),
        ],
    )
    .await;
    let mut slow = serve(
        HttpServer::new(LegacySse::new()).body_timeout(Duration::from_millis(50)),
        &[MCP],
        Column::LegacySse,
    )
    .await;
    let mut waiting = begin(&slow.address, &slow.request(&opens, Some(""))).await;
    let named = read_until(&mut waiting, "\n\n").await;
    slow.target = named.lines().find_map(|line| line.strip_prefix("data: ")).unwrap().to_owned();
    seen.insert(too_slow(&slow).await);
    seen.insert(ended(HttpServer::new(LegacySse::new()), Column::LegacySse).await);
    assert_eq!(seen, documented(Column::LegacySse));
}

#[tokio::test]
async fn a_non_loopback_listener_accepts_ip_addresses_as_host_and_no_name() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let served = serve_on(HttpServer::new(Acp::new()), &[ACP], Column::Acp, address).await;
        for (host, status) in
            [("127.0.0.1", 200), ("[::1]:9", 200), ("192.0.2.1:9", 200), ("[::]:9", 200), ("localhost", 200)]
        {
            let mut socket = begin(&served.address, &served.request(&[("Host", host)], None)).await;
            let head = head_of(&mut socket).await;
            assert!(head.starts_with(&format!("http/1.1 {status}")), "{address} {host}: {head}");
        }
        assert_eq!(served.refused(&[("Host", "evil.example")], None).await.status, 421, "{address}");
    }
}

#[tokio::test]
async fn a_head_with_too_many_fields_gets_431_and_ends_its_connection() {
    let served = serve(HttpServer::new(Acp::new()), &[ACP], Column::Acp).await;
    let fields: Vec<_> = (0..65).map(|n| (format!("X-{n}"), "x")).collect();
    let fields: Vec<Change<'_>> = fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let mut socket = begin(&served.address, &served.request(&fields, Some(""))).await;
    let head = head_of(&mut socket).await;
    assert!(head.starts_with("http/1.1 431"), "{head}");
    assert!(head.contains("connection: close"), "{head}");
}

#[test]
fn an_id_of_a_refusal_is_null_or_not_there() {
    assert!(Id::Null.fits(&serde_json::json!({"id": null})));
    assert!(!Id::Null.fits(&serde_json::json!({})));
    assert!(Id::Absent.fits(&serde_json::json!({})));
}

/// A header that replaces one of the same name. An empty value removes it. `:method` and `:path` belong to the
/// request line.
pub(crate) type Change<'a> = (&'a str, &'a str);

/// A binding, and its column in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Streamable = 2,
    Stateless = 3,
    Acp = 4,
    LegacySse = 5,
}

/// The id of a refusal that belongs to no request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Id {
    Null,
    Absent,
}

impl Id {
    pub(crate) fn fits(self, refusal: &Value) -> bool {
        match self {
            Self::Null => refusal.get("id") == Some(&Value::Null),
            Self::Absent => refusal.get("id").is_none(),
        }
    }
}

/// The target of a valid request that opens something.
const TARGET: &str = "/here";

pub(crate) struct Served {
    pub(crate) address: String,
    /// The target of a valid request.
    pub(crate) target: String,
    column: Column,
    begun: Mutex<mpsc::UnboundedReceiver<()>>,
    _serving: Serving,
}

pub(crate) async fn serve<B: ServerBinding>(
    http: HttpServer<B>,
    dialects: &[Dialect],
    column: Column,
) -> Served {
    serve_with(http, dialects, column, Limits::default(), ServerLimits::default()).await
}

pub(crate) async fn serve_with<B: ServerBinding>(
    http: HttpServer<B>,
    dialects: &[Dialect],
    column: Column,
    limits: Limits,
    server_limits: ServerLimits,
) -> Served {
    let listener = common(http).bind("127.0.0.1:0").await.unwrap();
    listen(listener, dialects, column, limits, server_limits)
}

/// A server on an address other than the usual one.
pub(crate) async fn serve_on<B: ServerBinding>(
    http: HttpServer<B>,
    dialects: &[Dialect],
    column: Column,
    address: &str,
) -> Served {
    let listener = common(http).bind(address).await.unwrap();
    let mut served = listen(listener, dialects, column, Limits::default(), ServerLimits::default());
    served.address = served.address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]");
    served
}

fn common<B: ServerBinding>(server: HttpServer<B>) -> HttpServer<B> {
    server.path("/here").max_frame(4096).auth(async |request| {
        let name = request.header("x-user").unwrap_or("anna");
        if name == "nobody" {
            return Err(AuthRefusal::unauthorized("Bearer"));
        }
        Ok(Credential::of(Principal(name.into())))
    })
}

fn listen(
    listener: HttpListener,
    dialects: &[Dialect],
    column: Column,
    limits: Limits,
    server_limits: ServerLimits,
) -> Served {
    let url = listener.endpoint().to_string();
    let address = url.trim_start_matches("http://").trim_end_matches("/here").to_owned();
    let (tell, begun) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            Ok(json!({"protocolVersion": 1, "capabilities": {}}))
        })
        .method("tools/list", |_: CallContext, _: Value| async { Ok(json!({"tools": []})) })
        .method("picky", |_: CallContext, _: Value| async {
            Err::<Value, _>(ErrorObject::new(ErrorCode(-32021), "sampling is required").into())
        })
        .method("wait", move |ctx: CallContext, _: Value| {
            let tell = tell.clone();
            async move {
                let _ = tell.send(());
                let cause = ctx.cancelled().await;
                ctx.stopped::<Value>(cause)
            }
        });
    let server = Server::builder(dialects.to_vec()).limits(limits).server_limits(server_limits).serve(router);
    let server = server.listen(listener);
    let serving = Serving::spawn(async move { server.run().await.unwrap() });
    Served { address, target: TARGET.to_owned(), column, begun: Mutex::new(begun), _serving: serving }
}

impl Served {
    /// Waits until `wait` runs.
    pub(crate) async fn started(&self) {
        in_time("the start", async { self.begun.lock().await.recv().await }).await.unwrap();
    }

    /// The body of a valid request.
    pub(crate) fn good(&self) -> String {
        good(self.column)
    }

    pub(crate) fn request(&self, changes: &[Change<'_>], body: Option<&str>) -> String {
        request(self.column, (&self.address, &self.target), changes, body)
    }

    /// Opens a session or connection and returns its id.
    pub(crate) async fn open(&self, header: &str) -> String {
        let mut socket = begin(&self.address, &self.request(&[], None)).await;
        let head = head_of(&mut socket).await;
        let line = head.lines().find_map(|line| line.strip_prefix(header));
        line.unwrap_or_else(|| panic!("no {header}: {head}")).trim_start_matches(": ").to_owned()
    }

    /// Sends a request that must be refused with a reason in JSON.
    pub(crate) async fn refused(&self, changes: &[Change<'_>], body: Option<&str>) -> Response {
        refused(self.column, (&self.address, &self.target), changes, body).await
    }
}

/// The status of a new request to a server whose listener is dropped, in a route of axum.
pub(crate) async fn ended<B: ServerBinding>(server: HttpServer<B>, column: Column) -> u16 {
    let (service, listener) = common(server).mount();
    drop(listener);
    let app = axum::Router::new().route_service("/here", service);
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let serving = tokio::spawn(async { axum::serve(socket, app).await.unwrap() });
    let got = refused(column, (&address, TARGET), &[], None).await;
    serving.abort();
    assert!(got.head.contains("retry-after: 1"), "{}", got.head);
    got.status
}

async fn refused(
    column: Column,
    (address, target): (&str, &str),
    changes: &[Change<'_>],
    body: Option<&str>,
) -> Response {
    let mut socket = begin(address, &request(column, (address, target), changes, body)).await;
    let got = read_response(&mut socket).await;
    let Response { status, head, body } = &got;
    assert!(*status >= 400, "{changes:?} {head}");
    assert!(head.contains("content-type: application/json"), "{changes:?} {head}");
    let reported: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{changes:?} {head} {body}"));
    assert!(
        reported["error"]["code"].is_i64() && reported["error"]["message"].is_string(),
        "{changes:?} {reported}"
    );
    let id = if column == Column::Acp { Id::Null } else { Id::Absent };
    // A refusal by the protocol has the request's id, or the value that its envelope uses without an id.
    let is_ours = id.fits(&reported) || (column != Column::Acp && matches!(status, 400 | 404 | 409 | 429));
    assert!(is_ours, "{changes:?} {status} {reported}");
    got
}

fn good(column: Column) -> String {
    let (method, params) = match column {
        Column::Streamable | Column::LegacySse => {
            ("initialize", json!({"protocolVersion": "2025-11-25", "capabilities": {}}))
        }
        Column::Stateless => ("tools/list", json!({"_meta": mcp_meta()})),
        Column::Acp => ("initialize", json!({"protocolVersion": 1, "clientCapabilities": {}})),
    };
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string()
}

fn request(
    column: Column,
    (address, target): (&str, &str),
    changes: &[Change<'_>],
    body: Option<&str>,
) -> String {
    let body = body.map_or_else(|| good(column), ToOwned::to_owned);
    let length = body.len().to_string();
    let mut lines = vec![
        (":method", "POST"),
        (":path", target),
        ("Host", address),
        ("Connection", "close"),
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
        ("Content-Length", &length),
    ];
    if column == Column::Stateless {
        lines.extend([("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/list")]);
    }
    lines.retain(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    lines.extend(changes.iter().copied().filter(|(_, value)| !value.is_empty()));
    let of_line = |name: &str| lines.iter().find(|(known, _)| *known == name).unwrap().1;
    let head = format!("{} {} HTTP/1.1\r\n", of_line(":method"), of_line(":path"));
    let fields: Vec<String> = lines
        .iter()
        .filter(|(name, _)| !name.starts_with(':'))
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    // A body without a length is not sent.
    let body =
        if fields.iter().any(|field| field.starts_with("Content-Length")) { body } else { String::new() };
    format!("{head}{}\r\n{body}", fields.concat())
}

pub(crate) async fn begin(address: &str, request: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

pub(crate) async fn head_of(socket: &mut TcpStream) -> String {
    read_head(socket).await.to_ascii_lowercase()
}

const APP: &str = "https://app.example";

/// The binding of a column, with the content of its preflight answer and the exposed headers.
struct PageRow {
    served: Served,
    methods: &'static str,
    headers: &'static [&'static str],
    exposed: &'static [&'static str],
}

fn allowing<B: ServerBinding>(binding: B) -> HttpServer<B> {
    HttpServer::new(binding).allow_origin(APP).unwrap()
}

async fn rows() -> Vec<PageRow> {
    let streamable = serve(allowing(Streamable::new()), &[MCP], Column::Streamable).await;
    let stateless = serve(allowing(Stateless::new()), &[MCP_2026], Column::Stateless).await;
    let acp = serve(allowing(Acp::new()), &[ACP], Column::Acp).await;
    let both = serve(allowing(McpRevisions::default()), &[MCP, MCP_2026], Column::Streamable).await;
    vec![
        PageRow {
            served: streamable,
            methods: "get, post, delete",
            headers: &["mcp-session-id", "mcp-protocol-version", "last-event-id"],
            exposed: &["mcp-session-id"],
        },
        PageRow {
            served: stateless,
            methods: "post",
            headers: &["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-param-region"],
            exposed: &[],
        },
        PageRow {
            served: acp,
            methods: "get, post, delete",
            headers: &["acp-connection-id", "acp-session-id", "last-event-id"],
            exposed: &["acp-connection-id", "acp-session-id"],
        },
        PageRow {
            served: both,
            methods: "get, post, delete",
            headers: &["mcp-session-id", "last-event-id", "mcp-method", "mcp-name", "mcp-param-region"],
            exposed: &["mcp-session-id"],
        },
    ]
}

/// The head of the answer to a request with these changes.
async fn asked(served: &Served, changes: &[Change<'_>], body: Option<&str>) -> String {
    head_of(&mut begin(&served.address, &served.request(changes, body)).await).await
}

/// A preflight for a page of this origin.
async fn preflight(served: &Served, origin: &str, changes: &[Change<'_>]) -> String {
    let mut all = vec![
        (":method", "OPTIONS"),
        ("Origin", origin),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "content-type,mcp-param-region"),
        // A browser sends a preflight without credentials.
        ("X-User", "nobody"),
        ("Content-Type", ""),
        ("Content-Length", ""),
    ];
    all.retain(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    all.extend(changes);
    asked(served, &all, Some("")).await
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let values: Vec<_> =
        head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).collect();
    assert!(values.len() <= 1, "{name} is there once: {head}");
    values.first().copied()
}

fn lists(head: &str, name: &str, value: &str) -> bool {
    field(head, name).is_some_and(|values| values.split(',').any(|one| one.trim() == value))
}

#[tokio::test]
async fn a_preflight_of_an_allowed_page_is_answered_on_every_binding() {
    for row in rows().await {
        let head = preflight(&row.served, APP, &[]).await;
        assert!(head.starts_with("http/1.1 204"), "{head}");
        assert_eq!(field(&head, "access-control-allow-origin"), Some(APP), "{head}");
        assert_eq!(field(&head, "access-control-allow-methods"), Some(row.methods), "{head}");
        for name in ["accept", "authorization", "content-type"].iter().chain(row.headers) {
            assert!(lists(&head, "access-control-allow-headers", name), "{name}: {head}");
        }
        assert!(lists(&head, "vary", "origin"), "{head}");
        assert!(field(&head, "access-control-max-age").is_some(), "{head}");
        assert_eq!(field(&head, "access-control-allow-credentials"), None, "{head}");
        assert_eq!(field(&head, "access-control-allow-private-network"), None, "{head}");
        let private = [("Access-Control-Request-Private-Network", "true")];
        let head = preflight(&row.served, APP, &private).await;
        assert_eq!(field(&head, "access-control-allow-private-network"), Some("true"), "{head}");
        let head = preflight(&row.served, "http://localhost:3000", &[]).await;
        assert_eq!(field(&head, "access-control-allow-origin"), Some("http://localhost:3000"), "{head}");
    }
}

#[tokio::test]
async fn a_page_of_another_origin_gets_no_cors_headers() {
    for row in rows().await {
        for origin in
            ["https://evil.example", "null", "http://app.example", "https://app.example.evil.example"]
        {
            let preflight = preflight(&row.served, origin, &[]).await;
            let post = asked(&row.served, &[("Origin", origin)], None).await;
            for head in [preflight, post] {
                assert!(head.starts_with("http/1.1 403"), "{origin}: {head}");
                assert!(!head.contains("access-control-"), "{origin}: {head}");
                assert!(lists(&head, "vary", "origin"), "{origin}: {head}");
            }
        }
        let two =
            asked(&row.served, &[("Origin", "https://app.example\r\nOrigin: https://app.example")], None);
        assert!(!two.await.contains("access-control-"));
        let elsewhere = preflight(&row.served, APP, &[("Host", "evil.example")]).await;
        assert!(elsewhere.starts_with("http/1.1 421"), "{elsewhere}");
        assert!(!elsewhere.contains("access-control-"), "{elsewhere}");
    }
}

#[tokio::test]
async fn answers_and_refusals_can_be_read_by_an_allowed_page() {
    for row in rows().await {
        let events = ("Accept", "text/plain");
        for (changes, body, status) in [
            (&[][..], None, "200"),
            (&[("X-User", "nobody")], None, "401"),
            (&[(":path", "/elsewhere")], None, "404"),
            (&[(":method", "PUT")], None, "405"),
            (&[events], None, "406"),
            (&[("Content-Length", "5000")], None, "413"),
            (&[("Content-Type", "text/plain")], None, "415"),
        ] {
            // ACP's binding does not check `Accept` of a POST.
            if status == "406" && row.exposed.contains(&"acp-connection-id") {
                continue;
            }
            let mut all = vec![("Origin", APP)];
            all.extend(changes);
            let head = asked(&row.served, &all, body).await;
            assert!(head.starts_with(&format!("http/1.1 {status}")), "{changes:?}: {head}");
            assert_eq!(field(&head, "access-control-allow-origin"), Some(APP), "{changes:?}: {head}");
            assert!(lists(&head, "vary", "origin"), "{changes:?}: {head}");
            for name in ["www-authenticate", "retry-after"].iter().chain(row.exposed) {
                assert!(lists(&head, "access-control-expose-headers", name), "{name}: {head}");
            }
        }
        let head = asked(&row.served, &[], None).await;
        assert!(!head.contains("access-control-"), "no page asks: {head}");
    }
}

#[tokio::test]
async fn an_options_request_without_preflight_headers_is_refused_as_a_method() {
    for row in rows().await {
        for changes in [&[(":method", "OPTIONS")][..], &[(":method", "OPTIONS"), ("Origin", APP)]] {
            let head = asked(&row.served, changes, None).await;
            assert!(head.starts_with("http/1.1 405"), "{changes:?}: {head}");
        }
        let head = preflight(&row.served, APP, &[(":path", "/elsewhere")]).await;
        assert!(head.starts_with("http/1.1 404"), "{head}");
    }
}

#[tokio::test]
async fn credentials_and_further_headers_are_allowed_by_setting_only() {
    let http = || HttpServer::new(Streamable::new()).allow_header("X-Api-Key").unwrap().allow_credentials();
    let served = serve(http().allow_origin(APP).unwrap(), &[MCP], Column::Streamable).await;
    let head = preflight(&served, APP, &[]).await;
    assert!(lists(&head, "access-control-allow-headers", "x-api-key"), "{head}");
    assert!(!lists(&head, "access-control-allow-headers", "mcp-param-region"), "{head}");
    assert_eq!(field(&head, "access-control-allow-credentials"), Some("true"), "{head}");
    let head = asked(&served, &[("Origin", APP)], None).await;
    assert_eq!(field(&head, "access-control-allow-credentials"), Some("true"), "{head}");

    // A page of another origin must not act with the cookies of its reader.
    let open = serve(http().allow_any_origin(), &[MCP], Column::Streamable).await;
    for head in
        [preflight(&open, "https://any.example", &[]).await, asked(&open, &[("Origin", "null")], None).await]
    {
        assert!(field(&head, "access-control-allow-origin").is_some(), "{head}");
        assert_eq!(field(&head, "access-control-allow-credentials"), None, "{head}");
    }
    assert!(HttpServer::new(Streamable::new()).allow_header("not a name").is_err());
}
