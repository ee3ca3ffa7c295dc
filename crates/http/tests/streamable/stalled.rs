//! A client that does not read.

use std::time::Duration;

use rescind_core::dialect::MCP;
use rescind_http::{HttpServer, Streamable};
use serde_json::json;

use crate::streamable::raw::{Raw, initialize, open, request};
use crate::streamable::support::{in_time, serve};

#[tokio::test]
async fn the_socket_of_an_unread_stream_is_closed() {
    let binding = Streamable::new().stream_after(Duration::ZERO);
    let server = HttpServer::new(binding).connections(1).stall_timeout(Duration::from_millis(50));
    let running = serve(server, MCP).await;
    let (mut raw, session) = open(&running.url).await;
    // More than all buffers on the way hold.
    let flood = json!({"count": 1000, "bytes": 64 * 1024});
    raw.send(&request(1, "ticks", &flood).of(&session)).await;
    assert_eq!(raw.head().await.status, 200);
    // There is room for one connection: another is served after this one is gone.
    let mut next = Raw::connect(&running.url).await;
    let (head, _) = in_time("a free place", next.ask(&initialize())).await;
    assert_eq!(head.status, 200);
    drop(raw);
}

#[tokio::test]
async fn a_stream_that_is_read_slowly_is_not_stalled() {
    let binding = Streamable::new().stream_after(Duration::ZERO);
    let server = HttpServer::new(binding).stall_timeout(Duration::from_secs(10));
    let running = serve(server, MCP).await;
    let (mut raw, session) = open(&running.url).await;
    raw.send(&request(1, "ticks", &json!({"count": 200, "bytes": 64 * 1024})).of(&session)).await;
    assert_eq!(raw.head().await.status, 200);
    let mut ticks = 0;
    while let Some((_, data)) = raw.event().await {
        ticks += usize::from(data.contains("\"tick\""));
        tokio::task::yield_now().await;
    }
    assert_eq!(ticks, 200);
}
