//! h2.

use std::time::Duration;

use rescind::Limits;
use rescind::dialect::ACP;
use serde_json::json;

use crate::raw_peer::{RawPeer, in_time, is_about, is_clean, until};

/// h2 counts a stream as ended while its last frames wait to be written, and loses them.
#[tokio::test]
async fn h2_246_terminal_state_set_before_flush() {
    const ANSWERS: usize = 200;
    is_about!("I6");
    let mut limits = Limits::default();
    // This test decides how long the reads take.
    limits.flush_timeout = Duration::from_secs(60);
    let (mut client, server, _told) = RawPeer::meet(ACP, limits);
    let filler = "x".repeat(4096);
    for id in 0..ANSWERS {
        client.ask(id, "echo", &json!({"n": id, "filler": filler})).await;
    }
    // Every request has its answer. The transport has room for few of them.
    until("all are answered", || server.stats().finished == ANSWERS as u64).await;
    assert!(server.queue_stats().outbox_frames > 0, "some wait to be written");
    // A cancel is too late now, and so is the end of the connection.
    client.cancel(ANSWERS - 1, "$/cancel_request", "requestId").await;
    let ending = server.clone();
    let shutdown = tokio::spawn(async move { ending.shutdown(Duration::from_secs(60)).await });
    let mut seen = Vec::new();
    while seen.len() < ANSWERS {
        let frame = client.hear().await;
        assert_eq!(frame["result"]["n"], frame["id"], "I6: {}", frame["error"]);
        seen.push(frame["id"].as_u64().and_then(|id| usize::try_from(id).ok()));
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq((0..ANSWERS).map(Some)), "I1: each once");
    assert_eq!(in_time("L3: the shutdown", shutdown).await.unwrap(), 0);
    is_clean(&server).await;
    let rx = &mut client.0.rx;
    let rest = in_time("L3: the end", std::future::poll_fn(|cx| rx.as_mut().poll_event(cx))).await;
    assert!(
        !matches!(rest, Some(Ok(rescind::transport::TransportEvent::Message(_)))),
        "nothing follows: {rest:?}"
    );
}
