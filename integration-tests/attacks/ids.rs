//! Ten thousand requests with one id, on each wire that allows a client to choose ids freely.

use std::sync::Arc;

use libtest_mimic::Trial;
use rescind::{CallContext, Router};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::agent::limits;
use crate::raw_client::{Hears, RawClient};
use crate::wires::{Kind, Setting, WIRES, Wire};
use crate::{in_time, trial, until};

const DUPLICATES: usize = 10_000;
/// How many are on their way at once.
const AT_ONCE: usize = 500;

pub(crate) fn trials() -> Vec<Trial> {
    let of = |wire: Wire| {
        trial(format!("ids::ten_thousand_requests_under_one_id::{}", wire.name), move || one_id(wire))
    };
    // In HTTP the second request is refused with 409 on its own exchange; see the table.
    WIRES.into_iter().filter(|wire| wire.kind == Kind::Connection).map(of).collect()
}

async fn one_id(wire: Wire) {
    let open = Arc::new(Notify::new());
    let gate = Arc::clone(&open);
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"protocolVersion": 1})) })
        .method("gate", move |_: CallContext, n: (usize,)| {
            let gate = Arc::clone(&gate);
            async move {
                gate.notified().await;
                Ok(n)
            }
        });
    let mut door = wire.listen(Setting::default()).await;
    let (mut stranger, server) = RawClient::meet(&mut door, router, &limits(), Hears::Keeps).await;
    for n in 0..DUPLICATES {
        stranger.request(&json!(7), "gate", &json!([n])).await;
        if n % AT_ONCE == 0 {
            // A client that sends requests without reading the refusals is cut off; see the fault `slow_reader`.
            stranger.flush().await;
            until("the refusals so far", || stranger.heard() > n).await;
        }
    }
    stranger.flush().await;
    until("all but one are refused", || stranger.heard() == DUPLICATES).await;
    open.notify_one();
    let mut refused = 0;
    loop {
        let frame = stranger.hear().await;
        if frame["id"] == 7 {
            assert_eq!(frame["result"], json!([0]), "I1: the first one's, and no other's: {frame}");
            break;
        }
        assert_eq!((&frame["id"], &frame["error"]["code"]), (&Value::Null, &json!(-32_600)), "{frame}");
        refused += 1;
    }
    let stats = server.stats();
    assert_eq!((refused, stats.duplicate_ids), (DUPLICATES - 1, DUPLICATES as u64 - 1));
    assert_eq!(stats.started, 2, "I4: the handshake and one of them");
    // The id is free again.
    open.notify_one();
    stranger.request(&json!(7), "gate", &json!([DUPLICATES])).await;
    stranger.flush().await;
    assert_eq!(stranger.hear().await["result"], json!([DUPLICATES]));
    stranger.leave();
    in_time("L3: the end", server.shutdown(std::time::Duration::ZERO)).await;
}
