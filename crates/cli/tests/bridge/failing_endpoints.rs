//! HTTP servers behind a bridge that fail in the middle, played by hand.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rescind::{Outcome, Peer};
use rescind_testkit::support::Serving;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::bridge::{Bridge, error_of, fixture, hello, soon, words};
use crate::common::Files;

/// Answers each request with the text that this function returns for its method and message, and closes the connection.
async fn serve(answer: impl Fn(&str, &Value) -> String + Send + Sync + 'static) -> (String, Serving) {
    serve_heads(move |head, message| answer(head.split(' ').next().unwrap_or_default(), message)).await
}

/// As [`serve`], with the whole head of the request.
async fn serve_heads(answer: impl Fn(&str, &Value) -> String + Send + Sync + 'static) -> (String, Serving) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let answer = std::sync::Arc::new(answer);
    let serving = Serving::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = std::sync::Arc::clone(&answer);
            tokio::spawn(async move { answer_one(stream, &*answer).await });
        }
    });
    (url, serving)
}

/// `None`: the connection ended before its request was whole.
async fn answer_one(stream: TcpStream, answer: &(impl Fn(&str, &Value) -> String + Sync)) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let from = head.len();
        stream.read_line(&mut head).await.ok().filter(|read| *read > 0)?;
        match head.get(from..)?.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", bytes)) => length = bytes.parse().ok()?,
            None if head.ends_with("\r\n\r\n") => break,
            Some(_) | None => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let message = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let text = answer(&head, &message);
    stream.get_mut().write_all(text.as_bytes()).await.ok()?;
    stream.get_mut().shutdown().await.ok()?;
    // Unread data would reset the connection.
    while stream.read(&mut body).await.is_ok_and(|count| count > 0) {}
    Some(())
}

fn response(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n{body}", body.len())
}

fn result(message: &Value, result: &Value) -> String {
    let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
    response("200 OK", "Content-Type: application/json\r\nMcp-Session-Id: one\r\n", &body)
}

/// What a server answers that fails only where its methods say so.
fn well(method: &str, message: &Value) -> String {
    match (method, message["method"].as_str()) {
        ("POST", Some("initialize")) => result(message, &json!({"protocolVersion": "2025-11-25"})),
        ("POST", Some(_)) if message["id"].is_null() => response("202 Accepted", "", ""),
        ("POST", Some(_)) => result(message, &message["params"]),
        ("DELETE", _) => response("204 No Content", "", ""),
        _ => response("405 Method Not Allowed", "", ""),
    }
}

