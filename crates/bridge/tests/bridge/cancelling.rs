//! A cancel goes on at once, in the other side's spelling, and the answer is the other side's.

use std::time::Duration;

use rescind_bridge::Bridge;
use rescind_core::dialect::{ACP, ACP_DRAFT, Dialect, LSP, MCP};
use rescind_core::{Direction, RequestInfo, RequestLog};

use crate::{End, Ends};

async fn ask(ends: &mut Ends, id: &str) {
    ends.client.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"work","params":{{}}}}"#)).await;
    ends.server.frame().await;
}

fn cancel(dialect: &Dialect, id: &str) -> String {
    let (method, key) = match dialect.name() {
        "acp" => ("$/cancel_request", "requestId"),
        "mcp" => ("notifications/cancelled", "requestId"),
        _ => ("$/cancelRequest", "id"),
    };
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{{"{key}":{id}}}}}"#)
}

async fn initialize(client: &mut End, server: &mut End) {
    let params = r#"{"protocolVersion":1,"clientCapabilities":{"cancellation":{"request":true}}}"#;
    client.send(&format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#)).await;
    server.frame().await;
    let result = r#"{"protocolVersion":1,"agentCapabilities":{"cancellation":{"request":true}}}"#;
    server.send(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)).await;
    client.frame().await;
}

