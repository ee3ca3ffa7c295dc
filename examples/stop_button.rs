//! A stop button: one call is stopped by its canceller, another by being dropped, and the handlers see both at once.
//!
//! Run it with `cargo run -p rescind-examples --example stop_button`.

use std::error::Error;

use rescind::{CallContext, Outcome, Peer, Router, dialect, memory_pair};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;

/// What is asked for; the params of a request are an object or an array.
#[derive(Serialize, Deserialize)]
struct Job {
    name: String,
}

impl Job {
    fn named(name: &str) -> Self {
        Self { name: name.to_owned() }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (client, server) = memory_pair();
    let (tell, mut told) = mpsc::unbounded_channel();
    let router = Router::new().method("work", move |ctx: CallContext, job: Job| {
        let (tell, name) = (tell.clone(), job.name);
        async move {
            tell.send(format!("{name}: started"))?;
            let cause = ctx.cancelled().await;
            tell.send(format!("{name}: stopped, because {cause}"))?;
            ctx.stopped::<Value>(cause)
        }
    });
    let _server = Peer::builder(dialect::ACP).serve(router).attach(server)?;
    let peer = Peer::builder(dialect::ACP).attach(client)?;

    // The button: a canceller is a small handle that can be cloned and sent anywhere.
    let call = peer.call::<_, Value>("work", &Job::named("first")).start()?;
    let button = call.canceller();
    println!("{}", told.recv().await.unwrap_or_default());
    println!("the button says: {:?}", button.cancel("user pressed stop"));
    println!("{}", told.recv().await.unwrap_or_default());
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => {
            println!(
                "the caller sees: cancelled, because {}, confirmed: {}",
                cancelled.cause, cancelled.confirmed
            );
        }
        other => return Err(format!("the call was not cancelled: {other:?}").into()),
    }

    // Dropping a call cancels it too: a timeout, a `select!` that lost, a task that was aborted.
    let call = peer.call::<_, Value>("work", &Job::named("second")).start()?;
    println!("{}", told.recv().await.unwrap_or_default());
    drop(call);
    println!("{}", told.recv().await.unwrap_or_default());
    Ok(())
}
