//! A session that its server has forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rescind_core::Outcome;
use rescind_core::dialect::ACP;
use rescind_http::{HttpClient, StreamableTransport};
use rescind_testkit::support::in_time;
use serde_json::{Value, json};

use crate::client::{Asked, Client, EVENTS, JSON, RawServer, held, opened, response, result, well};

fn gone() -> String {
    let body = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#;
    response("404 Not Found", &[JSON], body)
}

/// A server whose sessions are numbered. It knows only the newest one, and forgets it when `forgets` says so.
struct Sessions {
    newest: AtomicUsize,
    is_lost: std::sync::atomic::AtomicBool,
}

impl Sessions {
    fn new() -> Arc<Self> {
        Arc::new(Self { newest: AtomicUsize::new(0), is_lost: false.into() })
    }

    fn lose(&self) {
        self.is_lost.store(true, Ordering::SeqCst);
    }

    fn answer(&self, asked: &Asked) -> String {
        if asked.what() == "initialize" {
            if asked.header("mcp-session-id").is_some() || asked.header("mcp-protocol-version").is_some() {
                return response("400 No", &[], "initialize in a session");
            }
            self.is_lost.store(false, Ordering::SeqCst);
            return opened(asked, &format!("s{}", self.newest.fetch_add(1, Ordering::SeqCst) + 1));
        }
        let name = format!("s{}", self.newest.load(Ordering::SeqCst));
        if self.is_lost.load(Ordering::SeqCst) || asked.header("mcp-session-id") != Some(&name) {
            return gone();
        }
        well(asked)
    }
}

async fn serve() -> (Arc<Sessions>, RawServer) {
    let sessions = Sessions::new();
    let serving = Arc::clone(&sessions);
    let server = RawServer::start(move |asked| Some(serving.answer(asked))).await;
    (sessions, server)
}

#[tokio::test]
async fn a_session_that_is_gone_is_opened_again_and_the_request_sent_once_more() {
    let (sessions, mut server) = serve().await;
    let mut client = Client::open(&server.url).await;
    client.works().await;
    server.next("GET").await;
    sessions.lose();
    client.works().await;
    client.works().await;
    let deviation = in_time("a deviation", client.deviations.recv()).await.unwrap();
    assert!(deviation.contains("opened again"), "{deviation}");
    let all = server.all();
    let after: Vec<(&str, &str)> = all
        .iter()
        .skip_while(|asked| asked.what() != "GET")
        .skip(1)
        .filter(|asked| asked.what() != "GET")
        .map(|asked| (asked.what(), asked.header("mcp-session-id").unwrap_or_default()))
        .collect();
    assert_eq!(
        after,
        [
            ("echo", "s1"),
            ("initialize", ""),
            ("notifications/initialized", "s2"),
            ("echo", "s2"),
            ("echo", "s2"),
        ]
    );
    let opening: Vec<&Value> =
        all.iter().filter(|asked| asked.what() == "initialize").map(|asked| &asked.body).collect();
    assert!(matches!(opening[..], [first, second] if first == second), "the same handshake");
    let initialized = all.iter().rfind(|asked| asked.what() == "notifications/initialized").unwrap();
    assert_eq!(initialized.header("mcp-protocol-version"), Some("2025-11-25"));
    in_time("the stream of the new session", async {
        while server.next("GET").await.header("mcp-session-id") != Some("s2") {}
    })
    .await;
    client.peer.shutdown(std::time::Duration::ZERO).await;
    assert_eq!(server.next("DELETE").await.header("mcp-session-id"), Some("s2"));
}

#[tokio::test]
async fn many_calls_that_fail_at_once_make_one_new_session() {
    let (sessions, server) = serve().await;
    let client = Client::open(&server.url).await;
    client.works().await;
    sessions.lose();
    let calls: Vec<_> = (0..50)
        .map(|n| client.peer.call::<_, Value>("echo", &json!({"n": n})).no_timeout().start().unwrap())
        .collect();
    for call in calls {
        let outcome = in_time("an answer", call.outcome()).await;
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    }
    assert_eq!(server.count("initialize"), 2);
}

