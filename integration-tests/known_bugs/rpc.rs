//! The SDK of the Agent Client Protocol, and libraries of other protocols.

use std::time::Duration;

use rescind::dialect::{ACP, ACP_DRAFT, ACP_V2, LSP, MCP, MCP_2026, Role};
use rescind::http::{Acp, HttpServer};
use rescind::transport::Listener as _;
use rescind::{Limits, Outcome, Peer, Server, memory_pair};
use rescind_testkit::support::http1;
use serde_json::{Value, json};

use crate::raw_peer::{
    RawPeer, agent, begin, header, in_time, is_about, is_clean, post, read_until, request, until,
};

// The TypeScript SDK of ACP, 2.4.0.

/// The SDK answers with -32603: the caller that cancelled gets an internal error of the agent.
#[tokio::test]
async fn acp_typescript_handler_error_after_a_cancel() {
    is_about!("I1");
    for dialect in [ACP, ACP_V2, ACP_DRAFT] {
        let (method, key) = match dialect.name() {
            "acp-draft" => ("$/cancelRequest", "id"),
            _ => ("$/cancel_request", "requestId"),
        };
        let draft = dialect.name() == "acp-draft";
        let (mut client, server, mut reported) = RawPeer::meet(dialect, Limits::default());
        if draft {
            let capabilities = json!({"cancellation": {"request": true}});
            let hello = json!({"protocolVersion": 1, "clientCapabilities": capabilities});
            client.ask(0, "initialize", &hello).await;
            assert_eq!(client.hear().await["id"], 0);
        }
        client.ask(1, "fails", &json!({"n": 1})).await;
        reported.hears("fails 1 began").await;
        client.cancel(1, method, key).await;
        reported.hears("fails 1 failed").await;
        let answer = client.hear().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32_800)), "{answer}");
        assert!(!answer.to_string().contains("trouble"), "{answer}");
        assert_eq!(server.stats().errors_after_cancel, 1, "its own error is counted");
        is_clean(&server).await;
    }
}

/// The SDK drops a cancel that arrives before its request. The POSTs of a client have no order.
#[tokio::test]
async fn acp_typescript_over_http_a_cancel_that_overtakes_its_request_is_lost() {
    is_about!("I8");
    let listener = HttpServer::new(Acp::new()).path("/acp").bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().0;
    let address = url.trim_start_matches("http://").trim_end_matches("/acp").to_owned();
    let (router, reported) = agent();
    let (met, mut peers) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::builder([ACP]).serve(router).on_peer(move |peer| drop(met.send(peer)));
    let serving = tokio::spawn(server.listen(listener).run());
    let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
    let mut opened = post(&address, "/acp", &[], &request(0, "initialize", &hello)).await;
    let text = read_until(&mut opened, "\"id\":0").await;
    let connection = header(&text, "Acp-Connection-Id").expect("a connection").to_owned();
    let headers = [("Acp-Connection-Id", connection.as_str())];
    let mut stream = get(&address, &headers).await;
    read_until(&mut stream, "\r\n\r\n").await;
    let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 7}});
    read_until(&mut post(&address, "/acp", &headers, &cancel).await, " 202 ").await;
    read_until(&mut post(&address, "/acp", &headers, &request(7, "wait", &json!({"n": 7}))).await, " 202 ")
        .await;
    let said = read_until(&mut stream, "\"id\":7").await;
    let said = if said.contains('}') { said } else { said + &read_until(&mut stream, "}").await };
    assert!(said.contains("-32800"), "{said}");
    assert_eq!(reported.entered(), 0, "its handler is never entered");
    let peer = in_time("the peer", peers.recv()).await.unwrap();
    assert_eq!(peer.stats().parked_cancels, 1);
    is_clean(&peer).await;
    drop(stream);
    serving.abort();
}

async fn get(address: &str, headers: &[(&str, &str)]) -> tokio::net::TcpStream {
    let headers = [&[("Accept", "text/event-stream")], headers].concat();
    begin(address, &http1::request("GET", "/acp", address, &headers, "")).await
}

// Effect.

