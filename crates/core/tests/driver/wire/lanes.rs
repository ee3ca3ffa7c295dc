//! The driver's calls if the transport has no room, and the order of frames.

use std::time::Duration;

use rescind_core::dialect::{ACP, MCP};
use rescind_core::{Capabilities, Lane, Limits};
use serde_json::{Value, json};

use crate::driver::wire::{TRAITS, cancel, open, request};

#[tokio::test(start_paused = true)]
async fn cancels_overtake_a_blocked_frame_only_on_unordered_transports() {
    for (ordered, passing) in [(false, 20), (true, 8)] {
        let traits = Capabilities { ordered, ..TRAITS };
        let (peer, wire) = open(ACP, traits, Limits::default());
        let start = || peer.call::<_, Value>("work", &json!({})).start().unwrap();
        let calls: Vec<_> = (0..20).map(|_| start()).collect();
        assert_eq!(wire.recorded().await.len(), 20);
        wire.state().full = Some(Lane::Data);
        peer.try_notify("news", &json!({})).unwrap();
        drop(calls);
        let passed = wire.recorded().await;
        assert!(passed.iter().all(|line| line.starts_with("Control Cancel")), "{passed:?}");
        assert_eq!(passed.len(), passing, "a row of cancels at a time, ordered: {ordered}");
        wire.make_room();
        let rest = wire.recorded().await;
        assert_eq!(rest.first().map(String::as_str), Some("Data Notification news on none"));
        assert_eq!(passed.len() + rest.len(), 21, "L1: a cancel that is never written");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wire_without_room_for_bulk_is_not_asked_again_for_each_frame_of_it() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    wire.state().full = Some(Lane::Data);
    for _ in 0..5 {
        peer.try_notify("news", &json!({})).unwrap();
        assert_eq!(wire.recorded().await, [""; 0]);
    }
    assert_eq!(wire.state().asked_in_vain, 1, "the driver wakes for what it cannot write");
    // Control frames pass it.
    wire.says(3, &"{");
    assert_eq!(wire.recorded().await, ["fault 3 BadMessage", "Control Answer on 3, last"]);
    wire.make_room();
    assert_eq!(wire.recorded().await, ["Data Notification news on none"; 5]);
}

#[tokio::test(start_paused = true)]
async fn a_wire_that_is_full_until_it_is_flushed_is_flushed_and_asked_again() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    wire.state().holds = Some(1);
    for _ in 0..3 {
        peer.try_notify("news", &json!({})).unwrap();
    }
    assert_eq!(wire.recorded().await, ["Data Notification news on none"; 3], "a frame is left behind");
}

#[tokio::test(start_paused = true)]
async fn queued_frames_of_a_silenced_request_are_not_written_when_there_is_room() {
    let (peer, wire) = open(MCP, TRAITS, Limits::default());
    wire.state().full = Some(Lane::Data);
    wire.says(3, &request(1, "wait", &json!({})));
    wire.says(4, &request(2, "wait", &json!({})));
    assert_eq!(wire.recorded().await, ["begin 3", "begin 4", "waiting 3", "waiting 4"]);
    assert_eq!(peer.queue_stats().outbox_frames, 2);
    wire.says(5, &cancel(1));
    assert_eq!(wire.recorded().await, ["finish 5 Accepted", "finish 3 Silent"]);
    assert_eq!(peer.queue_stats().outbox_frames, 1, "I2: a frame of the silenced request waits");
    wire.make_room();
    assert_eq!(wire.recorded().await, ["Data Notification waits on 4"], "I2");
}

#[tokio::test(start_paused = true)]
async fn a_handler_sees_a_cancel_that_was_read_before_it_ran() {
    let (_peer, wire) = open(ACP, TRAITS, Limits::default());
    let begun = tokio::time::Instant::now();
    wire.says(0, &request(1, "wait", &json!({})));
    wire.says(0, &json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}}));
    let reported = wire.recorded().await;
    assert_eq!(
        reported,
        ["Data Notification waits on none", "Data Answer 1 on none"],
        "L1: the signal is lost"
    );
    assert_eq!(begun.elapsed(), std::time::Duration::ZERO, "the grace answered, not the handler");
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_read_where_both_the_wire_and_the_revision_allow_it() {
    let batch = json!([request(1, "step", &json!({})), [request(2, "step", &json!({}))], cancel(9)]);
    let refused = &["Control Answer on none"][..];
    let read = ["Control Answer on none", "Data Notification stepped on none", "Data Answer 1 on none"];
    for (batches, revision, expected) in
        [(true, "2025-03-26", &read[..]), (true, "2025-06-18", refused), (false, "2025-03-26", refused)]
    {
        let (_peer, wire) = open(MCP, Capabilities { batches, ..TRAITS }, Limits::default());
        wire.says(0, &request(0, "initialize", &json!({"protocolVersion": revision})));
        assert_eq!(wire.recorded().await, ["Data Answer 0 on none"]);
        wire.says(0, &batch);
        assert_eq!(wire.recorded().await, expected, "{revision}, over a wire with batches: {batches}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_stop_sending_holds_up_no_timer() {
    let (_peer, wire) = open(ACP, TRAITS, Limits::default());
    wire.says(3, &request(1, "deaf", &json!({})));
    assert_eq!(wire.recorded().await, ["begin 3", "waiting 3"]);
    let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}});
    wire.says(4, &cancel);
    assert_eq!(wire.recorded().await, ["finish 4 Accepted"]);
    for id in 2..2002 {
        wire.says(5, &request(id, "unknown", &json!({})));
    }
    tokio::time::advance(Limits::default().cancel_grace + Duration::from_millis(1)).await;
    let reported = wire.recorded().await;
    let place = reported.iter().position(|line| line == "Data Answer 1 on 3, last");
    assert!(place.is_some_and(|place| place < 200), "L3: the grace is over, and {place:?} lines come first");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_notify_continues_when_there_is_room() {
    let mut limits = Limits::default();
    limits.max_outbox_frames = 1;
    let (peer, wire) = open(MCP, TRAITS, limits);
    wire.state().full = Some(Lane::Data);
    peer.try_notify("news", &json!({})).unwrap();
    let waits = tokio::spawn({
        let peer = peer.clone();
        async move { peer.notify("later", &json!({})).await }
    });
    assert_eq!(wire.recorded().await, [""; 0]);
    assert!(!waits.is_finished(), "there is no room yet");
    wire.make_room();
    let reported = wire.recorded().await;
    assert_eq!(reported, ["Data Notification news on none", "Data Notification later on none"]);
    assert_eq!(waits.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_notification_that_no_frame_could_hold_is_refused_at_once() {
    let mut limits = Limits::default();
    limits.max_frame_bytes = 100;
    let (peer, _wire) = open(MCP, TRAITS, limits);
    let params = |bytes: usize| json!(["x".repeat(bytes - r#"[""]"#.len())]);
    for (bytes, fits) in [(10, true), (98, true), (99, false), (200, false)] {
        let reported = peer.try_notify("ab", &params(bytes));
        assert_eq!(reported.is_ok(), fits, "2 bytes of a method and {bytes} of params: {reported:?}");
    }
}
