//! Work on a blocking thread. It cannot be interrupted, so it checks for a cancel between two pieces.
//!
//! Run it with `cargo run -p rescind-examples --example blocking_work`.

use std::error::Error;
use std::sync::mpsc;

use rescind::{CallContext, HandlerError, Outcome, Peer, Router, dialect, memory_pair};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (client, server) = memory_pair();
    let (events_tx, events) = mpsc::channel();
    let router = Router::new().blocking("index", move |ctx: CallContext, files: Vec<String>| {
        let mut done = 0_u64;
        for file in files.iter().cycle() {
            // One atomic load. `Err` carries the cause and becomes the dialect's cancelled answer.
            if let Err(stopped) = ctx.check() {
                println!("the indexer stops after {done} files, because {}", stopped.0);
                return Err(HandlerError::from(stopped));
            }
            done += u64::from(!file.is_empty());
            if done == 1000 {
                events_tx.send(())?;
            }
        }
        Ok(done)
    });
    let _server = Peer::builder(dialect::ACP).serve(router).attach(server)?;
    let peer = Peer::builder(dialect::ACP).attach(client)?;

    let call = peer.call::<_, Value>("index", &json!(["a.rs", "b.rs"])).start()?;
    let stop = call.canceller();
    tokio::task::spawn_blocking(move || events.recv()).await??;
    println!("the canceller says: {:?}", stop.cancel("the project was closed"));
    match call.outcome().await {
        Outcome::Cancelled(cancelled) if cancelled.confirmed => println!("the indexer has confirmed its end"),
        other => return Err(format!("the indexer was not cancelled: {other:?}").into()),
    }
    Ok(())
}
