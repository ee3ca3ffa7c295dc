//! Event streams: cut, resumed, slow, displaced; and the effect of cancels between POSTs.

use std::time::Duration;

use rescind_core::dialect::{ACP, MCP};
use rescind_core::{Listener, Outcome, Peer};
use rescind_http::{HalfClose, HttpServer, Streamable};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::streamable::raw::{Ask, Raw, cancel, initialize, open, open_in, request};
use crate::streamable::support::{Seen, client, in_time, listen, mcp, serve, server, transport};

const NEWEST: &str = "2025-11-25";

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Answers as streams at once, so that a test need not wait for the head.
fn streaming() -> HttpServer<Streamable> {
    HttpServer::new(Streamable::new().stream_after(Duration::ZERO))
}

async fn started(served: &mut crate::streamable::support::Served) {
    assert!(matches!(in_time("a start", served.seen.recv()).await, Some(Seen::Started(_))));
}

#[tokio::test]
async fn a_cut_stream_is_resumed_after_its_last_event() {
    let mut served = serve(streaming(), MCP).await;
    let (mut raw, session) = open(&served.url).await;
    raw.send(&request(1, "gate", &json!({"n": 1})).of(&session).with("MCP-Protocol-Version", NEWEST)).await;
    assert_eq!(raw.head().await.header("content-type"), "text/event-stream");
    let (id, data) = raw.event().await.unwrap();
    assert_eq!(data, "", "an event without data comes first, for its id");
    started(&mut served).await;
    drop(raw);
    served.gate.notify_one();
    let mut again = Raw::connect(&served.url).await;
    again.send(&Ask::get().of(&session).with("Last-Event-ID", &id)).await;
    assert_eq!(again.head().await.status, 200);
    let (last, data) = again.event().await.unwrap();
    assert_eq!(parsed(&data)["result"], json!({"n": 1}));
    assert_eq!(again.event().await, None, "the stream ends behind the answer");
    // The event is kept and can be read again if its delivery failed. After it nothing is left.
    again.send(&Ask::get().of(&session).with("Last-Event-ID", &id)).await;
    assert_eq!(again.head().await.status, 200);
    assert_eq!(again.event().await.unwrap().0, last);
    assert_eq!(again.event().await, None);
    let (head, _) = again.ask(&Ask::get().of(&session).with("Last-Event-ID", &last)).await;
    assert_eq!(head.status, 204);
}

#[tokio::test]
async fn an_older_client_gets_no_event_without_data() {
    let mut served = serve(streaming(), MCP).await;
    let (mut raw, session) = open_in(&served.url, "2025-06-18").await;
    raw.send(&request(1, "gate", &json!({"n": 1})).of(&session).with("MCP-Protocol-Version", "2025-06-18"))
        .await;
    raw.head().await;
    started(&mut served).await;
    served.gate.notify_one();
    let (id, data) = raw.event().await.unwrap();
    assert_eq!(parsed(&data)["id"], 1);
    assert!(!id.is_empty(), "what has data has an id too");
}

#[tokio::test]
async fn a_server_may_end_a_stream_so_that_its_client_resumes_it() {
    let binding = Streamable::new()
        .stream_after(Duration::ZERO)
        .poll_after(Duration::from_millis(5))
        .retry(Duration::from_millis(5));
    let mut served = serve(HttpServer::new(binding), MCP).await;
    let (mut raw, session) = open(&served.url).await;
    raw.send(&request(1, "gate", &json!({"n": 1})).of(&session).with("MCP-Protocol-Version", NEWEST)).await;
    raw.head().await;
    let (id, _) = raw.event().await.unwrap();
    assert_eq!(raw.event().await, None, "the server ends the response, not the stream");
    started(&mut served).await;
    served.gate.notify_one();
    let data = loop {
        raw.send(&Ask::get().of(&session).with("Last-Event-ID", &id)).await;
        assert_eq!(raw.head().await.status, 200);
        if let Some((_, data)) = raw.event().await {
            break data;
        }
    };
    assert_eq!(parsed(&data)["result"], json!({"n": 1}));
}

