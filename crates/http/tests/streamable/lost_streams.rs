//! The effect on a request of an event stream that is lost and not resumed.

use std::time::Duration;

use rescind_core::Limits;
use rescind_core::dialect::{ACP, Dialect, MCP};
use rescind_http::{HttpServer, Streamable};
use serde_json::json;
use tokio::time::Instant;

use crate::streamable::raw::{open_in, request};
use crate::streamable::support::{Seen, Served, in_time, listen_within};

/// The first gives the client an event id with which it can resume, the other does not.
const REVISIONS: [&str; 2] = ["2025-11-25", "2025-06-18"];

const SESSION_IDLE: Duration = Duration::from_secs(300);

async fn serve(dialect: Dialect, limits: Limits) -> Served {
    let http = HttpServer::new(Streamable::new().stream_after(Duration::ZERO)).session_idle(SESSION_IDLE);
    listen_within(http.bind("127.0.0.1:0").await.unwrap(), dialect, limits)
}

/// Loses the stream of a request and returns the seconds until its handler is cancelled.
async fn lost(served: &mut Served, revision: &str) -> u64 {
    let (mut raw, session) = open_in(&served.url, revision).await;
    raw.send(&request(1, "wait", &json!({})).of(&session).with("MCP-Protocol-Version", revision)).await;
    raw.head().await;
    assert!(matches!(in_time("a start", served.seen.recv()).await, Some(Seen::Started(_))));
    tokio::time::pause();
    let since = Instant::now();
    drop(raw);
    let seen = tokio::time::timeout(SESSION_IDLE * 4, served.seen.recv()).await;
    assert!(matches!(seen, Ok(Some(Seen::Cancelled(_)))), "{revision}: the handler runs on for ever");
    tokio::time::resume();
    since.elapsed().as_secs()
}

#[tokio::test]
async fn in_mcp_a_request_whose_stream_is_lost_runs_until_its_session_ends() {
    for revision in REVISIONS {
        let mut served = serve(MCP, Limits::default()).await;
        let took = lost(&mut served, revision).await;
        assert!((290..=601).contains(&took), "{revision}: cancelled after {took} s");
        assert_eq!(served.counts.idle_sessions(), 1, "{revision}: the session ended, which cancelled it");
    }
}

#[tokio::test]
async fn a_setting_cancels_requests_whose_stream_is_lost() {
    let mut limits = Limits::default();
    limits.lost_stream_grace = Some(Duration::from_secs(30));
    for revision in REVISIONS {
        let took = lost(&mut serve(MCP, limits.clone()).await, revision).await;
        assert!((29..45).contains(&took), "{revision}: cancelled after {took} s");
    }
}

#[tokio::test]
async fn in_acp_a_lost_stream_cancels_after_its_grace() {
    let took = lost(&mut serve(ACP, Limits::default()).await, REVISIONS[0]).await;
    assert!((29..45).contains(&took), "cancelled after {took} s");
}
