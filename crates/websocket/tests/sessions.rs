//! Complete sessions: cancels, answers and ends over WebSocket.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::time::Duration;

use crate::common::{accept, in_time, listen};
use futures_util::{SinkExt, StreamExt};
use rescind_core::dialect::{ACP, ACP_DRAFT, ACP_V2, Dialect};
use rescind_core::{CallContext, CauseKind, Listener, Outcome, Peer, Router, Server};
use rescind_testkit::{Options, fixture::Fixture};
use rescind_websocket::{BinaryMessages, IgnoredCounter, LinkOptions, UpgradeOptions, connect};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

type Client = WebSocketStream<TcpStream>;

async fn raw(url: &str) -> Client {
    let address = url.trim_start_matches("ws://").trim_end_matches('/').to_owned();
    let tcp = TcpStream::connect(address).await.unwrap();
    tokio_tungstenite::client_async(url, tcp).await.unwrap().0
}

async fn say(client: &mut Client, message: Value) {
    client.send(Message::text(message.to_string())).await.unwrap();
}

/// The next text message. Pings are skipped.
async fn hear(client: &mut Client) -> Value {
    loop {
        match in_time("a message", client.next()).await {
            Some(Ok(Message::Text(text))) => return serde_json::from_str(&text).unwrap(),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            other => panic!("expected a message, got {other:?}"),
        }
    }
}

/// The fixture agent of a dialect, and tungstenite's client.
async fn fixture(dialect: &str, options: LinkOptions) -> (Peer, Client) {
    let mut listener = listen(UpgradeOptions::new().link(options)).await;
    let url = listener.endpoint().0;
    let (link, client) = tokio::join!(accept(&mut listener), raw(&url));
    let fixture = Fixture::new(dialect, Options::default()).unwrap();
    (fixture.serve(link.unwrap()).unwrap(), client)
}

fn waiting(event_tx: &mpsc::UnboundedSender<CauseKind>) -> Router {
    let event_tx = event_tx.clone();
    Router::new().method("echo", async |_: CallContext, params: Value| Ok(params)).method(
        "wait",
        move |ctx: CallContext, _: Value| {
            let event_tx = event_tx.clone();
            async move {
                ctx.try_notify("started", &json!({}))?;
                let cause = ctx.cancelled().await;
                event_tx.send(cause.kind())?;
                ctx.stopped::<Value>(cause)
            }
        },
    )
}

#[tokio::test]
async fn a_cancel_over_websocket_reaches_the_handler_and_is_answered() {
    let listener = listen(UpgradeOptions::new()).await;
    let url = listener.endpoint().0;
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let serving = tokio::spawn(Server::builder([ACP]).serve(waiting(&event_tx)).listen(listener).run());
    let peer = Peer::builder(ACP).connect(connect(&url)).await.unwrap();
    let call = peer.call::<_, Value>("wait", &json!({})).start().unwrap();
    let mut started = call.notifications_where(|notification| notification.method() == "started");
    in_time("the start", started.next()).await.unwrap();
    call.canceller().cancel("the user pressed stop");
    match in_time("the outcome", call.outcome()).await {
        Outcome::Cancelled(cancelled) => assert!(cancelled.confirmed),
        other => panic!("expected a cancel, got {other:?}"),
    }
    assert_eq!(event_rx.recv().await, Some(CauseKind::Peer));
    let echoed = peer.call::<_, Value>("echo", &json!({"n": 1})).start().unwrap();
    assert!(
        matches!(in_time("an echo", echoed.outcome()).await, Outcome::Completed(value) if value == json!({"n": 1}))
    );
    serving.abort();
}

#[tokio::test]
async fn a_client_that_disconnects_cancels_its_requests() {
    let listener = listen(UpgradeOptions::new()).await;
    let url = listener.endpoint().0;
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let serving = tokio::spawn(Server::builder([ACP]).serve(waiting(&event_tx)).listen(listener).run());
    for politely in [true, false] {
        let mut client = raw(&url).await;
        say(&mut client, json!({"jsonrpc": "2.0", "id": 1, "method": "wait", "params": {}})).await;
        assert_eq!(hear(&mut client).await["method"], "started");
        if politely {
            client.close(None).await.unwrap();
        }
        drop(client);
        assert_eq!(in_time("the handler's end", event_rx.recv()).await, Some(CauseKind::Disconnected));
    }
    serving.abort();
}

