//! Faults of nodes: what is lost, and how soon it is known.

use std::time::{Duration, Instant};

use rescind_testkit::support::{in_time, within};
use serde_json::json;

use crate::backend::Backend;
use crate::nodes::Replicas;
use crate::trial::{poll_until, report};

/// The time in which the loss of a node must be known to each request.
const KNOWN: Duration = Duration::from_secs(11);

/// A node that is killed: its sessions are gone at once, and requests under way end.
pub(crate) async fn a_killed_node_loses_its_sessions_and_nothing_else(backend: Backend) {
    let mut replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let (lost, kept) = (replicas.session(0).await, replicas.session(2).await);
    let kept_running = kept.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    let running = lost.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    assert_eq!(running.status, 200);
    let mut events = lost.events(all[2], None).await;
    assert_eq!(events.status, 200);
    // Not begun yet: its head comes with its answer or after a while.
    let _key = lost.key(all[2], 10).await;
    replicas.nodes[0].kill().await;
    let killed = Instant::now();
    for through in &all[1..] {
        // A request that is sent before its node has seen the end of the connection may have begun, as far as is known.
        let is_gone = async || match lost.status(*through).await {
            404 => true,
            502 => false,
            status => panic!("a session of a dead node got {status}"),
        };
        within(Duration::from_secs(2), "404 at once", poll_until("404", is_gone)).await;
    }
    report(backend, "a killed node: 404 for its sessions", killed.elapsed());
    // A response whose head was sent ends without an answer, which says that it was lost.
    let answer = within(KNOWN, "the end of a request under way", running.answer(10)).await;
    assert!(matches!(answer, Err(_) | Ok(None)), "{answer:?}");
    let end = async { while let Ok(Some(_)) = events.event().await {} };
    within(KNOWN, "the end of its event stream", end).await;
    report(backend, "a killed node: requests under way have ended", killed.elapsed());
    assert_eq!(kept.status(all[1]).await, 200);
    kept.cancel(all[1], 10).await;
    assert_eq!(in_time("its end", kept_running.answer(10)).await.unwrap(), None);
}

/// A node that is suspended: nothing hangs, and it works again when it goes on.
pub(crate) async fn a_stopped_node_hangs_nobody_and_comes_back(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let (session, other) = (replicas.session(0).await, replicas.session(1).await);
    assert_eq!(session.status(all[1]).await, 200, "a connection between the nodes is open");
    let running = session.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    replicas.nodes[0].stop();
    let stopped = Instant::now();
    let echo = async |through| {
        let begun = Instant::now();
        let response = session.begin(through, 11, "test/echo", &json!({})).await.unwrap();
        (response.status, begun.elapsed())
    };
    let under_way = within(KNOWN, "the end of a request under way", running.answer(10));
    let known = async { (under_way.await, stopped.elapsed()) };
    let forwarded = async { tokio::join!(echo(all[1]), echo(all[2])) };
    let ((answer, took), ((one, first), (two, second))) =
        Box::pin(within(Duration::from_secs(15), "requests for a stopped node", async {
            tokio::join!(known, forwarded)
        }))
        .await;
    assert!(matches!(answer, Err(_) | Ok(None)), "{answer:?}");
    for (status, took) in [(one, first), (two, second)] {
        assert!([404, 502, 503].contains(&status), "{status}");
        assert!(took < KNOWN, "{took:?}");
    }
    report(backend, "a stopped node: requests under way have ended", took);
    report(backend, "a stopped node: a later request was refused", first.max(second));
    assert_eq!(other.status(all[2]).await, 200, "the others work");
    replicas.nodes[0].go_on();
    let back = poll_until("the session is reached again", async || session.status(all[1]).await == 200).await;
    report(backend, "a stopped node that goes on: reached again", back);
}

/// A node that starts again under its name at another port: former sessions are unknown, and new ones work.
pub(crate) async fn a_restarted_node_does_not_answer_for_its_former_life(backend: Backend) {
    let mut replicas = Replicas::start(backend).await;
    let former = replicas.session(0).await;
    let before = replicas.nodes[0].address;
    assert_eq!(former.status(replicas.nodes[1].address).await, 200);
    replicas.nodes[0].kill().await;
    let killed = Instant::now();
    replicas.start_again(0).await;
    let all = replicas.addresses();
    assert_ne!(before, all[0], "it has another port");
    let started = Instant::now();
    let new = replicas.session(0).await;
    poll_until("the new session is reached", async || new.status(all[1]).await == 200).await;
    report(backend, "a restarted node at another port: reached after its start", started.elapsed());
    report(backend, "a restarted node at another port: reached after its kill", killed.elapsed());
    for through in &all {
        assert_eq!(former.status(*through).await, 404, "it was of the former life");
        assert_eq!(new.status(*through).await, 200);
    }
}

/// A node that leaves as it should is unknown at once.
pub(crate) async fn a_node_that_leaves_is_gone_at_once(backend: Backend) {
    let mut replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let (gone, kept) = (replicas.session(0).await, replicas.session(1).await);
    assert_eq!(gone.status(all[2]).await, 200);
    replicas.nodes[0].terminate().await;
    let status = within(Duration::from_secs(2), "404 at once", gone.status(all[2])).await;
    assert_eq!(status, 404);
    assert_eq!(kept.status(all[2]).await, 200);
}
