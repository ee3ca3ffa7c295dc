//! How messages of every kind are received, against tungstenite's client and server.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use crate::common::{accept, body, close, event, in_time, listen, send};
use futures_util::{SinkExt, StreamExt};
use rescind_core::{BadFrame, CloseReason, Link, Listener, Transport, TransportEvent};
use rescind_testkit::support::frames::note;
use rescind_websocket::{BinaryMessages, IgnoredCounter, LinkOptions, UpgradeOptions, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};

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
async fn binary_messages_are_ignored_and_counted_where_that_is_set() {
    let ignored = IgnoredCounter::new();
    let (mut link, mut client) =
        served(LinkOptions::new().binary(BinaryMessages::Ignore(ignored.clone()))).await;
    for _ in 0..100 {
        client.feed(Message::binary(&b"{\"id\":1}"[..])).await.unwrap();
    }
    client.send(Message::text("\"after\"")).await.unwrap();
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
