//! A dialect with its own envelope: the Debug Adapter Protocol, where a cancel is a request that gets a response.
//!
//! A debug adapter serves `evaluate`. The editor calls it and cancels the call. The machine, the driver and the
//! transports are the same as for every other dialect: only the codec and a few rules are written here, in
//! `custom_dialect/dialect.rs`.
//!
//! Run it with `cargo run -p rescind-examples --example custom_dialect`.

use std::error::Error;

use rescind::{CallContext, HandlerError, Outcome, Peer, Router, memory_pair};
use serde_json::{Value, json};

use self::dialect::debug_adapter;

#[path = "custom_dialect/dialect.rs"]
mod dialect;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (editor, adapter) = memory_pair();
    let router = Router::new()
        .method("initialize", |_ctx: CallContext, _: Value| async {
            Ok(json!({ "supportsCancelRequest": true }))
        })
        .method("evaluate", |ctx: CallContext, params: Value| async move {
            println!("the adapter evaluates {params}");
            ctx.try_notify("output", &json!({ "output": "still looking" }))?;
            let cause = ctx.cancelled().await;
            println!("the adapter stops, because {cause}");
            Err::<Value, _>(HandlerError::stopped(cause))
        });
    let _adapter = Peer::builder(debug_adapter()).serve(router).attach(adapter)?;
    let editor = Peer::builder(debug_adapter()).attach(editor)?;
    let abilities: Value = editor.call("initialize", &json!({ "adapterID": "example" })).await?;
    println!("the adapter says {abilities}");

    let call = editor.call::<_, Value>("evaluate", &json!({ "expression": "fib(90)" }));
    let mut call = call.notifications_where(|notification| notification.method() == "output").start()?;
    let mut output = call.notifications();
    let _ = output.next().await;
    println!("the canceller says: {:?}", call.canceller().cancel("the user moved on"));
    println!("the adapter acknowledged the cancel: {:?}", call.acknowledged().await);
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => {
            println!("the editor sees: cancelled, confirmed: {}", cancelled.confirmed);
        }
        other => return Err(format!("the evaluation was not cancelled: {other:?}").into()),
    }
    Ok(())
}
