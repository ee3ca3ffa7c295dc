//! tower-mcp.

use rescind::Limits;
use rescind::dialect::MCP;
use serde_json::{Value, json};

use crate::raw_peer::{RawPeer, is_about, is_clean, until};

/// tower-mcp waits for a permit in its reader: the cancel that would free one is not read.
#[tokio::test]
async fn tower_mcp_1251_permit_taken_in_the_reader() {
    is_about!("L2");
    let mut limits = Limits::default();
    limits.max_running_handlers = 1;
    let (mut client, server, mut reported) = RawPeer::meet(MCP, limits);
    client.ask(1, "wait", &json!({"n": 1})).await;
    reported.hears("wait 1 began").await;
    client.ask(2, "wait", &json!({"n": 2})).await;
    client.ask(3, "wait", &json!({"n": 3})).await;
    until("two wait for the permit", || server.stats().queued == 2).await;
    // A waiting request is cancelled without being started; then the one with the permit.
    client.cancel(2, "notifications/cancelled", "requestId").await;
    client.cancel(1, "notifications/cancelled", "requestId").await;
    reported.hears("wait 1 peer").await;
    reported.hears("wait 3 began").await;
    client.cancel(3, "notifications/cancelled", "requestId").await;
    reported.hears("wait 3 peer").await;
    assert_eq!(client.until_echo().await, Vec::<Value>::new());
    assert_eq!(reported.entered(), 2);
    is_clean(&server).await;
}
