//! The revision of a session, and what only one revision has: batches.
//!
//! # Servers without sessions
//!
//! Any POST is answered, and cancels are found by principal and id.
//!
//! # Shares
//!
//! One client opens sessions by the thousand, and others still get theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::request;
use rescind_core::Principal;
use rescind_core::dialect::MCP;
use rescind_http::{HttpServer, SHARED_CANCEL_KEPT, SessionRoute, SessionRouter, Streamable};
use rescind_net::{AuthRefusal, AuthRequest, Credential, PeerAddress};
use rescind_testkit::support::until;
use serde_json::{Value, json};

use crate::streamable::{
    Ask, Raw, Seen, Served, cancel, in_time, initialize, initialize_in, open, open_in, request,
    request as ask, serve, server,
};

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

fn sessionless_server() -> HttpServer<Streamable> {
    HttpServer::new(Streamable::new().sessionless())
}

/// A server that takes the name of its principal from a header.
async fn with_principals() -> Served {
    let auth = async |request: AuthRequest| match request.header("X-User") {
        Some(user) => Ok(Credential::of(Principal(user.into()))),
        None => Err(AuthRefusal::unauthorized("Bearer")),
    };
    serve(sessionless_server().auth(auth), MCP).await
}

fn of(ask: Ask, user: &str) -> Ask {
    ask.with("X-User", user)
}

impl Served {
    /// Starts the request `wait` with this id on a connection of its own.
    async fn waiting(&mut self, id: u64, user: &str) -> Raw {
        let mut raw = Raw::connect(&self.url).await;
        raw.send(&of(request(id, "wait", &json!({"of": user})), user)).await;
        self.saw(Seen::Started(json!({"of": user}).to_string())).await;
        raw
    }

    async fn saw(&mut self, expected: Seen) {
        assert_eq!(in_time("an event", self.seen.recv()).await, Some(expected));
    }

    async fn status(&self, ask: Ask, user: &str) -> u16 {
        Raw::connect(&self.url).await.ask(&of(ask, user)).await.0.status
    }
}

/// Checks that the stream of a cancelled request ends without an answer.
async fn ends_without_an_answer(raw: &mut Raw) {
    let head = raw.head().await;
    assert_eq!((head.status, head.header("content-type")), (200, "text/event-stream"));
    assert_eq!(raw.event().await, None);
}

#[tokio::test]
async fn any_request_is_answered_and_none_gets_a_session() {
    let served = serve(sessionless_server(), MCP).await;
    let mut raw = Raw::connect(&served.url).await;
    for ask in [
        request(1, "echo", &json!({"n": 1})),
        request(1, "echo", &json!({"n": 2})).of("unknown"),
        initialize(),
    ] {
        let (head, body) = raw.ask(&ask).await;
        assert_eq!(head.status, 200, "{body}");
        assert_eq!(head.header("mcp-session-id"), "", "no session is issued");
        assert!(body.contains("result"), "{body}");
    }
}

#[tokio::test]
async fn a_request_may_be_as_large_as_any_message() {
    let served = serve(sessionless_server(), MCP).await;
    let text = "x".repeat(200_000);
    let mut raw = Raw::connect(&served.url).await;
    raw.send(&request(1, "echo", &json!({"text": text}))).await;
    assert_eq!(raw.answer().await["result"]["text"].as_str(), Some(&*text));
}

#[tokio::test]
async fn a_session_ends_with_its_response() {
    // Two places: half of them are for one client.
    let mut served = serve(sessionless_server().sessions(2), MCP).await;
    for id in 0..20 {
        assert_eq!(served.status(request(id, "echo", &json!({})), "").await, 200);
    }
    let mut peers = Vec::new();
    for _ in 0..20 {
        peers.push(in_time("a peer", served.peers.recv()).await.unwrap());
    }
    for peer in peers {
        let _how = in_time("the end of its connection", peer.closed()).await;
    }
    assert_eq!(served.counts.displaced_sessions(), 0);
}

