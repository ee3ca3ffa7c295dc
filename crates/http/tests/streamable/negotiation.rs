//! The revision of a session, and what only one revision has: batches.

use std::time::Duration;

use rescind_core::dialect::MCP;
use rescind_http::{HttpServer, Streamable};
use serde_json::{Value, json};

use crate::streamable::raw::{Ask, Raw, cancel, initialize_in, open, open_in, request};
use crate::streamable::support::{Seen, in_time, serve, server};

const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
const HEADER: &str = "MCP-Protocol-Version";

fn echo(id: u64) -> Ask {
    request(id, "echo", &json!({"n": id}))
}

/// Several messages in one POST.
fn batch(messages: &[Ask]) -> Ask {
    let bodies: Vec<&str> = messages.iter().map(|ask| ask.body.as_str()).collect();
    Ask::post(format!("[{}]", bodies.join(",")))
}

/// All messages of an event stream, by their ids.
async fn answers(raw: &mut Raw) -> Vec<Value> {
    let mut answers = Vec::new();
    while let Some((_, data)) = raw.event().await {
        answers.push(serde_json::from_str::<Value>(&data).unwrap());
    }
    answers.sort_by_key(|answer| answer["id"].as_u64());
    answers
}

#[tokio::test]
async fn a_session_takes_the_revision_that_it_negotiated_and_no_other() {
    // The last one is of a program that the transport knows nothing about.
    for revision in REVISIONS.into_iter().chain(["2019-12-31"]) {
        let served = serve(server(), MCP).await;
        let (mut raw, session) = open_in(&served.url, revision).await;
        let (head, body) = raw.ask(&echo(1).of(&session)).await;
        assert_eq!(head.status, 200, "{revision}, no header: {body}");
        let (head, body) = raw.ask(&echo(2).of(&session).with(HEADER, revision)).await;
        assert_eq!(head.status, 200, "{revision}: {body}");
        let note = Ask::post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        assert_eq!(raw.ask(&note.of(&session).with(HEADER, revision)).await.0.status, 202, "{revision}");
        for other in REVISIONS.into_iter().filter(|other| *other != revision) {
            for ask in [echo(3), Ask::get(), Ask::delete()] {
                let (head, body) = raw.ask(&ask.of(&session).with(HEADER, other)).await;
                assert_eq!(head.status, 400, "{other} in a session of {revision}: {body}");
                assert!(body.contains("2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25"), "{body}");
                assert!(body.contains(revision), "{body}");
            }
        }
        let mut stream = Raw::connect(&served.url).await;
        stream.send(&Ask::get().of(&session).with(HEADER, revision)).await;
        assert_eq!(stream.head().await.status, 200, "{revision}");
        assert_eq!(raw.ask(&Ask::delete().of(&session).with(HEADER, revision)).await.0.status, 204);
    }
}

#[tokio::test]
async fn a_garbage_version_is_refused_and_the_session_stays() {
    let served = serve(server(), MCP).await;
    let (mut raw, session) = open_in(&served.url, "2024-11-05").await;
    let long = "x".repeat(8000);
    for garbage in ["", "2024-11-0", "2024-11-05x", "2024-11-05, 2025-11-25", "latest", "é", &long] {
        let (head, body) = raw.ask(&echo(1).of(&session).with(HEADER, garbage)).await;
        assert_eq!(head.status, 400, "{garbage:.20}: {body}");
        assert!(body.len() < 400, "the value is not repeated: {body}");
    }
    let mut twice = echo(1).of(&session);
    twice
        .headers
        .extend([(HEADER.to_owned(), "2024-11-05".to_owned()), (HEADER.to_owned(), "2024-11-05".to_owned())]);
    assert_eq!(raw.ask(&twice).await.0.status, 400);
    assert_eq!(raw.ask(&echo(1).of(&session).with(HEADER, "2024-11-05")).await.0.status, 200);
}