#[tokio::test]
async fn subscriptions_and_the_log_level_are_set_again() {
    let (sessions, server) = serve().await;
    let client = Client::open(&server.url).await;
    for (method, params) in [
        ("resources/subscribe", json!({"uri": "a"})),
        ("resources/subscribe", json!({"uri": "b"})),
        ("logging/setLevel", json!({"level": "debug"})),
        ("logging/setLevel", json!({"level": "error"})),
        ("resources/unsubscribe", json!({"uri": "a"})),
        ("resources/subscribe", json!({"uri": "c"})),
        ("resources/subscribe", json!({"uri": "c"})),
    ] {
        in_time(method, client.peer.call::<_, Value>(method, &params)).await.unwrap();
    }
    sessions.lose();
    client.works().await;
    let all = server.all();
    let mut again: Vec<String> = all
        .iter()
        .filter(|asked| asked.header("mcp-session-id") == Some("s2") && asked.is_request())
        .map(|asked| format!("{} {}", asked.what(), asked.body["params"]))
        .collect();
    assert_eq!(again.pop().unwrap(), r#"echo {"n":1}"#, "first the session is as it was");
    again.sort_unstable();
    assert_eq!(
        again,
        [
            r#"logging/setLevel {"level":"error"}"#,
            r#"resources/subscribe {"uri":"b"}"#,
            r#"resources/subscribe {"uri":"c"}"#,
        ]
    );
}

/// A server that forgets each session at once.
#[tokio::test]
async fn a_session_that_is_gone_at_every_message_fails_calls_and_not_the_connection() {
    let server = RawServer::start(|asked| match asked.what() {
        "initialize" => Some(opened(asked, "one")),
        "notifications/initialized" => Some(well(asked)),
        _ => Some(gone()),
    })
    .await;
    let mut client = Client::open(&server.url).await;
    for _ in 0..20 {
        let said = client.fails("echo").await;
        assert!(
            said.contains("does not know the session any more") && said.contains("404 Not Found"),
            "{said}"
        );
        assert!(said.contains("within 10 s") && said.contains(&server.url), "{said}");
    }
    assert_eq!(server.count("initialize"), 2, "one attempt in 10 s");
    assert!(!client.peer.is_closed());
}

#[tokio::test]
async fn a_session_that_cannot_be_opened_again_fails_the_call_and_the_next_try_succeeds() {
    for refusal in [
        response("500 Oops", &[], "restarting"),
        response("200 OK", &[JSON], r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"restarting"}}"#),
        response("200 OK", &[EVENTS], "data: restarting\n\n"),
        "HTTP/1.1 200 OK\r\nContent-Length: 99\r\nContent-Type: application/json\r\n\r\nrestarting"
            .to_owned(),
    ] {
        let sessions = Sessions::new();
        let (serving, openings) = (Arc::clone(&sessions), AtomicUsize::new(0));
        let server = RawServer::start(move |asked| {
            let refuses = asked.what() == "initialize" && openings.fetch_add(1, Ordering::SeqCst) == 1;
            Some(if refuses { refusal.clone() } else { serving.answer(asked) })
        })
        .await;
        let mut client = Client::open(&server.url).await;
        client.works().await;
        sessions.lose();
        let said = client.fails("echo").await;
        assert!(
            said.contains("does not know the session any more") && said.contains("404 Not Found"),
            "{said}"
        );
        client.works().await;
        assert_eq!(server.count("initialize"), 3);
    }
}

#[tokio::test]
async fn calls_that_run_in_the_old_session_end_with_an_error() {
    let sessions = Sessions::new();
    let serving = Arc::clone(&sessions);
    let mut server = RawServer::start(move |asked| match asked.what() {
        // A stream that begins and does not end.
        "long" => Some(format!(
            "HTTP/1.1 200 OK\r\n{EVENTS}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n: on\n\r\n\u{0}"
        )),
        _ => Some(serving.answer(asked)),
    })
    .await;
    let mut client = Client::open(&server.url).await;
    client.works().await;
    let call = client.peer.call::<_, Value>("long", &json!({})).no_timeout().start().unwrap();
    server.next("long").await;
    // Its response has begun when a later notification is sent.
    in_time("a notification", client.peer.notify("told", &json!({}))).await.unwrap();
    server.next("told").await;
    sessions.lose();
    client.works().await;
    let outcome = in_time("the long call", call.outcome()).await;
    assert_eq!(outcome, Outcome::Disconnected { may_have_run: true });
    let said = in_time("the reason", client.errors.recv()).await.unwrap();
    assert!(said.contains("in which the call ran"), "{said}");
}

