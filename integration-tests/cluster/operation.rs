//! Operation while the cluster serves: a rolling restart, and `rescind cancel`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rescind_testkit::Balancer;
use rescind_testkit::support::{in_time, within};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::client::{Binding, Session};
use super::nodes::{Backend, Node, Replicas, Setup};
use super::trial::{poll_until, tell};

// A rolling restart of all replicas under load.

/// How many clients make requests at once.
const CLIENTS: usize = 4;
/// How many requests a client makes in a session.
const REQUESTS: u64 = 30;

/// The counts of all clients.
#[derive(Default)]
struct Seen {
    sessions: AtomicU64,
    answered: AtomicU64,
    /// Sessions that had ended with their node before their last request: a client opens another one, as the protocol asks.
    ended: AtomicU64,
    /// The responses of each client.
    responses: [AtomicU64; CLIENTS],
    is_over: AtomicBool,
}

impl Seen {
    /// Waits until each client has had a response to a request that it makes from now on or has made before.
    async fn each_has_a_response(&self, clients: &mut JoinSet<()>) {
        let counts = || self.responses.each_ref().map(|count| count.load(Ordering::Relaxed));
        let before = counts();
        let all = || counts().iter().zip(&before).all(|(now, before)| now > before);
        poll_until("each client has a response", async || {
            // A client that failed says why.
            if let Some(ended) = clients.try_join_next() {
                ended.unwrap();
            }
            all()
        })
        .await;
    }
}

/// Each replica drains and is replaced, one after the other: each request that began is answered.
pub(crate) async fn a_rolling_restart_loses_no_request(backend: Backend) {
    let mut replicas = Replicas::start(backend).await;
    let balancer = Balancer::start(replicas.addresses()).await.unwrap();
    let seen = Arc::new(Seen::default());
    let mut clients = JoinSet::new();
    for index in 0..CLIENTS {
        clients.spawn(client(index, balancer.address(), Arc::clone(&seen)));
    }
    let begun = Instant::now();
    for index in 0..3 {
        let before = seen.answered.load(Ordering::Relaxed);
        poll_until("the clients are served", async || seen.answered.load(Ordering::Relaxed) > before + 50)
            .await;
        // The balancer sends it no new requests, as a readiness probe has it. Those under way go on.
        let others: Vec<SocketAddr> = replicas
            .nodes
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index)
            .map(|(_, n)| n.address)
            .collect();
        balancer.set_servers(others);
        seen.each_has_a_response(&mut clients).await;
        let ends = replicas.session(index).await;
        replicas.nodes[index].terminate().await;
        replicas.start_again(index).await;
        for through in replicas.addresses() {
            assert_eq!(ends.status(through).await, 404, "a session ends with its node");
        }
        balancer.set_servers(replicas.addresses());
    }
    let before = seen.answered.load(Ordering::Relaxed);
    poll_until("the clients are served", async || seen.answered.load(Ordering::Relaxed) > before + 50).await;
    seen.is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = within(Duration::from_secs(30), "a client ends", clients.join_next()).await {
        ended.unwrap();
    }
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    tell(&format!(
        "measured: {}: rolling restart in {:.1} s: {} requests in {} sessions answered, none lost; {} sessions ended with their node",
        backend.name(),
        begun.elapsed().as_secs_f64(),
        count(&seen.answered),
        count(&seen.sessions),
        count(&seen.ended),
    ));
}

