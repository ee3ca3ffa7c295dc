//! A server that shuts down gracefully: it accepts no more connections, gives running requests time to finish, cancels
//! the others, and exits.
//!
//! Run it with `cargo run -p rescind-examples --example graceful_shutdown`: it is the server and its own client. With
//! an address, such as `127.0.0.1:9000`, it serves until SIGTERM or Ctrl-C.

use std::error::Error;
use std::time::Duration;

use rescind::transport::Listener;
use rescind::{CallContext, HandlerError, Peer, Router, Server, dialect, websocket};
use tokio::sync::oneshot;

/// The time in which requests may finish.
const DRAIN: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let listener = websocket::bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?;
    let url = listener.endpoint().to_string();
    println!("server: listening on {url}");
    let (stop, stopped) = oneshot::channel();
    let client = address.is_none().then(|| tokio::spawn(client(url, stop)));

    let router = Router::new().method("ping", async |_: CallContext, (): ()| Ok("pong")).method("work", work);
    let server = Server::builder(dialect::ACP).serve(router).listen(listener);
    let handle = server.handle();
    let running = tokio::spawn(server.run());
    tokio::select! {
        () = terminated(), if client.is_none() => {}
        _ = stopped, if client.is_some() => {}
    }
    println!("server: no more connections; up to {DRAIN:?} for running requests");
    println!("server: {} handlers are left", handle.drain(DRAIN).await);
    running.await??;
    if let Some(client) = client {
        client.await?.map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn work(ctx: CallContext, (ms,): (u64,)) -> Result<&'static str, HandlerError> {
    // After DRAIN the request is cancelled with `CauseKind::Shutdown`, and its caller gets the dialect's cancelled
    // answer.
    ctx.run_until_cancelled(tokio::time::sleep(Duration::from_millis(ms))).await?;
    Ok("done")
}

async fn terminated() {
    #[cfg(unix)]
    if let Ok(mut terminated) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        tokio::select! {
            _ = terminated.recv() => return,
            _ = tokio::signal::ctrl_c() => return,
        }
    }
    drop(tokio::signal::ctrl_c().await);
}

/// Has two running requests when the server stops: one finishes in time, and the other does not.
async fn client(url: String, stop: oneshot::Sender<()>) -> Result<(), Box<dyn Error + Send + Sync>> {
    let peer = Peer::builder(dialect::ACP).connect(websocket::connect(&url)).await?;
    let short = peer.call::<_, String>("work", &[100]).start()?;
    let long = peer.call::<_, String>("work", &[3_600_000]).start()?;
    // Requests of a connection are read in order: when `ping` is answered, both are running.
    peer.call::<_, String>("ping", &()).await?;
    stop.send(()).map_err(|()| "the server has ended")?;
    println!("client: the short request is {}", short.await?);
    let long = long.outcome().await;
    println!("client: the long request: {long:?}");
    if long.is_cancelled() { Ok(()) } else { Err("it was not cancelled".into()) }
}