#[tokio::test]
async fn the_version_header_of_initialize_is_not_read() {
    let served = serve(server(), MCP).await;
    for header in ["2025-11-25", "2024-11-05", "2099-01-01", "", "no version"] {
        let mut raw = Raw::connect(&served.url).await;
        let (head, body) = raw.ask(&initialize_in("2025-06-18").with(HEADER, header)).await;
        assert_eq!(head.status, 200, "{header}: {body}");
        let session = head.header("mcp-session-id").to_owned();
        assert_eq!(raw.ask(&echo(1).of(&session).with(HEADER, "2025-06-18")).await.0.status, 200, "{header}");
        assert_eq!(raw.ask(&echo(1).of(&session).with(HEADER, "2025-03-26")).await.0.status, 400, "{header}");
    }
}

#[tokio::test]
async fn an_overlong_revision_is_not_kept() {
    let served = serve(server(), MCP).await;
    let (mut raw, session) = open_in(&served.url, &"9".repeat(2000)).await;
    assert_eq!(raw.ask(&echo(1).of(&session)).await.0.status, 200);
    assert_eq!(raw.ask(&echo(1).of(&session).with(HEADER, "2025-11-25")).await.0.status, 200);
    assert_eq!(raw.ask(&echo(1).of(&session).with(HEADER, "1999-01-01")).await.0.status, 400);
}

