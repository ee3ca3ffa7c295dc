//! Event streams: cut, resumed, slow, displaced; and the effect of cancels between POSTs.
//!
//! # Messages of the server
//!
//! On the stream of the request that they belong to, on the session's own stream, or on another.
//!
//! # Lost and unread streams
//!
//! The effect on a request of an event stream that is lost and not resumed, and a client that does not read.

use std::sync::Arc;
use std::time::Duration;

use rescind_core::dialect::{ACP, Dialect, MCP, Role};
use rescind_core::{CallContext, Limits, Listener as _, Outcome, Peer, Router, Server, Tasks};
use rescind_http::{HalfClose, HttpServer, Streamable};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::streamable::{
    Ask, Raw, Seen, Served, cancel, client, in_time, initialize, listen, listen_within, mcp, open, open_in,
    request, serve, server, transport,
};

const NEWEST: &str = "2025-11-25";

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Answers as streams at once, so that a test need not wait for the head.
fn streaming() -> HttpServer<Streamable> {
    HttpServer::new(Streamable::new().stream_after(Duration::ZERO))
}

async fn started(served: &mut crate::streamable::Served) {
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
        while raw.ask(&crate::streamable::initialize()).await.0.status != 503 {
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

async fn session(served: &mut Served) -> (Raw, String, Peer) {
    let (raw, session) = open(&served.url).await;
    let theirs = in_time("the session", served.peers.recv()).await.unwrap();
    (raw, session, theirs)
}

/// The next message of a stream that has data.
async fn message(raw: &mut Raw) -> Value {
    let (_, data) = in_time("an event", raw.event()).await.unwrap();
    serde_json::from_str(&data).unwrap()
}

async fn answer(served: &Served, session: &str, asked: &Value) {
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": asked["params"]});
    let mut raw = Raw::connect(&served.url).await;
    assert_eq!(raw.ask(&Ask::post(answer.to_string()).of(session)).await.0.status, 202);
}

/// Waits until the transport has taken everything that waits.
async fn written(theirs: &Peer) {
    in_time("the writes", async {
        while theirs.queue_stats().outbox_frames > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_request_of_a_handler_is_sent_on_the_stream_of_its_request() {
    let mut served = serve(server(), MCP).await;
    let (mut raw, session, _theirs) = session(&mut served).await;
    let mut own = Raw::connect(&served.url).await;
    own.send(&Ask::get().of(&session)).await;
    assert_eq!(own.head().await.status, 200);
    raw.send(&request(1, "ask", &json!({"n": 1})).of(&session)).await;
    assert_eq!(raw.head().await.header("content-type"), "text/event-stream");
    let asked = message(&mut raw).await;
    assert_eq!((&asked["method"], &asked["params"]), (&json!("answer"), &json!({"n": 1})));
    answer(&served, &session, &asked).await;
    assert_eq!(message(&mut raw).await["result"], json!({"n": 1}));
    assert_eq!(raw.event().await, None);
}

#[tokio::test]
async fn without_an_own_stream_a_message_goes_on_that_of_the_newest_running_request() {
    let mut served = serve(server(), MCP).await;
    let (mut first, session, theirs) = session(&mut served).await;
    let mut second = Raw::connect(&served.url).await;
    for (id, raw) in [(1, &mut first), (2, &mut second)] {
        raw.send(&request(id, "gate", &json!({"n": id})).of(&session)).await;
        assert!(matches!(in_time("a start", served.seen.recv()).await, Some(Seen::Started(_))));
    }
    let call = theirs.call::<_, Value>("answer", &json!({"n": 7})).start().unwrap();
    theirs.try_notify("news", &json!({"n": 8})).unwrap();
    assert_eq!(second.head().await.header("content-type"), "text/event-stream");
    let asked = message(&mut second).await;
    assert_eq!(asked["params"], json!({"n": 7}));
    assert_eq!(message(&mut second).await["method"], "news");
    answer(&served, &session, &asked).await;
    assert!(
        matches!(in_time("the call", call.outcome()).await, Outcome::Completed(value) if value == json!({"n": 7}))
    );
    // With a stream of its own the session uses that.
    let mut own = Raw::connect(&served.url).await;
    own.send(&Ask::get().of(&session)).await;
    assert_eq!(own.head().await.status, 200);
    theirs.try_notify("news", &json!({"n": 9})).unwrap();
    assert_eq!(message(&mut own).await["params"], json!({"n": 9}));
    served.gate.notify_waiters();
    assert_eq!(message(&mut second).await["result"], json!({"n": 2}));
    assert_eq!(first.answer().await["result"], json!({"n": 1}));
}

#[tokio::test]
async fn what_no_stream_can_carry_waits_for_the_next_stream() {
    for by_get in [true, false] {
        let mut served = serve(server(), MCP).await;
        let (mut raw, session, theirs) = session(&mut served).await;
        let call = theirs.call::<_, Value>("answer", &json!({"n": 1})).start().unwrap();
        theirs.try_notify("news", &json!({"n": 2})).unwrap();
        written(&theirs).await;
        let ask = if by_get { Ask::get() } else { request(2, "gate", &json!({})) };
        raw.send(&ask.of(&session)).await;
        assert_eq!(raw.head().await.header("content-type"), "text/event-stream");
        let asked = message(&mut raw).await;
        assert_eq!(asked["method"], "answer", "by GET: {by_get}");
        assert_eq!(message(&mut raw).await["method"], "news");
        answer(&served, &session, &asked).await;
        assert!(matches!(in_time("the call", call.outcome()).await, Outcome::Completed(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn what_no_stream_can_carry_fails_after_30_s() {
    let mut served = serve(server(), MCP).await;
    let (_raw, session, theirs) = session(&mut served).await;
    theirs.try_notify("news", &json!({"n": 1})).unwrap();
    let since = tokio::time::Instant::now();
    let call = theirs.call::<_, Value>("answer", &json!({"n": 1})).no_timeout().start().unwrap();
    let outcome = call.outcome().await;
    assert!(matches!(outcome, Outcome::Disconnected { may_have_run: false }), "{outcome:?}");
    assert_eq!(since.elapsed().as_secs(), 30);
    assert_eq!(served.counts.dropped_notifications(), 1);
    // Nothing of it comes later, and the session goes on.
    tokio::time::resume();
    theirs.try_notify("news", &json!({"n": 2})).unwrap();
    let mut raw = Raw::connect(&served.url).await;
    raw.send(&Ask::get().of(&session)).await;
    raw.head().await;
    assert_eq!(message(&mut raw).await["params"], json!({"n": 2}));
}

#[tokio::test(start_paused = true)]
async fn notifications_wait_for_a_client_whose_own_stream_was_lost() {
    let mut served = serve(server(), MCP).await;
    let (mut raw, session, theirs) = session(&mut served).await;
    raw.send(&Ask::get().of(&session)).await;
    raw.head().await;
    theirs.try_notify("news", &json!({"n": 1})).unwrap();
    let (id, _) = raw.event().await.unwrap();
    drop(raw);
    // Until the server has noticed it: then the stream is not read any more, and a call fails.
    loop {
        let call = theirs.call::<_, Value>("answer", &json!({})).no_timeout().start().unwrap();
        let waited = tokio::time::timeout(Duration::from_secs(45), call.outcome()).await;
        if matches!(waited, Ok(Outcome::Disconnected { .. })) {
            break;
        }
    }
    theirs.try_notify("news", &json!({"n": 2})).unwrap();
    tokio::time::sleep(Duration::from_secs(120)).await;
    tokio::time::resume();
    let mut again = Raw::connect(&served.url).await;
    again.send(&Ask::get().of(&session).with("Last-Event-ID", &id)).await;
    assert_eq!(again.head().await.status, 200);
    loop {
        let next = message(&mut again).await;
        if next["method"] == "news" {
            assert_eq!(next["params"], json!({"n": 2}));
            break;
        }
    }
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_it_waits_comes_before_its_cancel() {
    let mut served = serve(server(), ACP).await;
    let (mut raw, session, theirs) = session(&mut served).await;
    let call = theirs.call::<_, Value>("answer", &json!({"n": 1})).start().unwrap();
    written(&theirs).await;
    call.canceller().cancel("no");
    written(&theirs).await;
    theirs.try_notify("news", &json!({"n": 2})).unwrap();
    raw.send(&Ask::get().of(&session)).await;
    raw.head().await;
    let asked = message(&mut raw).await;
    assert_eq!(asked["method"], "answer");
    let cancel = message(&mut raw).await;
    assert_eq!(
        (&cancel["method"], &cancel["params"]["requestId"]),
        (&json!("$/cancel_request"), &asked["id"])
    );
    assert_eq!(message(&mut raw).await["method"], "news");
    answer(&served, &session, &asked).await;
    assert!(matches!(in_time("the call", call.outcome()).await, Outcome::CompletedAfterCancel(_)));
}

/// The error of a call that fails alone, as its connection's hook gets it.
#[tokio::test]
async fn the_failure_of_a_message_that_waited_says_why() {
    let http =
        HttpServer::new(Streamable::new()).stream_wait(Duration::from_millis(20)).unread_limit(4, 1024);
    let mut listener = http.bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().to_string();
    let (failed, mut failures) = tokio::sync::mpsc::unbounded_channel();
    let router =
        Router::new().method("initialize", |_: CallContext, params: Value| async move { Ok(params) });
    let accepted = async {
        let link = listener.accept().await.unwrap().unwrap();
        let peer = Peer::builder(MCP).serve(router).role(Role::Server);
        peer.on_call_failure(move |error| drop(failed.send(error.to_string()))).attach(link).unwrap()
    };
    let (theirs, _opened) = tokio::join!(accepted, open(&url));
    let calls: Vec<_> =
        (0..6).map(|n| theirs.call::<_, Value>("answer", &json!({"n": n})).start().unwrap()).collect();
    let mut why = Vec::new();
    for _ in 0..6 {
        why.push(in_time("a failure", failures.recv()).await.unwrap());
    }
    assert_eq!(why.iter().filter(|why| why.contains("at its bound")).count(), 2, "{why:?}");
    let waited = |why: &&String| why.contains("no event stream (GET) and no running request");
    assert_eq!(why.iter().filter(waited).count(), 4, "{why:?}");
    for call in calls {
        let outcome = in_time("a call", call.outcome()).await;
        assert!(matches!(outcome, Outcome::Disconnected { may_have_run: false }), "{outcome:?}");
    }
}

#[tokio::test]
async fn ten_thousand_notifications_for_a_client_without_a_stream_are_bounded() {
    let mut served = serve(server(), MCP).await;
    let (mut raw, session, theirs) = session(&mut served).await;
    for n in 0..10_000 {
        in_time("room", theirs.notify("news", &json!({"n": n}))).await.unwrap();
    }
    written(&theirs).await;
    assert_eq!(served.counts.dropped_notifications(), 10_000 - 1024);
    raw.send(&Ask::get().of(&session)).await;
    raw.head().await;
    for n in 10_000 - 1024..10_000 {
        assert_eq!(message(&mut raw).await["params"]["n"], n);
    }
}

#[tokio::test]
async fn ten_thousand_notifications_beside_a_running_request_all_come_in_order() {
    let mut served = serve(server(), MCP).await;
    let (mut raw, session, theirs) = session(&mut served).await;
    raw.send(&request(1, "gate", &json!({"n": 1})).of(&session)).await;
    assert!(matches!(in_time("a start", served.seen.recv()).await, Some(Seen::Started(_))));
    let sending = tokio::spawn(async move {
        for n in 0..10_000 {
            theirs.notify("news", &json!({"n": n})).await.unwrap();
        }
    });
    assert_eq!(raw.head().await.header("content-type"), "text/event-stream");
    for n in 0..10_000 {
        assert_eq!(message(&mut raw).await["params"]["n"], n);
    }
    sending.await.unwrap();
    served.gate.notify_one();
    assert_eq!(message(&mut raw).await["result"], json!({"n": 1}));
    assert_eq!(served.counts.dropped_notifications(), 0);
}

#[tokio::test]
async fn a_setting_decides_how_long_a_message_waits() {
    let http = HttpServer::new(Streamable::new()).stream_wait(Duration::from_millis(20));
    let mut served = serve(http, MCP).await;
    let (_raw, _session, theirs) = session(&mut served).await;
    let call = theirs.call::<_, Value>("answer", &json!({})).start().unwrap();
    let outcome = in_time("the call", call.outcome()).await;
    assert!(matches!(outcome, Outcome::Disconnected { may_have_run: false }), "{outcome:?}");
}

/// The first gives the client an event id with which it can resume, the other does not.
const REVISIONS: [&str; 2] = ["2025-11-25", "2025-06-18"];

const SESSION_IDLE: Duration = Duration::from_secs(300);

async fn serve_within(dialect: Dialect, limits: Limits) -> Served {
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
        let mut served = serve_within(MCP, Limits::default()).await;
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
        let took = lost(&mut serve_within(MCP, limits.clone()).await, revision).await;
        assert!((29..45).contains(&took), "{revision}: cancelled after {took} s");
    }
}

#[tokio::test]
async fn in_acp_a_lost_stream_cancels_after_its_grace() {
    let took = lost(&mut serve_within(ACP, Limits::default()).await, REVISIONS[0]).await;
    assert!((29..45).contains(&took), "cancelled after {took} s");
}

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

/// The requests of a task go neither on the stream of its first request, which is over, nor nowhere: with `result` they go on the
/// stream of `tasks/result`, otherwise on the client's own.
#[tokio::test]
async fn what_a_task_asks_its_client_arrives() {
    let tasks = Tasks::default();
    let router = Router::new()
        .method("initialize", async |_: CallContext, _: Value| {
            let declared = json!({ "requests": {"tools": {"call": {}}} });
            Ok(json!({ "protocolVersion": NEWEST, "capabilities": {"tasks": declared} }))
        })
        .tasks(&tasks)
        .task("tools/call", async |ctx: CallContext, _: Value| {
            Ok(ctx.ask_client::<_, Value>("answer", &json!({ "value": 7 })).await?)
        });
    let listener = server().bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().to_string();
    let serving = tokio::spawn(Server::builder(MCP).serve(router).listen(listener).run());
    for _ in 0..20 {
        let peer = client(transport(&url), MCP).await;
        let task =
            in_time("a task", peer.call::<_, Value>("tools/call", &json!({})).task(None)).await.unwrap();
        let params = json!({ "taskId": task.id() });
        let result = in_time("its result", peer.call::<_, Value>("tasks/result", &params)).await.unwrap();
        assert_eq!(result.get("value"), Some(&json!(7)), "{result}");
    }
    serving.abort();
}

/// A client without a stream of its own gets what a task asks on the response to `tasks/result`.
#[tokio::test]
async fn what_a_task_asks_arrives_with_its_result() {
    let tasks = Tasks::default();
    let asks = Arc::new(Notify::new());
    let go_on = Arc::clone(&asks);
    let router = Router::new()
        .method("initialize", async |_: CallContext, _: Value| {
            let declared = json!({ "requests": {"tools": {"call": {}}} });
            Ok(json!({ "protocolVersion": NEWEST, "capabilities": {"tasks": declared} }))
        })
        .tasks(&tasks)
        .task("tools/call", move |ctx: CallContext, _: Value| {
            let go_on = Arc::clone(&go_on);
            async move {
                go_on.notified().await;
                Ok(ctx.ask_client::<_, Value>("elicitation/create", &json!({})).await?)
            }
        });
    let listener = streaming().bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().to_string();
    let serving = tokio::spawn(Server::builder(MCP).serve(router).listen(listener).run());
    let (mut raw, session) = open(&url).await;
    let ask = |id: u64, method: &str, params: &Value| {
        request(id, method, params).of(&session).with("MCP-Protocol-Version", NEWEST)
    };
    raw.send(&ask(1, "tools/call", &json!({ "task": {} }))).await;
    let id = raw.answer().await.pointer("/result/task/taskId").unwrap().clone();
    let mut waits = Raw::connect(&url).await;
    waits.send(&ask(2, "tasks/result", &json!({ "taskId": id }))).await;
    assert_eq!(waits.head().await.status, 200);
    // The first event has no data.
    assert_eq!(waits.event().await.unwrap().1, "");
    asks.notify_one();
    let asked = parsed(&waits.event().await.unwrap().1);
    assert_eq!(asked.get("method"), Some(&json!("elicitation/create")), "{asked}");
    assert_eq!(asked.pointer("/params/_meta/io.modelcontextprotocol~1related-task/taskId"), Some(&id));
    serving.abort();
}
