//! Clients that leave, and clients that send invalid or too large frames.

use std::time::Duration;

use rescind::dialect::MCP;
use rescind::http::{HttpClient, StreamableTransport};
use rescind::named_pipe::NamedPipeTransport;
use rescind::transport::{Link, Transport, TransportEvent};
use rescind::websocket::{self, LinkOptions};
use rescind::{Outcome, Peer};
use rescind_testkit::support::frames::{body, event, send};
use rescind_testkit::support::http1::{read_head, read_until, request};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::bridge::program::{Bridge, Lives, fixture, fixture_script, hello, soon, words};

const ACCEPT: (&str, &str) = ("Accept", "application/json, text/event-stream");
const JSON: (&str, &str) = ("Content-Type", "application/json");
/// Above the limit of 16 MiB.
const TOO_LARGE: usize = 17 << 20;

async fn echo(client: &Peer) {
    let echo: Value = soon("an echo", client.call("test/echo", &json!({"value": 1.5}))).await.unwrap();
    assert_eq!(echo["value"], 1.5);
}

async fn until_running(client: &Peer, many: u64) {
    loop {
        let stats: Value = soon("the stats", client.call("test/stats", &json!({}))).await.unwrap();
        if stats["running"] == many {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_over_http_that_leaves_at_any_point_leaves_no_child() {
    let lives = Lives::new();
    let bridge =
        Bridge::listen("mcp", "http://127.0.0.1:0/mcp", &words(&lives.child(&fixture_script("mcp"))));
    let address = bridge.endpoint.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
    let hello_text =
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello("mcp")}).to_string();
    let whole = request("POST", "/mcp", &address, &[ACCEPT, JSON], &hello_text);
    // In the middle of its first request, in the head and in the body: no child is started.
    for part in [20, whole.len() - 5] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(&whole.as_bytes()[..part]).await.unwrap();
        stream.shutdown().await.unwrap();
        // The bridge has noticed once it closes its side.
        let _refusal = soon("the close", read_head(&mut stream)).await;
    }
    // In its handshake.
    let client = bridge.stranger("mcp").await;
    let call = client.call::<_, Value>("initialize", &hello("mcp")).start().unwrap();
    let life = lives.begun().await;
    drop((call, client));
    life.ended().await;
    // Between two calls, in a call, and after a cancel that is not answered.
    for (running, cancels) in [(0, false), (1, false), (1, true)] {
        let (client, life) = tokio::join!(bridge.client("mcp"), lives.begun());
        let method = if cancels { "test/ignore" } else { "test/wait" };
        let params = json!({"ms": 3_600_000});
        let call = (running > 0).then(|| client.call::<_, Value>(method, &params).start().unwrap());
        until_running(&client, running).await;
        if let (Some(call), true) = (&call, cancels) {
            call.canceller().cancel("");
        }
        drop((call, client));
        life.ended().await;
    }
    let (client, _life) = tokio::join!(bridge.client("mcp"), lives.begun());
    echo(&client).await;
}

/// A client that is killed sends no DELETE.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_over_http_that_vanishes_is_ended_as_idle_with_its_child() {
    let lives = Lives::new();
    let child = lives.child(&fixture_script("mcp"));
    let more = [&["--idle", "1"], words(&child).as_slice()].concat();
    let bridge = Bridge::listen("mcp", "http://127.0.0.1:0/mcp", &more);
    let address = bridge.endpoint.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
    let hello =
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello("mcp")}).to_string();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    stream.write_all(request("POST", "/mcp", &address, &[ACCEPT, JSON], &hello).as_bytes()).await.unwrap();
    let head = read_until(&mut stream, "mcp-session-id: ").await;
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let life = lives.begun().await;
    drop(stream);
    life.ended().await;
}

/// A client with a link that is driven by hand, and that may send frames above the limit.
async fn by_hand(endpoint: &str) -> Link {
    let large = 4 * TOO_LARGE;
    let transport: Box<dyn Transport> = match endpoint.strip_prefix("pipe:") {
        Some(address) => Box::new(NamedPipeTransport::new(address.parse().unwrap()).max_frame(large)),
        None => Box::new(websocket::connect(endpoint).options(LinkOptions::new().max_frame(large))),
    };
    soon("the connection", transport.open()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_a_client_that_are_no_messages_are_answered_and_its_session_goes_on() {
    let pipe = format!("pipe:rescind-bridge-bad-frames-{}", std::process::id());
    for listen in ["ws://127.0.0.1:0/acp", &pipe] {
        let bridge = Bridge::listen("acp", listen, &words(&fixture("acp")));
        let other = bridge.client("acp").await;
        let mut link = by_hand(&bridge.endpoint).await;
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello("acp")});
        for (frame, code) in [
            ("{\"half\":", -32700),
            ("[]", -32600),
            ("{\"jsonrpc\":\"1.0\",\"id\":7,\"method\":\"m\"}", -32600),
            ("{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"m\"}", -32600),
        ] {
            send(&mut link, frame).await.unwrap();
            let answer: Value = serde_json::from_slice(&soon("the error", body(&mut link)).await).unwrap();
            assert_eq!(answer["error"]["code"], code, "{listen} {frame}: {answer}");
        }
        send(&mut link, hello.to_string()).await.unwrap();
        let answer: Value = serde_json::from_slice(&soon("the handshake", body(&mut link)).await).unwrap();
        assert_eq!((&answer["id"], answer["result"].is_object()), (&json!(1), true), "{answer}");
        echo(&other).await;
    }
}

