//! An operator stops a request of a server, on each transport: its caller gets an answer, also in MCP, where nothing is
//! sent after the caller's own cancel.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use rescind::dialect::{ACP, Dialect, LSP, MCP, MCP_2026};
use rescind::http::{
    Acp, AcpTransport, HttpClient, HttpServer, Stateless, StatelessTransport, Streamable, StreamableTransport,
};
use rescind::requests::RequestOutcome;
use rescind::transport::{Listener, Transport};
use rescind::{CallContext, CauseKind, Outcome, Peer, Router, Server, websocket};
use serde_json::{Value, json};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(60);

fn waiting() -> Router {
    Router::new()
        .method("initialize", async |_: CallContext, params: Value| {
            Ok(json!({"protocolVersion": params.get("protocolVersion"), "capabilities": {}}))
        })
        .method("wait", async |ctx: CallContext, _: Value| {
            let cause = ctx.cancelled().await;
            ctx.stopped::<Value>(cause)
        })
}

/// Serves on the listener, calls over the transport, stops the request, and returns what the caller gets.
async fn stopped(dialect: Dialect, listener: impl Listener, transport: impl Transport) -> Outcome<Value> {
    let server = Server::builder([dialect.clone()]).serve(waiting()).listen(listener);
    let log = server.handle().request_log();
    let mut changes = log.watch();
    tokio::spawn(server.run());
    let peer = Peer::builder(dialect.clone()).connect(transport).await.unwrap();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    if let Some(handshake) = dialect.rules().handshake {
        let version = if dialect.name() == "mcp" { json!("2025-11-25") } else { json!(1) };
        let info = json!({"name": "test", "version": "1"});
        let hello = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": info});
        let _: Value = peer.call(handshake, &hello).await.unwrap();
    }
    let call = peer.call::<_, Value>("wait", &json!({"_meta": meta})).start().unwrap();
    let running = async {
        loop {
            let requests = log.requests(10);
            if let Some(request) = requests.iter().find(|request| request.method.as_deref() == Some("wait")) {
                return request.key;
            }
            changes.next().await;
        }
    };
    let key = timeout(LIMIT, running).await.unwrap();
    assert!(log.stop(key, "the operator's reason"), "{}", dialect.name());
    let outcome = timeout(LIMIT, call.outcome()).await.unwrap();
    let ended = async {
        loop {
            if let Some(ended) = log.ended().into_iter().find(|ended| ended.request.key == key) {
                return ended;
            }
            changes.next().await;
        }
    };
    let ended = timeout(LIMIT, ended).await.unwrap();
    assert_eq!(ended.outcome, RequestOutcome::Cancelled);
    let cause = ended.request.cancel.unwrap().cause;
    assert_eq!((cause.kind(), cause.reason()), (CauseKind::Operator, Some("the operator's reason")));
    outcome
}

fn assert_cancelled(outcome: Outcome<Value>, over: &str) {
    match outcome {
        Outcome::Cancelled(cancelled) => assert!(cancelled.confirmed, "{over}: the peer said so"),
        other => panic!("{over}: {other:?}"),
    }
}

async fn http<B: rescind::http::ServerBinding>(binding: B) -> (impl Listener, HttpClient) {
    let listener = HttpServer::new(binding).path("/agent").bind("127.0.0.1:0").await.unwrap();
    let client = HttpClient::new(&listener.endpoint().to_string()).unwrap();
    (listener, client)
}

#[tokio::test]
async fn the_caller_of_a_stopped_request_gets_its_answer_over_each_binding_of_http() {
    let (listener, client) = http(Streamable::new()).await;
    assert_cancelled(stopped(MCP, listener, StreamableTransport::new(client)).await, "streamable");
    let (listener, client) = http(Stateless::new()).await;
    assert_cancelled(stopped(MCP_2026, listener, StatelessTransport::new(client)).await, "stateless");
    let (listener, client) = http(Acp::new()).await;
    assert_cancelled(stopped(ACP, listener, AcpTransport::new(client)).await, "acp");
}

#[tokio::test]
async fn the_caller_of_a_stopped_request_gets_its_answer_over_a_websocket() {
    for dialect in [ACP, LSP] {
        let listener = websocket::bind("127.0.0.1:0").await.unwrap();
        let transport = websocket::connect(&listener.endpoint().to_string());
        match stopped(dialect.clone(), listener, transport).await {
            // LSP reserves -32800 for the client's cancels.
            Outcome::Failed(error) if dialect.name() == "lsp" => {
                assert_eq!((error.code.0, &*error.message), (-32803, "Request cancelled by an operator"));
            }
            outcome => assert_cancelled(outcome, "websocket"),
        }
    }
}
