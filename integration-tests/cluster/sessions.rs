//! Sessions reach their owner, whichever replica a request reaches.

use std::time::Duration;

use rescind_testkit::support::{in_time, within};
use serde_json::json;

use crate::backend::Backend;
use crate::client::{Binding, Event, Response, Session};
use crate::nodes::{Node, Replicas, Setup};
use crate::trial::poll_until;

/// Requests, the event stream and DELETE of a session go through every replica, also the owner's requests.
pub(crate) async fn sessions_work_from_every_replica(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    for (owner, at) in all.iter().enumerate() {
        let session = Session::open(*at, Binding::Streamable).await;
        assert_eq!(session.node(), crate::nodes::NODES[owner]);
        for (number, through) in (10..).zip(&all) {
            let value = json!({ "value": [owner, number] });
            let answer = session.ask(*through, number, "test/echo", value.clone()).await;
            assert_eq!(answer["result"]["value"], value["value"], "{answer}");
        }
        let events = session.events(all[(owner + 1) % 3], None).await;
        assert_eq!(events.status, 200);
        drop(events);
        assert_eq!(session.delete(all[(owner + 2) % 3]).await, 204);
        for through in &all {
            assert_eq!(session.status(*through).await, 404, "it has ended");
        }
    }
}

/// The same for the binding of ACP, whose answers come on the event stream.
pub(crate) async fn acp_connections_work_from_every_replica(backend: Backend) {
    let setup = Setup { binding: Binding::Acp, ..Setup::default() };
    let replicas = Replicas::start_with(backend, setup).await;
    let all = replicas.addresses();
    let session = Session::open(all[0], Binding::Acp).await;
    let mut events = session.events(all[1], None).await;
    assert_eq!(events.status, 200);
    for (number, through) in (10..).zip(&all) {
        let sent = session.begin(*through, number, "test/echo", &json!({ "value": number })).await.unwrap();
        assert_eq!(sent.status, 202);
        let answer = in_time("an answer", events.answer_of(number)).await.unwrap().unwrap();
        assert_eq!(answer["result"]["value"], number, "{answer}");
    }
    assert_eq!(session.delete(all[2]).await, 202);
    let ended = in_time("the end of the stream", async { while let Ok(Some(_)) = events.event().await {} });
    ended.await;
    assert_eq!(session.status(all[1]).await, 404);
}

/// A cancel by notification reaches its request through any replica.
pub(crate) async fn a_cancel_through_another_replica_reaches_its_request(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let session = replicas.session(0).await;
    for (number, (begins, cancels)) in (10..).zip([(0, 1), (1, 0), (1, 2), (2, 2)]) {
        let running = session.begin(all[begins], number, "test/wait", &json!({})).await.unwrap();
        assert_eq!(running.status, 200);
        let _key = session.key(all[cancels], number).await;
        session.cancel(all[cancels], number).await;
        let answer = in_time("the end of a cancelled request", running.answer(number)).await.unwrap();
        assert_eq!(answer, None, "MCP owes a cancelled request silence");
        poll_until("its handler has ended", async || {
            let stats = session.ask(all[0], 2_000_000, "test/stats", json!({})).await;
            stats["result"]["cancelled"] == number - 9 && stats["result"]["running"] == 0
        })
        .await;
    }
}

/// A stream of MCP goes on through another replica where it was left.
pub(crate) async fn a_stream_is_resumed_through_another_replica(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let session = replicas.session(0).await;
    let progress = json!({ "count": 6, "every_ms": 20, "_meta": { "progressToken": "p" } });
    let mut first = session.begin(all[1], 10, "test/progress", &progress).await.unwrap();
    let mut seen = Vec::new();
    let mut last = None;
    while seen.len() < 2 {
        let event = in_time("an event", first.event()).await.unwrap().expect("the stream ended early");
        last = event.id.or(last);
        if event.message["method"] == "notifications/progress" {
            seen.push(event.message["params"]["progress"].as_f64().unwrap());
        }
    }
    drop(first);
    let mut again = session.events(all[2], last.as_deref()).await;
    assert_eq!(again.status, 200);
    loop {
        let event = in_time("an event", again.event()).await.unwrap().expect("no answer on the stream");
        match event.message["method"].as_str() {
            Some(_) => seen.push(event.message["params"]["progress"].as_f64().unwrap()),
            None if event.message["id"] == 10 => break,
            None => {}
        }
    }
    assert_eq!(seen, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "each event once, in order");
}

