//! An MCP server with typed tools. One of them takes long, reports its progress and can be cancelled.
//!
//! A host starts it and uses its stdin and stdout. With `--listen 127.0.0.1:8000` it serves HTTP at `/`.
//! `mcp_client.rs` uses both.

use std::error::Error;
use std::time::Duration;

use rescind::dialect::MCP;
use rescind::http::{HttpServer, Streamable};
use rescind::mcp::types::{
    CallToolRequestParams, CallToolResult, InitializeRequestParams, InitializeResult, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerCapabilitiesTools, TextContent,
};
use rescind::mcp::{CallTool, Initialize, ListTools, Ping, types};
use rescind::transport::Listener;
use rescind::{CallContext, ErrorCode, ErrorObject, HandlerResult, Peer, Router, Server, stdio};
use serde::Deserialize;
use serde_json::{from_value, json};

/// The tools and their arguments.
#[derive(Deserialize)]
#[serde(tag = "name", content = "arguments", rename_all = "snake_case")]
enum Tool {
    Add { a: f64, b: f64 },
    Count { to: u32 },
}

async fn call_tool(ctx: CallContext, params: CallToolRequestParams) -> HandlerResult<CallToolResult> {
    // An unknown name, or arguments of another form, get "invalid params".
    let tool = from_value(json!({ "name": params.name, "arguments": params.arguments }))
        .map_err(|wrong| ErrorObject::new(ErrorCode::INVALID_PARAMS, wrong.to_string()))?;
    let value = match tool {
        Tool::Add { a, b } => a + b,
        Tool::Count { to } => count(&ctx, to).await?,
    };
    let content = vec![TextContent::new(value.to_string(), None, None).into()];
    let structured_content = json!({ "value": value }).as_object().cloned();
    Ok(CallToolResult { content, structured_content, is_error: None, meta: None })
}

/// Work in steps. `run_until_cancelled` drops the current step, and `?` ends the tool. MCP sends no answer to a
/// cancelled request.
async fn count(ctx: &CallContext, to: u32) -> HandlerResult<f64> {
    for done in 1..=to {
        ctx.run_until_cancelled(tokio::time::sleep(Duration::from_millis(20))).await?;
        if let Some(token) = ctx.progress_token() {
            let progress = json!({ "progressToken": token, "progress": done, "total": to });
            ctx.notify("notifications/progress", &progress).await?;
        }
    }
    Ok(f64::from(to))
}

async fn initialize(_: CallContext, asked: InitializeRequestParams) -> HandlerResult<InitializeResult> {
    // The newest revision that is served, unless the client asks for the older one.
    let version = if asked.protocol_version == "2025-06-18" { "2025-06-18" } else { "2025-11-25" };
    let tools = ServerCapabilitiesTools::default();
    let server = json!({ "name": "rescind-example", "version": env!("CARGO_PKG_VERSION") });
    Ok(InitializeResult {
        protocol_version: version.to_owned(),
        capabilities: ServerCapabilities { tools: Some(tools), ..Default::default() },
        server_info: from_value(server)?,
        instructions: None,
        meta: None,
    })
}

async fn list_tools(_: CallContext, _: Option<PaginatedRequestParams>) -> HandlerResult<ListToolsResult> {
    let number = json!({ "type": "number" });
    let add = json!({ "type": "object", "required": ["a", "b"], "properties": { "a": number, "b": number } });
    let to = json!({ "type": "integer", "minimum": 0 });
    let count = json!({ "type": "object", "required": ["to"], "properties": { "to": to } });
    Ok(from_value(json!({ "tools": [
        { "name": "add", "description": "Adds two numbers.", "inputSchema": add },
        { "name": "count", "description": "Counts up, slowly.", "inputSchema": count },
    ] }))?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let router = Router::new()
        .serve::<Initialize>(initialize)
        .serve::<Ping>(async |_: CallContext, _| Ok(types::Result::default()))
        .serve::<ListTools>(list_tools)
        .serve::<CallTool>(call_tool);
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
