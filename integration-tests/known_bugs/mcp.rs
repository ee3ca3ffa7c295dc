//! Libraries of the Model Context Protocol.

use std::time::Duration;

use rescind::dialect::{MCP, MCP_2026, Role};
use rescind::http::{HttpClient, HttpServer, Stateless, StatelessTransport, Streamable};
use rescind::transport::Listener as _;
use rescind::{CancelResult, Limits, Peer, Server, memory_pair};
use rescind_testkit::support::mcp_meta;
use serde_json::{Value, json};

use crate::raw_peer::{
    RawPeer, agent, header, in_time, is_about, is_clean, post, read_until, request, until,
};

// The Python SDK of MCP.

/// The SDK gives every request over stateless HTTP the id 1. Our server must accept this: one after another, and
/// concurrently if each POST has its own ids.
#[tokio::test]
async fn python_sdk_3060_every_request_has_id_1() {
    is_about!("I4 or I14");
    let (mut client, server, _told) = RawPeer::meet(MCP, Limits::default());
    for n in 0..100 {
        client.ask(1, "echo", &json!({"n": n})).await;
        let answer = client.hear().await;
        assert_eq!((&answer["id"], &answer["result"]["n"]), (&json!(1), &json!(n)), "I14");
    }
    is_clean(&server).await;

    let listener = HttpServer::new(Stateless::new()).bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().0;
    let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let (router, mut reported) = agent();
    let serving = tokio::spawn(Server::builder([MCP_2026]).serve(router).listen(listener).run());
    let ask = async |method: &str, n: u64| {
        let params = json!({"n": n, "_meta": mcp_meta()});
        let headers = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method)];
        post(&address, "/", &headers, &request(1, method, &params)).await
    };
    let left = ask("wait", 1).await;
    reported.hears("wait 1 began").await;
    let stays = ask("deaf", 2).await;
    reported.hears("deaf 2 began").await;
    drop(left);
    reported.hears("wait 1 peer").await;
    reported.gate.notify_one();
    reported.hears("deaf 2 ended").await;
    let mut stays = stays;
    let said = read_until(&mut stays, "\"id\":1").await;
    assert!(said.contains(" 200 ") && !said.contains("error"), "I4: {said}");
    serving.abort();
}

// rmcp 3.9.0. Each of these bugs was reproduced with it.

const CANCEL: (&str, &str) = ("notifications/cancelled", "requestId");

/// rmcp answers the new call with the old one's result.
#[tokio::test]
async fn rmcp_cancel_then_reuse_of_the_id() {
    is_about!("I2 or I14");
    let (mut client, server, mut reported) = RawPeer::meet(MCP, Limits::default());
    client.ask(1, "deaf", &json!({"n": 1})).await;
    reported.hears("deaf 1 began").await;
    client.cancel(1, CANCEL.0, CANCEL.1).await;
    client.ask(1, "echo", &json!({"n": "new"})).await;
    let refused = client.hear().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(1), &json!(-32_603)), "{refused}");
    assert_eq!(refused["error"]["data"]["reason"], "overloaded");
    reported.gate.notify_one();
    reported.hears("deaf 1 ended").await;
    assert_eq!(client.until_echo().await, Vec::<Value>::new(), "I2: the old result goes nowhere");
    client.ask(1, "echo", &json!({"n": "newer"})).await;
    let answer = client.hear().await;
    assert_eq!((&answer["id"], &answer["result"]), (&json!(1), &json!({"n": "newer"})), "I14");
    is_clean(&server).await;
}

/// rmcp keeps the second request under the id of the first: a cancel affects the wrong one, and the first cannot be
/// cancelled.
#[tokio::test]
async fn rmcp_two_requests_with_one_id_cancel_each_other() {
    is_about!("I4");
    let (mut client, server, mut reported) = RawPeer::meet(MCP, Limits::default());
    client.ask(2, "wait", &json!({"n": "other"})).await;
    reported.hears("wait \"other\" began").await;
    client.ask(1, "wait", &json!({"n": "first"})).await;
    reported.hears("wait \"first\" began").await;
    client.ask(1, "wait", &json!({"n": "second"})).await;
    let refused = client.hear().await;
    assert_eq!((refused.get("id"), &refused["error"]["code"]), (None, &json!(-32_600)), "{refused}");
    client.cancel(1, CANCEL.0, CANCEL.1).await;
    reported.hears("wait \"first\" peer").await;
    assert_eq!(client.until_echo().await, Vec::<Value>::new(), "silence is owed to who cancelled");
    assert_eq!(
        (reported.entered(), server.stats().running),
        (2, 1),
        "I4: the other runs, the second never did"
    );
}

/// rmcp continues to report progress of a cancelled request.
#[tokio::test]
async fn rmcp_progress_after_cancel() {
    is_about!("I2");
    let (mut client, server, mut reported) = RawPeer::meet(MCP, Limits::default());
    client.ask(1, "ticks", &json!({"n": 1, "_meta": {"progressToken": "t"}})).await;
    assert_eq!(client.hear().await["params"]["progress"], 1);
    reported.hears("ticks 1 began").await;
    client.cancel(1, CANCEL.0, CANCEL.1).await;
    reported.hears("ticks 1 was refused").await;
    assert_eq!(client.until_echo().await, Vec::<Value>::new(), "I2: the cancel is the fence");
    is_clean(&server).await;
}

