//! Each row of the table of refusals in the crate's docs.
//!
//! # Ends
//!
//! A server that drains: its sessions end first, then its port closes. Connections without traffic are closed, each by
//! a separate limit.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rescind_core::dialect::MCP;
use rescind_core::{CallContext, Outcome, Peer, Principal, Router, Server, ServerHandle};
use rescind_http::{HttpClient, HttpServer, SecondStream, Streamable, StreamableTransport};
use rescind_net::{AuthRefusal, AuthRequest, Credential};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::streamable::{
    Ask, BOTH, Raw, Seen, Served, cancel, client, in_time, initialize, open, request, serve, server,
    transport,
};

/// Checks that a refusal has a reason, in JSON, and no id.
async fn refused(raw: &mut Raw, ask: &Ask, status: u16) -> String {
    let (head, body) = raw.ask(ask).await;
    assert_eq!(head.status, status, "{ask:?}: {body}");
    assert_eq!(head.header("content-type"), "application/json");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert!(body.get("id").is_none_or(Value::is_null), "{body}");
    assert!(body["error"]["code"].is_i64(), "{body}");
    body["error"]["message"].as_str().unwrap().to_owned()
}

fn echo() -> Ask {
    request(1, "echo", &json!({"n": 1}))
}

#[tokio::test]
async fn an_invalid_request_gets_400() {
    let served = serve(server(), MCP).await;
    let (mut raw, session) = open(&served.url).await;
    let text = refused(&mut raw, &echo(), 400).await;
    assert!(text.contains("Mcp-Session-Id"), "{text}");
    refused(&mut raw, &Ask::get(), 400).await;
    refused(&mut raw, &Ask::delete(), 400).await;
    refused(&mut raw, &Ask::post("").of(&session), 400).await;
    refused(&mut raw, &Ask::post("{not json").of(&session), 400).await;
    refused(&mut raw, &Ask::post("[]").of(&session), 400).await;
    let batch = Ask::post(format!("[{}]", echo().body)).of(&session);
    refused(&mut raw, &batch, 400).await;
    let version = echo().of(&session).with("MCP-Protocol-Version", "1999-01-01");
    refused(&mut raw, &version, 400).await;
    for id in ["nonsense", "7-1", "0-99"] {
        refused(&mut raw, &Ask::get().of(&session).with("Last-Event-ID", id), 400).await;
    }
    // The session stays open.
    let (head, body) = raw.ask(&echo().of(&session).with("MCP-Protocol-Version", "2025-11-25")).await;
    assert_eq!((head.status, body.contains(r#""n":1"#)), (200, true));
}

#[tokio::test]
async fn an_unknown_client_gets_401_and_a_session_belongs_to_its_opener() {
    let auth = async |request: AuthRequest| {
        let token = request.header("Authorization").and_then(|value| value.strip_prefix("Bearer "));
        let known = token.filter(|token| ["anna", "bert"].contains(token));
        known
            .map(|token| Credential::of(Principal(token.into())))
            .ok_or_else(|| AuthRefusal::unauthorized("Bearer"))
    };
    let served = serve(server().auth(auth), MCP).await;
    let mut raw = Raw::connect(&served.url).await;
    let (head, _) = raw.ask(&initialize()).await;
    assert_eq!((head.status, head.header("www-authenticate")), (401, "Bearer"));
    refused(&mut raw, &initialize().with("Authorization", "Bearer eve"), 401).await;
    let (head, _) = raw.ask(&initialize().with("Authorization", "Bearer anna")).await;
    let session = head.header("mcp-session-id").to_owned();
    refused(&mut raw, &echo().of(&session).with("Authorization", "Bearer bert"), 404).await;
    let (head, _) = raw.ask(&echo().of(&session).with("Authorization", "Bearer anna")).await;
    assert_eq!(head.status, 200);
}

#[tokio::test]
async fn a_page_of_another_origin_gets_403_and_another_host_421() {
    let served = serve(
        server().allow_origin("https://app.example").unwrap().allow_host("agent.example").unwrap(),
        MCP,
    )
    .await;
    let mut raw = Raw::connect(&served.url).await;
    refused(&mut raw, &initialize().with("Origin", "https://evil.example"), 403).await;
    refused(&mut raw, &initialize().with("Origin", "null"), 403).await;
    refused(&mut raw, &initialize().with("Host", "evil.example"), 421).await;
    for (name, value) in [("Origin", "https://app.example"), ("Host", "agent.example:80")] {
        assert_eq!(raw.ask(&initialize().with(name, value)).await.0.status, 200);
    }
}

#[tokio::test]
async fn an_unknown_path_or_session_gets_404() {
    let served = serve(server().path("/mcp"), MCP).await;
    let mut raw = Raw::connect(served.url.trim_end_matches("/mcp")).await;
    refused(&mut raw, &initialize(), 404).await;
    let served = serve(server(), MCP).await;
    let (mut raw, session) = open(&served.url).await;
    refused(&mut raw, &echo().of("00000000000000000000000000000000"), 404).await;
    let (head, _) = raw.ask(&Ask::delete().of(&session)).await;
    assert_eq!(head.status, 204);
    refused(&mut raw, &echo().of(&session), 404).await;
    refused(&mut raw, &Ask::get().of(&session), 404).await;
}

#[tokio::test]
async fn a_method_that_is_not_served_gets_405() {
    let served = serve(server(), MCP).await;
    let mut raw = Raw::connect(&served.url).await;
    let ask = Ask { method: "PUT", ..initialize() }.with("Content-Length", "0");
    let (head, _) = raw.ask(&Ask { body: String::new(), ..ask }).await;
    assert_eq!((head.status, head.header("allow")), (405, "GET, POST, DELETE"));
}

#[tokio::test]
async fn a_client_that_does_not_take_both_gets_406() {
    let served = serve(server(), MCP).await;
    let (mut raw, session) = open(&served.url).await;
    for accept in ["application/json", "text/event-stream", "text/html"] {
        refused(&mut raw, &initialize().with("Accept", accept), 406).await;
    }
    refused(&mut raw, &initialize().without("Accept"), 406).await;
    refused(&mut raw, &Ask::get().of(&session).with("Accept", "application/json"), 406).await;
}

#[tokio::test]
async fn a_body_that_does_not_come_gets_408() {
    let served = serve(server().body_timeout(Duration::from_millis(50)), MCP).await;
    let mut raw = Raw::connect(&served.url).await;
    refused(&mut raw, &initialize().with("Content-Length", "5000"), 408).await;
}

#[tokio::test]
async fn an_id_in_use_gets_409_and_the_first_request_goes_on() {
    let mut served = serve(server(), MCP).await;
    let (mut raw, session) = open(&served.url).await;
    raw.send(&request(5, "gate", &json!({})).of(&session)).await;
    assert!(matches!(in_time("the start", served.seen.recv()).await, Some(Seen::Started(_))));
    let mut other = Raw::connect(&served.url).await;
    refused(&mut other, &request(5, "echo", &json!({})).of(&session), 409).await;
    served.gate.notify_one();
    assert_eq!(raw.answer().await["id"], 5);
}

#[tokio::test]
async fn a_second_stream_gets_409_if_it_is_not_to_displace_the_first() {
    let binding = Streamable::new().second_stream(SecondStream::Refused);
    let served = serve(HttpServer::new(binding), MCP).await;
    let (mut raw, session) = open(&served.url).await;
    raw.send(&Ask::get().of(&session)).await;
    assert_eq!(raw.head().await.status, 200);
    let mut other = Raw::connect(&served.url).await;
    refused(&mut other, &Ask::get().of(&session), 409).await;
}

#[tokio::test]
async fn a_body_without_a_length_gets_411_and_a_chunked_one_is_read() {
    let served = serve(server(), MCP).await;
    let mut raw = Raw::connect(&served.url).await;
    let ask = Ask { body: String::new(), ..initialize() };
    refused(&mut raw, &ask.with("No-Length", "1"), 411).await;
    let mut raw = Raw::connect(&served.url).await;
    let ask = initialize();
    let (front, back) = ask.body.split_at(20);
    let body = format!("{:x}\r\n{front}\r\n{:x}\r\n{back}\r\n0\r\n\r\n", front.len(), back.len());
    let (head, _) = raw.ask(&Ask { body, ..ask }.with("Transfer-Encoding", "chunked")).await;
    assert_eq!(head.status, 200);
}

#[tokio::test]
async fn a_body_over_the_limit_gets_413_by_its_length_and_while_it_is_read() {
    let served = serve(server().max_frame(1000), MCP).await;
    let mut raw = Raw::connect(&served.url).await;
    refused(&mut raw, &initialize().with("Content-Length", "1001"), 413).await;
    let mut raw = Raw::connect(&served.url).await;
    let chunk = format!("{:x}\r\n{}\r\n", 600, "x".repeat(600));
    let ask = Ask { body: chunk.repeat(2), ..initialize() }.with("Transfer-Encoding", "chunked");
    refused(&mut raw, &ask, 413).await;
}

#[tokio::test]
async fn a_body_of_another_kind_gets_415() {
    let served = serve(server(), MCP).await;
    let mut raw = Raw::connect(&served.url).await;
    for kind in ["text/plain", "application/json; charset=latin1", "application/x-www-form-urlencoded"] {
        refused(&mut raw, &initialize().with("Content-Type", kind), 415).await;
    }
    refused(&mut raw, &initialize().without("Content-Type"), 415).await;
}

#[tokio::test]
async fn a_session_too_many_gets_429() {
    let served = serve(server().sessions(1), MCP).await;
    let (mut raw, session) = open(&served.url).await;
    let (head, _) = raw.ask(&echo().of(&session)).await;
    assert_eq!(head.status, 200, "it is in use");
    let (head, _) = raw.ask(&initialize()).await;
    assert_eq!((head.status, head.header("retry-after")), (429, "1"));
    raw.ask(&Ask::delete().of(&session)).await;
    let (head, _) = raw.ask(&initialize()).await;
    assert_eq!(head.status, 200, "its place is free again");
}

#[tokio::test]
async fn a_refused_session_gets_503() {
    let listener = server().bind("127.0.0.1:0").await.unwrap();
    let url = rescind_core::Listener::endpoint(&listener).to_string();
    let mut limits = rescind_core::ServerLimits::default();
    limits.max_connections = 0;
    let server = rescind_core::Server::builder([MCP]).server_limits(limits).listen(listener);
    let serving = tokio::spawn(server.run());
    let mut raw = Raw::connect(&url).await;
    let (head, _) = raw.ask(&initialize()).await;
    assert_eq!((head.status, head.header("retry-after"), head.header("mcp-session-id")), (503, "1", ""));
    serving.abort();
}

// Found by the simulation: a proxy posts a request twice. The second copy arrives first and runs, and the first copy
// is refused.
#[tokio::test]
async fn a_call_refused_because_its_id_is_in_use_may_have_run() {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", socket.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = socket.accept().await.unwrap();
            let mut asked = Vec::new();
            // The first connection only checks that there is a server.
            while !asked.ends_with(b"}") && stream.read_buf(&mut asked).await.is_ok_and(|read| read > 0) {}
            let refusal = b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _gone = stream.write_all(refusal).await;
        }
    });
    let peer = Peer::builder(MCP).connect(transport(&url)).await.unwrap();
    let call = peer.call::<_, Value>("initialize", &json!({})).start().unwrap();
    let outcome = in_time("the refusal", call.outcome()).await;
    assert_eq!(outcome, Outcome::Disconnected { may_have_run: true });
    serving.abort();
}

