//! Effect.

use std::time::Duration;

use rescind::Limits;
use rescind::dialect::{ACP, LSP, MCP, MCP_2026};
use serde_json::{Value, json};

use crate::raw_peer::{RawPeer, is_about, is_clean};

/// Effect keeps a cancel that named nothing, and cancels the next request with that id when it arrives.
#[tokio::test(start_paused = true)]
async fn effect_7131_unknown_cancel_poisons_a_later_id() {
    is_about!("I8");
    let dialects = [(ACP, "$/cancel_request", "requestId"), (LSP, "$/cancelRequest", "id")];
    for (dialect, method, key) in dialects {
        let (mut client, server, mut reported) = RawPeer::meet(dialect, Limits::default());
        client.opens().await;
        for id in [json!(5), json!("5")] {
            client.cancel(id.clone(), method, key).await;
            client.ask(id.clone(), "echo", &json!({"n": 5})).await;
            let answer = client.hear().await;
            assert_eq!((&answer["id"], &answer["result"]), (&id, &json!({"n": 5})), "I8");
        }
        // The request can be cancelled like any other.
        client.ask(5, "wait", &json!({"n": 5})).await;
        reported.hears("wait 5 began").await;
        client.cancel(5, method, key).await;
        reported.hears("wait 5 peer").await;
        assert_eq!(client.hear().await["error"]["code"], -32_800);
        is_clean(&server).await;
    }
    // If a cancel may overtake its request, a cancel for an answered id is late and is not kept.
    let (mut client, server, _told) = RawPeer::meet(MCP, Limits::default());
    for _ in 0..3 {
        client.ask(5, "echo", &json!({"n": 5})).await;
        assert_eq!(client.hear().await["result"], json!({"n": 5}), "I8, I14");
        client.cancel(5, "notifications/cancelled", "requestId").await;
    }
    assert_eq!(client.until_echo().await, Vec::<Value>::new());
    assert_eq!(server.stats().parked_cancels, 0, "I8");
    is_clean(&server).await;
    // The same after the answered id was forgotten, because of its age or the number of settled ids.
    let mut few = Limits::default();
    few.max_settled_ids = 1;
    for (dialect, limits, age) in
        [(MCP, Limits::default(), 62), (MCP_2026, Limits::default(), 62), (MCP_2026, few, 0)]
    {
        let (mut client, server, _told) = RawPeer::meet(dialect, limits);
        for id in [json!(1), json!("a")] {
            for id in [id.clone(), json!(0)] {
                client.ask(id.clone(), "echo", &json!({"n": 1})).await;
                assert_eq!(client.hear().await["id"], id);
            }
            tokio::time::advance(Duration::from_secs(age)).await;
            client.cancel(id.clone(), "notifications/cancelled", "requestId").await;
            tokio::time::advance(Duration::from_secs(age.min(29))).await;
            client.ask(id.clone(), "echo", &json!({"n": 2})).await;
            let answer = client.hear().await;
            assert_eq!((&answer["id"], &answer["result"]["n"]), (&id, &json!(2)), "I8, I14");
        }
        assert_eq!(server.stats().parked_cancels, 0, "I8");
        is_clean(&server).await;
    }
}
