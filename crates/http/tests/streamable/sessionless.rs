//! Servers without sessions: any POST is answered, and cancels are found by principal and id.

use std::time::Duration;

use rescind_core::Principal;
use rescind_core::dialect::MCP;
use rescind_http::{HttpServer, SHARED_CANCEL_KEPT, Streamable};
use rescind_net::{AuthRefusal, AuthRequest, Credential};
use rescind_testkit::support::until;
use serde_json::{Value, json};

use crate::streamable::raw::{Ask, Raw, cancel, initialize, request};
use crate::streamable::support::{Seen, Served, in_time, serve};

fn server() -> HttpServer<Streamable> {
    HttpServer::new(Streamable::new().sessionless())
}

/// A server that takes the name of its principal from a header.
async fn with_principals() -> Served {
    let auth = async |request: AuthRequest| match request.header("X-User") {
        Some(user) => Ok(Credential::of(Principal(user.into()))),
        None => Err(AuthRefusal::unauthorized("Bearer")),
    };
    serve(server().auth(auth), MCP).await
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
    let served = serve(server(), MCP).await;
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
    let served = serve(server(), MCP).await;
    let text = "x".repeat(200_000);
    let mut raw = Raw::connect(&served.url).await;
    raw.send(&request(1, "echo", &json!({"text": text}))).await;
    assert_eq!(raw.answer().await["result"]["text"].as_str(), Some(&*text));
}

#[tokio::test]
async fn a_session_ends_with_its_response() {
    // Two places: half of them are for one client.
    let mut served = serve(server().sessions(2), MCP).await;
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
    let served = serve(server(), MCP).await;
    for ask in
        [Ask::get().of("x"), Ask::delete().of("x"), Ask { method: "PUT", ..request(1, "echo", &json!({})) }]
    {
        let (head, _) = Raw::connect(&served.url).await.ask(&ask).await;
        assert_eq!((head.status, head.header("allow")), (405, "POST"), "{}", ask.method);
    }
}

#[tokio::test]
async fn notifications_are_dropped_and_answers_are_refused() {
    let mut served = serve(server(), MCP).await;
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
    let served = serve(server(), MCP).await;
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
    let mut served = serve(server(), MCP).await;
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