#[tokio::test]
async fn our_client_resumes_an_ended_stream() {
    let binding = Streamable::new()
        .stream_after(Duration::ZERO)
        .poll_after(Duration::from_millis(5))
        .retry(Duration::from_millis(5));
    let (service, listener) = HttpServer::new(binding).mount();
    let (saw, mut resumed) = mpsc::unbounded_channel();
    let watch = move |request: axum::extract::Request, next: axum::middleware::Next| {
        if request.headers().contains_key("last-event-id") {
            saw.send(()).unwrap();
        }
        next.run(request)
    };
    let app = axum::Router::new().route_service("/", service).layer(axum::middleware::from_fn(watch));
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", socket.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(socket, app).await.unwrap() });
    let mut served = listen(listener, MCP);
    let peer = client(transport(&url), MCP).await;
    let call = peer.call::<_, Value>("gate", &json!({"n": 2})).start().unwrap();
    started(&mut served).await;
    for _ in 0..3 {
        in_time("a client that comes back", resumed.recv()).await.unwrap();
    }
    served.gate.notify_one();
    let outcome = in_time("the answer", call.outcome()).await;
    assert!(matches!(&outcome, Outcome::Completed(value) if *value == json!({"n": 2})), "{outcome:?}");
    serving.abort();
}

#[tokio::test]
async fn a_stream_resumed_within_its_grace_is_not_cancelled() {
    let mut served = serve(streaming(), MCP).await;
    let (mut raw, session) = open(&served.url).await;
    raw.send(&request(1, "gate", &json!({})).of(&session).with("MCP-Protocol-Version", NEWEST)).await;
    raw.head().await;
    let (id, _) = raw.event().await.unwrap();
    started(&mut served).await;
    drop(raw);
    let mut again = Raw::connect(&served.url).await;
    again.send(&Ask::get().of(&session).with("Last-Event-ID", &id)).await;
    again.head().await;
    // A cancel still reaches it.
    let mut other = Raw::connect(&served.url).await;
    assert_eq!(other.ask(&cancel(1).of(&session)).await.0.status, 202);
    assert!(matches!(in_time("the cancel", served.seen.recv()).await, Some(Seen::Cancelled(_))));
    assert_eq!(again.event().await, None, "silence is owed");
}

#[tokio::test]
async fn a_newer_reader_displaces_the_one_before() {
    let mut served = serve(server(), ACP).await;
    let (mut first, session) = open(&served.url).await;
    first.send(&Ask::get().of(&session)).await;
    assert_eq!(first.head().await.status, 200);
    let theirs = served.peers.recv().await.unwrap();
    theirs.try_notify("news", &json!({"n": 1})).unwrap();
    let (id, data) = first.event().await.unwrap();
    assert_eq!(parsed(&data)["params"]["n"], 1);
    let mut second = Raw::connect(&served.url).await;
    second.send(&Ask::get().of(&session)).await;
    assert_eq!(second.head().await.status, 200);
    assert_eq!(first.event().await, None);
    theirs.try_notify("news", &json!({"n": 2})).unwrap();
    assert_eq!(parsed(&second.event().await.unwrap().1)["params"]["n"], 2);
    // A reader that returns receives what it has not read.
    let mut third = Raw::connect(&served.url).await;
    third.send(&Ask::get().of(&session).with("Last-Event-ID", &id)).await;
    third.head().await;
    assert_eq!(parsed(&third.event().await.unwrap().1)["params"]["n"], 2);
}

#[tokio::test]
async fn two_streams_of_one_session_carry_their_own_requests() {
    let mut served = serve(streaming(), MCP).await;
    let (mut first, session) = open(&served.url).await;
    let mut second = Raw::connect(&served.url).await;
    first.send(&request(1, "gate", &json!({"n": 1})).of(&session)).await;
    second.send(&request(2, "gate", &json!({"n": 2})).of(&session)).await;
    first.head().await;
    second.head().await;
    started(&mut served).await;
    started(&mut served).await;
    served.gate.notify_waiters();
    assert_eq!(parsed(&first.event().await.unwrap().1)["id"], 1);
    assert_eq!(parsed(&second.event().await.unwrap().1)["id"], 2);
    assert_eq!((first.event().await, second.event().await), (None, None));
}

