//! How messages of every kind are received, against tungstenite's client and server; and complete sessions: cancels,
//! answers and ends, and the shares of clients.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rescind_core::dialect::{ACP, ACP_DRAFT, ACP_V2, Dialect};
use rescind_core::{
    BadFrame, BadMessage, CallContext, CauseKind, CloseReason, Deviation, Link, Listener, Outcome, Peer,
    Router, Server, Transport, TransportEvent,
};
use rescind_testkit::support::frames::note;
use rescind_testkit::{Options, fixture::Fixture};
use rescind_websocket::{BinaryMessages, IgnoredCounter, LinkOptions, UpgradeOptions, connect};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};

use crate::common::{accept, body, close, event, in_time, listen, send};

type Client = WebSocketStream<TcpStream>;

/// A link of our server, and tungstenite's client.
async fn served(options: LinkOptions) -> (Link, Client) {
    let mut listener = listen(UpgradeOptions::new().link(options)).await;
    let url = listener.endpoint().0;
    let client = async {
        let tcp = TcpStream::connect(listener_address(&url)).await.unwrap();
        tokio_tungstenite::client_async(&url, tcp).await.unwrap().0
    };
    let (link, client) = tokio::join!(accept(&mut listener), client);
    (link.unwrap(), client)
}

fn listener_address(url: &str) -> String {
    url.trim_start_matches("ws://").trim_end_matches('/').to_owned()
}

/// The close code that tungstenite reads. Earlier messages are skipped.
async fn close_code(client: &mut Client) -> u16 {
    loop {
        match in_time("the close frame", client.next()).await {
            Some(Ok(Message::Close(Some(frame)))) => return frame.code.into(),
            Some(Ok(Message::Close(None))) | None => panic!("closed without a code"),
            Some(Ok(_)) => {}
            Some(Err(error)) => panic!("no close frame, but {error}"),
        }
    }
}

/// Expects the refusal, then the end of input, then the close frame with this code.
async fn refused(mut link: Link, mut client: Client, why: BadFrame, code: u16) {
    match event(&mut link).await {
        Some(Ok(TransportEvent::Rejected { why: reported, .. })) => assert_eq!(reported, why),
        other => panic!("expected the refusal, got {other:?}"),
    }
    let half = event(&mut link).await;
    assert!(matches!(half, Some(Ok(TransportEvent::HalfClosed))), "{half:?}");
    send(&mut link, "\"the answer to what came before\"").await.unwrap();
    let far = async {
        let text = in_time("the answer", client.next()).await.unwrap().unwrap();
        assert_eq!(text, Message::text("\"the answer to what came before\""));
        assert_eq!(close_code(&mut client).await, code);
        drop(client);
    };
    let (closed, ()) = tokio::join!(close(&mut link, CloseReason::Normal), far);
    closed.unwrap();
    assert!(event(&mut link).await.is_none());
}

#[tokio::test]
async fn a_text_message_is_a_frame_both_ways() {
    let (mut link, mut client) = served(LinkOptions::new()).await;
    client.send(Message::text("{\"id\":1}")).await.unwrap();
    assert_eq!(body(&mut link).await, "{\"id\":1}");
    send(&mut link, "{\"id\":1,\"result\":\"\u{e9}\"}").await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::text("{\"id\":1,\"result\":\"\u{e9}\"}"));
}

#[tokio::test]
async fn our_client_works_with_a_tungstenite_server() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/some/path?and=query", tcp.local_addr().unwrap());
    let server = async {
        let (socket, _) = tcp.accept().await.unwrap();
        let mut server = tokio_tungstenite::accept_async(socket).await.unwrap();
        // Sent directly after the handshake's answer. It must not be lost.
        server.feed(Message::text("\"first\"")).await.unwrap();
        server.flush().await.unwrap();
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("\"ours\""));
        server
    };
    let client = async {
        let mut link = Box::new(connect(&url)).open().await.unwrap();
        assert_eq!(body(&mut link).await, "\"first\"");
        send(&mut link, "\"ours\"").await.unwrap();
        link
    };
    let (mut server, mut link) = in_time("a foreign server", async { tokio::join!(server, client) }).await;
    assert_eq!(link.meta.peer.as_deref(), Some(url.trim_start_matches("ws://").split('/').next().unwrap()));
    let far = async {
        match server.next().await {
            Some(Ok(Message::Close(Some(frame)))) => assert_eq!(u16::from(frame.code), 1001),
            other => panic!("expected a close frame, got {other:?}"),
        }
        assert!(server.next().await.is_none());
    };
    let (closed, ()) = tokio::join!(close(&mut link, CloseReason::Shutdown), far);
    closed.unwrap();
}

