//! async-lsp.

use rescind::Limits;
use rescind::dialect::LSP;
use serde_json::{Value, json};

use crate::raw_peer::{RawPeer, is_about, is_clean, until};

/// async-lsp reads no answers when it runs the maximum number of handlers and these wait for the answers.
#[tokio::test]
async fn async_lsp_deadlock_at_its_concurrency_limit() {
    const LIMIT: usize = 4;
    is_about!("L2");
    let mut limits = Limits::default();
    limits.max_running_handlers = LIMIT;
    let (mut client, server, _told) = RawPeer::meet(LSP, limits);
    client.opens().await;
    // As many again wait for a permit meanwhile.
    for id in 0..2 * LIMIT {
        client.ask(id, "ask", &json!({"n": id})).await;
    }
    until("the limit is reached, and as many wait", || {
        let stats = server.stats();
        (stats.running, stats.queued) == (LIMIT as u64, LIMIT as u64)
    })
    .await;
    let mut answered = Vec::new();
    while answered.len() < 2 * LIMIT {
        let frame = client.hear().await;
        if frame["method"] == "echo" {
            client.say(&json!({"jsonrpc": "2.0", "id": frame["id"], "result": frame["params"]})).await;
        } else {
            assert_eq!(frame["result"]["n"], frame["id"]);
            answered.push(frame["id"].as_u64());
        }
    }
    is_clean(&server).await;
}

/// async-lsp forgets the first request when the second arrives.
#[tokio::test]
async fn async_lsp_a_duplicate_id_makes_the_first_uncancellable() {
    is_about!("I4");
    let (mut client, server, mut reported) = RawPeer::meet(LSP, Limits::default());
    client.opens().await;
    client.ask(1, "wait", &json!({"n": "first"})).await;
    reported.hears("wait \"first\" began").await;
    client.ask(1, "echo", &json!({})).await;
    let refused = client.hear().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&Value::Null, &json!(-32_600)));
    client.cancel(1, "$/cancelRequest", "id").await;
    reported.hears("wait \"first\" peer").await;
    let answer = client.hear().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32_800)));
    is_clean(&server).await;
}