/// Opens sessions and makes requests in them, until the test is over.
async fn client(index: usize, through: SocketAddr, seen: Arc<Seen>) {
    while !seen.is_over.load(Ordering::Relaxed) {
        seen.responses[index].fetch_add(1, Ordering::Relaxed);
        let session = match Session::try_open(through, Binding::Streamable, None).await {
            Ok(session) => session,
            // It was opened at a node that ended before the client was ready, or drains: nothing was asked of it.
            Err(error) => {
                let text = error.to_string();
                let refused = ["initialize got 503", "initialized got 404", "initialized got 503"];
                assert!(refused.iter().any(|refused| text.starts_with(refused)), "{text}");
                continue;
            }
        };
        seen.sessions.fetch_add(1, Ordering::Relaxed);
        for number in 0..REQUESTS {
            let params = json!({ "ms": 5, "value": number });
            let response = session.begin(through, number, "test/sleep", &params).await.unwrap();
            match response.status {
                200 => {}
                // The session has ended with its node: the request has not begun.
                404 | 503 => {
                    seen.ended.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                status => panic!("a request got {status}: {:?}", response.text().await),
            }
            let answer = response.answer(number).await.unwrap();
            let answer = answer.unwrap_or_else(|| panic!("a request that began was lost"));
            assert_eq!(answer["result"]["value"], number, "{answer}");
            seen.answered.fetch_add(1, Ordering::Relaxed);
            seen.responses[index].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A request that outlives the drain of its node is answered with an error that says why, also through another node.
pub(crate) async fn a_request_that_outlives_the_drain_is_told_so(backend: Backend) {
    let mut replicas = Replicas::without_nodes(backend, super::nodes::Setup::default());
    let options = replicas.file("options", r#"{"limits":{"drain_deadline_ms":300}}"#);
    for name in super::nodes::NODES {
        let command = replicas.command(name, &["--options", &options]);
        replicas.nodes.push(Node::start(name, command).await.unwrap());
    }
    replicas.write_list();
    let all = replicas.addresses();
    let session = replicas.session(0).await;
    let running = session.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    let ended = tokio::spawn(running.answer(10));
    replicas.nodes[0].terminate().await;
    let answer = within(Duration::from_secs(5), "its answer", ended).await.unwrap().unwrap();
    let answer = answer.expect("it was lost");
    assert!(answer["error"].to_string().contains("shut"), "{answer}");
}

/// A node that is asked to end is not ready for a while before it drains, and serves new sessions meanwhile.
pub(crate) async fn a_node_is_not_ready_before_it_drains(backend: Backend) {
    let mut replicas = Replicas::without_nodes(backend, super::nodes::Setup::default());
    for name in super::nodes::NODES {
        let command = replicas.command(name, &["--page", "127.0.0.1:0", "--drain-delay", "3"]);
        replicas.nodes.push(Node::start(name, command).await.unwrap());
    }
    replicas.write_list();
    let all = replicas.addresses();
    let page = replicas.nodes[0].page.unwrap();
    assert_eq!(readiness(page).await, "200");
    let asked = Instant::now();
    replicas.nodes[0].ask_to_end();
    poll_until("it is not ready", async || readiness(page).await == "503").await;
    let session = replicas.session(0).await;
    for through in &all {
        poll_until("it is served", async || session.status(*through).await == 200).await;
    }
    within(Duration::from_secs(20), "its end", replicas.nodes[0].ended()).await;
    assert!(asked.elapsed() > Duration::from_secs(3), "{:?}", asked.elapsed());
    assert_eq!(session.status(all[1]).await, 404);
}

/// The status of `/readyz`.
async fn readiness(page: SocketAddr) -> String {
    let mut stream = TcpStream::connect(page).await.unwrap();
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {page}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    in_time("its readiness", stream.read_to_string(&mut response)).await.unwrap();
    response.split(' ').nth(1).unwrap_or_default().to_owned()
}

// `rescind cancel`: an operator stops a request from outside.

const SECRET: &str = "the secret of the proofs";

/// The request is answered with an error that names an operator, where a cancel of its own would owe silence.
pub(crate) async fn an_operator_cancels_a_request(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    // Those of the replicas before it, whose other request its client has cancelled.
    let mut before = Vec::new();
    for (owner, through) in [(0, 1), (1, 1), (2, 0)] {
        let session = replicas.session(owner).await;
        let running = session.begin(all[through], 10, "test/wait", &json!({})).await.unwrap();
        let other = session.begin(all[through], 11, "test/wait", &json!({})).await.unwrap();
        let key = session.key(all[through], 10).await;
        let said = replicas.cancel(&key, &["--reason", "too dear"]).await;
        assert_eq!(said.status.code(), Some(0), "{said:?}");
        let answer = in_time("the answer", running.answer(10)).await.unwrap().expect("it was not answered");
        assert!(answer["error"]["message"].as_str().unwrap().contains("operator"), "{answer}");
        // The same cancel again harms nobody.
        let again = replicas.cancel(&key, &[]).await;
        assert_eq!(again.status.code(), Some(0), "{again:?}");
        let own = [json!({ "id": "10", "cause": "operator" }), json!({ "id": "11", "cause": null })];
        let expected: Vec<_> = own.iter().chain(&before).cloned().collect();
        // A node that does not tell of its handlers within a second is left out.
        poll_until("exactly these handlers ran", async || {
            let ran = session.ask(all[owner], 12, "test/handlers", json!({})).await;
            ran["result"]["handlers"] == json!(expected)
        })
        .await;
        before.extend([json!({ "id": "10", "cause": "operator" }), json!({ "id": "11", "cause": "peer" })]);
        session.cancel(all[through], 11).await;
        assert_eq!(in_time("the other", other.answer(11)).await.unwrap(), None);
    }
}

/// The same for ACP, whose answer comes on the event stream.
pub(crate) async fn an_operator_cancels_a_request_of_acp(backend: Backend) {
    let replicas = Replicas::start_with(backend, Setup { binding: Binding::Acp, ..Setup::default() }).await;
    let all = replicas.addresses();
    let session = Session::open(all[0], Binding::Acp).await;
    let mut events = session.events(all[2], None).await;
    let sent = session.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    assert_eq!(sent.status, 202);
    let asked = session.begin(all[1], 11, "test/key", &json!({ "id": 10 })).await.unwrap();
    assert_eq!(asked.status, 202);
    let key = in_time("the key", events.answer_of(11)).await.unwrap().unwrap();
    let said = replicas.cancel(key["result"]["key"].as_str().unwrap(), &[]).await;
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    let answer = in_time("the answer", events.answer_of(10)).await.unwrap().unwrap();
    assert!(answer["error"].to_string().contains("operator"), "{answer}");
}

/// With the wrong secret, or a key that was made up, nothing is cancelled, and the exit code says so.
pub(crate) async fn a_wrong_secret_or_key_cancels_nothing(backend: Backend) {
    let replicas = Replicas::start_with(backend, Setup { secret: Some(SECRET), ..Setup::default() }).await;
    let all = replicas.addresses();
    let session = replicas.session(0).await;
    let running = session.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    let key = session.key(all[1], 10).await;
    let wrong = replicas.file("wrong", "the secret of somebody else");
    let forged = key.replacen("n1", "n2", 1);
    for (key, more) in [(&key, vec!["--secret-file", &wrong]), (&forged, vec![]), (&session.id, vec![])] {
        let said = replicas.cancel(key, &more).await;
        assert_eq!(said.status.code(), Some(1), "{said:?}");
        assert!(said.stderr.starts_with("rescind: "), "{said:?}");
        assert_eq!(said.stderr.lines().count(), 1, "one sentence: {said:?}");
    }
    let stats = session.ask(all[0], 11, "test/stats", json!({})).await;
    assert_eq!((&stats["result"]["running"], &stats["result"]["cancelled"]), (&json!(1), &json!(0)));
    let said = replicas.cancel(&key, &[]).await;
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    poll_until("it has ended", async || {
        let stats = session.ask(all[0], 12, "test/stats", json!({})).await;
        stats["result"]["cancelled"] == 1
    })
    .await;
    assert!(in_time("the answer", running.answer(10)).await.unwrap().is_some());
}

/// A cancel for a node that is dead is no silent success with a list, and is kept for the worker with an engine.
pub(crate) async fn a_cancel_for_a_dead_node_says_so(backend: Backend) {
    let mut replicas = Replicas::start(backend).await;
    let session = replicas.session(0).await;
    let running = session.begin(replicas.nodes[0].address, 10, "test/wait", &json!({})).await.unwrap();
    let key = session.key(replicas.nodes[0].address, 10).await;
    replicas.nodes[0].kill().await;
    drop(running);
    let said = replicas.cancel(&key, &[]).await;
    let expected = i32::from(backend == Backend::List);
    assert_eq!(said.status.code(), Some(expected), "{said:?}");
}
