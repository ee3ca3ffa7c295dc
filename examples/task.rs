//! A build job that takes minutes: one program starts it, a second watches it, a third stops it. The job is a task of MCP, so it
//! goes on after the program that started it has left.
//!
//! ```text
//! cargo run --example task serve 127.0.0.1:7777        the server with the job
//! cargo run --example task start 127.0.0.1:7777        starts a job, prints its id, and leaves
//! cargo run --example task watch 127.0.0.1:7777 ID     prints its status until it ends
//! cargo run --example task stop 127.0.0.1:7777 ID      stops it
//! ```
//!
//! Without arguments it plays all four.

use std::error::Error;
use std::time::Duration;

use rescind::dialect::{MCP, TaskStatus};
use rescind::http::{HttpClient, HttpServer, Streamable, StreamableTransport};
use rescind::{CallContext, HandlerError, Peer, Router, Server, TaskHandle, Tasks};
use serde_json::{Value, json};

type Failure = Box<dyn Error + Send + Sync>;

/// A build of a thousand steps. Whatever stops it, a step is never cut in half.
async fn build(ctx: CallContext, _: Value) -> Result<Value, HandlerError> {
    for step in 0..1000 {
        ctx.check().inspect_err(|stopped| println!("server: the build stops at step {step}: {stopped}"))?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(json!({ "content": [{"type": "text", "text": "built"}] }))
}

fn router() -> Router {
    let opening = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}},
        "serverInfo": {"name": "builder", "version": "1"},
    });
    Router::new()
        .method("initialize", move |_: CallContext, _: Value| {
            let opening = opening.clone();
            async move { Ok(opening) }
        })
        .tasks(&Tasks::default())
        .task("tools/call", build)
}

async fn serve(address: &str) -> Result<Server, Failure> {
    let listener = HttpServer::new(Streamable::new()).bind(address).await?;
    Ok(Server::builder(MCP).serve(router()).listen(listener))
}

async fn connect(url: &str) -> Result<Peer, Failure> {
    let peer = Peer::builder(MCP).connect(StreamableTransport::new(HttpClient::new(url)?)).await?;
    let client = json!({"name": "example", "version": "1"});
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    let _: Value = peer.call("initialize", &hello).await?;
    peer.notify("notifications/initialized", &json!({})).await?;
    Ok(peer)
}

async fn start(url: &str) -> Result<String, Failure> {
    let peer = connect(url).await?;
    let call = peer.call::<_, Value>("tools/call", &json!({"name": "build", "arguments": {}}));
    let task = call.task(Some(Duration::from_secs(3600))).await?;
    let id = task.id().ok_or("the server has no tasks")?.to_owned();
    println!("start: the build is the task {id}");
    Ok(id)
}

async fn watch(url: &str, id: &str) -> Result<(), Failure> {
    let peer = connect(url).await?;
    let task = TaskHandle::<Value>::with_id(&peer, id, None::<&Value>)?;
    let mut last = None;
    loop {
        let report = task.status().await?;
        if last != Some(report.status) {
            println!("watch: {}", report.status.name());
            last = Some(report.status);
        }
        if report.status.is_final() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn stop(url: &str, id: &str) -> Result<(), Failure> {
    let peer = connect(url).await?;
    let task = TaskHandle::<Value>::with_id(&peer, id, None::<&Value>)?;
    task.cancel().await?;
    let report = task.status().await?;
    println!("stop: {}", report.message.unwrap_or_default());
    if report.status == TaskStatus::Cancelled { Ok(()) } else { Err("it is not cancelled".into()) }
}

async fn all() -> Result<(), Failure> {
    let server = serve("127.0.0.1:0").await?;
    let url = server.endpoint().to_string();
    let serving = tokio::spawn(server.run());
    let id = start(&url).await?;
    let (watched, stopped) = tokio::join!(watch(&url, &id), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        stop(&url, &id).await
    });
    serving.abort();
    watched.and(stopped)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let url = |address: &str| format!("http://{address}/");
    match words.as_slice() {
        [] => all().await,
        ["serve", address] => Ok(serve(address).await?.run().await?),
        ["start", address] => start(&url(address)).await.map(drop),
        ["watch", address, id] => watch(&url(address), id).await,
        ["stop", address, id] => stop(&url(address), id).await,
        _ => Err("serve ADDRESS | start ADDRESS | watch ADDRESS ID | stop ADDRESS ID".into()),
    }
}