struct Serving {
    url: String,
    handle: ServerHandle,
    running: JoinHandle<()>,
    started: mpsc::UnboundedReceiver<()>,
    cancelled: mpsc::UnboundedReceiver<()>,
}

/// A server with the method `wait`, whose handler waits for its cancel.
async fn serve_to_drain() -> Serving {
    let listener = server().bind("127.0.0.1:0").await.unwrap();
    let url = rescind_core::Listener::endpoint(&listener).to_string();
    let (start, started) = mpsc::unbounded_channel();
    let (stop, cancelled) = mpsc::unbounded_channel();
    let initialize = |_: CallContext, _: Value| async move {
        Ok(
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "t", "version": "1"}}),
        )
    };
    let router =
        Router::new().method("initialize", initialize).method("wait", move |ctx: CallContext, _: Value| {
            let (start, stop) = (start.clone(), stop.clone());
            async move {
                start.send(()).unwrap();
                let cause = ctx.cancelled().await;
                stop.send(()).unwrap();
                ctx.stopped::<Value>(cause)
            }
        });
    let server = Server::builder([MCP]).serve(router).listen(listener);
    let handle = server.handle();
    let running = tokio::spawn(async move { server.run().await.unwrap() });
    Serving { url, handle, running, started, cancelled }
}

