//! A small agent on a route of an axum application, and a client that connects to it and cancels a call.
//!
//! Run it with `cargo run -p rescind-examples --example websocket_server`. With an address, such as `127.0.0.1:9000`,
//! it serves there until it is stopped, for your own clients.

use std::error::Error;
use std::time::Duration;

use axum::Router as Routes;
use axum::routing::{any, get};
use rescind::websocket::{BinaryMessages, IgnoredCounter, LinkOptions, UpgradeOptions, connect, mount};
use rescind::{
    AuthRefusal, AuthRequest, CallContext, Credential, Outcome, Peer, Principal, Router, Server, dialect,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let tcp = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?;
    let url = format!("ws://{}/agent", tcp.local_addr()?);

    // Pages of this machine and of the requested host may connect. One more origin is allowed by name. ACP's draft of
    // this transport requires that binary messages are ignored; otherwise they would end the connection.
    let options = UpgradeOptions::new()
        .allow_origin("https://app.example")?
        .auth(who)
        .link(LinkOptions::new().binary(BinaryMessages::Ignore(IgnoredCounter::new())));
    let (upgrades, listener) = mount(options);

    // The application keeps its own routes. The agent is one more route.
    let routes =
        Routes::new().route("/", get(async || "an application of ours\n")).route("/agent", any(upgrades));
    let web = tokio::spawn(async { axum::serve(tcp, routes).await });
    let agent = tokio::spawn(Server::builder([dialect::ACP]).serve(agent()).listen(listener.at(&url)).run());
    println!("the agent listens on {url}");

    if address.is_some() {
        web.await??;
    } else {
        client(&url).await?;
        web.abort();
        agent.abort();
    }
    Ok(())
}

/// Authenticates a request. A real hook would call an authorization server here; it may wait.
async fn who(request: AuthRequest) -> Result<Credential, AuthRefusal> {
    match request.header("Authorization") {
        // The streams and connections of this credential end after an hour.
        Some("Bearer a-secret") => {
            Ok(Credential::of(Principal("ada".into())).expires_in(Duration::from_secs(3600)))
        }
        Some(_) | None => Err(AuthRefusal::unauthorized("Bearer")),
    }
}

/// One method: it counts, sends each number, and stops when it is cancelled.
fn agent() -> Router {
    Router::new().method("count", |ctx: CallContext, (to,): (u32,)| async move {
        for number in 1..=to {
            ctx.try_notify("counted", &json!({"number": number}))?;
            ctx.run_until_cancelled(tokio::time::sleep(Duration::from_millis(10))).await?;
        }
        Ok(json!({"counted": to}))
    })
}

async fn client(url: &str) -> Result<(), Box<dyn Error>> {
    let peer =
        Peer::builder(dialect::ACP).connect(connect(url).header("Authorization", "Bearer a-secret")).await?;

    let call = peer.call::<_, Value>("count", &[1_000_000]).start()?;
    let mut counted = call.notifications_where(|notification| notification.method() == "counted");
    for _ in 0..3 {
        counted.next().await;
    }
    call.canceller().cancel("three are enough");
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => println!("cancelled, confirmed: {}", cancelled.confirmed),
        other => return Err(format!("the call was not cancelled: {other:?}").into()),
    }

    // The connection is not affected.
    let answer: Value = peer.call("count", &[2]).await?;
    println!("another call on the same connection: {answer}");
    peer.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
