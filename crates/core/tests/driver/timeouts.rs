//! The timeouts of calls.

use std::time::Duration;

use rescind_core::dialect::{ACP, LSP, MCP, Role};
use rescind_core::{ByteStream, Call, CauseKind, Outcome, Peer, PeerBuilder};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::driver::protocol_requirements::Lines;

async fn open(builder: PeerBuilder) -> (Peer, Lines) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (from, to) = tokio::io::split(ours);
    let peer = builder.role(Role::Client).connect(ByteStream::new(from, to)).await.unwrap();
    (peer, Lines::new(theirs))
}

/// How long it took until the deadline ended the call.
async fn times_out(call: Call<Value>, since: Instant) -> Duration {
    match tokio::time::timeout(Duration::from_secs(86_400), call.outcome())
        .await
        .expect("it does not time out")
    {
        Outcome::Cancelled(cancelled) => assert_eq!(cancelled.cause.kind(), CauseKind::Deadline),
        other => panic!("{other:?}"),
    }
    since.elapsed()
}

// MCP, "Timeouts": a sender should have a timeout for each request, and send a cancel when it ends.
#[tokio::test(start_paused = true)]
async fn a_client_of_mcp_times_out_and_cancels_all_calls_except_initialize() {
    let (peer, mut server) = open(Peer::builder(MCP)).await;
    let since = Instant::now();
    let initialize = peer.call::<_, Value>("initialize", &json!({})).start().unwrap();
    assert_eq!(server.next().await["method"], "initialize");
    assert_eq!(times_out(initialize, since).await.as_secs(), 60);
    let since = Instant::now();
    let call = peer.call::<_, Value>("tools/call", &json!({})).start().unwrap();
    let id = server.next().await["id"].clone();
    assert_eq!(times_out(call, since).await.as_secs(), 60);
    let cancel = server.next().await;
    assert_eq!((&cancel["method"], &cancel["params"]["requestId"]), (&json!("notifications/cancelled"), &id));
}

#[tokio::test(start_paused = true)]
async fn progress_restarts_a_timeout_up_to_the_maximum() {
    let (peer, mut server) = open(Peer::builder(MCP).call_timeout(Duration::from_secs(10))).await;
    let since = Instant::now();
    let call = peer
        .call::<_, Value>("tools/call", &json!({}))
        .reset_timeout_on_progress()
        .max_timeout(Duration::from_secs(25))
        .start()
        .unwrap();
    let token = server.next().await["params"]["_meta"]["progressToken"].clone();
    let tells = async {
        for progress in 1..=20 {
            tokio::time::sleep(Duration::from_secs(8)).await;
            let params = json!({"progressToken": token, "progress": progress});
            server
                .send(json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
                .await;
        }
    };
    let took = tokio::select! {
        took = times_out(call, since) => took,
        () = tells => panic!("the maximum did not end it"),
    };
    assert_eq!(took.as_secs(), 25);
    // Without that option, the call ends at its first timeout.
    let since = Instant::now();
    let call = peer.call::<_, Value>("tools/call", &json!({})).progress().start().unwrap();
    assert_eq!(times_out(call, since).await.as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn other_dialects_have_a_timeout_where_it_is_set() {
    for dialect in [ACP, LSP] {
        let (peer, _server) = open(Peer::builder(dialect.clone())).await;
        let call = peer.call::<_, Value>("slow", &json!({})).start().unwrap();
        let waited = tokio::time::timeout(Duration::from_secs(86_400), call).await;
        assert!(waited.is_err(), "it ended: {waited:?}");
        let (peer, _server) = open(Peer::builder(dialect).call_timeout(Duration::from_secs(5))).await;
        let since = Instant::now();
        let call = peer.call::<_, Value>("slow", &json!({})).start().unwrap();
        // 5 s, and then the wait for an answer to the cancel.
        assert_eq!(times_out(call, since).await.as_secs(), 10);
    }
}
