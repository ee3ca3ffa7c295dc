//! A rolling restart of all replicas under load.

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

use crate::backend::Backend;
use crate::client::{Binding, Session};
use crate::nodes::{Node, Replicas};
use crate::trial::{poll_until, tell};

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
    let mut replicas = Replicas::without_nodes(backend, crate::nodes::Setup::default());
    let options = replicas.file("options", r#"{"limits":{"drain_deadline_ms":300}}"#);
    for name in crate::nodes::NODES {
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
    let mut replicas = Replicas::without_nodes(backend, crate::nodes::Setup::default());
    for name in crate::nodes::NODES {
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