#[tokio::test]
async fn fragments_are_one_frame_and_pings_may_come_between() {
    let (mut link, mut client) = served(LinkOptions::new()).await;
    let part =
        |bytes: &'static [u8], code, last| Message::Frame(Frame::message(bytes, OpCode::Data(code), last));
    client.feed(part(b"[1,", Data::Text, false)).await.unwrap();
    client.feed(Message::Ping(vec![7].into())).await.unwrap();
    client.feed(part(b"2,", Data::Continue, false)).await.unwrap();
    client.feed(part(b"", Data::Continue, false)).await.unwrap();
    client.send(part(b"3]", Data::Continue, true)).await.unwrap();
    assert_eq!(body(&mut link).await, "[1,2,3]");
    // A character may be split in two.
    client.feed(part(b"\"\xc3", Data::Text, false)).await.unwrap();
    client.send(part(b"\xa9\"", Data::Continue, true)).await.unwrap();
    assert_eq!(body(&mut link).await, "\"\u{e9}\"");
    assert_eq!(client.next().await.unwrap().unwrap(), Message::Pong(vec![7].into()));
}

#[tokio::test]
async fn a_binary_message_is_refused_and_closes_with_1003() {
    let (link, mut client) = served(LinkOptions::new()).await;
    client.send(Message::binary(&b"{\"id\":1}"[..])).await.unwrap();
    refused(link, client, BadFrame::Binary, 1003).await;
}

#[tokio::test]
async fn a_client_ends_with_the_reason_after_a_binary_message() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    let server = async {
        let (tcp, _) = listener.accept().await.unwrap();
        tokio_tungstenite::accept_async(tcp).await.unwrap()
    };
    let (link, mut server) = tokio::join!(Box::new(connect(&url)).open(), server);
    let mut link = link.unwrap();
    server.send(Message::binary(&b"{\"id\":1}"[..])).await.unwrap();
    let dropped = event(&mut link).await.unwrap().unwrap();
    assert!(matches!(dropped, TransportEvent::Rejected { why: BadFrame::Binary, .. }), "{dropped:?}");
    let error = event(&mut link).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("binary"), "{error}");
    drop(link);
    assert_eq!(close_code(&mut server).await, 1003);
}

#[tokio::test]
async fn binary_messages_are_ignored_and_counted_where_that_is_set() {
    let ignored = IgnoredCounter::new();
    let (mut link, mut client) =
        served(LinkOptions::new().binary(BinaryMessages::Ignore(ignored.clone()))).await;
    for _ in 0..100 {
        client.feed(Message::binary(&b"{\"id\":1}"[..])).await.unwrap();
    }
    client.send(Message::text("\"after\"")).await.unwrap();
    for _ in 0..100 {
        let told = event(&mut link).await.unwrap().unwrap();
        let dropped = Deviation::Dropped(BadMessage::Frame(BadFrame::Binary));
        assert!(
            matches!(told, TransportEvent::Deviation { deviation, .. } if deviation == dropped),
            "{told:?}"
        );
    }
    assert_eq!(body(&mut link).await, "\"after\"");
    assert_eq!(ignored.total(), 100);
    send(&mut link, "\"still open\"").await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::text("\"still open\""));
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_and_closes_with_1009() {
    let (mut link, mut client) = served(LinkOptions::new().max_frame(1000)).await;
    client.send(Message::text("x".repeat(1000))).await.unwrap();
    assert_eq!(body(&mut link).await.len(), 1000);
    client.send(Message::text("x".repeat(1001))).await.unwrap();
    refused(link, client, BadFrame::TooLarge { limit: 1000 }, 1009).await;
}

#[tokio::test]
async fn fragments_over_the_limit_together_are_refused_too() {
    let (link, mut client) = served(LinkOptions::new().max_frame(1000)).await;
    let part = |code, last| Message::Frame(Frame::message(vec![b'x'; 600], OpCode::Data(code), last));
    client.feed(part(Data::Text, false)).await.unwrap();
    client.send(part(Data::Continue, true)).await.unwrap();
    refused(link, client, BadFrame::TooLarge { limit: 1000 }, 1009).await;
}

#[tokio::test]
async fn a_client_that_still_writes_its_oversize_message_reads_why_it_was_refused() {
    let (link, client) = served(LinkOptions::new().max_frame(1000)).await;
    // 8 MiB are more than the sockets buffer. If they were not read, the system would discard the close frame.
    let (mut write, mut read) = client.split();
    let writing = tokio::spawn(async move {
        let _ = write.send(Message::text("x".repeat(8 << 20))).await;
    });
    let mut link = link;
    assert!(matches!(event(&mut link).await, Some(Ok(TransportEvent::Rejected { .. }))));
    assert!(matches!(event(&mut link).await, Some(Ok(TransportEvent::HalfClosed))));
    let far = async {
        match in_time("the close frame", read.next()).await {
            Some(Ok(Message::Close(Some(frame)))) => assert_eq!(u16::from(frame.code), 1009),
            other => panic!("expected a close frame, got {other:?}"),
        }
        writing.abort();
        drop(read);
        let _ = writing.await;
    };
    let (closed, ()) = tokio::join!(close(&mut link, CloseReason::Normal), far);
    closed.unwrap();
}

