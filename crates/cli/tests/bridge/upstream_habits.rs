//! Servers over HTTP behind a bridge that deviate from the specification, and the answers that its client gets.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bridge::failing_endpoints::{echo, response, result, serve, serve_heads, well};
use crate::bridge::program::{Bridge, error_of, soon};
use crate::common::Files;

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