#[tokio::test]
async fn a_cancel_is_passed_on_under_the_other_id_and_a_partial_result_comes_back() {
    for dialect in [ACP, ACP_DRAFT, LSP] {
        let mut ends = Ends::in_dialect(dialect.clone()).await;
        initialize(&mut ends.client, &mut ends.server).await;
        ask(&mut ends, "\"mine\"").await;
        ends.client.send(&cancel(&dialect, "\"mine\"")).await;
        ends.server.expect(&cancel(&dialect, "2")).await;
        ends.server.send(r#"{"jsonrpc":"2.0","id":2,"result":{"half":1.0}}"#).await;
        ends.client.expect(r#"{"jsonrpc":"2.0","id":"mine","result":{"half":1.0}}"#).await;
        ends.server.is_silent().await;
    }
}

#[tokio::test]
async fn a_request_of_the_server_is_cancelled_at_the_client_in_the_same_way() {
    let mut ends = Ends::in_dialect(ACP).await;
    ends.server.send(r#"{"jsonrpc":"2.0","id":"s","method":"ask","params":{}}"#).await;
    ends.client.expect(r#"{"jsonrpc":"2.0","id":1,"method":"ask","params":{}}"#).await;
    ends.server.send(&cancel(&ACP, "\"s\"")).await;
    ends.client.expect(&cancel(&ACP, "1")).await;
    ends.client.send(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"ok, stopped"}}"#).await;
    ends.server.expect(r#"{"jsonrpc":"2.0","id":"s","error":{"code":-32800,"message":"ok, stopped"}}"#).await;
}

#[tokio::test]
async fn the_servers_own_cancelled_answer_passes_with_its_message_and_data() {
    for (dialect, code) in [(ACP, -32800), (LSP, -32800), (LSP, -32802), (LSP, -32801)] {
        let mut ends = Ends::in_dialect(dialect.clone()).await;
        initialize(&mut ends.client, &mut ends.server).await;
        ask(&mut ends, "1").await;
        ends.client.send(&cancel(&dialect, "1")).await;
        ends.server.frame().await;
        let error = format!(r#"{{"code":{code},"message":"stopped at 3 of 5","data":{{"at":3.0}}}}"#);
        ends.server.send(&format!(r#"{{"jsonrpc":"2.0","id":2,"error":{error}}}"#)).await;
        ends.client.expect(&format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#)).await;
    }
}

#[tokio::test]
async fn another_error_after_a_cancel_becomes_the_dialects_cancelled_answer() {
    let mut ends = Ends::in_dialect(ACP).await;
    ask(&mut ends, "1").await;
    ends.client.send(&cancel(&ACP, "1")).await;
    ends.server.frame().await;
    ends.server.send(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"AbortError"}}"#).await;
    ends.client
        .expect(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"Request cancelled"}}"#)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_a_cancel_is_answered_for_after_the_grace() {
    let mut ends = Ends::in_dialect(ACP).await;
    ask(&mut ends, "1").await;
    let begun = tokio::time::Instant::now();
    ends.client.send(&cancel(&ACP, "1")).await;
    ends.server.expect(&cancel(&ACP, "1")).await;
    ends.client
        .expect(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"Request cancelled"}}"#)
        .await;
    assert_eq!(begun.elapsed().as_secs(), 2);
    // The late answer is stopped, and the cancel was sent once.
    ends.server.send(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    ends.client.is_silent().await;
    ends.server.is_silent().await;
}

#[tokio::test(start_paused = true)]
async fn in_mcp_a_cancelled_request_is_answered_with_silence_and_its_id_is_free() {
    let mut ends = Ends::in_dialect(MCP).await;
    ask(&mut ends, "1").await;
    ends.client.send(&cancel(&MCP, "1")).await;
    ends.server.expect(&cancel(&MCP, "1")).await;
    ends.server.send(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    ends.client.is_silent().await;
    ends.client.send(r#"{"jsonrpc":"2.0","id":1,"method":"work","params":{}}"#).await;
    // A cancel takes a number of its own.
    ends.server.expect(r#"{"jsonrpc":"2.0","id":3,"method":"work","params":{}}"#).await;
    ends.server.send(r#"{"jsonrpc":"2.0","id":3,"result":{}}"#).await;
    ends.client.expect(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
}

#[tokio::test]
async fn a_cancel_in_the_same_write_as_its_request_is_passed_on_after_the_request() {
    for (dialect, is_answered) in [(ACP, true), (MCP, false)] {
        let mut ends = Ends::in_dialect(dialect.clone()).await;
        for round in 0..20 {
            let id = format!("\"{round}\"");
            // The bridge has no turn between the two frames.
            ends.client
                .send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"work","params":{{}}}}"#))
                .await;
            ends.client.send(&cancel(&dialect, &id)).await;
            // A cancel takes a number of its own.
            let number = (2 * round + 1).to_string();
            let request = format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"work","params":{{}}}}"#);
            ends.server.expect(&request).await;
            ends.server.expect(&cancel(&dialect, &number)).await;
            ends.server.send(&format!(r#"{{"jsonrpc":"2.0","id":{number},"result":"a part"}}"#)).await;
            if is_answered {
                ends.client.expect(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"a part"}}"#)).await;
            } else {
                ends.client.is_silent().await;
            }
        }
    }
}

#[tokio::test]
async fn a_cancel_overtakes_what_waits_for_a_server_that_reads_slowly() {
    let mut ends = Ends::in_dialect(ACP).await;
    ask(&mut ends, "1").await;
    // More than the transport and its buffers hold.
    let filler = "x".repeat(30_000);
    for id in 2..40 {
        let request = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"fill","params":["{filler}"]}}"#);
        ends.client.send(&request).await;
    }
    // The bridge has passed on what the transport takes.
    ends.client.is_silent().await;
    ends.client.send(&cancel(&ACP, "1")).await;
    ends.client.send(&cancel(&ACP, "39")).await;
    ends.client
        .expect(r#"{"jsonrpc":"2.0","id":39,"error":{"code":-32800,"message":"Request cancelled"}}"#)
        .await;
    let mut before = 0;
    while ends.server.frame().await != cancel(&ACP, "1") {
        before += 1;
    }
    assert!(before < 5, "{before} of 38 requests came before the cancel");
}

#[tokio::test]
async fn cancels_for_nothing_are_not_passed_on() {
    let mut ends = Ends::in_dialect(ACP).await;
    ask(&mut ends, "1").await;
    for id in ["2", "\"1\"", "null", "1.5"] {
        ends.client.send(&cancel(&ACP, id)).await;
    }
    ends.server.is_silent().await;
    ends.server.send(r#"{"jsonrpc":"2.0","id":1,"result":1}"#).await;
    ends.client.frame().await;
    ends.client.send(&cancel(&ACP, "1")).await;
    ends.server.is_silent().await;
}

#[tokio::test]
async fn two_spellings_of_a_cancel_meet_in_a_bridge() {
    for (from, to) in [(ACP, ACP_DRAFT), (ACP_DRAFT, ACP)] {
        let bridge = Bridge::new(from.clone()).unwrap().to(to.clone()).unwrap();
        let mut ends = Ends::of(bridge).await;
        initialize(&mut ends.client, &mut ends.server).await;
        ask(&mut ends, "5").await;
        ends.client.send(&cancel(&from, "5")).await;
        ends.server.expect(&cancel(&to, "2")).await;
        ends.server.send(r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32800,"message":"Cancelled"}}"#).await;
        ends.client.expect(r#"{"jsonrpc":"2.0","id":5,"error":{"code":-32800,"message":"Cancelled"}}"#).await;
    }
}

#[tokio::test]
async fn a_bridge_declares_cancels_where_one_side_has_no_declaration() {
    let bridge = Bridge::new(ACP).unwrap().to(ACP_DRAFT).unwrap();
    let mut ends = Ends::of(bridge).await;
    ends.client
        .send(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#)
        .await;
    let asked = ends.server.frame().await;
    assert!(asked.contains(r#""clientCapabilities":{"cancellation":{"request":true}}"#), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_of_the_bridge_lets_requests_end_and_then_cancels_them() {
    let mut ends = Ends::in_dialect(ACP).await;
    ask(&mut ends, "1").await;
    ask(&mut ends, "2").await;
    let downstream = ends.downstream.clone();
    let shut_down = tokio::spawn(async move { downstream.shutdown(Duration::from_secs(5)).await });
    ends.server.is_silent().await;
    ends.server.send(r#"{"jsonrpc":"2.0","id":1,"result":"in time"}"#).await;
    ends.client.expect(r#"{"jsonrpc":"2.0","id":1,"result":"in time"}"#).await;
    ends.server.expect(&cancel(&ACP, "2")).await;
    ends.server.send(r#"{"jsonrpc":"2.0","id":2,"result":"a part"}"#).await;
    ends.client.expect(r#"{"jsonrpc":"2.0","id":2,"result":"a part"}"#).await;
    assert_eq!(shut_down.await.unwrap(), 0);
    ends.client.closed().await;
    ends.server.closed().await;
    ends.bridge.ended().await;
}

// A log shows both sides of a bridge, and an operator's stop on one side reaches the other.

async fn recorded(dialect: Dialect) -> (Ends, RequestLog) {
    let log = RequestLog::new();
    let bridge = Bridge::new(dialect).unwrap().request_log(&log);
    (Ends::of(bridge).await, log)
}

async fn ask_from(from: &mut End, to: &mut End, id: &str) -> String {
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
    let passed = ask_from(&mut ends.client, &mut ends.server, "\"mine\"").await;
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
        ask_from(&mut ends.client, &mut ends.server, "9").await;
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
    let passed = ask_from(&mut ends.server, &mut ends.client, "5").await;
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
    ask_from(&mut ends.client, &mut ends.server, "9").await;
    stop(&log);
    let cancel = ends.server.frame().await;
    assert!(cancel.contains("notifications/cancelled") && cancel.contains(r#""requestId":2"#), "{cancel}");
    let answer = ends.client.frame().await;
    assert!(answer.contains(r#""id":9"#) && answer.contains("by an operator"), "{answer}");
}