/// ABP: each text message has one envelope. Of the transports in that document, this library carries this one.
// covers: ABP-18, ABP-20
#[tokio::test]
async fn abp_is_one_envelope_a_text_message() {
    let (peer, mut client) = fixture("abp", LinkOptions::new()).await;
    let envelope = |kind: &str, id: &str, payload: Value| json!({"type": kind, "id": id, "timestamp": 1_767_225_600_000_u64, "payload": payload});
    say(&mut client, envelope("initialize", "i1", json!({"protocolVersion": "0.1"}))).await;
    let opened = hear(&mut client).await;
    assert_eq!((&opened["type"], &opened["id"]), (&json!("initialize-result"), &json!("i1")));
    let call = json!({"capability": "test/wait", "params": {}, "options": {"callId": "call-1"}});
    say(&mut client, envelope("capabilities/call", "m1", call)).await;
    say(&mut client, envelope("capabilities/cancel", "c1", json!({"callId": "call-1", "reason": "stop"})))
        .await;
    let ack = hear(&mut client).await;
    assert_eq!((&ack["type"], &ack["id"]), (&json!("capabilities/cancel-result"), &json!("c1")));
    assert_eq!((&ack["payload"]["callId"], &ack["payload"]["cancelled"]), (&json!("call-1"), &json!(true)));
    let result = hear(&mut client).await;
    assert_eq!((&result["type"], &result["id"]), (&json!("capabilities/call-result"), &json!("m1")));
    assert_eq!(result["payload"], json!({"success": false, "cancelled": true}));
    client.close(None).await.unwrap();
    in_time("the end", peer.closed()).await.unwrap();
}

/// ACP's draft of its HTTP and WebSocket binding: binary frames are ignored. This test also checks that the session
/// continues.
// covers: RULE-05
#[tokio::test]
async fn acp_ignores_binary_messages_and_goes_on() {
    for dialect in ["acp", "acp-v2", "acp-draft"] {
        let ignored = IgnoredCounter::new();
        let options = LinkOptions::new().binary(BinaryMessages::Ignore(ignored.clone()));
        let (_peer, mut client) = fixture(dialect, options).await;
        let request = |id: u32| {
            let params = json!({"protocolVersion": 1, "clientCapabilities": {}});
            json!({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params})
        };
        client.send(Message::binary(request(1).to_string().into_bytes())).await.unwrap();
        say(&mut client, request(2)).await;
        client.send(Message::binary(vec![0xff, 0x00])).await.unwrap();
        let answer = hear(&mut client).await;
        assert_eq!(answer["id"], 2, "{dialect}: the binary request was not heard");
        assert!(answer["result"].is_object(), "{dialect}: {answer}");
        say(&mut client, json!({"jsonrpc": "2.0", "id": 3, "method": "no/such/method"})).await;
        assert_eq!(hear(&mut client).await["id"], 3, "{dialect}: the session goes on");
        assert_eq!(ignored.total(), 2, "{dialect}");
    }
}

#[tokio::test]
async fn a_frame_that_is_not_json_gets_an_error_and_the_session_continues() {
    let (_peer, mut client) = fixture("lsp", LinkOptions::new()).await;
    for bad in ["", "{", "\u{feff}{}", "[1,2", "nul", "\"\\ud800\""] {
        client.send(Message::text(bad)).await.unwrap();
        let answer = hear(&mut client).await;
        assert!(answer["error"]["code"].is_i64() && answer["id"].is_null(), "{bad:?}: {answer}");
    }
    say(&mut client, json!({"jsonrpc": "2.0", "id": 1, "method": "test/echo", "params": {"n": 1}})).await;
    assert_eq!(hear(&mut client).await["id"], 1);
}

