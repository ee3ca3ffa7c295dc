//! HTTP servers behind a bridge that fail in the middle, played by hand.

use rescind::{Outcome, Peer};
use rescind_testkit::support::Serving;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::bridge::program::{Bridge, error_of, fixture, hello, soon, words};
use crate::common::Files;

/// Answers each request with the text that this function returns for its method and message, and closes the connection.
pub(crate) async fn serve(
    answer: impl Fn(&str, &Value) -> String + Send + Sync + 'static,
) -> (String, Serving) {
    serve_heads(move |head, message| answer(head.split(' ').next().unwrap_or_default(), message)).await
}

/// As [`serve`], with the whole head of the request.
pub(crate) async fn serve_heads(
    answer: impl Fn(&str, &Value) -> String + Send + Sync + 'static,
) -> (String, Serving) {
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

pub(crate) fn response(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n{body}", body.len())
}

pub(crate) fn result(message: &Value, result: &Value) -> String {
    let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
    response("200 OK", "Content-Type: application/json\r\nMcp-Session-Id: one\r\n", &body)
}

/// What a server answers that fails only where its methods say so.
pub(crate) fn well(method: &str, message: &Value) -> String {
    match (method, message["method"].as_str()) {
        ("POST", Some("initialize")) => result(message, &json!({"protocolVersion": "2025-11-25"})),
        ("POST", Some(_)) if message["id"].is_null() => response("202 Accepted", "", ""),
        ("POST", Some(_)) => result(message, &message["params"]),
        ("DELETE", _) => response("204 No Content", "", ""),
        _ => response("405 Method Not Allowed", "", ""),
    }
}

pub(crate) async fn echo(client: &Peer) {
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
