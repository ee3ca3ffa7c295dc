//! The runner over a real transport, against a small peer written by hand.

#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::future::poll_fn;

use bytes::Bytes;
use rescind_core::{BoxFuture, Link, TransportEvent, memory_pair};
use rescind_testkit::runner::{LinkSubject, Settings, Verdict, play};
use rescind_testkit::support::frames;
use rescind_testkit::{Scenario, scenarios_of};
use serde_json::{Value, json};

fn scenario(name: &str) -> &'static Scenario {
    scenarios_of("acp").find(|scenario| scenario.vector.name == name).unwrap()
}

/// Answers every request at once, with `{"value": ..}` or an empty object. Disconnects after `limit` frames.
async fn answer_all(mut link: Link, limit: usize) {
    for _ in 0..limit {
        let event = poll_fn(|cx| link.rx.as_mut().poll_event(cx)).await;
        let Some(Ok(TransportEvent::Message(message))) = event else { return };
        let frame: Value = serde_json::from_slice(&message.body).unwrap();
        let Some(id) = frame.get("id") else { continue };
        let value = frame.pointer("/params/value").map_or(json!({}), |value| json!({"value": value}));
        let body = Bytes::from(json!({"jsonrpc": "2.0", "id": id, "result": value}).to_string());
        frames::send(&mut link, body).await.unwrap();
    }
}

fn subject(limit: usize) -> LinkSubject {
    LinkSubject::new(Box::new(move || -> BoxFuture<'static, Result<Link, String>> {
        let (client, server) = memory_pair();
        tokio::spawn(answer_all(server, limit));
        Box::pin(async move { Ok(client) })
    }))
}

#[tokio::test(start_paused = true)]
async fn a_vector_holds_over_the_memory_wire() {
    let played = play(scenario("unknown_notification"), &mut subject(100), &Settings::default()).await;
    assert_eq!(played.verdict, Verdict::Held, "{played:?}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_answers_a_waiting_request_fails() {
    let played = play(scenario("reuse_after_cancel"), &mut subject(100), &Settings::default()).await;
    assert!(matches!(played.verdict, Verdict::Broke { .. }), "{played:?}");
}

#[tokio::test(start_paused = true)]
async fn the_exit_of_a_peer_is_reported() {
    let mut subject = subject(1).with_exit_report(|| Some("exit status 3".to_owned()));
    let played = play(scenario("unknown_notification"), &mut subject, &Settings::default()).await;
    let Verdict::Broke { why, .. } = &played.verdict else { panic!("{played:?}") };
    assert!(why.contains("exit status 3"), "{why}");
}
