//! Large complete requests.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::sleep as pause;

use super::{Field, LARGE};
use crate::poll_until;
use crate::request_client::RequestClient;
use crate::target::Wire;

const REQUESTS: u64 = 60;

pub(super) async fn large_queue(field: &mut Field) {
    let mut asker = RequestClient::connect(&mut field.target).await;
    let filler = Bytes::from(vec![b'x'; LARGE]);
    for id in 1..=REQUESTS {
        asker.ask(id, "test/wait", json!({"filler": "FILLER"}), &filler).await;
    }
    // The accepted requests hang. All others are refused.
    poll_until("each request runs or is refused", async || {
        let refused = asker.heard().refused() as u64;
        if let Some(honest) = &field.honest {
            // The honest client's request runs too.
            return honest.stats().await["running"].as_u64().unwrap() + refused == REQUESTS + 1;
        }
        pause(Duration::from_millis(500)).await;
        asker.heard().refused() as u64 == refused && refused > 0
    })
    .await;
    field.others_are_served().await;
    let open: Vec<u64> = (1..=REQUESTS).filter(|id| !asker.heard().is_settled(*id)).collect();
    let refused = asker.heard().refused();
    assert!(!open.is_empty() && refused > 0, "{} run, {refused} were refused", open.len());
    for id in open {
        asker.cancel(id).await;
    }
    if field.target.wire != Wire::Stateless {
        all_are_settled(&asker).await;
    }
    field.hold(asker);
}

pub(super) async fn large_values(field: &mut Field) {
    let mut asker = RequestClient::connect(&mut field.target).await;
    let filler = Bytes::from(vec![b'x'; LARGE]);
    for id in 1..=REQUESTS {
        asker.ask(id, "test/sleep", json!({"ms": 0, "filler": "FILLER"}), &filler).await;
    }
    all_are_settled(&asker).await;
    field.others_are_served().await;
    // Some may have been refused. Each refusal has a reason.
    let refused = asker.heard().refused();
    assert!((refused as u64) < REQUESTS, "none was accepted");
    field.hold(asker);
}

/// Params whose tree would take many times their bytes.
pub(super) async fn large_arrays(field: &mut Field) {
    let mut asker = RequestClient::connect(&mut field.target).await;
    let filler = Bytes::from(format!("\",{}\"", "0,".repeat(LARGE / 2)));
    for id in 1..=REQUESTS {
        asker.ask(id, "test/sleep", json!({"ms": 0, "filler": ["FILLER"]}), &filler).await;
    }
    all_are_settled(&asker).await;
    field.others_are_served().await;
    assert_eq!(asker.heard().refused() as u64, REQUESTS, "none has a handler");
    field.hold(asker);
}

pub(super) async fn long_tokens(field: &mut Field) {
    let mut asker = RequestClient::connect(&mut field.target).await;
    let filler = Bytes::from(vec![b't'; LARGE]);
    let short = Bytes::from_static(b"t");
    for id in 1..=REQUESTS {
        let tokens: [(Value, &Bytes); 3] = [
            (json!("FILLER"), &filler),
            (json!({"token": "FILLER"}), &filler),
            (json!({"token": "FILLER"}), &short),
        ];
        for (number, (token, filler)) in (0..).zip(tokens) {
            let params = json!({"count": 2, "_meta": {"progressToken": token}});
            asker.ask(REQUESTS * number + id, "test/progress", params, filler).await;
        }
    }
    poll_until("each request is settled", async || (1..=3 * REQUESTS).all(|id| asker.heard().is_settled(id)))
        .await;
    field.others_are_served().await;
    let refused = asker.heard().refused();
    assert!((refused as u64) < 2 * REQUESTS, "none was accepted");
    assert_eq!(asker.heard().notifications, Vec::<Value>::new(), "a token of another type is no token");
    field.hold(asker);
}

async fn all_are_settled(asker: &RequestClient) {
    poll_until("each request is settled", async || (1..=REQUESTS).all(|id| asker.heard().is_settled(id)))
        .await;
}