#[track_caller]
fn is_too_large(answer: &[u8]) {
    let answer: Value = serde_json::from_slice(answer).unwrap();
    let (code, text) = (&answer["error"]["code"], answer["error"]["message"].as_str().unwrap());
    assert_eq!((code, &answer["id"]), (&json!(-32700), &Value::Null), "{answer}");
    assert!(text.contains("larger than 16777216 bytes"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_of_a_client_above_the_limit_is_refused_and_the_other_clients_go_on() {
    let pipe = format!("pipe:rescind-bridge-large-frames-{}", std::process::id());
    let large =
        || json!({"jsonrpc": "2.0", "method": "note", "params": {"x": "x".repeat(TOO_LARGE)}}).to_string();
    for (listen, closes) in [("ws://127.0.0.1:0/acp", true), (&*pipe, false)] {
        let lives = Lives::new();
        let bridge = Bridge::listen("acp", listen, &words(&lives.child(&fixture_script("acp"))));
        let (other, other_life) = tokio::join!(bridge.client("acp"), lives.begun());
        let mut link = by_hand(&bridge.endpoint).await;
        let hello =
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello("acp")}).to_string();
        send(&mut link, hello.clone()).await.unwrap();
        let life = lives.begun().await;
        soon("the handshake", body(&mut link)).await;
        // Over WebSocket the connection may break while the frame is written.
        let sent = soon("the large frame", send(&mut link, large())).await;
        if closes {
            // The error may be lost with the connection, which closes with status 1009.
            loop {
                match soon("the close", event(&mut link)).await {
                    Some(Ok(TransportEvent::Message(error))) => is_too_large(&error.body),
                    None | Some(Err(_) | Ok(TransportEvent::HalfClosed)) => break,
                    other => panic!("{other:?}"),
                }
            }
        } else {
            sent.unwrap();
            is_too_large(&soon("the error", body(&mut link)).await);
            send(&mut link, hello).await.unwrap();
            soon("an answer after it", body(&mut link)).await;
        }
        echo(&other).await;
        drop((other, link));
        // Both children hold both pipes.
        life.ended().await;
        other_life.ended().await;
    }
    // Over HTTP the request gets 413.
    let bridge = Bridge::listen("mcp", "http://127.0.0.1:0/mcp", &words(&fixture("mcp")));
    let transport =
        StreamableTransport::new(HttpClient::new(&bridge.endpoint).unwrap().max_frame(4 * TOO_LARGE));
    let limits = rescind::Limits::default().max_frame_bytes(4 * TOO_LARGE);
    let client = Peer::builder(MCP).limits(limits).connect(transport).await.unwrap();
    soon("the handshake", client.call::<_, Value>("initialize", &hello("mcp"))).await.unwrap();
    let params = json!({"value": "x".repeat(TOO_LARGE)});
    match soon("the refusal", client.call::<_, Value>("test/echo", &params).start().unwrap().outcome()).await
    {
        Outcome::Disconnected { .. } => {}
        other => panic!("{other:?}"),
    }
    echo(&client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_of_a_later_call_arrives_after_a_call_was_cancelled() {
    for listen in ["http://127.0.0.1:0/mcp", "ws://127.0.0.1:0/mcp"] {
        let bridge = Bridge::listen("mcp", listen, &words(&fixture("mcp")));
        let client = bridge.client("mcp").await;
        let call = |count: u64, every_ms: u64| {
            let params = json!({"count": count, "every_ms": every_ms});
            client.call::<_, Value>("test/progress", &params).progress().start().unwrap()
        };
        for _ in 0..3 {
            let cancelled = call(1000, 1000);
            let mut notifications = cancelled.notifications();
            assert!(soon("its progress", notifications.next()).await.is_some());
            cancelled.canceller().cancel("");
            assert!(soon("its end", cancelled.outcome()).await.is_cancelled());

            let later = call(5, 1);
            let mut notifications = later.notifications();
            let mut seen = 0;
            while soon("its progress", notifications.next()).await.is_some() {
                seen += 1;
            }
            assert_eq!(soon("its answer", later).await.unwrap()["ticks"], 5);
            assert_eq!(seen, 5, "{listen}");
        }
    }
}

/// What the clients of a killed bridge see.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_bridge_disconnects_its_clients_and_leaves_no_child() {
    for (dialect, listen) in [("acp", "ws://127.0.0.1:0/acp"), ("mcp", "http://127.0.0.1:0/mcp")] {
        let lives = Lives::new();
        let bridge = Bridge::listen(dialect, listen, &words(&lives.child(&fixture_script(dialect))));
        let (client, life) = tokio::join!(bridge.client(dialect), lives.begun());
        let call = client
            .call::<_, Value>("test/wait", &json!({}))
            .timeout(Duration::from_secs(60))
            .start()
            .unwrap();
        until_running(&client, 1).await;
        bridge.signal(Signal::KILL);
        match soon("the loss", call.outcome()).await {
            Outcome::Disconnected { may_have_run: true } => {}
            other => panic!("{dialect}: {other:?}"),
        }
        life.ended().await;
        assert_eq!(bridge.ended().await.0, None);
    }
}
