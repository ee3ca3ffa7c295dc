//! A cancelled handler returns a partial result: the caller gets a value, and knows that a cancel was sent.
//!
//! Run it with `cargo run -p rescind-examples --example partial_result`.

use std::error::Error;

use rescind::{CallContext, HandlerError, Outcome, Peer, Router, dialect, memory_pair};
use serde_json::{Value, json};

/// Finds one line after another until it is cancelled.
async fn search(ctx: CallContext, _params: Value) -> Result<Value, HandlerError> {
    let mut found = Vec::new();
    loop {
        found.push(format!("line {}", found.len() + 1));
        ctx.try_notify("found", &json!({ "lines": found.len() }))?;
        if found.len() == 3 {
            // More lines could follow, but the caller has seen enough.
            ctx.cancelled().await;
        }
        if ctx.is_cancelled() {
            return Ok(json!({ "lines": found, "complete": false }));
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (client, server) = memory_pair();
    let _server = Peer::builder(dialect::ACP).serve(Router::new().method("search", search)).attach(server)?;
    let peer = Peer::builder(dialect::ACP).attach(client)?;

    let call = peer.call::<_, Value>("search", &json!({}));
    let call = call.notifications_where(|notification| notification.method() == "found").start()?;
    let mut progress = call.notifications();
    let stop = call.canceller();
    for _ in 0..3 {
        if let Some(notification) = progress.next().await {
            println!("progress: {}", notification.raw_params().unwrap_or_default());
        }
    }
    println!("the canceller says: {:?}", stop.cancel("three are enough"));
    match call.outcome().await {
        Outcome::CompletedAfterCancel(value) => println!("the caller has a partial result: {value}"),
        other => return Err(format!("there is no partial result: {other:?}").into()),
    }
    Ok(())
}
