//! Our client, with our server and with servers written by hand.

use std::time::Duration;

use rescind_core::dialect::{MCP, Role};
use rescind_core::{Outcome, Peer, Transport as _};
use rescind_http::{HttpClient, LegacySseTransport};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::legacy_sse::support::{
    Fake, attach, calls_and_cancels, client, endpoint, served, shake_hands, sse, status, stream_of, value,
};
use crate::streamable::support::in_time;

fn transport(url: &str) -> LegacySseTransport {
    LegacySseTransport::new(HttpClient::new(url).unwrap())
}

#[tokio::test]
async fn calls_and_cancels_work_in_both_directions() {
    let mut served = served().await;
    let peer = client(transport(&sse(&served))).await;
    calls_and_cancels(&peer, &mut served).await;
    // A cancel that follows its request at once does not overtake it.
    for n in 0..20 {
        let call = peer.call::<_, Value>("wait", &json!({"w": n})).start().unwrap();
        call.canceller().cancel("at once");
        assert!(in_time("the outcome", call.outcome()).await.is_cancelled());
    }
    assert_eq!(peer.call::<_, Value>("echo", &json!({"c": 3})).await.unwrap(), json!({"c": 3}));
    let running = || served.running.load(std::sync::atomic::Ordering::SeqCst) == 0;
    rescind_testkit::support::until(Duration::from_secs(30), "the end of all", running).await;
    // The end of the client ends the session.
    let other = in_time("the peer", served.peers.recv()).await.unwrap();
    in_time("the end of the client", peer.shutdown(Duration::from_secs(5))).await;
    in_time("the end of the link", other.closed()).await.unwrap();
}

#[tokio::test]
async fn many_calls_at_once_are_answered() {
    let served = served().await;
    let peer = client(transport(&sse(&served))).await;
    let calls = (0..200).map(|n| {
        let peer = peer.clone();
        async move { peer.call::<_, Value>("echo", &json!({"n": n})).await.unwrap() }
    });
    for (n, answer) in in_time("the answers", futures_util::future::join_all(calls)).await.iter().enumerate()
    {
        assert_eq!(answer["n"], n);
    }
}

/// Why a stream was not opened.
async fn refused(url: &str) -> String {
    let client = HttpClient::new(url).unwrap().connect_timeout(Duration::from_millis(500));
    let opened = in_time("the refusal", Box::new(LegacySseTransport::new(client)).open()).await;
    opened.err().unwrap().source.to_string()
}

#[tokio::test]
async fn an_endpoint_of_another_origin_is_refused() {
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = format!("http://{}/messages", other.local_addr().unwrap());
    for (target, reason) in [
        (elsewhere.as_str(), "another origin"),
        ("file:///etc/passwd", "its scheme is neither http nor https"),
        ("//evil.example/messages", "another origin"),
    ] {
        let answer = endpoint(target);
        let mut fake = Fake::serve(move |_| Some(answer.clone())).await;
        let why = refused(&fake.url).await;
        assert!(why.contains(reason) && why.contains(target), "{target}: {why}");
        assert_eq!(fake.next().await.line, "GET /sse");
        assert!(fake.got.try_recv().is_err(), "nothing is posted");
    }
    let connected = tokio::time::timeout(Duration::from_millis(1), other.accept()).await;
    assert!(connected.is_err(), "the other origin gets no connection");
}

#[tokio::test]
async fn a_stream_without_an_endpoint_is_refused_with_the_reason() {
    let long = format!("event: endpoint\ndata: /{}\n\n", "x".repeat(10_000));
    let not_found = format!("{}{}", "no such page ".repeat(5), "<b>".repeat(1000));
    for (answer, wanted) in [
        (stream_of("data: {}\n\n"), "begins with a message"),
        (stream_of("event: hello\ndata: x\n\n"), "within 500ms"),
        (stream_of(&long), "too long"),
        (stream_of(": nothing else\n\n"), "within 500ms"),
        (status("404 Not Found", &not_found), "404 Not Found and text/plain: no such page"),
        (status("200 OK", "hello"), "200 OK and text/plain: hello; an event stream was expected"),
    ] {
        let fake = Fake::serve(move |_| Some(answer.clone())).await;
        let why = refused(&fake.url).await;
        assert!(why.contains(wanted), "{wanted}: {why}");
        assert!(why.len() < 500, "only the beginning is shown: {why}");
    }
    let silent = Fake::serve(|_| None).await;
    let why = refused(&silent.url).await;
    assert!(why.contains("within 500ms"), "{why}");
}

