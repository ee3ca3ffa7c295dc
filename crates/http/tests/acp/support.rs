//! A served router, and a client that writes HTTP/1.1 by hand.

use rescind_core::dialect::ACP;
use rescind_core::{CallContext, Limits, Listener, Peer, Principal, Router, Server};
use rescind_http::{Acp, HttpListener, HttpServer};
use rescind_net::{AuthRefusal, Credential};
use rescind_testkit::support::Serving;
use rescind_testkit::support::http1::{self, Response, read_head, read_response};
pub(crate) use rescind_testkit::support::{http1::read_until, in_time};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// A server that serves until it is dropped.
pub(crate) struct Served {
    pub(crate) url: String,
    pub(crate) events: mpsc::UnboundedReceiver<String>,
    pub(crate) peers: mpsc::UnboundedReceiver<Peer>,
    _serving: Serving,
}

impl Served {
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("http://").trim_end_matches("/acp")
    }

    pub(crate) async fn hears(&mut self, what: &str) {
        assert_eq!(in_time(what, self.events.recv()).await.as_deref(), Some(what));
    }
}

pub(crate) fn server() -> HttpServer<Acp> {
    HttpServer::new(Acp::new()).path("/acp").max_frame(64 * 1024).auth(async |request| {
        let name = request.header("x-user").unwrap_or("anyone");
        if name == "nobody" {
            return Err(AuthRefusal::unauthorized("Bearer"));
        }
        Ok(Credential::of(Principal(name.into())))
    })
}

pub(crate) async fn serve() -> Served {
    listen(server().bind("127.0.0.1:0").await.unwrap())
}

pub(crate) fn listen(listener: HttpListener) -> Served {
    listen_with(listener, Limits::default())
}

pub(crate) fn listen_with(listener: HttpListener, limits: Limits) -> Served {
    let url = listener.endpoint().to_string();
    let (events_tx, events) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("initialize", |_: CallContext, params: Value| async move {
            if params["protocolVersion"] == 1 {
                return Ok(json!({"protocolVersion": 1, "agentCapabilities": {}}));
            }
            Err(rescind_core::ErrorObject::invalid_params("only version 1 is spoken").into())
        })
        .method("session/new", |_: CallContext, _: Value| async move { Ok(json!({"sessionId": "s1"})) })
        .method("session/load", |_: CallContext, _: Value| async move { Ok(json!({})) })
        .method("session/prompt", move |ctx: CallContext, params: Value| {
            let events_tx = events_tx.clone();
            async move {
                let _ = events_tx.send("started".to_owned());
                ctx.try_notify("session/update", &json!({"sessionId": params["sessionId"]}))?;
                if params["asks"] == true {
                    let asked: Value = ctx
                        .call("session/request_permission", &json!({"sessionId": params["sessionId"]}))
                        .await?;
                    return Ok(asked);
                }
                for _ in 0..params["floods"].as_u64().unwrap_or(0) {
                    let filler = "x".repeat(32 * 1024);
                    ctx.notify("session/update", &json!({"sessionId": "s1", "filler": filler})).await?;
                }
                let cause = ctx.cancelled().await;
                let _ = events_tx.send(cause.kind().name().to_owned());
                ctx.stopped::<Value>(cause)
            }
        });
    let (met, peers) = mpsc::unbounded_channel();
    let server = Server::builder([ACP])
        .limits(limits)
        .serve(router)
        .on_peer(move |peer| drop(met.send(peer)))
        .listen(listener);
    let serving = Serving::spawn(async move { server.run().await.unwrap() });
    Served { url, events, peers, _serving: serving }
}

pub(crate) fn request(id: u64, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

pub(crate) fn prompt(id: u64, session: &str) -> String {
    request(id, "session/prompt", &json!({"sessionId": session}))
}

pub(crate) fn cancel(id: u64) -> String {
    json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": id}}).to_string()
}

pub(crate) fn hello() -> String {
    request(0, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}))
}

pub(crate) async fn begin(address: &str, method: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let headers = [&[("Connection", "close")], headers].concat();
    stream.write_all(http1::request(method, "/acp", address, &headers, body).as_bytes()).await.unwrap();
    stream
}

pub(crate) async fn ask(address: &str, method: &str, headers: &[(&str, &str)], body: &str) -> Response {
    read_response(&mut begin(address, method, headers, body).await).await
}

pub(crate) const JSON: (&str, &str) = ("Content-Type", "application/json");

pub(crate) async fn post(address: &str, more: &[(&str, &str)], body: &str) -> Response {
    let headers: Vec<_> = std::iter::once(JSON).chain(more.iter().copied()).collect();
    ask(address, "POST", &headers, body).await
}

/// Opens a connection and returns its id.
pub(crate) async fn open(address: &str, more: &[(&str, &str)]) -> String {
    let got = post(address, more, &hello()).await;
    assert_eq!(got.status, 200, "{}", got.body);
    let line = got.head.lines().find(|line| line.starts_with("acp-connection-id:")).unwrap();
    line.split_once(": ").unwrap().1.to_owned()
}

/// Makes the session `s1`, so that its stream can be opened.
pub(crate) async fn make_session(address: &str, known: (&str, &str)) {
    let mut own = stream(address, &[known]).await;
    assert_eq!(post(address, &[known], &request(1, "session/new", &json!({}))).await.status, 202);
    read_until(&mut own, "\"sessionId\":\"s1\"").await;
}

pub(crate) async fn stream(address: &str, headers: &[(&str, &str)]) -> TcpStream {
    let headers: Vec<_> =
        std::iter::once(("Accept", "text/event-stream")).chain(headers.iter().copied()).collect();
    let mut stream = begin(address, "GET", &headers, "").await;
    // Read byte by byte, because the caller reads the stream after the head.
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    stream
}

/// Serves these routes, as a program with other routes does.
pub(crate) async fn serve_routes(app: axum::Router) -> (String, tokio::task::JoinHandle<()>) {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/acp", socket.local_addr().unwrap());
    (url, tokio::spawn(async move { axum::serve(socket, app).await.unwrap() }))
}