#[tokio::test]
async fn calls_of_the_old_session_end_although_no_new_one_can_be_opened() {
    let sessions = Sessions::new();
    let (serving, openings) = (Arc::clone(&sessions), AtomicUsize::new(0));
    let mut server = RawServer::start(move |asked| match asked.what() {
        // A stream that begins and does not end.
        "long" => Some(format!(
            "HTTP/1.1 200 OK\r\n{EVENTS}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n: on\n\r\n\u{0}"
        )),
        // The second one is never answered.
        "initialize" if openings.fetch_add(1, Ordering::SeqCst) == 1 => None,
        _ => Some(serving.answer(asked)),
    })
    .await;
    let mut client = Client::open(&server.url).await;
    client.works().await;
    let call = client.peer.call::<_, Value>("long", &json!({})).no_timeout().start().unwrap();
    server.next("long").await;
    in_time("a notification", client.peer.notify("told", &json!({}))).await.unwrap();
    server.next("told").await;
    sessions.lose();
    let _refused = client.peer.call::<_, Value>("echo", &json!({})).no_timeout().start().unwrap();
    let outcome = in_time("the long call", call.outcome()).await;
    assert_eq!(outcome, Outcome::Disconnected { may_have_run: true });
    let said = in_time("the reason", client.errors.recv()).await.unwrap();
    assert!(said.contains("in which the call ran"), "{said}");
}

#[tokio::test]
async fn a_call_waits_briefly_for_a_new_session_whose_opening_is_not_answered() {
    let sessions = Sessions::new();
    let (serving, openings) = (Arc::clone(&sessions), AtomicUsize::new(0));
    let mut server = RawServer::start(move |asked| match asked.what() {
        "initialize" if openings.fetch_add(1, Ordering::SeqCst) == 1 => None,
        _ => Some(serving.answer(asked)),
    })
    .await;
    let mut client = Client::open(&server.url).await;
    client.works().await;
    server.next("initialize").await;
    sessions.lose();
    // One that finds the session gone, and one that comes while it is opened again.
    let first = client.peer.call::<_, Value>("echo", &json!({})).no_timeout().start().unwrap();
    server.next("initialize").await;
    let second = client.peer.call::<_, Value>("echo", &json!({})).no_timeout().start().unwrap();
    for call in [first, second] {
        let outcome = in_time("the end of a call", call.outcome()).await;
        assert_eq!(outcome, Outcome::Disconnected { may_have_run: false });
        let why = in_time("the reason", client.errors.recv()).await.unwrap();
        for word in
            ["does not know the session any more", "has not answered `initialize`", "5 s", &server.url]
        {
            assert!(why.contains(word), "{word}: {why}");
        }
    }
    assert!(!client.peer.is_closed());
}

/// Some servers do not respond to the POST of a notification. The settings are repeated all the same.
#[tokio::test]
async fn a_new_session_is_used_although_its_notification_gets_no_response() {
    let sessions = Sessions::new();
    let (serving, notified) = (Arc::clone(&sessions), AtomicUsize::new(0));
    let server = RawServer::start(move |asked| match asked.what() {
        "notifications/initialized" if notified.fetch_add(1, Ordering::SeqCst) == 1 => None,
        // The first one is that of the client, the second one that of the new session.
        "logging/setLevel" if asked.header("mcp-session-id") == Some("s2") => None,
        _ => Some(serving.answer(asked)),
    })
    .await;
    let client = Client::open(&server.url).await;
    let level = json!({"level": "error"});
    in_time("a setting", client.peer.call::<_, Value>("logging/setLevel", &level)).await.unwrap();
    sessions.lose();
    client.works().await;
    assert_eq!((server.count("initialize"), server.count("logging/setLevel")), (2, 2));
}

#[tokio::test]
async fn a_call_of_the_old_session_without_a_response_ends_although_no_new_one_can_be_opened() {
    let sessions = Sessions::new();
    let (serving, openings) = (Arc::clone(&sessions), AtomicUsize::new(0));
    let mut server = RawServer::start(move |asked| match asked.what() {
        "long" => None,
        "initialize" if openings.fetch_add(1, Ordering::SeqCst) == 1 => Some(response("500 Oops", &[], "")),
        _ => Some(serving.answer(asked)),
    })
    .await;
    let mut client = Client::open(&server.url).await;
    client.works().await;
    let call = client.peer.call::<_, Value>("long", &json!({})).no_timeout().start().unwrap();
    server.next("long").await;
    sessions.lose();
    client.fails("echo").await;
    let outcome = in_time("the long call", call.outcome()).await;
    assert_eq!(outcome, Outcome::Disconnected { may_have_run: true });
    let said = in_time("the reason", client.errors.recv()).await.unwrap();
    assert!(said.contains("in which the call ran"), "{said}");
    client.works().await;
}

