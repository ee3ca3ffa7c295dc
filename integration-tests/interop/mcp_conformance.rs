//! The MCP server that the protocol's conformance suite tests, on one endpoint for the revisions with sessions and the one without.
//!
//! Run it with `cargo run -p rescind-examples --example mcp_conformance`: it serves, and is its own client. With `-- --listen 127.0.0.1:0` it
//! serves until it gets SIGTERM. With `-- --stdio` it serves the revisions with sessions on its stdin and stdout, for a bridge. Its tools are those
//! of the suite.

use std::error::Error;
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use rescind::dialect::{MCP, MCP_2026};
use rescind::http::{
    HttpClient, HttpListener, HttpServer, HttpService, Stateless, StatelessTransport, Streamable,
    StreamableTransport,
};
use rescind::{CallContext, ErrorCode, ErrorObject, HandlerError, Outcome, Peer, Router, Server};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower_service::Service;

/// The revisions that begin with `initialize`.
const WITH_SESSIONS: [&str; 2] = ["2025-11-25", "2025-06-18"];
/// The revision in which each request is independent.
const STATELESS: &str = "2026-07-28";

/// A call that takes longer is answered in pieces: its stream is closed, and the client comes back for the rest.
const STREAM: Duration = Duration::from_secs(1);

const TOOLS: [(&str, &str); 6] = [
    ("test_simple_text", "Answers at once with a text."),
    ("test_tool_with_progress", "Tells of its progress three times, then answers."),
    ("test_reconnection", "Takes longer than the server keeps a stream open."),
    ("test_missing_capability", "Answers only a client that can sample."),
    ("test_streaming_elicitation", "Asks its client nothing beside its answer."),
    ("test_logging_tool", "Logs nothing that its client did not ask for."),
];

fn this_server() -> Value {
    json!({ "name": "rescind-example", "version": env!("CARGO_PKG_VERSION") })
}

fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

/// Waits, unless the call is cancelled first.
async fn pause(ctx: &CallContext, time: Duration) -> Result<(), HandlerError> {
    tokio::select! {
        cause = ctx.cancelled() => Err(HandlerError::stopped(cause)),
        () = tokio::time::sleep(time) => Ok(()),
    }
}

async fn progress(ctx: &CallContext) -> Result<Value, HandlerError> {
    for done in [0, 50, 100] {
        if let Some(token) = ctx.progress_token() {
            let params = json!({ "progressToken": token, "progress": done, "total": 100 });
            ctx.notify("notifications/progress", &params).await?;
        }
        pause(ctx, Duration::from_millis(50)).await?;
    }
    Ok(text("This took three steps."))
}

async fn call_tool(ctx: CallContext, params: Value) -> Result<Value, HandlerError> {
    match params.get("name").and_then(Value::as_str).unwrap_or_default() {
        "test_simple_text" => Ok(text("This is a simple text response for testing.")),
        "test_tool_with_progress" => progress(&ctx).await,
        "test_reconnection" => {
            pause(&ctx, 2 * STREAM).await?;
            Ok(text("The stream was closed meanwhile, and the answer was kept."))
        }
        "test_missing_capability" => {
            if params.pointer("/_meta/io.modelcontextprotocol~1clientCapabilities/sampling").is_some() {
                return Ok(text("The client can sample."));
            }
            let error = ErrorObject::new(ErrorCode(-32_021), "This tool needs a client that can sample");
            Err(error.with_data(&json!({ "requiredCapabilities": { "sampling": {} } })).into())
        }
        "test_streaming_elicitation" => Ok(text("Nothing was asked.")),
        "test_logging_tool" => Ok(text("Nothing was logged.")),
        other => Err(ErrorObject::invalid_params(format!("no tool is called {other:?}")).into()),
    }
}

/// What both kinds of revision serve. `hints` is what a revision asks of a list beside the list.
fn tools(hints: &Value) -> Router {
    let listed: Vec<Value> = TOOLS
        .into_iter()
        .map(|(name, does)| json!({ "name": name, "description": does, "inputSchema": { "type": "object" } }))
        .collect();
    let listed = with(json!({ "tools": listed }), hints);
    Router::new()
        .method("tools/list", move |_: CallContext, _: Value| {
            let listed = listed.clone();
            async move { Ok::<_, HandlerError>(listed) }
        })
        .method("tools/call", call_tool)
}

fn with(mut result: Value, members: &Value) -> Value {
    if let (Some(result), Some(members)) = (result.as_object_mut(), members.as_object()) {
        result.extend(members.clone());
    }
    result
}

fn with_sessions() -> Router {
    tools(&json!({}))
        .method("initialize", |_: CallContext, params: Value| async move {
            let asked = params.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
            let version = WITH_SESSIONS.into_iter().find(|known| *known == asked).unwrap_or(WITH_SESSIONS[0]);
            let capabilities = json!({ "tools": {} });
            Ok::<_, HandlerError>(
                json!({ "protocolVersion": version, "capabilities": capabilities, "serverInfo": this_server() }),
            )
        })
        .method("ping", |_: CallContext, _: Value| async { Ok::<_, HandlerError>(json!({})) })
}

