//! A link over a pipe in memory, with the clock stopped, and tungstenite as its peer.

use std::future::poll_fn;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rescind_core::{ExchangeId, FrameInfo, FrameKind, Lane, Outbound, TransportEvent};
use tokio::io::DuplexStream;
use tokio::time::Instant;

use super::*;

type Peer = WebSocketStream<DuplexStream>;

/// The link of a server, and the client at its other end, over a pipe of this many bytes.
async fn pair(room: usize, options: &LinkOptions) -> (Link, Peer) {
    let (ours, theirs) = tokio::io::duplex(room);
    let link = served(ours, options, PeerInfo::default(), None, None).await;
    (link, WebSocketStream::from_raw_socket(theirs, Role::Client, None).await)
}

async fn event(link: &mut Link) -> Option<Result<TransportEvent, TransportError>> {
    poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await
}

async fn is_pending(link: &mut Link) -> bool {
    poll_fn(|cx| Poll::Ready(link.rx.as_mut().poll_event(cx).is_pending())).await
}

fn note(lane: Lane, body: String) -> Outbound {
    let head = FrameInfo { kind: FrameKind::Notification, id: None, method: None, trace: None };
    Outbound { body: body.into(), exchange: ExchangeId::NONE, lane, head, last: false }
}

fn is_ready(link: &mut Link, lane: Lane) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    link.tx.as_mut().poll_ready(lane, &mut cx).is_ready()
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_misses_two_pings_is_disconnected() {
    let (mut link, _silent) = pair(4096, &LinkOptions::new()).await;
    let began = Instant::now();
    let end = event(&mut link).await.unwrap().unwrap_err();
    assert_eq!(end.kind, TransportErrorKind::Closed);
    assert!(end.to_string().contains("ping"), "{end}");
    assert_eq!(began.elapsed(), Duration::from_secs(60), "pings at 20 s and 40 s, both unanswered at 60 s");
    assert!(event(&mut link).await.is_none());
    assert!(
        link.tx.as_mut().start_send(note(Lane::Data, "{}".into())).is_err(),
        "both halves report the close"
    );
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_answers_pings_stays_connected() {
    let (mut link, mut peer) = pair(4096, &LinkOptions::new()).await;
    // tungstenite answers pings only while it reads.
    let peer = tokio::spawn(async move {
        let mut pings = 0;
        while let Some(Ok(message)) = peer.next().await {
            if message.is_ping() {
                pings += 1;
            }
            if pings == 100 {
                peer.send(Message::text("\"alive\"")).await.unwrap();
                break;
            }
        }
        peer
    });
    let began = Instant::now();
    match event(&mut link).await {
        Some(Ok(TransportEvent::Message(inbound))) => assert_eq!(inbound.body, "\"alive\""),
        other => panic!("expected the frame, got {other:?}"),
    }
    assert_eq!(began.elapsed(), Duration::from_secs(2000));
    drop(peer.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_large_message_on_a_slow_connection_counts_as_a_sign_of_life() {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    let mut link = served(ours, &LinkOptions::new(), PeerInfo::default(), None, None).await;
    // A text message of 1 MiB, masked with zeros, 64 KiB every 19 s: its sender cannot answer a ping before its end.
    let size: usize = 1 << 20;
    let head = [&[0x81, 0xff][..], &(size as u64).to_be_bytes(), &[0; 4]].concat();
    let slow = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        theirs.write_all(&head).await.unwrap();
        let part = vec![b'7'; 64 * 1024];
        for _ in 0..size / part.len() {
            tokio::time::sleep(Duration::from_secs(19)).await;
            theirs.write_all(&part).await.unwrap();
        }
        theirs
    });
    match event(&mut link).await {
        Some(Ok(TransportEvent::Message(inbound))) => assert_eq!(inbound.body.len(), size),
        other => panic!("expected the frame, got {other:?}"),
    }
    drop(slow.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_few_bytes_between_pings_are_not_a_sign_of_life() {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    let mut link = served(ours, &LinkOptions::new(), PeerInfo::default(), None, None).await;
    let trickle = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        let _ = theirs.write_all(&[0x81, 0xfe, 0x7f, 0xff, 0, 0, 0, 0]).await;
        while theirs.write_all(b"7").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let began = Instant::now();
    assert!(event(&mut link).await.unwrap().is_err());
    assert_eq!(began.elapsed(), Duration::from_secs(60));
    drop(link);
    trickle.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_pings_a_silent_peer_stays_connected() {
    let (mut link, _silent) = pair(4096, &LinkOptions::new().no_pings()).await;
    let waited = tokio::time::timeout(Duration::from_secs(100_000), event(&mut link)).await;
    assert!(waited.is_err(), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn messages_are_read_while_a_write_is_blocked() {
    let (mut link, mut peer) = pair(1024, &LinkOptions::new()).await;
    // The peer reads nothing: the pipe becomes full, and then the buffer of the sender.
    let mut taken = 0;
    while is_ready(&mut link, Lane::Data) {
        link.tx.as_mut().start_send(note(Lane::Data, format!("\"{}\"", "x".repeat(1000)))).unwrap();
        taken += 1;
    }
    assert!((30..40).contains(&taken), "data frames are held up to 32 KiB, not {taken} frames of 1 KiB");
    assert!(is_ready(&mut link, Lane::Control), "control frames have room when data frames have none");
    link.tx.as_mut().start_send(note(Lane::Control, "\"cancel\"".into())).unwrap();
    // Pings between the frames: their answers wait behind the blocked frames and delay nothing.
    for number in 0..60 {
        peer.feed(Message::Ping(vec![1].into())).await.unwrap();
        peer.send(Message::text(number.to_string())).await.unwrap();
        match event(&mut link).await {
            Some(Ok(TransportEvent::Message(inbound))) => assert_eq!(inbound.body, number.to_string()),
            other => panic!("expected frame {number}, got {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pongs_owed_to_a_peer_that_does_not_read_are_bounded() {
    let (mut link, mut peer) = pair(1024, &LinkOptions::new()).await;
    while is_ready(&mut link, Lane::Data) {
        link.tx.as_mut().start_send(note(Lane::Data, "x".repeat(1000))).unwrap();
    }
    let flood = async {
        // Until the link disconnects.
        while peer.send(Message::Ping(vec![0; 125].into())).await.is_ok() {}
    };
    let end = async {
        let end = event(&mut link).await.unwrap().unwrap_err();
        assert!(end.to_string().contains("64 pings"), "{end}");
        drop(link);
    };
    tokio::join!(flood, end);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_can_ping_without_limit() {
    let (mut link, mut peer) = pair(1024, &LinkOptions::new()).await;
    let pings = async {
        for number in 0..1000_u32 {
            peer.send(Message::Ping(number.to_be_bytes().to_vec().into())).await.unwrap();
            match peer.next().await {
                Some(Ok(Message::Pong(body))) => assert_eq!(body, number.to_be_bytes().to_vec()),
                other => panic!("expected pong {number}, got {other:?}"),
            }
        }
        peer.send(Message::text("\"done\"")).await.unwrap();
    };
    let (events, ()) = tokio::join!(event(&mut link), pings);
    assert!(matches!(events, Some(Ok(TransportEvent::Message(_)))), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn closing_waits_one_second_for_a_peer_that_does_not_answer() {
    let (mut link, mut peer) = pair(4096, &LinkOptions::new()).await;
    let began = Instant::now();
    let why = CloseReason::Violation("too many connections".to_owned());
    poll_fn(|cx| link.tx.as_mut().poll_close(&why, cx)).await.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    match peer.next().await {
        Some(Ok(Message::Close(Some(frame)))) => {
            assert_eq!((u16::from(frame.code), frame.reason.as_str()), (1008, "too many connections"));
        }
        other => panic!("expected a close frame, got {other:?}"),
    }
    assert!(event(&mut link).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn closing_during_a_blocked_write_reports_the_lost_bytes() {
    let (mut link, _deaf) = pair(1024, &LinkOptions::new()).await;
    while is_ready(&mut link, Lane::Data) {
        link.tx.as_mut().start_send(note(Lane::Data, "x".repeat(1000))).unwrap();
    }
    let closed = poll_fn(|cx| link.tx.as_mut().poll_close(&CloseReason::Normal, cx)).await;
    assert!(closed.unwrap_err().to_string().contains("did not read"));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_link_sends_a_close_frame_and_runs_its_hook_once() {
    let (ours, theirs) = tokio::io::duplex(4096);
    let (events_tx, mut events) = tokio::sync::mpsc::unbounded_channel();
    let hook: OnClose = Box::new(move || events_tx.send(()).unwrap());
    let link = served(ours, &LinkOptions::new(), PeerInfo::default(), None, Some(hook)).await;
    let mut peer = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
    assert!(events.try_recv().is_err(), "not before the end");
    drop(link);
    assert_eq!(events.recv().await, Some(()));
    assert_eq!(events.recv().await, None);
    match peer.next().await {
        Some(Ok(Message::Close(Some(frame)))) => assert_eq!(u16::from(frame.code), 1001),
        other => panic!("expected a close frame, got {other:?}"),
    }
}

/// Messages whose sizes are on both sides of the size from which they are not copied.
fn texts() -> Vec<String> {
    let large = WriteQueue::LARGE_BODY;
    let sizes = [1, large, large - 1, 3 * large, 0, 100_000, large, 7];
    sizes.into_iter().zip('a'..).map(|(size, letter)| letter.to_string().repeat(size)).collect()
}

#[tokio::test(start_paused = true)]
async fn large_messages_keep_their_order_among_small_ones_in_both_roles() {
    for (role, other) in [(Role::Server, Role::Client), (Role::Client, Role::Server)] {
        let (ours, theirs) = tokio::io::duplex(1024);
        let options = LinkOptions::new();
        let ours =
            WebSocketStream::from_raw_socket(CountingIo::new(ours), role, Some(config(&options))).await;
        let mut link = super::link(ours, role, &options, PeerInfo::default(), None, None);
        let mut peer = WebSocketStream::from_raw_socket(theirs, other, None).await;
        let sent = async {
            for text in texts() {
                poll_fn(|cx| link.tx.as_mut().poll_ready(Lane::Control, cx)).await.unwrap();
                link.tx.as_mut().start_send(note(Lane::Data, text)).unwrap();
            }
            poll_fn(|cx| link.tx.as_mut().poll_flush(cx)).await.unwrap();
            poll_fn(|cx| link.tx.as_mut().poll_close(&CloseReason::Normal, cx)).await.unwrap();
        };
        let read = async {
            for text in texts() {
                assert_eq!(peer.next().await.unwrap().unwrap(), Message::text(text));
            }
            assert!(matches!(peer.next().await, Some(Ok(Message::Close(Some(_))))));
            assert!(peer.next().await.is_none(), "it answers the close frame");
        };
        tokio::join!(sent, read);
    }
}

#[tokio::test(start_paused = true)]
async fn pings_are_answered_after_a_large_message_that_is_being_written() {
    let (mut link, mut peer) = pair(1024, &LinkOptions::new()).await;
    link.tx.as_mut().start_send(note(Lane::Data, "x".repeat(100_000))).unwrap();
    assert!(poll_fn(|cx| Poll::Ready(link.tx.as_mut().poll_flush(cx).is_pending())).await);
    peer.send(Message::Ping(vec![7].into())).await.unwrap();
    assert!(is_pending(&mut link).await, "the ping is read although the write waits");
    let read = async {
        assert_eq!(peer.next().await.unwrap().unwrap(), Message::text("x".repeat(100_000)));
        assert_eq!(peer.next().await.unwrap().unwrap(), Message::Pong(vec![7].into()));
    };
    let flushed = poll_fn(|cx| link.tx.as_mut().poll_flush(cx));
    let (flushed, ()) = tokio::join!(flushed, read);
    flushed.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_close_frame_follows_a_large_message() {
    let (mut link, mut peer) = pair(1024, &LinkOptions::new()).await;
    link.tx.as_mut().start_send(note(Lane::Data, "x".repeat(100_000))).unwrap();
    peer.send(Message::Close(None)).await.unwrap();
    let end = async {
        assert!(event(&mut link).await.is_none());
        let _ = poll_fn(|cx| link.tx.as_mut().poll_close(&CloseReason::Normal, cx)).await;
    };
    let read = async {
        assert_eq!(peer.next().await.unwrap().unwrap(), Message::text("x".repeat(100_000)));
        assert!(matches!(peer.next().await, Some(Ok(Message::Close(None)))));
    };
    tokio::join!(end, read);
}

#[tokio::test(start_paused = true)]
async fn a_frame_over_the_limit_is_refused_and_the_link_continues() {
    let (mut link, mut peer) = pair(4096, &LinkOptions::new().max_frame(16)).await;
    let large = link.tx.as_mut().start_send(note(Lane::Data, "x".repeat(17))).unwrap_err();
    assert_eq!((large.kind, large.exchange), (TransportErrorKind::TooLarge, Some(ExchangeId::NONE)));
    let mut out = note(Lane::Data, String::new());
    out.body = vec![0xff].into();
    let torn = link.tx.as_mut().start_send(out).unwrap_err();
    assert_eq!((torn.kind, torn.exchange), (TransportErrorKind::Framing, Some(ExchangeId::NONE)));
    link.tx.as_mut().start_send(note(Lane::Data, "x".repeat(16))).unwrap();
    poll_fn(|cx| link.tx.as_mut().poll_flush(cx)).await.unwrap();
    assert_eq!(peer.next().await.unwrap().unwrap(), Message::text("x".repeat(16)));
    assert!(is_pending(&mut link).await);
}

/// The link of a server that counts in a budget of this many bytes, which are all in use.
async fn without_memory(budget: usize) -> (Link, Peer, rescind_core::HeldBytes) {
    let (link, peer) = pair(1 << 20, &LinkOptions::new()).await;
    let server = rescind_core::ByteBudget::new(budget);
    link.budget.set_parent(&server);
    let others = server.hold(budget);
    (link, peer, others)
}

#[tokio::test(start_paused = true)]
async fn a_large_message_waits_for_memory_and_a_small_one_does_not() {
    let (mut link, mut peer, others) = without_memory(1 << 20).await;
    peer.send(Message::text("small")).await.unwrap();
    assert!(matches!(event(&mut link).await, Some(Ok(TransportEvent::Message(_)))));
    peer.send(Message::text("x".repeat(500_000))).await.unwrap();
    peer.send(Message::text("small")).await.unwrap();
    assert!(is_pending(&mut link).await, "others hold all there is");
    drop(others);
    for size in [500_000, 5] {
        match event(&mut link).await {
            Some(Ok(TransportEvent::Message(inbound))) => assert_eq!(inbound.body.len(), size),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(link.budget.parent().unwrap().used(), 0, "a complete message is counted by its handler");
}

#[tokio::test(start_paused = true)]
async fn a_large_message_without_memory_for_10_s_closes_with_1013() {
    let (mut link, mut peer, _others) = without_memory(1 << 20).await;
    peer.send(Message::text("x".repeat(500_000))).await.unwrap();
    let began = Instant::now();
    match event(&mut link).await {
        Some(Ok(TransportEvent::Rejected { why, .. })) => assert_eq!(why, BadFrame::MemoryFull),
        other => panic!("{other:?}"),
    }
    assert_eq!(began.elapsed(), Duration::from_secs(10));
    assert!(matches!(event(&mut link).await, Some(Ok(TransportEvent::HalfClosed))));
    let close = async {
        let why = CloseReason::Normal;
        let _ = poll_fn(|cx| link.tx.as_mut().poll_close(&why, cx)).await;
    };
    let read = async {
        loop {
            match peer.next().await {
                Some(Ok(Message::Close(Some(frame)))) => return u16::from(frame.code),
                Some(Ok(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    let ((), code) = tokio::join!(close, read);
    assert_eq!(code, 1013);
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let text = "é".repeat(100);
    let frame = close_frame_of(&CloseReason::Violation(text));
    assert_eq!(frame.reason.len(), 122);
    assert_eq!(frame.code, CloseCode::Policy);
}

#[test]
fn each_bad_frame_has_its_close_code() {
    let codes = [
        (BadFrame::TooLarge { limit: 1 }, 1009),
        (BadFrame::Binary, 1003),
        (BadFrame::NotUtf8, 1007),
        (BadFrame::Broken, 1002),
        (BadFrame::MemoryFull, 1013),
    ];
    for (why, code) in codes {
        assert_eq!(u16::from(close_frame_after(why).code), code, "{why}");
    }
}

#[test]
fn only_a_regular_close_is_not_a_violation() {
    let reason = |code: u16| {
        close_reason_of(Some(&CloseFrame { code: code.into(), reason: Utf8Bytes::from("a\nb\u{202e}") }))
    };
    assert_eq!(reason(1000), CloseReason::Normal);
    assert_eq!(reason(1005), CloseReason::Normal);
    assert_eq!(reason(1001), CloseReason::Shutdown);
    assert_eq!(reason(1012), CloseReason::Shutdown);
    let reported = CloseReason::Violation("the peer closed with code 1008: a\\nb\\u{202e}".to_owned());
    assert_eq!(reason(1008), reported);
    assert_eq!(close_reason_of(None), CloseReason::Normal);
}
