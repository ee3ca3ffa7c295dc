//! An MCP server with typed tools. One of them takes long, reports its progress and can be cancelled.
//!
//! A host starts it and speaks over its stdin and stdout. With `--listen 127.0.0.1:8000` it serves HTTP at `/`.
//! `mcp_client.rs` uses both.

use std::error::Error;
use std::time::Duration;

use rescind::dialect::MCP;
use rescind::http::{HttpServer, Streamable};
use rescind::{CallContext, HandlerError, Peer, Router, Server, stdio, transport::Listener};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The tools and their arguments. An unknown name, or arguments of another form, get "invalid params".
#[derive(Deserialize)]
#[serde(tag = "name", content = "arguments", rename_all = "snake_case")]
enum Tool {
    Add { a: f64, b: f64 },
    Count { to: u32 },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult<T> {
    content: [Text; 1],
    structured_content: T,
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "text")]
struct Text {
    text: String,
}

#[derive(Serialize)]
struct Number {
    value: f64,
}

async fn call_tool(ctx: CallContext, tool: Tool) -> Result<ToolResult<Number>, HandlerError> {
    let value = match tool {
        Tool::Add { a, b } => a + b,
        Tool::Count { to } => count(&ctx, to).await?,
    };
    Ok(ToolResult { content: [Text { text: value.to_string() }], structured_content: Number { value } })
}

/// Work in steps. `run_until_cancelled` drops the current step, and `?` ends the tool. MCP sends no answer to a
/// cancelled request.
async fn count(ctx: &CallContext, to: u32) -> Result<f64, HandlerError> {
    for done in 1..=to {
        ctx.run_until_cancelled(tokio::time::sleep(Duration::from_millis(20))).await?;
        if let Some(token) = ctx.progress_token() {
            let progress = json!({ "progressToken": token, "progress": done, "total": to });
            ctx.notify("notifications/progress", &progress).await?;
        }
    }
    Ok(f64::from(to))
}

async fn initialize(_: CallContext, asked: Value) -> Result<Value, HandlerError> {
    let known = ["2025-11-25", "2025-06-18"];
    let asked = asked.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
    let version = known.into_iter().find(|version| *version == asked).unwrap_or(known[0]);
    let server = json!({ "name": "rescind-example", "version": env!("CARGO_PKG_VERSION") });
    Ok(json!({ "protocolVersion": version, "capabilities": { "tools": {} }, "serverInfo": server }))
}

async fn list_tools(_: CallContext, _: Value) -> Result<Value, HandlerError> {
    let number = json!({ "type": "number" });
    let tool = |name: &str, does: &str, arguments: Value| {
        let schema = json!({ "type": "object", "required": arguments.as_object().map(|all| all.keys().collect::<Vec<_>>()), "properties": arguments });
        json!({ "name": name, "description": does, "inputSchema": schema })
    };
    let add = tool("add", "Adds two numbers.", json!({ "a": number, "b": number }));
    let count = tool("count", "Counts up, slowly.", json!({ "to": { "type": "integer", "minimum": 0 } }));
    Ok(json!({ "tools": [add, count] }))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let router = Router::new()
        .method("initialize", initialize)
        .method("ping", async |_: CallContext, _: Value| Ok(json!({})))
        .method("tools/list", list_tools)
        .method("tools/call", call_tool);
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => Peer::builder(MCP).serve(router).connect(stdio::this_process()).await?.closed().await?,
        (Some("--listen"), Some(address)) => {
            let listener = HttpServer::new(Streamable::new()).bind(&address).await?;
            eprintln!("listening on {}", listener.endpoint());
            Server::builder([MCP]).serve(router).listen(listener).run().await?;
        }
        _ => return Err("usage: mcp_server [--listen HOST:PORT]".into()),
    }
    Ok(())
}