#[tokio::test]
async fn a_cancel_in_another_session_does_nothing() {
    let mut served = serve(streaming(), MCP).await;
    let (mut raw, session) = open(&served.url).await;
    let (mut other, theirs) = open(&served.url).await;
    raw.send(&request(1, "gate", &json!({"n": 1})).of(&session)).await;
    started(&mut served).await;
    assert_eq!(other.ask(&cancel(1).of(&theirs)).await.0.status, 202);
    other.send(&request(3, "echo", &json!({})).of(&theirs)).await;
    assert_eq!(other.answer().await["id"], 3, "the cancel before it was taken in");
    served.gate.notify_one();
    assert_eq!(raw.answer().await["result"], json!({"n": 1}));
}

#[tokio::test]
async fn a_cancel_that_comes_before_its_request_cancels_it() {
    let mut served = serve(server(), ACP).await;
    let (mut raw, session) = open(&served.url).await;
    let early = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 9}});
    assert_eq!(raw.ask(&Ask::post(early.to_string()).of(&session)).await.0.status, 202);
    raw.send(&request(9, "wait", &json!({})).of(&session)).await;
    assert_eq!(raw.answer().await["error"]["code"], -32800);
    assert!(served.seen.try_recv().is_err(), "its handler never ran");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let served = serve(server(), MCP).await;
    let (mut raw, session) = open(&served.url).await;
    let host = served.url.trim_start_matches("http://").trim_end_matches('/');
    let asks: Vec<u8> =
        (1..=20).flat_map(|n| request(n, "echo", &json!({"n": n})).of(&session).bytes(host)).collect();
    raw.write(&asks).await;
    for n in 1..=20 {
        assert_eq!(raw.answer().await["id"], n);
    }
}

#[tokio::test]
async fn a_half_closed_client_counts_as_disconnected() {
    let mut served = serve(streaming(), MCP).await;
    let (mut raw, session) = open(&served.url).await;
    raw.send(&request(1, "gate", &json!({"n": 1})).of(&session).with("MCP-Protocol-Version", NEWEST)).await;
    raw.head().await;
    let (id, _) = raw.event().await.unwrap();
    started(&mut served).await;
    raw.end().await;
    raw.is_closed().await;
    served.gate.notify_one();
    let mut again = Raw::connect(&served.url).await;
    again.send(&Ask::get().of(&session).with("Last-Event-ID", &id)).await;
    assert_eq!(again.answer().await["result"], json!({"n": 1}));
}

#[tokio::test]
async fn a_slow_stream_holds_its_sender_back_and_loses_nothing() {
    let served = serve(server(), ACP).await;
    let (mut raw, session) = open(&served.url).await;
    // 20 MiB: more than the limits of the sockets, the session and the outbox.
    let params = json!({"count": 320, "bytes": 64 * 1024});
    raw.send(&request(1, "ticks", &params).of(&session)).await;
    let head = raw.head().await;
    assert_eq!(head.header("content-type"), "text/event-stream");
    for n in 0..320 {
        let (_, data) = raw.event().await.unwrap();
        assert_eq!(parsed(&data)["params"]["n"], n);
    }
    assert_eq!(parsed(&raw.event().await.unwrap().1)["result"], json!({"ticks": 320}));
}

#[tokio::test]
async fn unread_messages_are_bounded_and_then_requests_fail() {
    let mut served = serve(server().unread_limit(8, 1024 * 1024), ACP).await;
    let (mut raw, session) = open(&served.url).await;
    let theirs = served.peers.recv().await.unwrap();
    let first = theirs.call::<_, Value>("answer", &json!({"n": 0})).start().unwrap();
    for n in 0..100 {
        theirs.try_notify("news", &json!({"n": n})).unwrap();
    }
    raw.send(&Ask::get().of(&session)).await;
    raw.head().await;
    let asked = parsed(&raw.event().await.unwrap().1);
    assert_eq!(asked["method"], "answer", "a request is never given up");
    let mut last = Value::Null;
    for _ in 0..7 {
        last = parsed(&raw.event().await.unwrap().1);
    }
    assert_eq!(last["params"]["n"], 99, "the newest are kept");
    assert_eq!(served.counts.dropped_notifications(), 93, "what was given up is counted");
    let mut other = Raw::connect(&served.url).await;
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"n": 0}});
    assert_eq!(other.ask(&Ask::post(answer.to_string()).of(&session)).await.0.status, 202);
    assert!(matches!(in_time("the call", first.outcome()).await, Outcome::Completed(_)));
}