/// A server whose stream names `/messages`, and whose POSTs are answered like this.
async fn posts(answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Fake {
    Fake::serve(move |got| {
        if got.line.starts_with("GET") { Some(endpoint("/messages?sessionId=7")) } else { answer(&got.body) }
    })
    .await
}

#[tokio::test]
async fn a_post_that_is_refused_ends_its_call_with_the_reason() {
    let page = "x".repeat(1000);
    let fake = posts(move |_| Some(status("500 Internal Server Error", &page))).await;
    let (tell, mut failures) = mpsc::unbounded_channel();
    let builder = Peer::builder(MCP).role(Role::Client).on_call_failure(move |error| {
        let _ = tell.send(error.source.to_string());
    });
    let peer = builder.connect(transport(&fake.url)).await.unwrap();
    let outcome =
        in_time("the end", peer.call::<_, Value>("initialize", &json!({})).start().unwrap().outcome()).await;
    assert!(matches!(outcome, Outcome::Disconnected { .. }), "{outcome:?}");
    let why = in_time("the reason", failures.recv()).await.unwrap();
    let address = fake.url.replace("/sse", "/messages");
    assert_eq!(
        why,
        format!(
            "POST {address} was answered with 500 Internal Server Error and text/plain: {}",
            "x".repeat(200)
        )
    );
    assert!(!peer.is_closed(), "the next call may succeed");
}

#[tokio::test]
async fn an_answer_in_the_response_to_a_post_is_taken_and_other_bodies_are_not_messages() {
    let fake = posts(|body| {
        let message: Value = serde_json::from_str(body).unwrap();
        let id = &message["id"];
        let (status, body) = match message["method"].as_str() {
            Some("initialize") => ("200 OK", json!({"jsonrpc": "2.0", "id": id, "result": {}})),
            Some("refused") => (
                "400 Bad Request",
                json!({"jsonrpc": "2.0", "id": id, "error": {"code": 7, "message": "no"}}),
            ),
            _ => ("202 Accepted", json!({"accepted": true})),
        };
        let body = body.to_string();
        let length = body.len();
        Some(format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
    })
    .await;
    let peer = attach(transport(&fake.url)).await;
    shake_hands(&peer).await;
    let outcome =
        in_time("the refusal", peer.call::<_, Value>("refused", &json!({})).start().unwrap().outcome()).await;
    assert!(matches!(&outcome, Outcome::Failed(error) if error.code.0 == 7), "{outcome:?}");
    let call = peer.call::<_, Value>("later", &json!({})).start().unwrap();
    let mut fake = fake;
    let id = loop {
        let got = fake.next().await;
        if got.body.contains("later") {
            break serde_json::from_str::<Value>(&got.body).unwrap()["id"].clone();
        }
    };
    fake.message(&json!({"jsonrpc": "2.0", "id": id, "result": {"on": "the stream"}}));
    let outcome = in_time("the answer", call.outcome()).await;
    assert_eq!(value(outcome)["on"], "the stream");
}

#[tokio::test]
async fn the_end_of_the_stream_ends_the_connection_and_every_call() {
    let mut fake = posts(|_| Some(status("202 Accepted", "Accepted"))).await;
    let peer = attach(transport(&fake.url)).await;
    let call = peer.call::<_, Value>("initialize", &json!({})).start().unwrap();
    assert_eq!(fake.next().await.line, "GET /sse");
    assert_eq!(fake.next().await.line, "POST /messages?sessionId=7");
    fake.stream.send(None).unwrap();
    let outcome = in_time("the end", call.outcome()).await;
    assert!(matches!(outcome, Outcome::Disconnected { .. }), "{outcome:?}");
    let ended = in_time("the end of the link", peer.closed()).await;
    let why = ended.unwrap_err().to_string();
    assert!(why.contains(&fake.url) && why.contains("ended its event stream"), "{why}");
}

#[tokio::test]
async fn an_error_without_an_id_on_the_stream_ends_the_only_open_call() {
    let mut fake = posts(|_| Some(status("202 Accepted", ""))).await;
    let peer = attach(transport(&fake.url)).await;
    let call = peer.call::<_, Value>("initialize", &json!({})).start().unwrap();
    fake.next().await;
    fake.next().await;
    fake.message(&json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32603, "message": "it failed"}}));
    match in_time("the error", call.outcome()).await {
        Outcome::Failed(error) => assert_eq!((error.code.0, &*error.message), (-32603, "it failed")),
        other => panic!("{other:?}"),
    }
}