fn stateless() -> Router {
    let hints = json!({ "ttlMs": 60_000, "cacheScope": "public" });
    let discovered = with(
        json!({
            "supportedVersions": [STATELESS],
            "capabilities": { "tools": {} },
            "_meta": { "io.modelcontextprotocol/serverInfo": this_server() },
        }),
        &hints,
    );
    tools(&hints).method("server/discover", move |_: CallContext, _: Value| {
        let discovered = discovered.clone();
        async move { Ok::<_, HandlerError>(discovered) }
    })
}

/// Which of the two a request is for, by the headers that the stateless revision requires of every request. A version
/// that neither knows goes to that one, whose refusal says what is served.
fn is_stateless(request: &Request) -> bool {
    let headers = request.headers();
    match headers.get("mcp-protocol-version").and_then(|version| version.to_str().ok()) {
        Some(version) => !WITH_SESSIONS.contains(&version),
        None => headers.contains_key("mcp-method"),
    }
}

async fn by_revision(request: Request, mut sessions: HttpService, mut stateless: HttpService) -> Response {
    let service = if is_stateless(&request) { &mut stateless } else { &mut sessions };
    match service.call(request).await {
        Ok(response) => response.into_response(),
        Err(never) => match never {},
    }
}

/// The endpoint, and what serves it.
struct Serving {
    url: String,
    tasks: tokio::task::JoinSet<()>,
}

async fn serve(address: &str) -> Result<Serving, Box<dyn Error>> {
    let (sessions, with_sessions_listener) =
        HttpServer::new(Streamable::new().versions(WITH_SESSIONS).poll_after(STREAM)).mount();
    let (alone, stateless_listener) = HttpServer::new(Stateless::new()).mount();
    let app = axum::Router::new().route(
        "/mcp",
        axum::routing::any(move |request: Request| by_revision(request, sessions.clone(), alone.clone())),
    );
    let socket = TcpListener::bind(address).await?;
    let url = format!("http://{}/mcp", socket.local_addr()?);

    let mut tasks = tokio::task::JoinSet::new();
    let run = |server: rescind::ServerBuilder, listener: HttpListener| async move {
        let _ended = server.listen(listener).run().await;
    };
    tasks.spawn(run(Server::builder([MCP]).serve(with_sessions()), with_sessions_listener));
    tasks.spawn(run(Server::builder([MCP_2026]).serve(stateless()), stateless_listener));
    tasks.spawn(async move {
        let _ended = axum::serve(socket, app).await;
    });
    Ok(Serving { url, tasks })
}

/// A client of the revisions with sessions cancels a tool by its message.
async fn cancel_with_sessions(url: &str) -> Result<(), Box<dyn Error>> {
    let peer = Peer::builder(MCP).connect(StreamableTransport::new(HttpClient::new(url)?)).await?;
    let opening = json!({
        "protocolVersion": WITH_SESSIONS[0], "capabilities": {}, "clientInfo": { "name": "example", "version": "0" },
    });
    peer.call::<_, Value>("initialize", &opening).await?;
    peer.try_notify("notifications/initialized", &json!({}))?;
    cancel_a_tool(&peer, json!({ "name": "test_reconnection", "_meta": { "progressToken": 1 } })).await?;
    peer.shutdown(Duration::ZERO).await;
    Ok(())
}

/// A client of the stateless revision cancels one by closing its stream, which the wire does for it.
async fn cancel_stateless(url: &str) -> Result<(), Box<dyn Error>> {
    let peer = Peer::builder(MCP_2026).connect(StatelessTransport::new(HttpClient::new(url)?)).await?;
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientInfo": { "name": "example", "version": "0" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    cancel_a_tool(&peer, json!({ "name": "test_reconnection", "_meta": meta })).await?;
    peer.shutdown(Duration::ZERO).await;
    Ok(())
}

async fn cancel_a_tool(peer: &Peer, params: Value) -> Result<(), Box<dyn Error>> {
    let call = peer.call::<_, Value>("tools/call", &params).start()?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    call.canceller().cancel("the user pressed Stop");
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => {
            println!("client: the tool was cancelled, because {:?}", cancelled.cause.kind());
            Ok(())
        }
        other => Err(format!("the tool ended otherwise: {other:?}").into()),
    }
}

async fn stopped() -> Result<(), Box<dyn Error>> {
    #[cfg(unix)]
    {
        let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            _ = terminated.recv() => return Ok(()),
            interrupted = tokio::signal::ctrl_c() => interrupted?,
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = match arguments.as_slice() {
        [] => None,
        [flag, address] if flag == "--listen" => Some(address),
        [flag] if flag == "--stdio" => {
            let client =
                Peer::builder(MCP).serve(with_sessions()).connect(rescind::stdio::this_process()).await?;
            return Ok(client.closed().await?);
        }
        _ => return Err("usage: mcp_conformance [--listen HOST:PORT | --stdio]".into()),
    };
    let mut serving = serve(address.map_or("127.0.0.1:0", String::as_str)).await?;
    eprintln!("listening on {}", serving.url);
    if address.is_some() {
        stopped().await?;
    } else {
        cancel_with_sessions(&serving.url).await?;
        cancel_stateless(&serving.url).await?;
    }
    serving.tasks.shutdown().await;
    Ok(())
}
