//! rmcp 3.9.0. Each of these bugs was reproduced with it.

use std::time::Duration;

use rescind::dialect::{MCP, MCP_2026, Role};
use rescind::http::{HttpClient, HttpServer, Stateless, StatelessTransport, Streamable};
use rescind::transport::Listener as _;
use rescind::{Limits, Peer, Server, memory_pair};
use rescind_testkit::support::mcp_meta;
use serde_json::{Value, json};

use crate::raw_peer::{
    RawPeer, agent, header, in_time, is_about, is_clean, post, read_until, request, until,
};

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