/// Such a server answers with the result, so nothing of the response is there while the call runs.
#[tokio::test]
async fn a_call_of_the_old_session_without_a_response_ends_with_an_error_too() {
    let sessions = Sessions::new();
    let serving = Arc::clone(&sessions);
    let mut server =
        RawServer::start(move |asked| (asked.what() != "long").then(|| serving.answer(asked))).await;
    let mut client = Client::open(&server.url).await;
    client.works().await;
    let call = client.peer.call::<_, Value>("long", &json!({})).no_timeout().start().unwrap();
    server.next("long").await;
    sessions.lose();
    client.works().await;
    let newer = client.peer.call::<_, Value>("long", &json!({})).no_timeout().start().unwrap();
    server.next("long").await;
    let outcome = in_time("the long call", call.outcome()).await;
    assert_eq!(outcome, Outcome::Disconnected { may_have_run: true });
    let said = in_time("the reason", client.errors.recv()).await.unwrap();
    assert!(said.contains("in which the call ran"), "{said}");
    // A call of the new session goes on.
    client.works().await;
    newer.canceller().cancel("enough");
    assert!(in_time("the end", newer.outcome()).await.is_cancelled());
}

#[tokio::test]
async fn a_call_that_is_cancelled_meanwhile_is_not_sent_again() {
    let sessions = Sessions::new();
    let (serving, openings) = (Arc::clone(&sessions), AtomicUsize::new(0));
    let mut server = RawServer::start(move |asked| {
        let waits = asked.what() == "initialize" && openings.fetch_add(1, Ordering::SeqCst) == 1;
        let answer = serving.answer(asked);
        Some(if waits { held(&answer) } else { answer })
    })
    .await;
    let http = HttpClient::new(&server.url).unwrap();
    let client = Client::with(StreamableTransport::new(http).exchanges(1)).await;
    client.works().await;
    server.next("initialize").await;
    sessions.lose();
    let call = client.peer.call::<_, Value>("work", &json!({})).no_timeout().start().unwrap();
    server.next("initialize").await;
    call.canceller().cancel("enough");
    assert!(in_time("the end", call.outcome()).await.is_cancelled());
    server.gate.notify_one();
    client.works().await;
    assert_eq!(server.count("work"), 1, "only before the cancel");
}

/// Such a session can end before its stream is opened, and no further request is due that would say so.
#[tokio::test]
async fn in_other_protocols_the_connection_ends_if_its_stream_is_not_found() {
    let server = RawServer::start(|asked| {
        if asked.what() == "GET" {
            return Some(gone());
        }
        let sent = result(asked, &json!({"protocolVersion": 1}));
        Some(sent.replacen("\r\n", "\r\nMcp-Session-Id: one\r\n", 1))
    })
    .await;
    let transport = StreamableTransport::new(HttpClient::new(&server.url).unwrap());
    let client = Client::connect(transport, ACP).await;
    in_time("the handshake", client.peer.call::<_, Value>("initialize", &json!({}))).await.unwrap();
    let why = in_time("the end", client.peer.closed()).await.unwrap_err().to_string();
    assert!(why.contains("does not know the session any more"), "{why}");
}

/// In other protocols a session has state that cannot be repeated.
#[tokio::test]
async fn in_other_protocols_the_connection_ends_with_its_session() {
    let server = RawServer::start(|asked| match asked.what() {
        "initialize" => {
            let sent = result(asked, &json!({"protocolVersion": 1}));
            Some(sent.replacen("\r\n", "\r\nMcp-Session-Id: one\r\n", 1))
        }
        _ => Some(gone()),
    })
    .await;
    let transport = StreamableTransport::new(HttpClient::new(&server.url).unwrap());
    let client = Client::connect(transport, ACP).await;
    in_time("the handshake", client.peer.call::<_, Value>("initialize", &json!({}))).await.unwrap();
    let outcome = client.outcome("echo").await;
    assert!(matches!(outcome, Outcome::Disconnected { .. }), "{outcome:?}");
    assert!(in_time("the end", client.peer.closed()).await.is_err());
    assert_eq!(server.count("initialize"), 1);
}
