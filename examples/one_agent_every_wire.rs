//! One router on every transport at once: memory, stdin and stdout of a child process, WebSocket, HTTP in two bindings,
//! and a named pipe. A client on each makes the same calls and the same cancels, and must get the same results.
//!
//! Run it with `cargo run -p rescind-examples --example one_agent_every_wire`. It ends with exit code 1 if the results
//! of a transport differ.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rescind::dialect::ACP;
use rescind::http::{Acp, AcpTransport, HttpClient, HttpServer, Streamable, StreamableTransport};
use rescind::named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress};
use rescind::transport::{Listener, Transport};
use rescind::{
    CallContext, ConnectionError, Outcome, Peer, Router, Server, memory_listener, stdio, websocket,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let agent = Arc::new(agent());
    if std::env::args().nth(1).as_deref() == Some("agent") {
        Peer::builder(ACP).serve(agent).connect(stdio::this_process()).await?.closed().await?;
        return Ok(());
    }

    // A listener for each transport, all with the same router.
    let (listener, memory) = memory_listener();
    let (_, memories) = serve(&agent, listener);
    let (socket, sockets) = serve(&agent, websocket::bind("127.0.0.1:0").await?);
    let (streamed, streams) = serve(&agent, HttpServer::new(Streamable::new()).bind("127.0.0.1:0").await?);
    let (acp, acps) = serve(&agent, HttpServer::new(Acp::new()).bind("127.0.0.1:0").await?);
    let pipe = PipeAddress::name(&format!("rescind-every-wire-{}", std::process::id()))?;
    let (_, pipes) = serve(&agent, NamedPipeListener::bind(&pipe).await?);

    show("memory", memory).await?;
    show("stdio", stdio::Command::new(std::env::current_exe()?).arg("agent")).await?;
    show("websocket", websocket::connect(&socket)).await?;
    show("http-streamable", StreamableTransport::new(HttpClient::new(&streamed)?)).await?;
    show("http-acp", AcpTransport::new(HttpClient::new(&acp)?)).await?;
    show("named-pipe", NamedPipeTransport::new(pipe)).await?;
    for server in [memories, sockets, streams, acps, pipes] {
        // Waits for its end, so that the pipe's file is removed too.
        server.abort();
        drop(server.await);
    }
    Ok(())
}

/// Serves the agent on this listener. Returns the address.
fn serve(agent: &Arc<Router>, listener: impl Listener) -> (String, JoinHandle<Result<(), ConnectionError>>) {
    let server = Server::builder(ACP).serve(Arc::clone(agent)).listen(listener);
    (server.endpoint().to_string(), tokio::spawn(server.run()))
}

fn agent() -> Router {
    Router::new()
        .method("initialize", async |_: CallContext, _: Value| Ok(json!({"protocolVersion": 1})))
        .method("echo", async |_: CallContext, params: Value| Ok(params))
        .method("wait", async |ctx: CallContext, _: Value| {
            ctx.try_notify("started", &json!({}))?;
            ctx.run_until_cancelled(tokio::time::sleep(Duration::from_secs(60))).await?;
            Ok("done")
        })
        // When it is cancelled, it answers with what it has so far.
        .method("search", async |ctx: CallContext, _: Value| {
            ctx.try_notify("started", &json!({}))?;
            ctx.cancelled().await;
            Ok(["what", "was", "found"])
        })
}

/// Connects a client, and shows how its calls end.
async fn show(name: &str, transport: impl Transport) -> Result<(), Failure> {
    let peer = Peer::builder(ACP).connect(transport).await?;
    peer.call::<_, Value>("initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}})).await?;
    let [echo]: [String; 1] = peer.call("echo", &["hello"]).await?;
    let results = [echo, cancel(&peer, "wait").await?, cancel(&peer, "search").await?];
    println!("{name:<16}  {results:?}");
    peer.shutdown(Duration::from_secs(1)).await;
    if results == ["hello", "cancelled", "3 words"] { Ok(()) } else { Err(format!("{name} differs").into()) }
}

/// Calls a method, cancels the call when its handler has started, and describes how it ended.
async fn cancel(peer: &Peer, method: &str) -> Result<String, Failure> {
    let call = peer.call::<_, Value>(method, &json!({}));
    let call = call.notifications_where(|notification| notification.method() == "started").start()?;
    call.notifications().next().await;
    call.canceller().cancel("the example has seen enough");
    Ok(match call.outcome().await {
        Outcome::Cancelled(cancelled) if cancelled.confirmed => "cancelled".to_owned(),
        Outcome::CompletedAfterCancel(found) => format!("{} words", found.as_array().map_or(0, Vec::len)),
        other => format!("{other:?}"),
    })
}
