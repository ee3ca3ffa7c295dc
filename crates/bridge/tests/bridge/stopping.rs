//! A log shows both sides of a bridge, and an operator's stop on one side reaches the other.

use rescind_bridge::Bridge;
use rescind_core::dialect::{ACP, Dialect, LSP, MCP};
use rescind_core::{Direction, RequestInfo, RequestLog};

use crate::ends_of_a_bridge::{End, Ends};

async fn recorded(dialect: Dialect) -> (Ends, RequestLog) {
    let log = RequestLog::new();
    let bridge = Bridge::new(dialect).unwrap().request_log(&log);
    (Ends::of(bridge).await, log)
}

async fn ask(from: &mut End, to: &mut End, id: &str) -> String {
    from.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"work","params":{{}}}}"#)).await;
    to.frame().await
}

/// The only request or call in flight of this direction.
fn only(log: &RequestLog, direction: Direction) -> RequestInfo {
    let mut requests = log.requests(10);
    requests.retain(|request| request.key.direction() == direction);
    assert_eq!(requests.len(), 1, "{requests:?}");
    requests.remove(0)
}

/// Stops the request that was received, as an operator does.
fn stop(log: &RequestLog) {
    assert!(log.stop(only(log, Direction::Received).key, "it takes too long"));
}

#[tokio::test]
async fn a_log_shows_a_request_and_below_it_the_call_that_passes_it_on() {
    let (mut ends, log) = recorded(ACP).await;
    let passed = ask(&mut ends.client, &mut ends.server, "\"mine\"").await;
    assert_eq!(passed, r#"{"jsonrpc":"2.0","id":1,"method":"work","params":{}}"#);
    assert_eq!(log.sessions().len(), 2);
    let (received, call) = (only(&log, Direction::Received), only(&log, Direction::Made));
    assert_eq!((received.method.as_deref(), call.method.as_deref()), (Some("work"), Some("work")));
    assert_eq!(call.parent, Some(received.key));
    assert_eq!(received.parent, None);

    ends.server.send(r#"{"jsonrpc":"2.0","id":1,"result":7}"#).await;
    ends.client.expect(r#"{"jsonrpc":"2.0","id":"mine","result":7}"#).await;
    assert!(log.requests(10).is_empty(), "{:?}", log.requests(10));
    assert_eq!(log.ended().len(), 2);
}

#[tokio::test]
async fn a_stopped_request_is_cancelled_behind_the_bridge_and_its_caller_learns_who_did_it() {
    for (dialect, cancel) in [
        (ACP, r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}"#),
        (LSP, r#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":2}}"#),
    ] {
        let (mut ends, log) = recorded(dialect.clone()).await;
        let is_lsp = dialect.name() == LSP.name();
        let number = if is_lsp { 2 } else { 1 };
        if is_lsp {
            ends.client.send(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#).await;
            ends.server.frame().await;
            ends.server.send(r#"{"jsonrpc":"2.0","id":1,"result":{"capabilities":{}}}"#).await;
            ends.client.frame().await;
        }
        ask(&mut ends.client, &mut ends.server, "9").await;
        stop(&log);
        ends.server.expect(cancel).await;
        let answer =
            format!(r#"{{"jsonrpc":"2.0","id":{number},"error":{{"code":-32800,"message":"Canceled"}}}}"#);
        ends.server.send(&answer).await;
        // In LSP -32800 answers the caller's own cancel alone.
        let code = if is_lsp { -32803 } else { -32800 };
        let error = r#""message":"Request cancelled by an operator","data":{"reason":"operator"}"#;
        let answer = format!(r#"{{"jsonrpc":"2.0","id":9,"error":{{"code":{code},{error}}}}}"#);
        ends.client.expect(&answer).await;
    }
}

#[tokio::test]
async fn a_request_of_the_server_is_stopped_in_the_same_way() {
    let (mut ends, log) = recorded(ACP).await;
    let passed = ask(&mut ends.server, &mut ends.client, "5").await;
    assert_eq!(passed, r#"{"jsonrpc":"2.0","id":1,"method":"work","params":{}}"#);
    stop(&log);
    ends.client.expect(r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}"#).await;
    ends.client.send(r#"{"jsonrpc":"2.0","id":1,"result":"done before it came"}"#).await;
    ends.server.expect(r#"{"jsonrpc":"2.0","id":5,"result":"done before it came"}"#).await;
}

#[tokio::test]
async fn a_stopped_request_of_mcp_is_answered_although_the_server_stays_silent() {
    let (mut ends, log) = recorded(MCP).await;
    let params =
        r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
    ends.client.send(&format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#)).await;
    ends.server.frame().await;
    let result =
        r#"{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}"#;
    ends.server.send(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)).await;
    ends.client.frame().await;
    ask(&mut ends.client, &mut ends.server, "9").await;
    stop(&log);
    let cancel = ends.server.frame().await;
    assert!(cancel.contains("notifications/cancelled") && cancel.contains(r#""requestId":2"#), "{cancel}");
    let answer = ends.client.frame().await;
    assert!(answer.contains(r#""id":9"#) && answer.contains("by an operator"), "{answer}");
}
