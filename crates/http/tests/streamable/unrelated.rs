//! Messages of the server: on the stream of the request that they belong to, on the session's own stream, or on another.

use std::time::Duration;

use rescind_core::dialect::{ACP, MCP, Role};
use rescind_core::{CallContext, Listener as _, Outcome, Peer, Router};
use rescind_http::{HttpServer, Streamable};
use serde_json::{Value, json};

use crate::streamable::raw::{Ask, Raw, open, request};
use crate::streamable::support::{Seen, Served, in_time, serve, server};

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