/// Some servers answer a POST only when its request is done.
#[tokio::test]
async fn a_cancel_waits_for_no_other_post_and_only_briefly_for_its_own() {
    let mut fake = posts(|body| (!body.contains("slow")).then(|| status("202 Accepted", ""))).await;
    let transport = transport(&fake.url).cancel_after(Duration::from_millis(20));
    let peer = attach(transport).await;
    assert_eq!(fake.next().await.line, "GET /sse");
    let first = peer.call::<_, Value>("initialize", &json!({})).start().unwrap();
    let hello: Value = serde_json::from_str(&fake.next().await.body).unwrap();
    fake.message(&json!({"jsonrpc": "2.0", "id": hello["id"], "result": {}}));
    value(in_time("the handshake", first.outcome()).await);
    let calls: Vec<_> =
        (0..3).map(|n| peer.call::<_, Value>("slow", &json!({"n": n})).start().unwrap()).collect();
    let mut ids = Vec::new();
    while ids.len() < calls.len() {
        let body: Value = serde_json::from_str(&fake.next().await.body).unwrap();
        if body["method"] == "slow" {
            ids.push((body["params"]["n"].clone(), body["id"].clone()));
        }
    }
    calls[1].canceller().cancel("enough");
    let cancel: Value = serde_json::from_str(&fake.next().await.body).unwrap();
    assert_eq!(cancel["method"], "notifications/cancelled", "no POST before it was answered");
    let id = ids.iter().find(|(n, _)| n == 1).map(|(_, id)| id);
    assert_eq!(Some(&cancel["params"]["requestId"]), id);
}

#[tokio::test]
async fn events_of_other_names_and_ids_are_no_messages() {
    let mut fake = posts(|_| Some(status("202 Accepted", ""))).await;
    let peer = attach(transport(&fake.url)).await;
    let call = peer.call::<_, Value>("initialize", &json!({})).start().unwrap();
    fake.next().await;
    let id = serde_json::from_str::<Value>(&fake.next().await.body).unwrap()["id"].clone();
    let other = json!({"jsonrpc": "2.0", "id": id, "result": {"of": "another event"}});
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"of": "the message"}});
    for text in [
        ": comment\n\n".to_owned(),
        "event: ping\ndata: 1\n\n".to_owned(),
        format!("event: other\ndata: {other}\n\n"),
        "event: endpoint\ndata: http://evil.example/\n\n".to_owned(),
        format!("id: 4\ndata: {answer}\n\n"),
    ] {
        fake.stream.send(Some(text)).unwrap();
    }
    let outcome = in_time("the answer", call.outcome()).await;
    assert_eq!(value(outcome)["of"], "the message");
    let _later = peer.call::<_, Value>("tools/list", &json!({})).start().unwrap();
    assert_eq!(
        fake.next().await.line,
        "POST /messages?sessionId=7",
        "the endpoint is that of the first event"
    );
}