#[tokio::test]
async fn a_request_that_finds_no_room_fails_unsent() {
    let mut served = serve(server().unread_limit(8, 1024 * 1024), ACP).await;
    let (_raw, _session) = open(&served.url).await;
    let theirs = served.peers.recv().await.unwrap();
    let mut calls: Vec<_> =
        (0..40).map(|n| theirs.call::<_, Value>("answer", &json!({"n": n})).start().unwrap()).collect();
    for call in calls.split_off(8) {
        let outcome = in_time("a call without room", call.outcome()).await;
        assert!(matches!(outcome, Outcome::Disconnected { may_have_run: false }), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_is_ended_and_unknown_afterwards() {
    let mut served = serve(server().session_idle(Duration::from_secs(300)), MCP).await;
    let (raw, session) = open(&served.url).await;
    drop(raw);
    let theirs = served.peers.recv().await.unwrap();
    let since = tokio::time::Instant::now();
    theirs.closed().await.unwrap();
    let took = since.elapsed().as_secs();
    assert!((290..=601).contains(&took), "{took} s");
    assert_eq!((served.counts.idle_sessions(), served.counts.dropped_notifications()), (1, 0));
    let mut raw = Raw::connect(&served.url).await;
    let (head, _) = raw.ask(&request(1, "echo", &json!({})).of(&session)).await;
    assert_eq!(head.status, 404);
}

#[tokio::test]
async fn a_session_of_mcp_that_its_server_has_ended_is_opened_again() {
    let (mut served, peer) = mcp().await;
    let theirs = served.peers.recv().await.unwrap();
    theirs.shutdown(Duration::ZERO).await;
    let call = peer.call::<_, Value>("echo", &json!({"n": 1})).start().unwrap();
    let outcome = in_time("the call", call.outcome()).await;
    assert!(matches!(&outcome, Outcome::Completed(value) if *value == json!({"n": 1})), "{outcome:?}");
    assert!(!in_time("the next session", served.peers.recv()).await.unwrap().is_closed());
    assert!(!peer.is_closed());
}

#[tokio::test]
async fn an_unreachable_server_is_reported_at_once() {
    let listener = server().bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().to_string();
    drop(listener);
    in_time("the port closes", async {
        while tokio::net::TcpStream::connect(url.trim_start_matches("http://").trim_end_matches('/'))
            .await
            .is_ok()
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let error = Peer::builder(MCP).connect(transport(&url)).await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
}

#[tokio::test]
async fn a_service_is_mounted_beside_routes_of_ones_own() {
    let (service, listener) = server().mount();
    let app = axum::Router::new()
        .route("/hello", axum::routing::get(|| async { "hello" }))
        .route_service("/", service);
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", socket.local_addr().unwrap());
    let serving = tokio::spawn(async move { axum::serve(socket, app).await.unwrap() });
    let served = listen(listener, MCP);
    let peer = client(transport(&url), MCP).await;
    let answer = in_time("echo", peer.call::<_, Value>("echo", &json!({"n": 1}))).await;
    assert_eq!(answer.unwrap(), json!({"n": 1}));
    drop(served);
    tokio::task::yield_now().await;
    let mut raw = Raw::connect(&url).await;
    in_time("the listener's end", async {
        while raw.ask(&crate::streamable::raw::initialize()).await.0.status != 503 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    serving.abort();
}

#[tokio::test]
async fn a_half_closed_client_is_answered_if_half_close_is_not_a_disconnect() {
    let mut served = serve(server().half_close(HalfClose::Waits), MCP).await;
    let mut raw = Raw::connect(&served.url).await;
    raw.send(&initialize()).await;
    raw.end().await;
    let head = raw.head().await;
    assert_eq!(head.status, 200);
    assert!(raw.body(&head).await.contains("protocolVersion"));
    raw.is_closed().await;
    // A request with a late answer, on an event stream.
    let session = head.header("mcp-session-id").to_owned();
    let mut raw = Raw::connect(&served.url).await;
    raw.send(&request(1, "gate", &json!({})).of(&session)).await;
    raw.end().await;
    started(&mut served).await;
    let head = raw.head().await;
    assert_eq!(head.header("content-type"), "text/event-stream");
    served.gate.notify_one();
    assert!(raw.event().await.unwrap().1.contains("\"id\":1"));
}