/// The stream of a connection of ACP goes on through another replica where it was left.
pub(crate) async fn an_acp_stream_is_resumed_through_another_replica(backend: Backend) {
    let setup = Setup { binding: Binding::Acp, ..Setup::default() };
    let replicas = Replicas::start_with(backend, setup).await;
    let all = replicas.addresses();
    let session = Session::open(all[0], Binding::Acp).await;
    let mut first = session.events(all[1], None).await;
    let echo = async |number: u64| {
        let sent = session.begin(all[0], number, "test/echo", &json!({ "value": number })).await.unwrap();
        assert_eq!(sent.status, 202);
    };
    echo(10).await;
    let before = next_message(&mut first).await;
    assert_eq!(before.message["id"], 10);
    drop(first);
    echo(11).await;
    echo(12).await;
    let mut again = session.events(all[2], before.id.as_deref()).await;
    assert_eq!(again.status, 200);
    // The handlers of both run at once, so either may be answered first.
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(next_message(&mut again).await.message["id"].as_u64().unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, [11, 12], "each event once");
}

async fn next_message(events: &mut Response) -> Event {
    loop {
        let event = in_time("an event", events.event()).await.unwrap().expect("the stream ended early");
        if !event.message.is_null() {
            return event;
        }
    }
}

/// A session of one principal is unknown to another one, also through another replica.
pub(crate) async fn a_session_of_another_principal_is_unknown_on_every_replica(backend: Backend) {
    let (one, two) = ("one=a-long-token-of-one", "two=a-long-token-of-two");
    let arguments = ["--token", one, "--token", two].map(str::to_owned).to_vec();
    let replicas = Replicas::start_with(backend, Setup { arguments, ..Setup::default() }).await;
    let all = replicas.addresses();
    let session = Session::open_as(all[0], Binding::Streamable, Some("a-long-token-of-one")).await;
    let other = session.with_token("a-long-token-of-two");
    let nobody = session.with_token("a-token-that-is-wrong");
    for through in &all {
        assert_eq!(session.status(*through).await, 200);
        assert_eq!(other.status(*through).await, 404);
        assert_eq!(other.delete(*through).await, 404);
        assert_eq!(other.events(*through, None).await.status, 404);
        assert_eq!(nobody.status(*through).await, 401);
    }
    let running = session.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    let _key = session.key(all[2], 10).await;
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":10}}"#;
    assert_eq!(other.post(all[2], cancel).await.unwrap().status, 404);
    let stats = session.ask(all[0], 11, "test/stats", json!({})).await;
    assert_eq!((&stats["result"]["running"], &stats["result"]["cancelled"]), (&json!(1), &json!(0)));
    session.cancel(all[2], 10).await;
    assert_eq!(in_time("its end", running.answer(10)).await.unwrap(), None);
}

/// A node whose name a living node has does not start.
pub(crate) async fn a_second_node_of_the_same_name_does_not_start(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let command = replicas.command("n2", &[]);
    let starting = within(Duration::from_secs(15), "the second node ends", Node::start("n2", command));
    let said = starting.await.err().expect("two nodes have the name n2");
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    assert!(said.stderr.contains("another living node has the name n2"), "{}", said.stderr);
    let session = replicas.session(1).await;
    assert_eq!(session.status(replicas.nodes[0].address).await, 200);
}
