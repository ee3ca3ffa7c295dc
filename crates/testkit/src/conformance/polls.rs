//! Rules for frames that arrive: whole, in order, and independent of how they are polled.

use std::task::Poll;

use rescind_core::{FrameKind, Lane, TransportEvent};

use super::harness::{Expected, Harness, body, close, flush, frame, note, poll_once, ready, send};
use crate::support::in_time;

/// Small frames, empty objects and frames of a few hundred KiB arrive whole and in order.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn frames_arrive_whole_and_in_order(harness: &impl Harness) {
    let (mut a, mut b) = harness.connect().await;
    let large = a.traits.max_frame.min(b.traits.max_frame).min(300 * 1024) - 2;
    let bodies: Vec<String> = (0..100)
        .map(|number| format!("[{}]", "7".repeat(if number % 20 == 7 { large } else { number })))
        .collect();
    let forth = async {
        for body in &bodies {
            send(&mut a, note(body.clone())).await.expect("the wire is open");
        }
    };
    let back = async {
        let mut expected = Expected::new(harness, bodies.clone());
        while !expected.is_empty() {
            expected.take(&body(&mut b).await);
        }
    };
    in_time("a hundred frames", async { tokio::join!(forth, back) }).await;
    let answer = async { send(&mut b, note("{}")).await.expect("the wire is open") };
    let ((), answer) = in_time("the answer", async { tokio::join!(answer, body(&mut a)) }).await;
    assert_eq!(answer, "{}");
}

/// Dropped polls lose no frame and no wake-up, also if another task polls next.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn dropped_polls_lose_nothing(harness: &impl Harness) {
    let (mut a, mut b) = harness.connect().await;
    // The waker of another task, which becomes stale.
    let mut b = tokio::spawn(async move {
        assert!(poll_once(|cx| b.rx.as_mut().poll_event(cx)).await.is_pending(), "nothing was sent yet");
        b
    })
    .await
    .expect("the first task ends");
    let mut expected = Expected::new(harness, (0..200).map(|number| number.to_string()));
    let read = tokio::spawn(async move {
        while !expected.is_empty() {
            let event = match poll_once(|cx| b.rx.as_mut().poll_event(cx)).await {
                Poll::Ready(event) => event,
                Poll::Pending => std::future::poll_fn(|cx| b.rx.as_mut().poll_event(cx)).await,
            };
            match event {
                Some(Ok(TransportEvent::Message(inbound))) => expected.take(&inbound.body),
                other => panic!("expected a frame, got {other:?}"),
            }
        }
    });
    let write = async {
        for number in 0..200 {
            let _ = poll_once(|cx| a.tx.as_mut().poll_ready(Lane::Data, cx)).await;
            ready(&mut a, Lane::Data).await.expect("the wire is open");
            a.tx.as_mut().start_send(note(format!("{number}"))).expect("the wire is open");
            let _ = poll_once(|cx| a.tx.as_mut().poll_flush(cx)).await;
            flush(&mut a).await.expect("the wire is open");
            tokio::task::yield_now().await;
        }
        read.await.expect("every frame arrived");
    };
    in_time("frames between dropped polls", write).await;
}

/// A slow reader loses nothing. The sender waits, and the transport does not accept data frames without limit.
///
/// # Panics
/// If the transport breaks the contract.
pub async fn a_slow_reader_loses_nothing(harness: &impl Harness) {
    const FRAMES: usize = 500;
    let (mut a, mut b) = harness.connect().await;
    let filler = "x".repeat(2048);
    let ordered = a.traits.ordered;
    // If ids belong to the exchange, a client receives no requests, so it sends no answers.
    let is_asked = !(a.traits.opens_exchanges && a.traits.exchange_scoped);
    let last = if is_asked { FrameKind::Answer } else { FrameKind::Notification };
    let write = async {
        for number in 0..FRAMES {
            send(&mut a, note(format!("\"{number} {filler}\""))).await.expect("the wire is open");
        }
        send(&mut a, frame(last, Lane::Control, "\"last\"")).await.expect("the wire is open");
        close(&mut a).await.expect("the wire closes");
    };
    let read = async {
        let bodies = (0..FRAMES).map(|number| format!("\"{number} {filler}\""));
        let mut expected = Expected::new(harness, bodies);
        let mut answered = false;
        while !expected.is_empty() || !answered {
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            let body = body(&mut b).await;
            // Without an order an answer may overtake frames that were sent before it.
            if body == "\"last\"" && (expected.is_empty() || !ordered) {
                assert!(!std::mem::replace(&mut answered, true), "the answer came twice");
                continue;
            }
            expected.take(&body);
        }
        close(&mut b).await.expect("the wire closes");
    };
    in_time("a slow reader", async { tokio::join!(write, read) }).await;
}
