//! Faults of the engine, and of the network before it.

use std::env;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rescind_testkit::support::{in_time, within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::client::{Response, Session};
use super::faults::Proxy;
use super::nodes::{Backend, ServerOptions};
use super::nodes::{NODES, Node, Replicas, Setup};
use super::tasks::begin_in_session;
use super::trial::{poll_until, report};

/// How long the engine is away.
fn away() -> Duration {
    Duration::from_secs(if env::var_os("RESCIND_CLUSTER_FULL").is_some() { 30 } else { 4 })
}

/// A session whose request runs, at the first node and through the second.
async fn running(replicas: &Replicas) -> (Session, Response, String) {
    let all = replicas.addresses();
    let session = replicas.session(0).await;
    let running = session.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    let key = session.key(all[1], 10).await;
    (session, running, key)
}

/// Cancels by the bus until it is recorded, and checks the answer.
async fn is_cancelled(replicas: &Replicas, running: Response, key: &str) {
    poll_until("a cancel is recorded", async || replicas.cancel(key, &[]).await.status.success()).await;
    let answer = in_time("the answer", running.answer(10)).await.unwrap().expect("it was not answered");
    assert!(answer["error"].to_string().contains("operator"), "{answer}");
}

/// `rescind cancel` exits with 1 and one sentence.
async fn cancel_is_refused(replicas: &Replicas, key: &str) -> Duration {
    let begun = Instant::now();
    let said = replicas.cancel(key, &[]).await;
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert!(said.stderr.starts_with("rescind: the engine of the cluster"), "{said:?}");
    assert_eq!(said.stderr.lines().count(), 1, "{said:?}");
    begun.elapsed()
}

/// The engine is ended and started again: nothing is lost that runs.
pub(crate) async fn a_restarted_engine_loses_nothing_that_runs(backend: Backend) {
    let mut replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let (session, waiting, key) = running(&replicas).await;
    // Each node has read the members by now. One that has not knows no owner of a session without the engine.
    assert_eq!(session.status(all[1]).await, 200);
    assert_eq!(session.status(all[2]).await, 200);
    replicas.engine.as_mut().unwrap().end();
    assert_eq!(session.status(all[1]).await, 200);
    assert_eq!(session.status(all[2]).await, 200);
    let took = cancel_is_refused(&replicas, &key).await;
    report(backend, "engine gone: `rescind cancel` said so", took);
    replicas.engine.as_mut().unwrap().start_again();
    let back = Instant::now();
    is_cancelled(&replicas, waiting, &key).await;
    report(backend, "engine restarted: a cancel reached its request", back.elapsed());
    let (_, waiting, key) = running(&replicas).await;
    is_cancelled(&replicas, waiting, &key).await;
}

/// The engine is started again and has no entry of any node: no session is unknown meanwhile.
pub(crate) async fn a_restarted_engine_that_forgot_loses_no_session(backend: Backend) {
    let setup = Setup { server: ServerOptions::Forgetful, ..Setup::default() };
    let mut replicas = Replicas::with_heartbeats_apart(backend, setup).await;
    let all = replicas.addresses();
    let (session, waiting, key) = running(&replicas).await;
    let sessions = [session, replicas.session(1).await, replicas.session(2).await];
    for session in &sessions {
        is_reached_for(session, &all, Duration::ZERO).await;
    }
    let engine = replicas.engine.as_mut().unwrap();
    engine.end();
    engine.start_again();
    let again = Instant::now();
    while again.elapsed() < Duration::from_secs(10) {
        for session in &sessions {
            is_reached_for(session, &all, Duration::ZERO).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    is_cancelled(&replicas, waiting, &key).await;
}

/// The engine does not answer for a while.
pub(crate) async fn a_stopped_engine_stops_no_session(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let (session, waiting, key) = running(&replicas).await;
    for owner in 0..3 {
        let session = replicas.session(owner).await;
        for through in &all {
            assert_eq!(session.status(*through).await, 200, "every node has the members");
        }
    }
    let engine = replicas.engine.as_ref().unwrap();
    engine.stop();
    let stopped = Instant::now();
    let took = cancel_is_refused(&replicas, &key).await;
    report(backend, "engine stopped: `rescind cancel` said so", took);
    is_reached_for(&session, &all, away().saturating_sub(stopped.elapsed())).await;
    // A cancel of its own goes from node to node.
    let own = session.begin(all[2], 20, "test/wait", &json!({})).await.unwrap();
    poll_until("it runs", async || stats(&session, all[0]).await["running"] == 2).await;
    session.cancel(all[1], 20).await;
    assert_eq!(in_time("a forwarded cancel", own.answer(20)).await.unwrap(), None);
    // A session that begins meanwhile is served.
    let new = replicas.session(1).await;
    assert_eq!(new.status(all[2]).await, 200);
    assert_eq!(stats(&session, all[0]).await["running"], 1, "what runs goes on");
    engine.go_on();
    let back = Instant::now();
    is_cancelled(&replicas, waiting, &key).await;
    report(backend, "engine goes on: a cancel reached its request", back.elapsed());
}

/// The session is reached through each node, again and again for this time.
async fn is_reached_for(session: &Session, all: &[SocketAddr], time: Duration) {
    let begun = Instant::now();
    loop {
        for through in all {
            assert_eq!(session.status(*through).await, 200, "{through} after {:?}", begun.elapsed());
        }
        if begun.elapsed() >= time {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn stats(session: &Session, through: SocketAddr) -> Value {
    session.ask(through, 2_000_000, "test/stats", json!({})).await["result"].take()
}

/// Each byte to and from the engine needs 100 ms.
pub(crate) async fn a_slow_engine_slows_cancels_only(backend: Backend) {
    let server = Replicas::without_nodes(backend, Setup::default());
    let port = server.engine.as_ref().unwrap().port;
    let proxy = Proxy::start(([127, 0, 0, 1], port).into(), Duration::from_millis(100)).await;
    let replicas = server.with_nodes(Some(proxy.port), [None, None, None]).await;
    let (session, waiting, key) = running(&replicas).await;
    let begun = Instant::now();
    for number in 20..40 {
        session.ask(replicas.nodes[2].address, number, "test/echo", json!({ "value": 1 })).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(4), "an echo asks the engine nothing");
    report(backend, "engine slow (100 ms): a forwarded echo", begun.elapsed() / 20);
    let begun = Instant::now();
    is_cancelled(&replicas, waiting, &key).await;
    report(backend, "engine slow (100 ms): a cancel by a new process reached its request", begun.elapsed());
}

/// The engine can store nothing more: a cancel is no silent success, and sessions work.
pub(crate) async fn a_full_engine_is_no_silent_success(backend: Backend) {
    let mut replicas =
        Replicas::start_with(backend, Setup { server: ServerOptions::Full, ..Setup::default() }).await;
    let all = replicas.addresses();
    let (session, waiting, key) = running(&replicas).await;
    let bus = replicas.bus().await;
    let mut number = 30;
    // Cancels of requests fill it, at last with records that are as small as that of `rescind cancel`.
    for reason in ["x".repeat(1000), String::new()] {
        let refused = loop {
            let other = session.begin(all[0], number, "test/wait", &json!({})).await.unwrap();
            let of_other = session.key(all[0], number).await;
            let cause = rescind::Cause::new(rescind::CauseKind::Operator).with_reason(&reason);
            match bus.cancel(&of_other, &cause).await {
                Ok(()) => assert!(in_time("its answer", other.answer(number)).await.unwrap().is_some()),
                Err(error) => break error,
            }
            number += 1;
            assert!(number < 5000, "it is never full");
        };
        assert!(refused.to_string().starts_with("the engine of the cluster refused"), "{refused}");
        number += 1;
    }
    cancel_is_refused(&replicas, &key).await;
    // The entries of nodes must outlive their time to live of 10 s.
    is_reached_for(&session, &all, Duration::from_secs(14)).await;
    assert_eq!(stats(&session, all[0]).await["running"], 3, "a cancel that was refused cancelled nothing");
    session.cancel(all[2], 10).await;
    assert_eq!(in_time("a forwarded cancel", waiting.answer(10)).await.unwrap(), None);
    // Nobody renews an entry, and a dead process is known all the same: nobody listens at its address.
    replicas.nodes[0].kill().await;
    for at in &all[1..] {
        poll_until("its death is noticed", async || session.status(*at).await == 404).await;
    }
}

/// One node and the engine do not reach each other.
pub(crate) async fn a_node_without_its_engine_still_serves(backend: Backend) {
    let server = Replicas::without_nodes(backend, Setup::default());
    let port = server.engine.as_ref().unwrap().port;
    let proxy = Proxy::start(([127, 0, 0, 1], port).into(), Duration::ZERO).await;
    let through_proxy = server.engine.as_ref().unwrap().url_at(proxy.port);
    let replicas = server.with_nodes(None, [Some(through_proxy), None, None]).await;
    let all = replicas.addresses();
    let (session, waiting, key) = running(&replicas).await;
    let other = replicas.session(2).await;
    assert_eq!(other.status(all[0]).await, 200);
    let task = begin_in_session(&session, all[0], "wait", &json!({})).await;
    let works = async || {
        let answer = other.ask(all[2], 11, "tasks/get", task.clone()).await;
        answer["result"]["status"] == "working"
    };
    poll_until("its task is known", works).await;
    proxy.cut();
    let cut = Instant::now();
    assert_eq!(session.status(all[1]).await, 200, "the others reach it");
    assert_eq!(other.status(all[0]).await, 200, "it reaches the others");
    // The engine records the cancel, and the node gets it when it is back.
    let said = replicas.cancel(&key, &[]).await;
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert_eq!(stats(&session, all[0]).await["running"], 2, "it cannot know yet");
    // Its entry ends after its time to live. From then on the others do not know it.
    let gone = async || session.status(all[1]).await == 404;
    let gone = within(Duration::from_secs(25), "its entry ends", poll_until("its entry ends", gone)).await;
    report(backend, "node cut off from the engine: unknown to the others", gone);
    assert!(cut.elapsed() > Duration::from_secs(5), "it lives until its time is over");
    assert_eq!(session.status(all[0]).await, 200, "clients that reach it are served");
    assert!(works().await, "it is asked where it was");
    proxy.mend();
    let mended = Instant::now();
    let answer = in_time("the answer", waiting.answer(10)).await.unwrap().expect("it was not answered");
    assert!(answer["error"].to_string().contains("operator"), "{answer}");
    report(backend, "node back at the engine: a cancel of meanwhile arrived", mended.elapsed());
    poll_until("the others know it again", async || session.status(all[1]).await == 200).await;
    report(backend, "node back at the engine: known to the others", mended.elapsed());
    let answer = other.ask(all[2], 12, "tasks/cancel", task.clone()).await;
    assert_eq!(answer["result"]["status"], "cancelled", "{answer}");
}

/// An entry that this cluster has not signed leads no node to its address, and keeps its name.
pub(crate) async fn a_foreign_entry_is_not_followed(backend: Backend) {
    let replicas = Replicas::without_nodes(backend, Setup::default());
    let stranger = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", stranger.local_addr().unwrap());
    let entry =
        json!({ "url": url, "incarnation": "1-2", "signature": "AAAAAAAAAAAAAAAAAAAAAA" }).to_string();
    let mut redis = TcpStream::connect(("127.0.0.1", replicas.engine.as_ref().unwrap().port)).await.unwrap();
    let command = format!("*3\r\n$3\r\nSET\r\n$15\r\nrescind:node:n1\r\n${}\r\n{entry}\r\n", entry.len());
    redis.write_all(command.as_bytes()).await.unwrap();
    let mut answer = [0; 5];
    in_time("an answer of Redis", redis.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"+OK\r\n");
    let starting = Node::start(NODES[0], replicas.command(NODES[0], &[]));
    let visited = tokio::select! {
        visited = stranger.accept() => Err(visited),
        started = starting => Ok(started),
    };
    let said = visited.expect("the node came to the address").err().expect("it started");
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    assert!(said.stderr.contains("an entry of n1 that is not of this cluster"), "{said:?}");
}
