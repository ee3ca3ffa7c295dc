//! The behaviour of a connection with very many cancels.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rescind_core::dialect::{ACP, MCP};
use rescind_core::{
    ByteStream, Call, CallContext, CancelResult, CauseKind, Framing, Limits, Link, Outcome, Peer, Receiver,
    Router, TransportEvent, memory_pair,
};
use serde_json::{Value, json};
use tokio::io::AsyncWrite;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::driver::wire::{TRAITS, cancel, open as open_probe, request};

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

/// Reports the content of each write.
struct Writes(mpsc::UnboundedSender<String>);

impl AsyncWrite for Writes {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.send(String::from_utf8(bytes.to_vec()).unwrap()).unwrap();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_cancel_is_written_before_the_frames_it_overtook() {
    let (tell, mut writes) = mpsc::unbounded_channel();
    let (reader, _open) = tokio::io::simplex(64);
    let link = ByteStream::new(reader, Writes(tell)).framing(Framing::Newline).into_link();
    let peer = Peer::builder(ACP).attach(link).unwrap();
    let call = peer.call::<_, Value>("wait", &json!({})).start().unwrap();
    assert!(writes.recv().await.unwrap().contains("\"wait\""));
    for _ in 0..100 {
        peer.try_notify("noise", &json!({})).unwrap();
    }
    assert_eq!(call.canceller().cancel("enough"), CancelResult::Sent);
    let first = writes.recv().await.unwrap();
    assert!(first.contains("cancel_request") && !first.contains("noise"), "{first}");
    assert_eq!(first.lines().count(), 1);
    let then = writes.recv().await.unwrap();
    assert_eq!(then.lines().count(), 100, "what it overtook is one write");
}

// covers: ABP-17
#[tokio::test(start_paused = true)]
async fn a_handler_sees_its_cancel_as_a_token_and_can_be_cancelled_by_one() {
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let (near, far) = memory_pair();
    let local = stop.clone();
    let by_token = event_tx.clone();
    let router = Router::new()
        .method("token", move |ctx: CallContext, _: Value| {
            let event_tx = by_token.clone();
            async move {
                let tokens = [ctx.token(), CancellationToken::from(&ctx), ctx.clone().into()];
                event_tx.send(tokens.iter().any(CancellationToken::is_cancelled)).unwrap();
                for token in &tokens {
                    token.cancelled().await;
                }
                event_tx.send(ctx.is_cancelled()).unwrap();
                ctx.check()?;
                Ok(())
            }
        })
        .method("local", move |ctx: CallContext, _: Value| {
            let (event_tx, stop) = (event_tx.clone(), local.clone());
            async move {
                ctx.cancel_on(stop);
                event_tx.send(false).unwrap();
                let cause = ctx.cancelled().await;
                event_tx.send(cause.kind() == CauseKind::Local).unwrap();
                ctx.stopped::<()>(cause)
            }
        });
    let _server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();

    let call = client.call::<_, ()>("token", &json!({})).start().unwrap();
    assert_eq!(event_rx.recv().await, Some(false));
    call.canceller().cancel("");
    assert_eq!(event_rx.recv().await, Some(true));
    assert!(call.outcome().await.is_cancelled());

    let call = client.call::<_, ()>("local", &json!({})).start().unwrap();
    assert_eq!(event_rx.recv().await, Some(false));
    stop.cancel();
    assert_eq!(event_rx.recv().await, Some(true));
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => assert_eq!(cancelled.cause.kind(), CauseKind::Peer),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_cancellation_token_keeps_no_memory_of_its_request() {
    let token = CancellationToken::new();
    let stop = token.clone();
    let router = Router::new().method("quick", move |ctx: CallContext, _: Value| {
        ctx.cancel_on(stop.clone());
        async { Ok(()) }
    });
    let (near, far) = memory_pair();
    let server = Peer::builder(ACP).serve(router).attach(far).unwrap();
    let client = Peer::builder(ACP).attach(near).unwrap();
    for _ in 0..10 {
        client.call::<_, ()>("quick", &json!({})).await.unwrap();
    }
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.stats().slots, 0);
    // The tasks of the two connections.
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks, 2, "I3: a task waits for the token of a request that has ended");
}
