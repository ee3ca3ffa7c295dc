//! Events that wake the driver, although no frame arrives and none is waiting.

use std::time::Duration;

use super::probe::{TRAITS, cancel, open, request, serve};
use rescind_core::dialect::{ACP, MCP};
use rescind_core::{CallContext, Cause, CauseKind, HandlerError, Lane, Limits, Router};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_shutdown_of_a_connection_that_does_nothing_is_done_at_once() {
    let (peer, wire) = open(ACP, TRAITS, Limits::default());
    assert_eq!(wire.recorded().await, [""; 0]);
    let begun = Instant::now();
    timeout(LONG, peer.shutdown(LONG * 2)).await.expect("it is not done");
    assert_eq!(wire.recorded().await, ["close"]);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_new_earliest_timer_fires_in_time() {
    let (peer, wire) = open(ACP, TRAITS, Limits::default());
    let begun = Instant::now();
    let start = |wait| peer.call::<_, Value>("work", &json!({})).timeout(wait).start().unwrap();
    let _late = start(Duration::from_secs(50));
    let _soon = start(Duration::from_secs(1));
    // The driver sleeps until the first deadline.
    wire.recorded().await;
    let _sooner = start(Duration::from_millis(500));
    wire.recorded().await;
    for (millis, cancelled) in [(500, "3 on ours 4"), (1000, "2 on ours 5"), (50_000, "1 on ours 6")] {
        sleep_until(begun + Duration::from_millis(millis - 1)).await;
        assert_eq!(wire.recorded().await, [""; 0]);
        sleep_until(begun + Duration::from_millis(millis)).await;
        assert_eq!(wire.recorded().await, [format!("Control Cancel {cancelled}")], "L2");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grace_that_begins_without_a_frame_ends_in_its_time() {
    ends_in_its_time(None).await;
}

#[tokio::test(start_paused = true)]
async fn a_grace_is_not_delayed_by_a_later_timer() {
    ends_in_its_time(Some(LONG)).await;
}

/// `later`: the timeout of a call of this side, which ends after the grace.
async fn ends_in_its_time(later: Option<Duration>) {
    let (tell, mut contexts) = mpsc::unbounded_channel();
    let router = Router::new().method("deaf", move |ctx: CallContext, _: Value| {
        tell.send(ctx).unwrap();
        std::future::pending::<Result<(), HandlerError>>()
    });
    let (peer, wire) = serve(router, ACP, TRAITS, Limits::default());
    wire.says(3, &request(1, "deaf", &json!({})));
    assert_eq!(wire.recorded().await, ["begin 3", "waiting 3"]);
    let context = contexts.recv().await.unwrap();
    let _late = later.map(|wait| peer.call::<_, Value>("work", &json!({})).timeout(wait).start().unwrap());
    // The driver sleeps until then.
    wire.recorded().await;
    assert!(context.cancel_local(Cause::new(CauseKind::Local)));
    assert_eq!(wire.recorded().await, [""; 0]);
    tokio::time::sleep(Limits::default().cancel_grace).await;
    assert_eq!(wire.recorded().await, ["Data Answer 1 on 3, last"], "L2");
    assert_eq!(peer.stats().aborted, 1);
}

#[tokio::test(start_paused = true)]
async fn a_cascade_goes_on_slice_by_slice_although_nothing_can_be_written() {
    const CHILDREN: u64 = 100;
    let mut limits = Limits::default();
    limits.max_cancels_per_step = 1;
    let router = Router::new().method("many", |ctx: CallContext, _: Value| async move {
        let call = || ctx.call::<_, Value>("work", &json!({})).start().unwrap();
        let _calls: Vec<_> = (0..CHILDREN).map(|_| call()).collect();
        std::future::pending::<Result<(), HandlerError>>().await
    });
    let (peer, wire) = serve(router, MCP, TRAITS, limits);
    wire.state().full = Some(Lane::Data);
    wire.says(3, &request(1, "many", &json!({})));
    assert_eq!(wire.recorded().await, ["begin 3", "waiting 3"]);
    assert_eq!(peer.stats().calls, CHILDREN);
    wire.says(4, &cancel(1));
    wire.recorded().await;
    assert_eq!(peer.stats().calls, 0, "I6: the cascade has stopped half way");
}