#[tokio::test]
async fn only_post_is_served() {
    let served = serve(sessionless_server(), MCP).await;
    for ask in
        [Ask::get().of("x"), Ask::delete().of("x"), Ask { method: "PUT", ..request(1, "echo", &json!({})) }]
    {
        let (head, _) = Raw::connect(&served.url).await.ask(&ask).await;
        assert_eq!((head.status, head.header("allow")), (405, "POST"), "{}", ask.method);
    }
}

#[tokio::test]
async fn notifications_are_dropped_and_answers_are_refused() {
    let mut served = serve(sessionless_server(), MCP).await;
    let note = Ask::post(r#"{"jsonrpc":"2.0","method":"reported","params":{"n":1}}"#);
    assert_eq!(served.status(note, "").await, 202);
    let (head, body) =
        Raw::connect(&served.url).await.ask(&Ask::post(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#)).await;
    assert_eq!(head.status, 400);
    assert!(body.contains("no request of it waits"), "{body}");
    for (body, status) in
        [("{}", 400), ("7", 400), ("no json", 400), (r#"[{"jsonrpc":"2.0","id":1,"method":"echo"}]"#, 400)]
    {
        assert_eq!(served.status(Ask::post(body), "").await, status, "{body}");
    }
    assert!(served.seen.try_recv().is_err(), "no handler ran");
}

#[tokio::test]
async fn a_handler_cannot_call_its_client_and_knows_at_once() {
    let served = serve(sessionless_server(), MCP).await;
    let mut raw = Raw::connect(&served.url).await;
    raw.send(&request(1, "ask", &json!({}))).await;
    let answer = raw.answer().await;
    assert!(answer["error"]["code"].is_i64(), "{answer}");
}

#[tokio::test]
async fn a_cancel_of_the_same_principal_stops_the_work_and_the_stream_ends_without_an_answer() {
    let mut served = with_principals().await;
    let mut raw = served.waiting(7, "ada").await;
    assert_eq!(served.status(cancel(7), "ada").await, 202);
    served.saw(Seen::Cancelled(json!({"of": "ada"}).to_string())).await;
    ends_without_an_answer(&mut raw).await;
    assert_eq!(served.counts.ignored_cancels(), 0);
}

#[tokio::test]
async fn a_cancel_ends_every_request_of_the_principal_with_its_id() {
    let mut served = with_principals().await;
    let mut both = [served.waiting(7, "ada").await, served.waiting(7, "ada").await];
    assert_eq!(served.status(cancel(7), "ada").await, 202);
    for raw in &mut both {
        ends_without_an_answer(raw).await;
    }
}

#[tokio::test]
async fn a_cancel_of_another_principal_or_id_has_no_effect() {
    let mut served = with_principals().await;
    let mut raw = Raw::connect(&served.url).await;
    raw.send(&of(request(7, "gate", &json!({"n": 1})), "ada")).await;
    served.saw(Seen::Started(json!({"n": 1}).to_string())).await;
    let text = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"7"}}"#;
    for (wrong, user) in [(cancel(7), "bob"), (cancel(8), "ada"), (Ask::post(text), "ada")] {
        assert_eq!(served.status(wrong, user).await, 202);
    }
    assert_eq!(served.status(request(1, "echo", &json!({})), "ada").await, 200);
    served.gate.notify_one();
    assert_eq!(raw.answer().await["result"], json!({"n": 1}));
    assert!(served.seen.try_recv().is_err(), "nothing was cancelled");
}

#[tokio::test]
async fn without_an_auth_hook_a_cancel_is_counted_and_ignored() {
    let mut served = serve(sessionless_server(), MCP).await;
    let mut raw = Raw::connect(&served.url).await;
    raw.send(&request(7, "gate", &json!({"n": 1}))).await;
    served.saw(Seen::Started(json!({"n": 1}).to_string())).await;
    assert_eq!(served.status(cancel(7), "").await, 202);
    assert_eq!(served.counts.ignored_cancels(), 1);
    served.gate.notify_one();
    assert_eq!(raw.answer().await["result"], json!({"n": 1}));
}

#[tokio::test]
async fn a_cancel_that_comes_before_its_request_cancels_it() {
    let served = with_principals().await;
    assert_eq!(served.status(cancel(7), "ada").await, 202);
    let mut raw = Raw::connect(&served.url).await;
    raw.send(&of(request(7, "wait", &json!({})), "ada")).await;
    ends_without_an_answer(&mut raw).await;
    let mut next: Raw = Raw::connect(&served.url).await;
    next.send(&of(request(7, "echo", &json!({"n": 2})), "ada")).await;
    assert_eq!(next.answer().await["result"], json!({"n": 2}), "it was for the first request");
}

#[tokio::test]
async fn a_late_cancel_does_nothing_to_a_request_after_two_seconds() {
    let served = with_principals().await;
    assert_eq!(served.status(request(7, "echo", &json!({})), "ada").await, 200);
    assert_eq!(served.status(cancel(7), "ada").await, 202);
    tokio::time::pause();
    tokio::time::advance(SHARED_CANCEL_KEPT + Duration::from_millis(1)).await;
    tokio::time::resume();
    let mut raw = Raw::connect(&served.url).await;
    raw.send(&of(request(7, "echo", &json!({"n": 1})), "ada")).await;
    let answer: Value = raw.answer().await;
    assert_eq!(answer["result"], json!({"n": 1}));
}

#[tokio::test]
async fn a_client_that_leaves_cancels_nothing_and_its_cancel_still_does() {
    let mut served = with_principals().await;
    let mut raw = served.waiting(7, "ada").await;
    raw.head().await;
    drop(raw);
    assert_eq!(served.status(request(1, "echo", &json!({})), "ada").await, 200);
    assert!(served.seen.try_recv().is_err(), "it goes on");
    assert_eq!(served.status(cancel(7), "ada").await, 202);
    served.saw(Seen::Cancelled(json!({"of": "ada"}).to_string())).await;
    let running = served.running.clone();
    until(Duration::from_secs(30), "the handler has ended", || {
        running.load(std::sync::atomic::Ordering::SeqCst) == 0
    })
    .await;
}

#[tokio::test]
async fn a_cancel_that_is_too_large_to_pass_on_is_refused() {
    let served = with_principals().await;
    let params = json!({"requestId": 7, "reason": "x".repeat(5000)});
    let large = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
    assert_eq!(served.status(Ask::post(large.to_string()), "ada").await, 413);
}

/// A client: an address of this machine, and the name that the auth hook gives it.
#[cfg(target_os = "linux")]
type Who = (&'static str, &'static str);

const MOST: usize = 8;
/// Clients that differ by their address, and by their principal.
#[cfg(target_os = "linux")]
const PAIRS: [(Who, Who); 2] =
    [(("127.0.0.1", "all"), ("127.0.0.2", "all")), (("127.0.0.1", "mallory"), ("127.0.0.1", "ada"))];

#[cfg(target_os = "linux")]
async fn served((_, user): Who) -> Served {
    let server = server().sessions(MOST);
    if user == "all" {
        return serve(server, MCP).await;
    }
    let auth = async |request: AuthRequest| match request.header("X-User") {
        Some(user) => Ok(Credential::of(Principal(user.into()))),
        None => Err(AuthRefusal::unauthorized("Bearer")),
    };
    serve(server.auth(auth), MCP).await
}

#[cfg(target_os = "linux")]
async fn session(served: &Served, (from, user): Who) -> Result<(Raw, String), String> {
    let mut raw = Raw::connect_from(&served.url, from).await;
    let (head, body) = raw.ask(&initialize().with("X-User", user)).await;
    match head.status {
        200 => Ok((raw, head.header("mcp-session-id").to_owned())),
        429 => {
            assert_eq!(head.header("retry-after"), "1");
            Err(body)
        }
        status => panic!("{status}: {body}"),
    }
}

/// The status of an echo in a session.
async fn echo_status(raw: &mut Raw, session: &str, user: &str) -> u16 {
    let echo: Ask = ask(1, "echo", &json!({"n": 1}));
    raw.ask(&echo.of(session).with("X-User", user)).await.0.status
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_flood_of_initialize_displaces_only_its_own_unused_sessions() {
    for (mallory, ada) in PAIRS {
        let served = served(mallory).await;
        let (mut used, kept) = session(&served, ada).await.unwrap();
        assert_eq!(echo_status(&mut used, &kept, ada.1).await, 200);
        let mut opened = Vec::new();
        for _ in 0..10 * MOST {
            opened.push(session(&served, mallory).await.expect("the oldest unused one makes room"));
        }
        let displaced = usize::try_from(served.counts.displaced_sessions()).unwrap();
        assert_eq!(displaced, 10 * MOST - MOST / 2, "{mallory:?}: half of all are its own");
        let (raw, first) = &mut opened[0];
        assert_eq!(echo_status(raw, first, mallory.1).await, 404, "it made room");
        let (raw, last) = opened.last_mut().unwrap();
        assert_eq!(echo_status(raw, last, mallory.1).await, 200, "the newest is there");
        let (mut raw, new) = session(&served, ada).await.expect("another client is let in");
        assert_eq!(
            (echo_status(&mut raw, &new, ada.1).await, echo_status(&mut used, &kept, ada.1).await),
            (200, 200)
        );
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_client_that_uses_its_sessions_holds_half_of_them_at_most() {
    for (mallory, ada) in PAIRS {
        let served = served(mallory).await;
        let mut open = Vec::new();
        for round in 0..MOST {
            match session(&served, mallory).await {
                Ok((mut raw, session)) => {
                    assert_eq!(echo_status(&mut raw, &session, mallory.1).await, 200);
                    open.push((raw, session));
                }
                Err(reported) => {
                    assert!(round >= MOST / 2, "{mallory:?}: {reported}");
                    assert!(reported.contains("this client"), "{reported}");
                }
            }
        }
        assert_eq!((open.len(), served.counts.displaced_sessions()), (MOST / 2, 0), "{mallory:?}");
        let (mut raw, new) = session(&served, ada).await.expect("another client is let in");
        assert_eq!(echo_status(&mut raw, &new, ada.1).await, 200);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn silent_connections_of_one_address_leave_half_to_others() {
    let served = serve(server().connections(MOST), MCP).await;
    let (mallory, ada) = PAIRS[0];
    let mut silent = Vec::new();
    for _ in 0..5 * MOST {
        silent.push(Raw::connect_from(&served.url, mallory.0).await);
    }
    // The latest session of the client has a place: the oldest one was closed for it.
    let (mut raw, id) = session(&served, mallory).await.unwrap();
    assert_eq!(echo_status(&mut raw, &id, mallory.1).await, 200);
    let (mut other, id) = session(&served, ada).await.expect("another client is let in");
    assert_eq!(echo_status(&mut other, &id, ada.1).await, 200);
    silent.swap_remove(0).is_closed().await;
}

/// A router to which another process passes requests on, with the address of the client in a field.
#[derive(Default)]
struct PassedOn(AtomicUsize);

impl SessionRouter for PassedOn {
    fn new_session_id(&self) -> Option<String> {
        Some(format!("session-{}", self.0.fetch_add(1, Ordering::Relaxed)))
    }

    fn route(&self, head: &mut request::Parts, _: Option<&str>) -> SessionRoute {
        let client = head.headers.get("x-user").and_then(|value| value.to_str().ok()?.parse().ok());
        head.extensions.remove::<PeerAddress>();
        if let Some(client) = client {
            head.extensions.insert(PeerAddress(client));
        }
        SessionRoute::Here
    }
}

#[tokio::test]
async fn the_limits_of_a_client_count_for_the_address_that_a_router_gives() {
    let served = serve(server().sessions(MOST).session_router(Arc::new(PassedOn::default())), MCP).await;
    let (mallory, ada) = ("203.0.113.1", "203.0.113.2");
    // One connection, as from another process: its requests are of two clients.
    let mut raw = Raw::connect(&served.url).await;
    let mut open = async |user: &str| {
        let (head, body) = raw.ask(&initialize().with("X-User", user)).await;
        if head.status == 200 {
            let id = head.header("mcp-session-id").to_owned();
            assert_eq!(echo_status(&mut raw, &id, user).await, 200);
        }
        (head.status, body)
    };
    for _ in 0..MOST / 2 {
        assert_eq!(open(mallory).await.0, 200);
    }
    let (status, body) = open(mallory).await;
    assert!(status == 429 && body.contains("this client"), "{status}: {body}");
    assert_eq!(open(ada).await.0, 200, "another client is let in on the same connection");
}
