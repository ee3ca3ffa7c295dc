//! A language server over this process's stdin and stdout, as an editor starts it. `docs/language-server.md` explains
//! it.

use std::time::Duration;

use rescind::{CallContext, HandlerError, Peer, Router, dialect, stdio};
use serde_json::{Value, json};

async fn initialize(_ctx: CallContext, _params: Value) -> Result<Value, HandlerError> {
    Ok(json!({ "capabilities": { "hoverProvider": true } }))
}

async fn hover(ctx: CallContext, params: Value) -> Result<Value, HandlerError> {
    let found = ctx.run_until_cancelled(look_up(&params)).await?; // `$/cancelRequest`: error -32800
    Ok(json!({ "contents": found }))
}

async fn look_up(params: &Value) -> String {
    let line = params.pointer("/position/line").and_then(Value::as_u64).unwrap_or_default();
    tokio::time::sleep(Duration::from_secs(line)).await; // the further down, the longer it takes
    format!("This is line {line}.")
}

#[tokio::main]
async fn main() -> Result<(), rescind::ConnectionError> {
    let router = Router::new().method("initialize", initialize).method("textDocument/hover", hover);
    let peer = Peer::builder(dialect::LSP).serve(router).connect(stdio::this_process()).await?;
    peer.closed().await?;
    std::process::exit(peer.exit_code().map_or(0, i32::from)) // `exit`: 0 after `shutdown`, else 1
}
