//! A stop button: one call is stopped by its canceller, another by being dropped, and the handlers detect both at once.
//!
//! Run it with `cargo run -p rescind-examples --example stop_button`.

use std::error::Error;

use rescind::{CallContext, Outcome, Peer, Router, dialect, memory_pair};
use serde_json::Value;
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (client, server) = memory_pair();
    let (events_tx, mut events) = mpsc::unbounded_channel();
    let router = Router::new().method("work", move |ctx: CallContext, (name,): (String,)| {
        let events_tx = events_tx.clone();
        async move {
            events_tx.send(format!("{name}: started"))?;
            let cause = ctx.cancelled().await;
            events_tx.send(format!("{name}: stopped, because {cause}"))?;
            ctx.stopped::<Value>(cause)
        }
    });
    let _server = Peer::builder(dialect::ACP).serve(router).attach(server)?;
    let peer = Peer::builder(dialect::ACP).attach(client)?;

    // The button: a canceller is a small handle that can be cloned and sent anywhere.
    let call = peer.call::<_, Value>("work", &["first"]).start()?;
    let button = call.canceller();
    println!("{}", events.recv().await.unwrap_or_default());
    println!("the button says: {:?}", button.cancel("user pressed stop"));
    println!("{}", events.recv().await.unwrap_or_default());
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => {
            println!(
                "the caller sees: cancelled, because {}, confirmed: {}",
                cancelled.cause, cancelled.confirmed
            );
        }
        other => return Err(format!("the call was not cancelled: {other:?}").into()),
    }

    // A dropped call is cancelled too: after a timeout, in a `select!` that another branch wins, or when its task is
    // aborted.
    let call = peer.call::<_, Value>("work", &["second"]).start()?;
    println!("{}", events.recv().await.unwrap_or_default());
    drop(call);
    println!("{}", events.recv().await.unwrap_or_default());
    Ok(())
}
