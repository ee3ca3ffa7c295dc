//! One agent with one router on every transport at once: memory, its own stdin and stdout as a child process,
//! WebSocket, HTTP in two bindings, and a named pipe. A client on each sends the same requests and the same cancels,
//! and must get the same results.
//!
//! Run it with `cargo run -p rescind-examples --example one_agent_every_wire`. It ends with exit code 1 if the results
//! of a transport differ.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rescind::dialect::{ACP, Role};
use rescind::http::{Acp, AcpTransport, HttpClient, HttpServer, Streamable, StreamableTransport};
use rescind::named_pipe::{NamedPipeListener, NamedPipeTransport, PipeAddress};
use rescind::transport::Listener;
use rescind::{
    CallBuilder, CallContext, CallError, ConnectionError, Outcome, Peer, PeerBuilder, Router, Server,
    memory_pair, stdio, websocket,
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

type Failure = Box<dyn Error + Send + Sync>;

/// What each client does, in the order of the columns.
const COLUMNS: [&str; 6] = ["answered", "cancelled", "dropped", "partial", "by the agent", "too late"];

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let agent = Arc::new(agent());
    if std::env::args().nth(1).as_deref() == Some("agent") {
        Peer::builder(ACP).serve(agent).connect(stdio::this_process()).await?.closed().await?;
        return Ok(());
    }

    // All servers start before the first client connects.
    let (near, far) = memory_pair();
    let in_memory = Peer::builder(ACP).role(Role::Server).serve(Arc::clone(&agent)).attach(far)?;
    let (socket, sockets) = serve(&agent, websocket::bind("127.0.0.1:0").await?);
    let streamable = HttpServer::new(Streamable::new()).path("/agent").bind("127.0.0.1:0").await?;
    let (streamable, streamables) = serve(&agent, streamable);
    let acp = HttpServer::new(Acp::new()).path("/acp").bind("127.0.0.1:0").await?;
    let (acp, acps) = serve(&agent, acp);
    // The pipe is in a directory that only this user can enter.
    let pipe = PipeAddress::name(&format!("rescind-every-wire-{}", std::process::id()))?;
    let (_, pipes) = serve(&agent, NamedPipeListener::bind(&pipe).await?);

    let child = stdio::Command::new(std::env::current_exe()?).arg("agent");
    let streamable = StreamableTransport::new(HttpClient::new(&streamable)?);
    let acp = AcpTransport::new(HttpClient::new(&acp)?);
    let clients = [
        ("memory", client().attach(near)?),
        ("stdio", client().connect(child).await?),
        ("websocket", client().connect(websocket::connect(&socket)).await?),
        ("http-streamable", client().connect(streamable).await?),
        ("http-acp", client().connect(acp).await?),
        ("named-pipe", client().connect(NamedPipeTransport::new(pipe)).await?),
    ];

    print_row("wire", &COLUMNS.map(str::to_owned));
    let mut seen = Vec::new();
    for (wire, peer) in clients {
        let row = ask(&peer).await.map_err(|error| format!("{wire}: {error}"))?;
        print_row(wire, &row);
        seen.push((wire, row));
        peer.shutdown(Duration::from_secs(1)).await;
    }
    in_memory.shutdown(Duration::ZERO).await;
    for server in [sockets, streamables, acps, pipes] {
        // Waits until the server has ended, so that the pipe's file is removed too.
        server.abort();
        drop(server.await);
    }
    let (_, first) = seen.first().ok_or("no wire was asked")?;
    if let Some((wire, _)) = seen.iter().find(|(_, row)| row != first) {
        return Err(format!("{wire} differs from the others").into());
    }
    println!("every wire shows the same");
    Ok(())
}

type Serving = JoinHandle<Result<(), ConnectionError>>;

/// Serves the agent on this listener. Returns the address.
fn serve(agent: &Arc<Router>, listener: impl Listener) -> (String, Serving) {
    let server = Server::builder([ACP]).serve(Arc::clone(agent)).listen(listener);
    let endpoint = server.endpoint().to_string();
    println!("listening on {endpoint}");
    (endpoint, tokio::spawn(server.run()))
}

