//! An agent over HTTP, mounted beside your own routes, and a client that cancels one of its calls.
//!
//! Run it with `cargo run -p rescind-examples --example http_server`.

use std::error::Error;
use std::time::Duration;

use axum::routing::get;
use rescind::http::{HttpClient, HttpServer, Streamable, StreamableTransport};
use rescind::{
    AuthRefusal, AuthRequest, CallContext, Credential, HandlerError, Outcome, Peer, Principal, Router,
    Server, dialect,
};
use serde_json::{Value, json};

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

/// Counts until it is cancelled, and sends each number.
async fn count(ctx: CallContext, _: Value) -> Result<Value, HandlerError> {
    let mut clock = tokio::time::interval(Duration::from_millis(20));
    for number in 1_u64.. {
        tokio::select! {
            _ = clock.tick() => ctx.notify("counted", &json!({ "number": number })).await?,
            cause = ctx.cancelled() => {
                println!("server: stopped, because {:?}", cause.kind());
                return ctx.stopped::<Value>(cause);
            }
        }
    }
    Ok(Value::Null)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            Ok(json!({ "protocolVersion": 1, "agentCapabilities": {} }))
        })
        .method("count", count);

    // The agent is a service under one path. The user owns all other routes of the server.
    let (service, listener) = HttpServer::new(Streamable::new()).auth(who).mount();
    let agent = tokio::spawn(Server::builder([dialect::ACP]).serve(router).listen(listener).run());
    let app = axum::Router::new().route("/health", get(|| async { "well" })).route_service("/agent", service);
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = socket.local_addr()?;
    let serving = tokio::spawn(async move { axum::serve(socket, app).await });
    println!("server: listening on http://{address}/agent");

    let client =
        HttpClient::new(&format!("http://{address}/agent"))?.header("Authorization", "Bearer a-secret")?;
    let transport = StreamableTransport::new(client);
    let peer = Peer::builder(dialect::ACP).connect(transport).await?;
    peer.call::<_, Value>("initialize", &json!({ "protocolVersion": 1 })).await?;

    let call = peer.call::<_, Value>("count", &json!({})).start()?;
    let mut counted = call.notifications_where(|notification| notification.method() == "counted");
    for _ in 0..3 {
        let notification = counted.next().await.ok_or("the call has ended")?;
        println!("client: {}", notification.raw_params().unwrap_or("nothing"));
    }
    call.canceller().cancel("three is enough");
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => println!("client: cancelled, confirmed: {}", cancelled.confirmed),
        other => return Err(format!("the call ended otherwise: {other:?}").into()),
    }

    peer.shutdown(Duration::ZERO).await;
    agent.abort();
    serving.abort();
    Ok(())
}
