//! Faults of the network between nodes: the address that a node advertises is that of a proxy.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use rescind_testkit::support::within;
use serde_json::json;

use crate::backend::Backend;
use crate::client::Session;
use crate::nodes::{NODES, Node, Replicas, Setup};
use crate::proxy::Proxy;
use crate::trial::{poll_until, report};

/// Three nodes, of which the first advertises this proxy.
async fn behind(backend: Backend, proxy: &Proxy) -> Replicas {
    let mut replicas = Replicas::without_nodes(backend, Setup::default());
    start_first(&mut replicas, proxy).await;
    for name in &NODES[1..] {
        let node = Node::start(name, replicas.command(name, &[])).await.unwrap();
        replicas.nodes.push(node);
    }
    list(&replicas, proxy);
    replicas
}

/// Starts the first node, which advertises this proxy.
async fn start_first(replicas: &mut Replicas, proxy: &Proxy) {
    let url = format!("http://127.0.0.1:{}/rpc", proxy.port);
    let node = Node::start(NODES[0], replicas.command(NODES[0], &["--advertise", &url])).await.unwrap();
    proxy.set_server(node.address);
    if replicas.nodes.is_empty() { replicas.nodes.push(node) } else { replicas.nodes[0] = node }
}

fn list(replicas: &Replicas, proxy: &Proxy) {
    let mut lines = format!("n1=http://127.0.0.1:{}/rpc\n", proxy.port);
    for (name, address) in NODES.into_iter().zip(replicas.addresses()).skip(1) {
        let _ = writeln!(lines, "{name}=http://{address}/rpc");
    }
    replicas.write_lines(&lines);
}

/// The others do not reach a node any more, and clients do.
pub(crate) async fn a_partition_between_nodes_hangs_nobody(backend: Backend) {
    let proxy = Proxy::start_before_its_server().await;
    let replicas = behind(backend, &proxy).await;
    let all = replicas.addresses();
    let (session, other) = (replicas.session(0).await, replicas.session(1).await);
    assert_eq!(session.status(all[1]).await, 200, "a connection between the nodes is open");
    let running = session.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    proxy.cut();
    let cut = Instant::now();
    let limit = Duration::from_secs(11);
    let answer = within(limit, "the end of a request under way", running.answer(10)).await;
    assert!(matches!(answer, Err(_) | Ok(None)), "{answer:?}");
    report(backend, "partition: requests under way have ended", cut.elapsed());
    let asked = Instant::now();
    let status = within(limit, "an answer", session.begin(all[2], 11, "test/echo", &json!({}))).await;
    let status = status.unwrap().status;
    assert!([502, 503].contains(&status), "{status}");
    report(backend, "partition: a later request was refused", asked.elapsed());
    assert_eq!(session.status(all[0]).await, 200, "clients that reach it are served");
    assert_eq!(other.status(all[2]).await, 200, "the others reach each other");
    assert_eq!(other.status(all[0]).await, 200, "it reaches the others");
    proxy.mend();
    let back = poll_until("it is reached again", async || session.status(all[1]).await == 200).await;
    report(backend, "partition mended: reached again", back);
}

/// The owner gets requests and its answers are lost. Then the connections break. No request runs twice.
pub(crate) async fn a_request_whose_answer_is_lost_runs_once(backend: Backend) {
    let proxy = Proxy::start_before_its_server().await;
    let replicas = behind(backend, &proxy).await;
    let all = replicas.addresses();
    let session = replicas.session(0).await;
    let started = async || {
        let stats = session.ask(all[0], 900, "test/stats", json!({})).await;
        stats["result"]["started"].as_u64().unwrap()
    };
    for (id, is_connected) in [(10, true), (11, false)] {
        if is_connected {
            assert_eq!(session.status(all[1]).await, 200);
        }
        let before = started().await;
        proxy.cut_answers();
        let (params, id_text) = (json!({ "value": id }), id.to_string());
        let sent = session.begin(all[1], id, "test/echo", &params);
        let broken = async {
            if is_connected {
                // `test/stats` is not among the handlers that it counts.
                poll_until("the request has arrived", async || started().await > before).await;
            }
            proxy.break_connections();
        };
        let (response, ()) =
            Box::pin(within(Duration::from_secs(11), "an answer", async { tokio::join!(sent, broken) }))
                .await;
        let status = response.unwrap().status;
        let expected: &[u16] = if is_connected { &[502] } else { &[502, 503] };
        assert!(expected.contains(&status), "{status}");
        proxy.mend();
        poll_until("it is reached again", async || session.status(all[1]).await == 200).await;
        let ran = session.ask(all[0], 901, "test/handlers", json!({})).await;
        let own = ran["result"]["handlers"].as_array().unwrap().iter().filter(|one| one["id"] == *id_text);
        assert_eq!(own.count(), usize::from(is_connected), "{ran}");
        proxy.break_connections();
    }
}

/// A node that starts again behind another address is reached there.
pub(crate) async fn a_node_with_another_address_is_found(backend: Backend) {
    let proxy = Proxy::start_before_its_server().await;
    let mut replicas = behind(backend, &proxy).await;
    let former = replicas.session(0).await;
    let all = replicas.addresses();
    assert_eq!(former.status(all[1]).await, 200);
    replicas.nodes[0].kill().await;
    drop(proxy);
    let another = Proxy::start_before_its_server().await;
    start_first(&mut replicas, &another).await;
    list(&replicas, &another);
    let moved = Instant::now();
    let session: Session = replicas.session(0).await;
    for through in &all[1..] {
        poll_until("it is reached", async || session.status(*through).await == 200).await;
        assert_eq!(former.status(*through).await, 404);
    }
    report(backend, "another address: reached there", moved.elapsed());
}
