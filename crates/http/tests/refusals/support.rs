//! A server of any binding, and requests written line by line.

use rescind_core::dialect::Dialect;
use rescind_core::{
    CallContext, ErrorCode, ErrorObject, Limits, Listener, Principal, Router, Server, ServerLimits,
};
use rescind_http::{HttpListener, HttpServer, ServerBinding};
use rescind_net::{AuthRefusal, Credential};
use rescind_testkit::support::http1::{Response, read_head, read_response};
use rescind_testkit::support::{Serving, in_time, mcp_meta};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};

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