/// Waits until a new session is refused, which shows that the drain has begun.
async fn refuses_sessions(url: &str) {
    loop {
        let mut raw = Raw::connect(url).await;
        raw.send(&initialize()).await;
        let head = in_time("a head", raw.head()).await;
        if head.status == 503 {
            assert_ne!(head.header("retry-after"), "");
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn new_sessions_get_503_and_a_cancel_on_a_new_connection_still_arrives() {
    let mut serving = serve_to_drain().await;
    let (mut raw, session) = open(&serving.url).await;
    raw.send(&request(2, "wait", &json!({})).of(&session)).await;
    in_time("a start", serving.started.recv()).await.unwrap();
    let handle = serving.handle.clone();
    let draining = tokio::spawn(async move { handle.drain(Duration::from_secs(3600)).await });
    refuses_sessions(&serving.url).await;
    let mut other = Raw::connect(&serving.url).await;
    other.send(&cancel(2).of(&session)).await;
    assert_eq!(in_time("a head", other.head()).await.status, 202);
    in_time("the cancel", serving.cancelled.recv()).await.unwrap();
    assert_eq!(in_time("the drain", draining).await.unwrap(), 0);
    in_time("the server's end", serving.running).await.unwrap();
    let address = serving.url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    in_time("the port's end", async {
        while TcpStream::connect(&address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_cancels_during_the_drain_over_either_version_of_http() {
    for http2 in [false, true] {
        let mut serving = serve_to_drain().await;
        let http = HttpClient::new(&serving.url).unwrap();
        let http = if http2 { http.http2() } else { http };
        let peer = client(StreamableTransport::new(http), MCP).await;
        let call = peer.call::<_, Value>("wait", &json!({})).start().unwrap();
        in_time("a start", serving.started.recv()).await.unwrap();
        let handle = serving.handle.clone();
        let draining = tokio::spawn(async move { handle.drain(Duration::from_secs(3600)).await });
        refuses_sessions(&serving.url).await;
        call.canceller().cancel("enough");
        in_time("the cancel", serving.cancelled.recv()).await.unwrap();
        assert!(in_time("the outcome", call.outcome()).await.is_cancelled(), "HTTP/2: {http2}");
        assert_eq!(in_time("the drain", draining).await.unwrap(), 0);
        in_time("the server's end", serving.running).await.unwrap();
    }
}

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(600);

async fn serving(header: Duration, idle: Duration) -> Served {
    let server: HttpServer<Streamable> =
        server().header_timeout(header).idle_timeout(idle).session_idle(LONG);
    serve(server, MCP).await
}

async fn asked(served: &Served) -> Raw {
    let mut raw = Raw::connect(&served.url).await;
    let (head, _) = raw.ask(&initialize()).await;
    assert_eq!(head.status, 200);
    raw
}

#[tokio::test]
async fn a_connection_that_asks_nothing_is_closed_when_a_head_is_due() {
    let served = serving(SHORT, LONG).await;
    Raw::connect(&served.url).await.is_closed().await;
}

#[tokio::test]
async fn an_endless_head_times_out() {
    let served = serving(SHORT, LONG).await;
    let mut raw = Raw::connect(&served.url).await;
    raw.write(b"POST / HTTP/1.1\r\nHost: ").await;
    raw.is_closed().await;
}

#[tokio::test]
async fn an_endless_later_head_times_out_too() {
    let served = serving(SHORT, LONG).await;
    let mut raw = asked(&served).await;
    raw.write(b"POST / HTTP/1.1\r\nHost: ").await;
    raw.is_closed().await;
}

#[tokio::test]
async fn an_idle_connection_of_http1_is_closed_in_time() {
    let served = serving(LONG, SHORT).await;
    asked(&served).await.is_closed().await;
}

#[tokio::test]
async fn an_idle_connection_of_http2_is_closed_in_time() {
    let served = serving(LONG, SHORT).await;
    let address = served.url.trim_start_matches("http://").trim_end_matches('/');
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let hello = initialize();
    let mut request = http::Request::post(&served.url).header("Accept", BOTH);
    for (name, value) in hello.headers.iter().filter(|(name, _)| name != "Accept") {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from(hello.body))).unwrap();
    let response = in_time("the response", sender.send_request(request)).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body().collect().await.unwrap();
    // The sender is kept, so that the server ends the connection.
    let _ = in_time("the end", connection).await.unwrap();
    assert!(sender.is_closed());
}
