//! An MCP client: it starts `mcp_server` as a host does, calls its tools, and cancels one. Then it does the same over
//! HTTP.
//!
//! Run it with `cargo run -p rescind-examples --example mcp_client`, after `cargo build -p rescind-examples
//! --examples`. With a URL, such as `http://127.0.0.1:8000/`, it uses the server there.

use std::error::Error;
use std::process::Stdio;
use std::time::Duration;

use rescind::dialect::MCP;
use rescind::http::{HttpClient, StreamableTransport};
use rescind::mcp::{CallTool, Initialize, types as mcp};
use rescind::{Outcome, Peer, stdio};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

type Failure = Box<dyn Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    if let Some(url) = std::env::args().nth(1) {
        return use_tools(
            Peer::builder(MCP).connect(StreamableTransport::new(HttpClient::new(&url)?)).await?,
        )
        .await;
    }
    let program =
        std::env::current_exe()?.with_file_name(format!("mcp_server{}", std::env::consts::EXE_SUFFIX));
    println!("over stdio");
    use_tools(Peer::builder(MCP).connect(stdio::Command::new(&program)).await?).await?;

    println!("over HTTP");
    let mut server = tokio::process::Command::new(program)
        .args(["--listen", "127.0.0.1:0"])
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(server.stderr.take().ok_or("no stderr")?).lines();
    let line = lines.next_line().await?.ok_or("the server did not start")?;
    let url = line.strip_prefix("listening on ").ok_or("the server says something else")?;
    use_tools(Peer::builder(MCP).connect(StreamableTransport::new(HttpClient::new(url)?)).await?).await
}

/// A call of a tool. The call adds its progress token itself.
fn tool(name: &str, arguments: &serde_json::Value) -> mcp::CallToolRequestParams {
    let arguments = arguments.as_object().cloned();
    mcp::CallToolRequestParams { name: name.to_owned(), arguments, meta: None, task: None }
}

async fn use_tools(peer: Peer) -> Result<(), Failure> {
    let client = json!({ "name": "rescind-example", "version": env!("CARGO_PKG_VERSION") });
    peer.request::<Initialize>(&mcp::InitializeRequestParams {
        protocol_version: "2025-11-25".to_owned(),
        capabilities: mcp::ClientCapabilities::default(),
        client_info: serde_json::from_value(client)?,
        meta: None,
    })
    .await?;
    peer.try_notify("notifications/initialized", &json!({}))?;

    let sum = peer.request::<CallTool>(&tool("add", &json!({ "a": 40, "b": 2 }))).await?;
    println!("  add: {:?}", sum.structured_content);

    // With `progress` the call carries a token, and its progress notifications arrive here.
    let call = peer.request::<CallTool>(&tool("count", &json!({ "to": 1000 }))).progress().start()?;
    let mut notifications = call.notifications();
    for _ in 0..3 {
        let progress = notifications.next().await.ok_or("the tool has ended")?;
        let progress: mcp::ProgressNotificationParams = progress.params()?;
        println!("  count: {} of {:?}", progress.progress, progress.total);
    }
    call.canceller().cancel("three are enough");
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => println!("  count: cancelled, because {}", cancelled.cause),
        other => return Err(format!("the tool was not cancelled: {other:?}").into()),
    }

    let wrong = peer.request::<CallTool>(&tool("divide", &json!({}))).await;
    println!("  divide: {}", wrong.err().ok_or("there is no such tool")?);
    peer.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
