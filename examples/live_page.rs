//! A server with a live page: its requests as they run, in a browser, with a button that stops each.
//!
//! Run it with an address, `cargo run -p rescind-examples --example live_page 127.0.0.1:8080`, and open the URL that it
//! prints: four editors keep an agent busy until Ctrl-C. Without an address it stops one request and ends.

use std::error::Error;
use std::time::Duration;

use rescind::page::Page;
use rescind::{
    CallContext, ErrorCode, ErrorObject, HandlerError, MemoryTransport, Peer, Router, Server, dialect,
    memory_listener,
};
use serde_json::{Value, json};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let (listener, transport) = memory_listener();
    let router = Router::new().method("session/prompt", prompt).method("session/list", list);
    let server = Server::builder(dialect::ACP_V2).serve(router).listen(listener);
    let handle = server.handle();
    tokio::spawn(server.run());

    // The page needs the handle of the server and nothing else.
    let page = Page::of_server(&handle)?.title("An agent and its editors");
    let page = page.bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?;
    println!("page on {}", page.url());
    tokio::spawn(page.run());

    let log = handle.request_log();
    let mut changes = log.watch();
    (0..4).for_each(|number| drop(tokio::spawn(editor(transport.clone(), number))));
    if address.is_some() {
        tokio::signal::ctrl_c().await?;
    } else {
        changes.next().await;
        for request in log.requests(1) {
            // The same as the button on the page.
            println!(
                "{} {}: stopped {}",
                request.session.as_str(),
                request.id,
                log.stop(request.key, "example")
            );
        }
        while log.counts().received.cancelled == 0 {
            changes.next().await;
        }
        for ended in log.ended() {
            println!("{:?} {}: {}", ended.request.method, ended.request.id, ended.outcome.name());
        }
    }
    handle.drain(Duration::ZERO).await;
    Ok(())
}

/// The agent asks its editor to read files and to run a command while it works.
async fn prompt(ctx: CallContext, (ms,): (u64,)) -> Result<&'static str, HandlerError> {
    let ask = |method: &'static str, share: u64| ctx.call::<_, Value>(method, &[ms * share / 10]).start();
    let children = [ask("fs/read_text_file", 9)?, ask("terminal/wait_for_exit", 12)?];
    if let Err(stopped) = ctx.run_until_cancelled(sleep(Duration::from_millis(ms))).await {
        // It saves what it has. The page shows how long that takes.
        sleep(Duration::from_millis(900)).await;
        return Err(stopped.into());
    }
    drop(children);
    Ok("end_turn")
}

async fn list(_: CallContext, (number,): (u64,)) -> Result<Value, HandlerError> {
    if number % 4 == 3 {
        return Err(ErrorObject::new(ErrorCode::INVALID_PARAMS, "the cursor is too old").into());
    }
    Ok(json!({"sessions": []}))
}

/// An editor whose user cancels every third prompt.
async fn editor(transport: MemoryTransport, number: u64) -> Result<(), HandlerError> {
    let work = async |ctx: CallContext, (ms,): (u64,)| {
        ctx.run_until_cancelled(sleep(Duration::from_millis(ms))).await?;
        Ok(Value::Null)
    };
    let tools = Router::new().method("fs/read_text_file", work).method("terminal/wait_for_exit", work);
    let agent = Peer::builder(dialect::ACP_V2).serve(tools).connect(transport).await?;
    for turn in number.. {
        let ms = 2000 + (turn * 7919 + number * 3001) % 12_000;
        let _ = agent.call::<_, Value>("session/list", &[turn]).await;
        let prompt = agent.call::<_, Value>("session/prompt", &[ms]).start()?;
        if turn % 3 == 1 {
            sleep(Duration::from_millis(ms / 2)).await;
            prompt.canceller().cancel("the user typed on");
        }
        let _ = prompt.outcome().await;
    }
    Ok(())
}
