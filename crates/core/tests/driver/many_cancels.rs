//! The behaviour of a connection with very many cancels.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use rescind_core::dialect::{ACP, MCP};
use rescind_core::{Call, Limits, Link, Peer, Receiver, TransportEvent, memory_pair};
use serde_json::{Value, json};

use crate::driver::wire::probe::{TRAITS, cancel, open as open_probe, request};

/// More than any transport buffers.
const CALLS: usize = 10_000;

type Rx = Pin<Box<dyn Receiver>>;

/// Makes this many calls, and waits until the peer has read them and the driver sleeps.
async fn open() -> (Peer, Vec<Call<Value>>, Link) {
    let (ours, mut theirs) = memory_pair();
    let peer = Peer::builder(ACP).attach(ours).unwrap();
    let calls = (0..CALLS).map(|_| peer.call("wait", &json!({})).start().unwrap()).collect();
    for _ in 0..CALLS {
        next(&mut theirs.rx).await;
    }
    turn().await;
    (peer, calls, theirs)
}

/// Gives every ready task one turn. The yield of the runtime gives them many.
async fn turn() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn next(rx: &mut Rx) -> Value {
    match poll_fn(|cx| rx.as_mut().poll_event(cx)).await {
        Some(Ok(TransportEvent::Message(inbound))) => serde_json::from_slice(&inbound.body).unwrap(),
        other => panic!("no frame, but {other:?}"),
    }
}

/// Removes the frames from the transport and counts them.
async fn count(rx: &mut Rx) -> usize {
    let mut frames = 0;
    while poll_fn(|cx| Poll::Ready(rx.as_mut().poll_event(cx).is_ready())).await {
        frames += 1;
    }
    frames
}

#[tokio::test]
async fn many_cancels_are_written_in_small_batches() {
    // In a task it takes turns with the driver.
    tokio::spawn(small_batches()).await.unwrap();
}

async fn small_batches() {
    let (_peer, calls, mut theirs) = open().await;
    drop(calls);
    let (mut seen, mut most) = (0, 0);
    while seen < CALLS {
        turn().await;
        let frames = count(&mut theirs.rx).await;
        (seen, most) = (seen + frames, most.max(frames));
        assert!(frames > 0, "L1: {} cancels wait, and none is written", CALLS - seen);
    }
    assert_eq!(seen, CALLS);
    assert!(most <= 8, "{most} cancels were written in one turn, and whatever is next waits behind them");
}

#[tokio::test]
async fn a_slow_reader_of_many_cancels_also_receives_data_frames() {
    tokio::spawn(sent_beside()).await.unwrap();
}

async fn sent_beside() {
    let (peer, calls, mut theirs) = open().await;
    drop(calls);
    // The cancels fill the transport.
    for _ in 0..1000 {
        turn().await;
    }
    let _beside = peer.call::<_, Value>("beside", &json!({})).start().unwrap();
    let mut ahead = 0;
    while next(&mut theirs.rx).await.get("method").and_then(Value::as_str) != Some("beside") {
        ahead += 1;
        // The writer has more turns than the reader.
        for _ in 0..4 {
            turn().await;
        }
    }
    assert!(ahead < 1000, "{ahead} cancels went ahead of it");
}

#[tokio::test(start_paused = true)]
async fn a_grace_expires_during_a_constant_stream_of_frames() {
    tokio::spawn(grace_ends()).await.unwrap();
}

async fn grace_ends() {
    const FRAMES: u64 = 100_000;
    let (peer, wire) = open_probe(MCP, TRAITS, Limits::default());
    wire.says(1, &request(1, "deaf", &json!({})));
    wire.says(2, &cancel(1));
    for id in 2..FRAMES {
        wire.says(2, &cancel(id));
    }
    while peer.stats().unknown_cancels == 0 {
        turn().await;
    }
    tokio::time::advance(Limits::default().cancel_grace + Duration::from_millis(1)).await;
    for _ in 0..10 {
        turn().await;
    }
    let stats = peer.stats();
    assert_eq!(stats.aborted, 1, "L1");
    assert!(stats.unknown_cancels < FRAMES / 2, "nothing was left to read: {stats:?}");
}