fn print_row(wire: &str, row: &[String; 6]) {
    print!("{wire:<16}");
    for (cell, column) in row.iter().zip(COLUMNS) {
        print!("  {cell:<width$}", width = column.len().max(12));
    }
    println!();
}

// ---- the agent

fn agent() -> Router {
    let signals = Arc::new(Semaphore::new(0));
    let notification = Arc::clone(&signals);
    Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            Ok(json!({ "protocolVersion": 1, "agentCapabilities": {} }))
        })
        .method("echo", |_: CallContext, params: Value| async move { Ok(params) })
        .method("wait", move |ctx: CallContext, _: Value| {
            let signals = Arc::clone(&signals);
            async move {
                ctx.try_notify("started", &json!({}))?;
                let cause = ctx.cancelled().await;
                signals.add_permits(1);
                ctx.stopped::<Value>(cause)
            }
        })
        // Answers after one of the handlers above was cancelled.
        .method("signalled", move |_: CallContext, _: Value| {
            let notification = Arc::clone(&notification);
            async move {
                notification.acquire().await?.forget();
                Ok(json!("signalled"))
            }
        })
        .method("search", |ctx: CallContext, _: Value| async move {
            ctx.try_notify("started", &json!({}))?;
            ctx.cancelled().await;
            Ok(json!(["what", "was", "found"]))
        })
        // The other direction: the agent calls a method of its client, and cancels the call.
        .method("ask", |ctx: CallContext, _: Value| async move {
            let call = ctx.call::<_, Value>("pick", &json!({}));
            Ok(cancel_once_started(call).await?)
        })
}

// ---- the client

fn client() -> PeerBuilder {
    let pick = Router::new().method("pick", |ctx: CallContext, _: Value| async move {
        ctx.try_notify("started", &json!({}))?;
        let cause = ctx.cancelled().await;
        ctx.stopped::<Value>(cause)
    });
    Peer::builder(ACP).role(Role::Client).serve(pick)
}

async fn ask(peer: &Peer) -> Result<[String; 6], Failure> {
    let hello = json!({ "protocolVersion": 1, "clientCapabilities": {} });
    peer.call::<_, Value>("initialize", &hello).await?;

    let echo: Value = peer.call("echo", &json!(["hello"])).await?;
    let answered = if echo == json!(["hello"]) { "yes".to_owned() } else { format!("{echo}") };

    let cancelled = cancel_once_started(peer.call("wait", &json!({}))).await?;
    peer.call::<_, Value>("signalled", &json!({})).await?;

    let call = peer.call::<_, Value>("wait", &json!({}));
    let call = call.notifications_where(|notification| notification.method() == "started").start()?;
    let _started = call.notifications().next().await;
    drop(call);
    let dropped: String = peer.call("signalled", &json!({})).await?;

    let partial = cancel_once_started(peer.call("search", &json!({}))).await?;
    let by_the_agent: String = peer.call("ask", &json!({})).await?;

    // The answer has arrived before the cancel: no cancel is sent, and the result does not change.
    let call = peer.call::<_, Value>("echo", &json!([7])).start()?;
    let stop = call.canceller();
    let answer = call.outcome().await;
    let too_late = format!("{:?}", stop.cancel("too late"));
    if answer != Outcome::Completed(json!([7])) {
        return Err(format!("a cancel after the answer changed it to {answer:?}").into());
    }
    Ok([answered, cancelled, dropped, partial, by_the_agent, too_late])
}

/// Cancels a call after its handler has started, and describes in a word or two how it ended.
async fn cancel_once_started(call: CallBuilder<Value>) -> Result<String, CallError> {
    let call = call.notifications_where(|notification| notification.method() == "started").start()?;
    let _started = call.notifications().next().await;
    call.canceller().cancel("the example has seen enough");
    Ok(match call.outcome().await {
        Outcome::Cancelled(cancelled) if cancelled.confirmed => "confirmed".to_owned(),
        Outcome::Cancelled(_) => "unconfirmed".to_owned(),
        Outcome::CompletedAfterCancel(found) => format!("{} words", found.as_array().map_or(0, Vec::len)),
        other => format!("{other:?}"),
    })
}
