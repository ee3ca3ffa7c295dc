//! Handlers that continue after their request is settled: their server counts them until they have ended (I10).

use std::sync::{Arc, Mutex, mpsc as threads};
use std::time::Duration;

use rescind_core::dialect::{ACP, ACP_DRAFT, Dialect, MCP};
use rescind_core::{CallContext, CallError, Limits, Peer, Router, Server, ServerLimits, memory_listener};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// How the request of a handler that continues has ended.
#[derive(Clone, Copy, Debug)]
enum Ending {
    AnsweredAfterTheGrace,
    Silenced,
    WireLost,
}

/// A request of a second connection. Returns the reason if it is refused.
async fn refused(peer: &Peer) -> Option<String> {
    match peer.call::<_, Value>("echo", &json!({})).await {
        Ok(_) => None,
        Err(CallError::Failed(error)) => Some(error.message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_handler_that_goes_on_after_its_request_is_settled_counts_as_draining_until_it_ends() {
    settled(ACP, Ending::AnsweredAfterTheGrace).await;
    settled(MCP, Ending::Silenced).await;
    // Without a handshake, this dialect allows no cancels.
    settled(ACP_DRAFT, Ending::WireLost).await;
}

async fn settled(dialect: Dialect, how: Ending) {
    let (release, blocked) = threads::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let (tell, mut entered) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("echo", |_ctx: CallContext, params: Value| async move { Ok(params) })
        .blocking("block", move |_ctx: CallContext, _: Value| {
            tell.send(()).unwrap();
            let _ = blocked.lock().unwrap().recv();
            Ok(())
        });
    let (listener, transport) = memory_listener();
    let mut limits = Limits::default();
    limits.cancel_grace = match how {
        Ending::AnsweredAfterTheGrace => Duration::from_millis(1),
        // The handler counts at once, not only when it is aborted.
        Ending::Silenced | Ending::WireLost => Duration::from_secs(3600),
    };
    // One draining handler is above the limit.
    let mut bounds = ServerLimits::default();
    bounds.max_draining_handlers = 0;
    let server = Server::builder([dialect.clone()])
        .serve(router)
        .limits(limits)
        .server_limits(bounds)
        .listen(listener);
    let counts = server.counts();
    let serving = tokio::spawn(server.run());
    let one = Peer::builder(dialect.clone()).connect(transport.clone()).await.unwrap();
    let two = Peer::builder(dialect).connect(transport).await.unwrap();
    for _ in 0..3 {
        assert_eq!(refused(&two).await, None, "{how:?}: a handler that has ended does not drain");
    }
    let call = one.call::<_, Value>("block", &json!({})).start().unwrap();
    entered.recv().await.unwrap();
    assert_eq!(refused(&two).await, None, "{how:?}: a handler that runs does not drain");
    match how {
        Ending::AnsweredAfterTheGrace | Ending::Silenced => {
            call.canceller().cancel("");
            assert!(call.outcome().await.is_cancelled());
        }
        Ending::WireLost => drop((call, one)),
    }
    // The effect on the server is visible after a short time.
    let until_refused = async {
        loop {
            if let Some(why) = refused(&two).await {
                return why;
            }
        }
    };
    let why = tokio::time::timeout(Duration::from_secs(10), until_refused).await;
    let why = why.unwrap_or_else(|_| panic!("I10, {how:?}: it is not counted"));
    assert!(why.contains("server_draining"), "I10, {how:?}: {why}");
    assert_eq!(counts.draining(), 1, "I10, {how:?}");
    drop(release);
    let until_let_in = async { while refused(&two).await.is_some() {} };
    let let_in = tokio::time::timeout(Duration::from_secs(10), until_let_in).await;
    assert!(let_in.is_ok(), "I10, {how:?}: it is counted although it has ended");
    assert_eq!(counts.draining(), 0, "I10, {how:?}");
    serving.abort();
}