#[tokio::test]
async fn invalid_utf8_closes_with_1007() {
    let (link, mut client) = served(LinkOptions::new()).await;
    let bad = Frame::message(&b"{\"id\":\"\xff\"}"[..], OpCode::Data(Data::Text), true);
    client.send(Message::Frame(bad)).await.unwrap();
    refused(link, client, BadFrame::NotUtf8, 1007).await;
}

#[tokio::test]
async fn broken_framing_closes_with_1002() {
    // A reserved opcode; a continuation of nothing; reserved bits.
    for head in [0x83_u8, 0x80, 0xf1] {
        let (link, mut client) = served(LinkOptions::new()).await;
        client.get_mut().write_all(&[head, 0x80, 0, 0, 0, 0]).await.unwrap();
        refused(link, client, BadFrame::Broken, 1002).await;
    }
    // A client that does not mask.
    let (link, mut client) = served(LinkOptions::new()).await;
    client.get_mut().write_all(b"\x81\x02{}").await.unwrap();
    refused(link, client, BadFrame::Broken, 1002).await;
}

#[tokio::test]
async fn frames_may_come_one_byte_at_a_time() {
    let (mut link, mut client) = served(LinkOptions::new()).await;
    let wire = [&b"\x81\x82\0\0\0\0{}"[..], b"\x89\x80\0\0\0\0", b"\x81\x87\0\0\0\0[1,2,3]"].concat();
    let write = async {
        client.get_mut().set_nodelay(true).unwrap();
        for byte in wire {
            client.get_mut().write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let read = async {
        assert_eq!(body(&mut link).await, "{}");
        assert_eq!(body(&mut link).await, "[1,2,3]");
    };
    tokio::join!(write, read);
}

#[tokio::test]
async fn an_end_inside_a_message_yields_no_frame() {
    let (mut link, mut client) = served(LinkOptions::new()).await;
    client.get_mut().write_all(b"\x81\x82\0\0\0\0{}\x81\x87\0\0\0\0[1,").await.unwrap();
    drop(client);
    assert_eq!(body(&mut link).await, "{}");
    let end = event(&mut link).await.unwrap().unwrap_err();
    assert!(end.to_string().contains("without closing"), "{end}");
    assert!(event(&mut link).await.is_none());
}

#[tokio::test]
async fn the_peers_close_code_decides_between_end_and_error() {
    for (code, good) in
        [(1000_u16, true), (1001, true), (1012, true), (1002, false), (1008, false), (4000, false)]
    {
        let (mut link, mut client) = served(LinkOptions::new()).await;
        let frame = CloseFrame { code: CloseCode::from(code), reason: "a\nreason".into() };
        client.close(Some(frame)).await.unwrap();
        match event(&mut link).await {
            None => assert!(good, "{code}"),
            Some(Err(error)) => {
                assert!(!good && error.to_string().contains(&format!("{code}: a\\nreason")), "{error}");
            }
            other => panic!("expected the end, got {other:?}"),
        }
        // Its close frame was answered, although this side was not closed.
        assert_eq!(close_code(&mut client).await, code);
        assert!(link.tx.as_mut().start_send(note(rescind_core::Lane::Data, "{}")).is_err());
    }
}

#[tokio::test]
async fn closing_ends_the_socket() {
    let (mut link, mut client) = served(LinkOptions::new()).await;
    let far = async {
        assert_eq!(close_code(&mut client).await, 1000);
        assert!(client.next().await.is_none());
        let mut rest = Vec::new();
        client.get_mut().read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty());
    };
    let near = async {
        close(&mut link, CloseReason::Normal).await.unwrap();
        drop(link);
    };
    in_time("the end of the socket", async { tokio::join!(near, far) }).await;
}

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

/// Clients that differ by their addresses: one of them holds connections without using them, and others are still
/// accepted.
#[cfg(target_os = "linux")]
mod shares {
    use futures_util::{SinkExt, StreamExt};
    use rescind_core::dialect::ACP;
    use rescind_core::{CallContext, Listener, Router, Server, ServerCounts, ServerLimits};
    use rescind_websocket::{LinkOptions, UpgradeOptions};
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::task::JoinHandle;
    use tokio_tungstenite::tungstenite::Message;

    use super::Client;
    use crate::common::{accept, in_time, listen};

    const MALLORY: &str = "127.0.0.1";
    const ADA: &str = "127.0.0.2";
    const MOST: usize = 8;

    async fn socket(url: &str, from: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        let address = url.trim_start_matches("ws://").trim_end_matches('/');
        socket.connect(address.parse().unwrap()).await.unwrap()
    }

    async fn client(url: &str, from: &str) -> Client {
        tokio_tungstenite::client_async(url, socket(url, from).await).await.unwrap().0
    }

    async fn serve() -> (String, ServerCounts, JoinHandle<()>) {
        let ping = LinkOptions::new().ping_every(std::time::Duration::from_millis(50));
        let listener = listen(UpgradeOptions::new().link(ping)).await;
        let url = listener.endpoint().0;
        let router = Router::new().method("echo", async |_: CallContext, value: Value| Ok(value));
        let mut limits = ServerLimits::default();
        limits.max_connections = MOST;
        let server = Server::builder([ACP]).serve(router).server_limits(limits).listen(listener);
        let counts = server.counts();
        (url, counts, tokio::spawn(async move { server.run().await.unwrap() }))
    }

    /// Waits until the server closes it, and returns the code and the reason. Until then pings are answered.
    async fn closed(client: &mut Client) -> (u16, String) {
        in_time("the close", async {
            loop {
                match client.next().await {
                    Some(Ok(Message::Close(Some(frame)))) => {
                        return (frame.code.into(), frame.reason.to_string());
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    other => panic!("expected a close, got {other:?}"),
                }
            }
        })
        .await
    }

    /// An echo. `Err`: the connection was closed instead.
    async fn echo(client: &mut Client) -> Result<(), (u16, String)> {
        let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": [1]});
        let _ = client.send(Message::text(ask.to_string())).await;
        in_time("the echo", async {
            loop {
                match client.next().await {
                    Some(Ok(Message::Text(_))) => return Ok(()),
                    Some(Ok(Message::Close(Some(frame)))) => {
                        return Err((frame.code.into(), frame.reason.to_string()));
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    other => panic!("expected an answer, got {other:?}"),
                }
            }
        })
        .await
    }

    #[tokio::test]
    async fn idle_connections_that_answer_pings_are_displaced() {
        let (url, counts, serving) = serve().await;
        let mut used = client(&url, ADA).await;
        echo(&mut used).await.unwrap();
        // Every connection answers its pings all the time: one that does not is cut off soon.
        let (ask, asked) = tokio::sync::oneshot::channel();
        let used = tokio::spawn(async move {
            tokio::select! {
                _ = asked => echo(&mut used).await,
                close = closed(&mut used) => Err(close),
            }
        });
        let mut idle = Vec::new();
        for _ in 0..5 * MOST {
            let mut client = client(&url, MALLORY).await;
            idle.push(tokio::spawn(async move { closed(&mut client).await }));
        }
        // The oldest one is closed in the same way as an idle one.
        assert_eq!(idle.remove(0).await.unwrap().0, 1001);
        let mut ada = client(&url, ADA).await;
        ask.send(()).unwrap();
        assert_eq!((echo(&mut ada).await, used.await.unwrap()), (Ok(()), Ok(())));
        assert!(counts.sessions() <= MOST && counts.displaced() >= 4 * MOST, "{counts:?}");
        for task in idle {
            task.abort();
        }
        serving.abort();
    }

    #[tokio::test]
    async fn connections_in_use_of_one_address_are_half_of_them_at_most() {
        let (url, counts, serving) = serve().await;
        let mut open = Vec::new();
        for _ in 0..MOST {
            let mut client = client(&url, MALLORY).await;
            match echo(&mut client).await {
                Ok(()) => open.push(client),
                Err((code, why)) => assert_eq!((code, &*why), (1008, "too many connections of this client")),
            }
        }
        assert_eq!((open.len(), counts.sessions(), counts.clients()), (MOST / 2, MOST / 2, 1));
        let mut ada = client(&url, ADA).await;
        assert_eq!(echo(&mut ada).await, Ok(()));
        drop((open, ada));
        in_time("the end of all", async {
            while counts.clients() > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        serving.abort();
    }

    #[tokio::test]
    async fn slow_handshakes_of_one_address_use_at_most_half_of_the_handshakes() {
        let mut listener = listen(UpgradeOptions::new().handshakes(4)).await;
        let url = listener.endpoint().0;
        let mut slow = Vec::new();
        for _ in 0..16 {
            slow.push(socket(&url, MALLORY).await);
        }
        let (ada, link) = tokio::join!(client(&url, ADA), accept(&mut listener));
        link.unwrap();
        drop(ada);
        // Above twice its share a connection is cut off without a response. Below that it gets one.
        let mut reported = Vec::new();
        let last = slow.last_mut().unwrap();
        let _ = last.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").await;
        assert!(in_time("the cut", last.read_to_end(&mut reported)).await.is_err() || reported.is_empty());
    }
}