/// Effect keeps a cancel that named nothing, and cancels the next request with that id when it arrives.
#[tokio::test(start_paused = true)]
async fn effect_7131_unknown_cancel_poisons_a_later_id() {
    is_about!("I8");
    let dialects = [(ACP, "$/cancel_request", "requestId"), (LSP, "$/cancelRequest", "id")];
    for (dialect, method, key) in dialects {
        let (mut client, server, mut reported) = RawPeer::meet(dialect, Limits::default());
        client.opens().await;
        for id in [json!(5), json!("5")] {
            client.cancel(id.clone(), method, key).await;
            client.ask(id.clone(), "echo", &json!({"n": 5})).await;
            let answer = client.hear().await;
            assert_eq!((&answer["id"], &answer["result"]), (&id, &json!({"n": 5})), "I8");
        }
        // The request can be cancelled like any other.
        client.ask(5, "wait", &json!({"n": 5})).await;
        reported.hears("wait 5 began").await;
        client.cancel(5, method, key).await;
        reported.hears("wait 5 peer").await;
        assert_eq!(client.hear().await["error"]["code"], -32_800);
        is_clean(&server).await;
    }
    // If a cancel may overtake its request, a cancel for an answered id is late and is not kept.
    let (mut client, server, _told) = RawPeer::meet(MCP, Limits::default());
    for _ in 0..3 {
        client.ask(5, "echo", &json!({"n": 5})).await;
        assert_eq!(client.hear().await["result"], json!({"n": 5}), "I8, I14");
        client.cancel(5, "notifications/cancelled", "requestId").await;
    }
    assert_eq!(client.until_echo().await, Vec::<Value>::new());
    assert_eq!(server.stats().parked_cancels, 0, "I8");
    is_clean(&server).await;
    // The same after the answered id was forgotten, because of its age or the number of settled ids.
    let mut few = Limits::default();
    few.max_settled_ids = 1;
    for (dialect, limits, age) in
        [(MCP, Limits::default(), 62), (MCP_2026, Limits::default(), 62), (MCP_2026, few, 0)]
    {
        let (mut client, server, _told) = RawPeer::meet(dialect, limits);
        for id in [json!(1), json!("a")] {
            for id in [id.clone(), json!(0)] {
                client.ask(id.clone(), "echo", &json!({"n": 1})).await;
                assert_eq!(client.hear().await["id"], id);
            }
            tokio::time::advance(Duration::from_secs(age)).await;
            client.cancel(id.clone(), "notifications/cancelled", "requestId").await;
            tokio::time::advance(Duration::from_secs(age.min(29))).await;
            client.ask(id.clone(), "echo", &json!({"n": 2})).await;
            let answer = client.hear().await;
            assert_eq!((&answer["id"], &answer["result"]["n"]), (&id, &json!(2)), "I8, I14");
        }
        assert_eq!(server.stats().parked_cancels, 0, "I8");
        is_clean(&server).await;
    }
}

// h2.

/// h2 counts a stream as ended while its last frames wait to be written, and loses them.
#[tokio::test]
async fn h2_246_terminal_state_set_before_flush() {
    const ANSWERS: usize = 200;
    is_about!("I6");
    let mut limits = Limits::default();
    // This test decides how long the reads take.
    limits.flush_timeout = Duration::from_secs(60);
    let (mut client, server, _told) = RawPeer::meet(ACP, limits);
    let filler = "x".repeat(4096);
    for id in 0..ANSWERS {
        client.ask(id, "echo", &json!({"n": id, "filler": filler})).await;
    }
    // Every request has its answer. The transport has room for few of them.
    until("all are answered", || server.stats().finished == ANSWERS as u64).await;
    assert!(server.queue_stats().outbox_frames > 0, "some wait to be written");
    // A cancel is too late now, and so is the end of the connection.
    client.cancel(ANSWERS - 1, "$/cancel_request", "requestId").await;
    let ending = server.clone();
    let shutdown = tokio::spawn(async move { ending.shutdown(Duration::from_secs(60)).await });
    let mut seen = Vec::new();
    while seen.len() < ANSWERS {
        let frame = client.hear().await;
        assert_eq!(frame["result"]["n"], frame["id"], "I6: {}", frame["error"]);
        seen.push(frame["id"].as_u64().and_then(|id| usize::try_from(id).ok()));
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq((0..ANSWERS).map(Some)), "I1: each once");
    assert_eq!(in_time("L3: the shutdown", shutdown).await.unwrap(), 0);
    is_clean(&server).await;
    let rx = &mut client.0.rx;
    let rest = in_time("L3: the end", std::future::poll_fn(|cx| rx.as_mut().poll_event(cx))).await;
    assert!(
        !matches!(rest, Some(Ok(rescind::transport::TransportEvent::Message(_)))),
        "nothing follows: {rest:?}"
    );
}

// tarpc.

/// tarpc never ends the waits of pending calls.
#[tokio::test]
async fn tarpc_415_pending_calls_hang_when_the_driver_dies() {
    is_about!("I13");
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let held = runtime.block_on(async {
            let (near, far) = memory_pair();
            let (router, mut reported) = agent();
            let server = Peer::builder(ACP).role(Role::Server).serve(router).attach(far).unwrap();
            let client = Peer::builder(ACP).role(Role::Client).attach(near).unwrap();
            let calls: Vec<_> =
                (0..3).map(|n| client.call::<_, Value>("wait", &json!({"n": n})).start().unwrap()).collect();
            for n in 0..3 {
                reported.hears(&format!("wait {n} began")).await;
            }
            (client, server, calls)
        });
        // The driver ends with its runtime, without a message.
        drop(runtime);
        held
    });
    let (client, server, calls) = thread.join().unwrap();
    for call in calls {
        let outcome = in_time("I13: a call", call.outcome()).await;
        assert!(matches!(outcome, Outcome::Disconnected { may_have_run: true }), "I13: {outcome:?}");
    }
    assert!(in_time("L3: the end", client.closed()).await.is_err());
    let late = client.call::<_, Value>("echo", &json!([])).start().unwrap();
    let outcome = in_time("I13: a call after it", late.outcome()).await;
    assert!(matches!(outcome, Outcome::Disconnected { may_have_run: false }), "{outcome:?}");
    assert_eq!((server.stats().slots, client.stats().calls), (0, 0), "I3");
}
