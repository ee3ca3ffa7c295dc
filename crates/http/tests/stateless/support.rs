//! A served router, and a client that writes HTTP/1.1 by hand.

use rescind_core::dialect::MCP_2026;
use rescind_core::{CallContext, ErrorObject, Limits, Listener, Router, Server};
use rescind_http::{HttpListener, HttpServer, Stateless};
use rescind_testkit::support::http1::{self, Response, read_response};
pub(crate) use rescind_testkit::support::in_time;
use rescind_testkit::support::{Serving, mcp_meta};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// A server that serves until it is dropped.
pub(crate) struct Served {
    pub(crate) url: String,
    pub(crate) events: mpsc::UnboundedReceiver<String>,
    _serving: Serving,
}

impl Served {
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://").trim_end_matches('/')
    }

    pub(crate) async fn hears(&mut self, what: &str) {
        assert_eq!(in_time(what, self.events.recv()).await.as_deref(), Some(what));
    }
}

pub(crate) async fn serve() -> Served {
    listen(HttpServer::new(Stateless::new()).max_frame(64 * 1024).bind("127.0.0.1:0").await.unwrap())
}

pub(crate) fn listen(listener: HttpListener) -> Served {
    listen_with(listener, Limits::default())
}

pub(crate) fn listen_with(listener: HttpListener, limits: Limits) -> Served {
    let url = listener.endpoint().to_string();
    let (events_tx, events) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("tools/list", |_: CallContext, _: Value| async move { Ok(json!({"tools": []})) })
        .method("tools/call", |_: CallContext, params: Value| async move { Ok(params["name"].clone()) })
        .method("picky", |_: CallContext, _: Value| async move {
            let data = serde_json::value::to_raw_value(&json!({"requiredCapabilities": {"sampling": {}}}));
            let mut error = ErrorObject::new(rescind_core::ErrorCode(-32021), "sampling is required");
            error.data = data.ok();
            Err::<Value, _>(error.into())
        })
        .method("wait", move |ctx: CallContext, params: Value| {
            let events_tx = events_tx.clone();
            async move {
                let name = params["name"].as_str().unwrap_or_default().to_owned();
                let _ = events_tx.send(format!("{name} started"));
                if params["ticks"] == true {
                    ctx.try_notify("tick", &json!({}))?;
                }
                let cause = ctx.cancelled().await;
                let _ = events_tx.send(format!("{name} {}", cause.kind().name()));
                ctx.stopped::<Value>(cause)
            }
        });
    let server = Server::builder([MCP_2026]).serve(router).limits(limits).listen(listener);
    let serving = Serving::spawn(async move { server.run().await.unwrap() });
    Served { url, events, _serving: serving }
}

/// A request of revision 2026-07-28.
pub(crate) fn message(id: u64, method: &str, params: &Value) -> Value {
    let mut params = params.clone();
    params["_meta"] = mcp_meta();
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

pub(crate) const USUAL: [(&str, &str); 3] = [
    ("Content-Type", "application/json"),
    ("Accept", "application/json, text/event-stream"),
    ("MCP-Protocol-Version", "2026-07-28"),
];

/// Writes one request and leaves the connection open.
pub(crate) async fn begin(address: &str, method: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
    begin_from("127.0.0.1", address, method, headers, body).await
}

/// The same, from this address of the machine.
pub(crate) async fn begin_from(
    from: &str,
    address: &str,
    method: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
    let headers = [&[("Connection", "close")], headers].concat();
    stream.write_all(http1::request(method, "/", address, &headers, body).as_bytes()).await.unwrap();
    stream
}

pub(crate) async fn ask(address: &str, method: &str, headers: &[(&str, &str)], body: &str) -> Response {
    read_response(&mut begin(address, method, headers, body).await).await
}

/// A POST with the usual headers and these.
pub(crate) async fn post(address: &str, more: &[(&str, &str)], body: &Value) -> Response {
    let headers: Vec<_> = USUAL.iter().chain(more).copied().collect();
    ask(address, "POST", &headers, &body.to_string()).await
}