/// rmcp waits for room to write before it checks the time.
#[tokio::test(start_paused = true)]
async fn rmcp_a_timeout_returns_when_the_peer_stops_reading() {
    is_about!("I13");
    let (near, _unread) = memory_pair();
    let limits = Limits::default();
    let client = Peer::builder(MCP).role(Role::Client).limits(limits.clone()).attach(near).unwrap();
    let much = json!({"filler": "x".repeat(1 << 20)});
    let timeout = Duration::from_secs(3);
    let calls: Vec<_> = (0..20)
        .map(|_| client.call::<_, Value>("tools/call", &much).timeout(timeout).start().unwrap())
        .collect();
    let since = tokio::time::Instant::now();
    until("the wire is full and the rest waits", || (1..20).contains(&client.queue_stats().outbox_frames))
        .await;
    tokio::task::yield_now().await;
    assert!(client.queue_stats().outbox_frames > 0, "nobody reads");
    for call in calls {
        assert!(in_time("I13: a timeout", call.outcome()).await.is_cancelled());
    }
    let took = since.elapsed();
    assert!((timeout..=timeout + limits.cancel_response_timeout).contains(&took), "{took:?}");
}

/// rmcp has no way to cancel there: the handler continues.
#[tokio::test]
async fn rmcp_cancel_over_stateless_http() {
    is_about!("L1");
    let listener = HttpServer::new(Stateless::new()).bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().0;
    let (router, mut reported) = agent();
    let serving = tokio::spawn(Server::builder([MCP_2026]).serve(router).listen(listener).run());
    let transport = StatelessTransport::new(HttpClient::new(&url).unwrap());
    let client = Peer::builder(MCP_2026).role(Role::Client).connect(transport).await.unwrap();
    let params = json!({"n": 1, "_meta": mcp_meta()});
    let call = client.call::<_, Value>("wait", &params).start().unwrap();
    reported.hears("wait 1 began").await;
    call.canceller().cancel("stop");
    reported.hears("wait 1 peer").await;
    assert!(in_time("I13: the call", call.outcome()).await.is_cancelled());
    is_clean(&client).await;
    serving.abort();
}

/// rmcp keeps requests that a client may resume, and never cancels them if it does not.
#[tokio::test]
async fn rmcp_disconnect_with_an_event_store() {
    is_about!("L3");
    let binding = Streamable::new().stream_after(Duration::ZERO);
    let listener = HttpServer::new(binding).path("/mcp").bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().0;
    let address = url.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
    let (router, mut reported) = agent();
    let mut limits = Limits::default();
    limits.detach_grace = Duration::from_millis(50);
    limits.lost_stream_grace = Some(Duration::from_millis(50));
    let (met, mut peers) = tokio::sync::mpsc::unbounded_channel();
    let server =
        Server::builder([MCP]).serve(router).limits(limits).on_peer(move |peer| drop(met.send(peer)));
    let serving = tokio::spawn(server.listen(listener).run());
    let version = ("MCP-Protocol-Version", "2025-11-25");
    let hello = json!({"protocolVersion": version.1, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    let mut opened = post(&address, "/mcp", &[], &request(0, "initialize", &hello)).await;
    let text = read_until(&mut opened, "\"id\":0").await;
    let session = header(&text, "Mcp-Session-Id").expect("a session").to_owned();
    let headers = [version, ("Mcp-Session-Id", session.as_str())];
    let mut stream = post(&address, "/mcp", &headers, &request(1, "wait", &json!({"n": 1}))).await;
    // Its first event has an id, so the stream could be resumed from here.
    read_until(&mut stream, "id: ").await;
    reported.hears("wait 1 began").await;
    drop(stream);
    reported.hears("wait 1 disconnected").await;
    is_clean(&in_time("the peer", peers.recv()).await.unwrap()).await;
    serving.abort();
}

// The Rust SDK of MCP.

/// The SDK looks up a cancel among the calls that it made itself: the client's own call with that id is cancelled
/// instead.
#[tokio::test]
async fn rust_sdk_1251_a_cancel_for_a_server_request_hits_the_clients_own() {
    is_about!("I4");
    let (near, far) = memory_pair();
    let ((ours, mut told_by_client), (theirs, mut heard_by_server)) = (agent(), agent());
    let server = Peer::builder(MCP).role(Role::Server).serve(theirs).attach(far).unwrap();
    let client = Peer::builder(MCP).role(Role::Client).serve(ours).attach(near).unwrap();
    // Both count from the same number.
    let of_client = client.call::<_, Value>("wait", &json!({"n": "client's"})).start().unwrap();
    let of_server = server.call::<_, Value>("wait", &json!({"n": "server's"})).start().unwrap();
    heard_by_server.hears("wait \"client's\" began").await;
    told_by_client.hears("wait \"server's\" began").await;
    assert_eq!(told_by_client.ids(), heard_by_server.ids(), "one id, in each direction");
    assert_eq!(of_server.canceller().cancel("stop"), CancelResult::Sent);
    told_by_client.hears("wait \"server's\" peer").await;
    assert!(in_time("I13: the server's call", of_server.outcome()).await.is_cancelled());
    let answer = in_time("I13: an echo", client.call::<_, Value>("echo", &json!([1]))).await;
    assert_eq!(answer, Ok(json!([1])), "the session goes on");
    assert_eq!((server.stats().running, client.stats().calls), (1, 1), "I4: the client's own still runs");
    assert_eq!(of_client.canceller().cancel("stop"), CancelResult::Sent);
    heard_by_server.hears("wait \"client's\" peer").await;
    assert!(in_time("I13: the client's call", of_client.outcome()).await.is_cancelled());
    is_clean(&server).await;
    is_clean(&client).await;
}

// tower-mcp.

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
