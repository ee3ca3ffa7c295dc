//! The order of messages, and sides that do not read.

use std::time::Duration;

use rescind_bridge::{Bridge, Upstream};
use rescind_core::dialect::{ACP, MCP};
use rescind_core::{Limits, Peer, memory_listener, memory_pair};
use tokio::sync::oneshot;

use crate::ends_of_a_bridge::{End, Ends};

fn note(number: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"note","params":[{number}]}}"#)
}

async fn updates_come_before_the_answer() {
    let mut ends = Ends::in_dialect(ACP).await;
    for round in 1..=30 {
        ends.client.send(r#"{"jsonrpc":"2.0","id":1,"method":"work","params":{}}"#).await;
        ends.server.frame().await;
        for number in 0..20 {
            ends.server.send(&note(number)).await;
        }
        ends.server.send(&format!(r#"{{"jsonrpc":"2.0","id":{round},"result":{{}}}}"#)).await;
        for number in 0..20 {
            ends.client.expect(&note(number)).await;
        }
        ends.client.expect(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    }
}

#[tokio::test]
async fn the_updates_of_a_server_come_before_the_answer_that_follows_them() {
    updates_come_before_the_answer().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_updates_of_a_server_come_before_its_answer_on_several_threads_too() {
    updates_come_before_the_answer().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn notifications_keep_their_order_and_come_before_the_request_that_follows_them() {
    let mut ends = Ends::in_dialect(ACP).await;
    for round in 1..=30 {
        for number in 0..20 {
            ends.client.send(&note(number)).await;
        }
        ends.client.send(r#"{"jsonrpc":"2.0","id":1,"method":"work","params":{}}"#).await;
        for number in 0..20 {
            ends.server.expect(&note(number)).await;
        }
        ends.server
            .expect(&format!(r#"{{"jsonrpc":"2.0","id":{round},"method":"work","params":{{}}}}"#))
            .await;
        ends.server.send(&format!(r#"{{"jsonrpc":"2.0","id":{round},"result":{{}}}}"#)).await;
        ends.client.frame().await;
    }
}

#[tokio::test]
async fn messages_that_wait_for_a_slow_upstream_keep_their_order() {
    let (listener, transport) = memory_listener();
    let (opens, open) = oneshot::channel::<Upstream>();
    let open = std::sync::Mutex::new(Some(open));
    let bridge = Bridge::new(ACP).unwrap();
    let server = bridge.serve(move || open.lock().unwrap().take().unwrap());
    let serving = tokio::spawn(server.listen(listener).run());
    let link = rescind_core::Transport::open(Box::new(transport)).await.unwrap();
    let mut client = End(link);
    for round in 0..10 {
        client.send(&format!(r#"{{"jsonrpc":"2.0","id":{round},"method":"work","params":{{}}}}"#)).await;
        client.send(&note(round)).await;
    }
    client.is_silent().await;
    let (upstream, far) = memory_pair();
    opens.send(Upstream::new("slow", upstream)).unwrap();
    let mut server = End(far);
    for round in 0..10 {
        let id = round + 1;
        server.expect(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"work","params":{{}}}}"#)).await;
        server.expect(&note(round)).await;
    }
    serving.abort();
}

#[tokio::test]
async fn a_client_that_does_not_read_slows_its_server_down_and_loses_nothing() {
    const MANY: usize = 30_000;
    let mut ends = Ends::in_dialect(MCP).await;
    let mut server = ends.server;
    let flood = tokio::spawn(async move {
        for number in 0..MANY {
            server.send(&note(number)).await;
        }
        server
    });
    ends.client.send(r#"{"jsonrpc":"2.0","method":"go"}"#).await;
    for _ in 0..20_000 {
        tokio::task::yield_now().await;
    }
    assert!(!flood.is_finished(), "the bridge holds what nobody reads");
    let held = ends.downstream.queue_stats();
    assert!(held.outbox_frames <= Limits::default().max_outbox_frames, "{held:?}");
    // Another session of the same bridge goes on meanwhile.
    let mut other = Ends::of(ends.bridge.clone()).await;
    other.server.send(&note(1)).await;
    other.client.expect(&note(1)).await;
    for number in 0..MANY {
        ends.client.expect(&note(number)).await;
    }
    flood.await.unwrap().expect(r#"{"jsonrpc":"2.0","method":"go"}"#).await;
}

#[tokio::test]
async fn a_server_that_does_not_read_ends_its_session_before_a_notification_is_lost() {
    let limits = Limits::default().max_queued_notifications(50).max_outbox_frames(50);
    let mut ends = Ends::of(Bridge::new(ACP).unwrap().limits(limits)).await;
    ends.client.send(r#"{"jsonrpc":"2.0","id":1,"method":"work","params":{}}"#).await;
    ends.client.is_silent().await;
    let big = "x".repeat(2_000);
    let flood = format!(r#"{{"jsonrpc":"2.0","method":"note","params":["{big}"]}}"#);
    let mut sent = 0;
    // Until the bridge closes.
    while !ends.downstream.is_closed() && sent < 5_000 {
        let open = tokio::time::timeout(
            Duration::from_secs(20),
            rescind_testkit::support::frames::send(&mut ends.client.0, flood.clone()),
        );
        sent += 1;
        if open.await.unwrap().is_err() {
            break;
        }
    }
    assert!(sent < 5_000, "it has no bound");
    let answer = ends.client.frame().await;
    assert!(
        answer.contains(r#""id":1,"error":{"code":-32603,"message":"the server does not read"#),
        "{answer}"
    );
    ends.client.closed().await;
    ends.bridge.ended().await;
    assert!(Peer::is_closed(&ends.downstream));
}