#[tokio::test]
async fn the_requests_of_a_batch_are_answered_on_one_stream() {
    let mut served = serve(server(), MCP).await;
    let (mut raw, session) = open_in(&served.url, "2025-03-26").await;
    let note = Ask::post(r#"{"jsonrpc":"2.0","method":"reported","params":{"n":7}}"#);
    raw.send(&batch(&[echo(1), note, echo(2), request(3, "nowhere", &json!({}))]).of(&session)).await;
    let head = raw.head().await;
    assert_eq!((head.status, head.header("content-type")), (200, "text/event-stream"));
    let answers = answers(&mut raw).await;
    assert_eq!(answers.len(), 3, "{answers:?}");
    assert_eq!(answers[0]["result"], json!({"n": 1}));
    assert_eq!(answers[1]["result"], json!({"n": 2}));
    assert_eq!(answers[2]["error"]["code"], -32601);
    assert_eq!(
        in_time("the notification", served.seen.recv()).await,
        Some(Seen::Notified(r#"{"n":7}"#.into()))
    );
    // The connection goes on, with a batch and without.
    raw.send(&batch(&[echo(4)]).of(&session)).await;
    raw.head().await;
    assert_eq!(self::answers(&mut raw).await[0]["id"], 4);
    assert_eq!(raw.ask(&echo(5).of(&session)).await.0.status, 200);
}

#[tokio::test]
async fn a_batch_without_requests_gets_202() {
    let mut served = serve(server(), MCP).await;
    let (mut raw, session) = open_in(&served.url, "2025-03-26").await;
    let note = |n: u64| Ask::post(format!(r#"{{"jsonrpc":"2.0","method":"reported","params":{{"n":{n}}}}}"#));
    let answer = Ask::post(r#"{"jsonrpc":"2.0","id":99,"result":{}}"#);
    let (head, body) = raw.ask(&batch(&[note(1), answer, note(2)]).of(&session)).await;
    assert_eq!((head.status, body.as_str()), (202, ""));
    for n in [1, 2] {
        let seen = in_time("a notification", served.seen.recv()).await;
        assert_eq!(seen, Some(Seen::Notified(format!(r#"{{"n":{n}}}"#))));
    }
}

#[tokio::test]
async fn each_request_of_a_batch_is_cancelled_alone() {
    let mut served = serve(server(), MCP).await;
    let (mut raw, session) = open_in(&served.url, "2025-03-26").await;
    let gate = |id: u64| request(id, "gate", &json!({"n": id}));
    raw.send(&batch(&[gate(1), gate(2), gate(3)]).of(&session)).await;
    assert_eq!(raw.head().await.status, 200);
    for _ in 0..3 {
        assert!(matches!(in_time("a start", served.seen.recv()).await, Some(Seen::Started(_))));
    }
    let mut other = Raw::connect(&served.url).await;
    assert_eq!(other.ask(&cancel(2).of(&session)).await.0.status, 202);
    assert_eq!(in_time("the cancel", served.seen.recv()).await, Some(Seen::Cancelled(r#"{"n":2}"#.into())));
    served.gate.notify_waiters();
    let answers = answers(&mut raw).await;
    let ids: Vec<_> = answers.iter().map(|answer| answer["id"].as_u64()).collect();
    assert_eq!(ids, [Some(1), Some(3)], "the cancelled one is not answered, and the stream ends");
    // A cancel in the batch of its request.
    raw.send(&batch(&[request(4, "wait", &json!({})), cancel(4), echo(5)]).of(&session)).await;
    raw.head().await;
    assert_eq!(self::answers(&mut raw).await[0]["id"], 5);
}

#[tokio::test]
async fn a_message_of_a_batch_that_is_none_is_refused_alone() {
    let served = serve(server(), MCP).await;
    let (mut raw, session) = open_in(&served.url, "2025-03-26").await;
    for body in [
        format!("[7,{}]", echo(1).body),
        format!("[{},[{}]]", echo(1).body, echo(2).body),
        format!(r#"[{{"jsonrpc":"2.0","id":1,"method":7}},{}]"#, echo(1).body),
    ] {
        raw.send(&Ask::post(&body).of(&session)).await;
        assert_eq!(raw.head().await.status, 200, "{body}");
        let answers = answers(&mut raw).await;
        let right = answers.iter().filter(|answer| answer["result"] == json!({"n": 1})).count();
        let refused = answers.iter().filter(|answer| answer.get("error").is_some()).count();
        assert_eq!((right, refused), (1, 1), "{body}: {answers:?}");
    }
    // An id twice: one of them is refused.
    let mut served = serve(server(), MCP).await;
    let (mut raw, session) = open_in(&served.url, "2025-03-26").await;
    raw.send(&batch(&[request(1, "gate", &json!({"n": 1})), echo(1)]).of(&session)).await;
    raw.head().await;
    assert!(matches!(in_time("a start", served.seen.recv()).await, Some(Seen::Started(_))));
    served.gate.notify_one();
    let answers = answers(&mut raw).await;
    assert_eq!(answers.iter().filter(|answer| answer.get("error").is_some()).count(), 1, "{answers:?}");
    for text in ["[]", "[", "[1", "[{\"jsonrpc\":\"2.0\"}"] {
        assert_eq!(raw.ask(&Ask::post(text).of(&session)).await.0.status, 400, "{text}");
    }
}

#[tokio::test]
async fn other_revisions_refuse_a_batch_of_requests() {
    for revision in REVISIONS.into_iter().filter(|revision| *revision != "2025-03-26") {
        let served = serve(server(), MCP).await;
        let (mut raw, session) = open_in(&served.url, revision).await;
        let (head, _) = raw.ask(&batch(&[echo(1), echo(2)]).of(&session)).await;
        assert_eq!(head.status, 400, "{revision}");
        assert_eq!(raw.ask(&echo(3).of(&session)).await.0.status, 200);
    }
    // Nothing is negotiated yet.
    let served = serve(server(), MCP).await;
    let mut raw = Raw::connect(&served.url).await;
    assert_eq!(raw.ask(&batch(&[initialize_in("2025-03-26")])).await.0.status, 400);
}

#[tokio::test]
async fn a_batch_of_100_000_is_refused_as_a_whole() {
    let mut served = serve(server(), MCP).await;
    let (mut raw, session) = open_in(&served.url, "2025-03-26").await;
    let many: Vec<Ask> = (0..100_000).map(|id| request(id, "wait", &json!({}))).collect();
    let (head, body) = raw.ask(&batch(&many).of(&session)).await;
    assert_eq!(head.status, 413, "{body}");
    assert!(body.contains("1024"), "{body}");
    assert!(served.seen.try_recv().is_err(), "none of them has begun");
    // Many of the largest batches are bounded too.
    let most: Vec<Ask> = (0..1024).map(|id| request(id, "wait", &json!({}))).collect();
    let mut streams = Vec::new();
    let mut statuses = Vec::new();
    for _ in 0..8 {
        let mut raw = Raw::connect(&served.url).await;
        raw.send(&batch(&most).of(&session)).await;
        statuses.push(raw.head().await.status);
        streams.push(raw);
    }
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert_eq!(statuses[0], 200);
    let (head, _) = raw.ask(&Ask::delete().of(&session)).await;
    assert_eq!(head.status, 204);
    in_time("the end of all", async {
        while served.running.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_slash_at_the_end_of_a_path_changes_nothing() {
    for path in ["/mcp", "/mcp/"] {
        let served = serve(server().path(path), MCP).await;
        let host = served
            .url
            .trim_start_matches("http://")
            .trim_end_matches('/')
            .trim_end_matches("/mcp")
            .to_owned();
        for (asked, status) in
            [("/mcp", 200), ("/mcp/", 200), ("/mcp//", 404), ("/mc", 404), ("/mcp/x", 404), ("/", 404)]
        {
            let mut raw = Raw::connect(&format!("http://{host}")).await;
            let bytes = initialize_in("2025-11-25").bytes(&host);
            let text = String::from_utf8(bytes).unwrap().replacen("POST / ", &format!("POST {asked} "), 1);
            raw.write(text.as_bytes()).await;
            assert_eq!(raw.head().await.status, status, "{asked} of a server at {path}");
        }
    }
}

#[tokio::test]
async fn an_encoded_body_gets_415_and_one_with_a_byte_order_mark_is_read() {
    let mut served = serve(server(), MCP).await;
    let (mut raw, session) = open(&served.url).await;
    for coding in ["gzip", "br", "identity, gzip", "x"] {
        let (head, body) = raw.ask(&echo(1).of(&session).with("Content-Encoding", coding)).await;
        assert_eq!((head.status, head.header("accept-encoding")), (415, "identity"), "{coding}: {body}");
    }
    for coding in ["identity", "", "Identity , identity"] {
        assert_eq!(
            raw.ask(&echo(1).of(&session).with("Content-Encoding", coding)).await.0.status,
            200,
            "{coding}"
        );
    }
    let marked = Ask::post(format!("\u{feff}{}", echo(2).body)).of(&session);
    let (head, body) = raw.ask(&marked).await;
    assert!(head.status == 200 && body.contains(r#""n":2"#), "{body}");
    // Two marks are no JSON, and one alone is an empty body.
    for text in ["\u{feff}\u{feff}{}", "\u{feff}"] {
        assert_eq!(raw.ask(&Ask::post(text).of(&session)).await.0.status, 400);
    }
    let theirs = in_time("the session", served.peers.recv()).await.unwrap();
    assert_eq!(theirs.stats().deviations, 3, "two marks, and what is no JSON");
}

#[tokio::test]
async fn a_session_whose_client_reads_outlives_its_idle_time() {
    let http = HttpServer::new(Streamable::new()).session_idle(Duration::from_secs(10));
    let mut served = serve(http, MCP).await;
    let (mut raw, session) = open(&served.url).await;
    raw.send(&Ask::get().of(&session)).await;
    assert_eq!(raw.head().await.status, 200);
    let theirs = in_time("the session", served.peers.recv()).await.unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(600)).await;
    tokio::time::resume();
    assert!(!theirs.is_closed());
    let mut other = Raw::connect(&served.url).await;
    other.send(&request(1, "gate", &json!({"n": 1})).of(&session)).await;
    assert!(matches!(in_time("a start", served.seen.recv()).await, Some(Seen::Started(_))));
    // The stream is gone, and a request runs.
    drop(raw);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(600)).await;
    tokio::time::resume();
    served.gate.notify_one();
    assert_eq!(other.answer().await["result"], json!({"n": 1}));
    // Nobody uses it any more.
    tokio::time::pause();
    in_time("the end", theirs.closed()).await.unwrap();
    tokio::time::resume();
    assert_eq!(served.counts.idle_sessions(), 1);
}