async fn echo(client: &Peer) {
    let echo: Value = soon("an echo", client.call("echo", &json!({"value": 1.5}))).await.unwrap();
    assert_eq!(echo, json!({"value": 1.5}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_in_a_call_fails_that_call_and_the_session_goes_on() {
    const HEAD: &str =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let update = "data: {\"jsonrpc\":\"2.0\",\"method\":\"update\",\"params\":{}}\n\n";
    let chunk = format!("{:x}\r\n{update}\r\n", update.len());
    for (how, cut) in [
        ("before its head", String::new()),
        ("in its head", HEAD[..30].to_owned()),
        ("after its head", HEAD.to_owned()),
        ("after an update", format!("{HEAD}{chunk}")),
        ("in an event", format!("{HEAD}{}", &chunk[..20])),
        ("after its end without an answer", format!("{HEAD}{chunk}0\r\n\r\n")),
        (
            "in a body of JSON",
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{".to_owned(),
        ),
    ] {
        let (url, _serving) = serve(move |method, message| match message["method"].as_str() {
            Some("work") => cut.clone(),
            _ => well(method, message),
        })
        .await;
        let bridge = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &[&url]);
        let client = bridge.client("mcp").await;
        let error = error_of(&client, "work", &json!({})).await;
        assert_eq!(error.code.0, -32603, "{how}: {error}");
        assert!(error.message.starts_with(&format!("{url} did not answer: ")), "{how}: {error}");
        echo(&client).await;
    }
}

/// A server that forgets each session at this method: the second time it is an error, and other requests go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_its_sessions_again_and_again_fails_those_requests_only() {
    let (url, _serving) = serve(|method, message| match (method, message["method"].as_str()) {
        ("POST", Some("work")) => response("404 Not Found", "", ""),
        _ => well(method, message),
    })
    .await;
    let bridge = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &[&url]);
    for _ in 0..2 {
        let client = bridge.client("mcp").await;
        echo(&client).await;
        let error = error_of(&client, "work", &json!({})).await;
        assert!(error.message.starts_with(&url) && error.code.0 == -32603, "{error}");
        assert!(error.message.contains("404 Not Found"), "{error}");
        echo(&client).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_above_the_limit_fails_its_call_and_the_session_goes_on() {
    let (url, _serving) = serve(|method, message| match message["method"].as_str() {
        Some("work") => result(message, &json!("x".repeat(17 << 20))),
        _ => well(method, message),
    })
    .await;
    let bridge = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &[&url]);
    let client = bridge.client("mcp").await;
    let error = error_of(&client, "work", &json!({})).await;
    assert!(error.message.starts_with(&format!("{url} did not answer: ")), "{error}");
    echo(&client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_speaks_tls_where_none_is_expected_or_the_reverse_is_named_in_the_answer() {
    let files = Files::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = files.write("server.pem", &made.cert.pem());
    let key = files.write("server.key", &made.signing_key.serialize_pem());
    let child = fixture("mcp");
    let tls = ["--tls-cert", &certificate, "--tls-key", &key];
    let secret = Bridge::listen("mcp", "https://127.0.0.1:0/mcp", &[&tls[..], &words(&child)].concat());
    let (plain, _serving) = serve(well).await;
    for url in [secret.endpoint.replace("https", "http"), plain.replace("http", "https")] {
        let bridge = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &[&url]);
        let error = error_of(&bridge.stranger("mcp").await, "initialize", &hello("mcp")).await;
        assert!(error.message.starts_with(&url) && error.code.0 == -32603, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_that_breaks_in_a_call_answers_it_with_an_error_and_the_next_session_is_served() {
    let far = crate::common::Fixture::listen("acp", "ws://127.0.0.1:0/acp", &[]);
    let url = far.endpoint.clone();
    let bridge = Bridge::listen("acp", "ws://127.0.0.1:0/acp", &[&url]);
    let client = bridge.client("acp").await;
    let call = client.call::<_, Value>("test/wait", &json!({})).start().unwrap();
    let stats: Value = soon("the stats", client.call("test/stats", &json!({}))).await.unwrap();
    assert_eq!(stats["running"], 1);
    drop(far);
    match soon("the error", call.outcome()).await {
        Outcome::Failed(error) => assert!(error.message.starts_with(&url), "{error}"),
        other => panic!("{other:?}"),
    }
    drop(soon("the close", client.closed()).await);
    // It is refused with a sentence, because nothing listens there any more.
    let error = error_of(&bridge.stranger("acp").await, "initialize", &hello("acp")).await;
    assert!(error.message.starts_with(&format!("{url} could not be reached: ")), "{error}");
}

// Servers over HTTP behind a bridge that deviate from the specification, and the answers that its client gets.

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_no_answer_is_an_error_with_the_address_the_status_and_the_body() {
    for (sent, words) in [
        (
            response("200 OK", "Content-Type: application/json\r\n", r#"{"detail":"Not authenticated"}"#),
            ["200 OK", r#"{"detail":"Not authenticated"}"#],
        ),
        (response("200 OK", "Content-Type: application/json\r\n", ""), ["200 OK", "application/json"]),
        (response("202 Accepted", "", ""), ["202 Accepted", "no message"]),
        (response("502 Bad", "Content-Type: text/html\r\n", "<html>\n"), ["502 Bad Gateway", r"<html>\n"]),
        (
            response("200 OK", "Content-Type: application/json\r\nContent-Encoding: gzip\r\n", "x"),
            ["200 OK", "Content-Encoding: gzip"],
        ),
        (
            response(
                "200 OK",
                "Content-Type: text/event-stream\r\n",
                "data: {\"jsonrpc\":\"2.0\",\"id\":9}\n\n",
            ),
            ["200 OK", "ended without the answer"],
        ),
    ] {
        let (url, _serving) = serve(move |method, message| match message["method"].as_str() {
            Some("work") => sent.clone(),
            _ => well(method, message),
        })
        .await;
        let bridge = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &[&url]);
        let client = bridge.client("mcp").await;
        let error = error_of(&client, "work", &json!({})).await;
        assert!(error.code.0 == -32603 && error.message.starts_with(&url), "{error}");
        assert!(words.iter().all(|word| error.message.contains(word)), "{words:?}: {error}");
        echo(&client).await;
    }
}

/// The error of a call is its own, also if several fail at once.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_fail_at_once_get_their_own_errors() {
    let (url, _serving) = serve(|method, message| match message["method"].as_str() {
        Some(work) if work.starts_with("work") => response("200 OK", "Content-Type: text/plain\r\n", work),
        _ => well(method, message),
    })
    .await;
    let bridge = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &[&url]);
    let client = bridge.client("mcp").await;
    let names: Vec<String> = (0..20).map(|n| format!("work{n}.")).collect();
    let calls = names.iter().map(|name| error_of(&client, name, &Value::Null));
    let errors = futures_util::future::join_all(calls).await;
    for (name, error) in names.iter().zip(errors) {
        assert!(error.message.contains(name), "{name}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_on_without_a_stream_of_the_server() {
    let (url, _serving) = serve(|method, message| match method {
        "GET" => response("404 Not Found", "Content-Type: text/html\r\n", "<html>no</html>"),
        _ => well(method, message),
    })
    .await;
    let bridge = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &[&url]);
    let client = bridge.client("mcp").await;
    soon("a notification", client.notify("notifications/initialized", &json!({}))).await.unwrap();
    for _ in 0..5 {
        echo(&client).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_with_a_slash_is_followed() {
    let (url, _serving) = serve_heads(|head, message| match head.split(' ').nth(1) {
        Some("/mcp") => response("307 Temporary Redirect", "Location: /mcp/\r\n", ""),
        _ => well(head.split(' ').next().unwrap_or_default(), message),
    })
    .await;
    let bridge = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &[&url]);
    let client = bridge.client("mcp").await;
    echo(&client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_restarted_gets_a_new_session() {
    let openings = AtomicUsize::new(0);
    let (url, _serving) = serve_heads(move |head, message| {
        let newest = || format!("mcp-session-id: s{}\r\n", openings.load(Ordering::SeqCst));
        if message["method"] == "initialize" {
            openings.fetch_add(1, Ordering::SeqCst);
            return result(message, &json!({"protocolVersion": "2025-11-25"}))
                .replace("Mcp-Session-Id: one\r\n", &newest());
        }
        if message["method"] == "restart" {
            openings.fetch_add(1, Ordering::SeqCst);
        } else if !head.to_ascii_lowercase().contains(&newest()) {
            return response("404 Not Found", "", "");
        }
        let method = head.split(' ').next().unwrap_or_default();
        well(method, message).replace("Mcp-Session-Id: one\r\n", "")
    })
    .await;
    let bridge = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &[&url]);
    let client = bridge.client("mcp").await;
    echo(&client).await;
    let _: Value = soon("a restart", client.call("restart", &json!({}))).await.unwrap();
    echo(&client).await;
    echo(&client).await;
}

/// A server that accepts the token that is current.
async fn guarded(current: &'static Mutex<&'static str>) -> (String, rescind_testkit::support::Serving) {
    serve_heads(move |head, message| {
        let shown = format!("authorization: Bearer {}\r\n", current.lock().unwrap());
        if head.contains(&shown) {
            well(head.split(' ').next().unwrap_or_default(), message)
        } else {
            response("401 Unauthorized", "Content-Type: text/plain\r\n", "who are you")
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_changes_in_its_file_is_shown_after_a_refusal() {
    static CURRENT: Mutex<&str> = Mutex::new("the-first-token-of-all");
    let (url, _serving) = guarded(&CURRENT).await;
    let files = Files::new();
    let file = files.write("token", "the-first-token-of-all\n");
    let bridge = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &["--to-token-file", &file, &url]);
    let client = bridge.client("mcp").await;
    echo(&client).await;
    // The file changes with the token, later, and the file that is there for a moment is cut.
    *CURRENT.lock().unwrap() = "the-second-token-of-all";
    files.write("token", "the-second-token-of-all\n");
    echo(&client).await;
    // Without its file the last token stays.
    std::fs::remove_file(&file).unwrap();
    echo(&client).await;
    *CURRENT.lock().unwrap() = "the-third-token-of-all";
    let error = error_of(&client, "work", &json!({})).await;
    assert!(error.message.contains("401 Unauthorized") && error.message.contains("who are you"), "{error}");
    files.write("token", "short");
    let error = error_of(&client, "work", &json!({})).await;
    assert!(error.message.contains("401 Unauthorized"), "{error}");
    files.write("token", "the-third-token-of-all");
    echo(&client).await;
    bridge.signal(rustix::process::Signal::TERM);
    let (_, said) = bridge.ended().await;
    assert!(said.contains("could not be read") && said.contains("the last token is used"), "{said}");
    assert!(said.contains("has a token again") && !said.contains("token-of-all"), "{said}");
}

/// The file is also read when it changes, without a refusal.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_changes_in_its_file_is_shown_soon() {
    static SHOWN: Mutex<String> = Mutex::new(String::new());
    let (url, _serving) = serve_heads(|head, message| {
        let shown = head.lines().find_map(|line| line.strip_prefix("authorization: ")).unwrap_or_default();
        shown.clone_into(&mut SHOWN.lock().unwrap());
        well(head.split(' ').next().unwrap_or_default(), message)
    })
    .await;
    let files = Files::new();
    let file = files.write("token", "the-first-token-of-all\n");
    let bridge = Bridge::listen("mcp", "ws://127.0.0.1:0/mcp", &["--to-token-file", &file, &url]);
    let client = bridge.client("mcp").await;
    files.write("token", "the-second-token-of-all\n");
    let since = Instant::now();
    while *SHOWN.lock().unwrap() != "Bearer the-second-token-of-all" {
        assert!(since.elapsed() < Duration::from_secs(40), "it is still the first");
        echo(&client).await;
    }
}
