//! tower-lsp-server.

use rescind::Limits;
use rescind::dialect::LSP;
use serde_json::json;

use crate::raw_peer::{RawPeer, is_about, is_clean};

/// tower-lsp-server stops reading when four handlers run, so it does not read their cancels.
#[tokio::test]
async fn tower_lsp_server_no_cancel_once_4_handlers_run() {
    is_about!("L2");
    for running in [4, 1024] {
        let mut limits = Limits::default();
        limits.max_running_handlers = running;
        let (mut client, server, mut reported) = RawPeer::meet(LSP, limits);
        client.opens().await;
        for id in 1..=4 {
            client.ask(id, "wait", &json!({"n": id})).await;
            reported.hears(&format!("wait {id} began")).await;
        }
        client.ask(5, "wait", &json!({"n": 5})).await;
        if running > 4 {
            reported.hears("wait 5 began").await;
        }
        for id in [4, 1, 3, 2] {
            client.cancel(id, "$/cancelRequest", "id").await;
            reported.hears(&format!("wait {id} peer")).await;
            let answer = client.hear().await;
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(id), &json!(-32_800)));
            if running == 4 && id == 4 {
                reported.hears("wait 5 began").await;
            }
        }
        client.cancel(5, "$/cancelRequest", "id").await;
        reported.hears("wait 5 peer").await;
        assert_eq!(client.hear().await["id"], 5);
        is_clean(&server).await;
    }
}