/// Requests that were accepted before a message that ends reading are still answered. The connection closes after
/// that.
#[tokio::test]
async fn an_oversize_message_loses_no_pending_answer() {
    let (peer, mut client) = fixture("acp", LinkOptions::new().max_frame(4096)).await;
    say(&mut client, json!({"jsonrpc": "2.0", "id": 1, "method": "test/sleep", "params": {"ms": 50}})).await;
    client.send(Message::text("x".repeat(5000))).await.unwrap();
    let refusal = hear(&mut client).await;
    assert!(refusal["id"].is_null() && refusal.to_string().contains("4096 bytes"), "{refusal}");
    let answer = hear(&mut client).await;
    assert_eq!(answer["id"], 1, "{answer}");
    assert!(answer["result"].is_object(), "{answer}");
    match in_time("the close frame", client.next()).await {
        Some(Ok(Message::Close(Some(frame)))) => assert_eq!(u16::from(frame.code), 1009),
        other => panic!("expected a close frame, got {other:?}"),
    }
    drop(client);
    in_time("the end", peer.closed()).await.unwrap();
}

#[tokio::test]
async fn an_oversize_first_message_gets_an_error_while_the_dialect_is_undecided() {
    let mut listener = listen(UpgradeOptions::new().link(LinkOptions::new().max_frame(4096))).await;
    let url = listener.endpoint().0;
    let (link, mut client) = tokio::join!(accept(&mut listener), raw(&url));
    let dialects: [Dialect; 2] = [ACP_V2, ACP_DRAFT];
    let opening = tokio::spawn(Peer::builder(dialects).serve(Router::new()).connect(link.unwrap()));
    client.send(Message::text("x".repeat(5000))).await.unwrap();
    match in_time("the close frame", client.next()).await {
        Some(Ok(Message::Close(Some(frame)))) => assert_eq!(u16::from(frame.code), 1009),
        other => panic!("expected a close frame, got {other:?}"),
    }
    assert!(opening.await.unwrap().is_err());
}

/// The peer stops reading while 4,000 answers wait: a cancel still reaches its handler at once.
#[tokio::test]
async fn a_cancel_is_read_while_four_thousand_answers_wait_to_be_written() {
    let listener = listen(UpgradeOptions::new()).await;
    let url = listener.endpoint().0;
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let router = waiting(&event_tx).method("much", async |_: CallContext, (): ()| Ok("x".repeat(2048)));
    let serving = tokio::spawn(Server::builder([ACP]).serve(router).listen(listener).run());
    let mut client = raw(&url).await;
    say(&mut client, json!({"jsonrpc": "2.0", "id": 0, "method": "wait", "params": {}})).await;
    assert_eq!(hear(&mut client).await["method"], "started");
    for id in 1..=4000 {
        let ask = json!({"jsonrpc": "2.0", "id": id, "method": "much", "params": null}).to_string();
        client.feed(Message::text(ask)).await.unwrap();
    }
    client.flush().await.unwrap();
    let asked = std::time::Instant::now();
    say(&mut client, json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 0}}))
        .await;
    assert_eq!(in_time("the handler's end", event_rx.recv()).await, Some(CauseKind::Peer));
    println!("a cancel behind 4,000 unread answers: {:?}", asked.elapsed());
    // All answers arrive when they are read.
    let mut answered = std::collections::BTreeSet::new();
    while answered.len() < 4001 {
        answered.insert(hear(&mut client).await["id"].as_i64().unwrap());
    }
    assert!(answered.into_iter().eq(0..=4000));
    serving.abort();
}

#[tokio::test]
async fn a_shutdown_closes_with_1001_and_an_idle_connection_closes_quickly() {
    let (peer, mut client) = fixture("acp", LinkOptions::new()).await;
    let far = async {
        match in_time("the close frame", client.next()).await {
            Some(Ok(Message::Close(Some(frame)))) => assert_eq!(u16::from(frame.code), 1001),
            other => panic!("expected a close frame, got {other:?}"),
        }
        assert!(client.next().await.is_none());
    };
    let shutdown = async {
        let limit = Duration::from_secs(5);
        in_time("the shutdown", tokio::time::timeout(limit, peer.shutdown(Duration::from_secs(1))))
            .await
            .expect("in good time");
    };
    tokio::join!(far, shutdown);
}
