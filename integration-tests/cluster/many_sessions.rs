//! Many sessions over three nodes in this process: each is served by its owner, whichever node a request reaches.

use std::env;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rescind::http::{HttpServer, Streamable};
use rescind::transport::Listener as _;
use rescind::{CallContext, Router, Server, ServerLimits, Share, dialect};
use rescind_cluster::{Cluster, ClusterAddress, NodeList, Secret};
use rescind_testkit::support::{in_time, within};
use serde_json::{Value, json};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};

use crate::backend::{Backend, EngineServer, ServerOptions};
use crate::client::{Binding, Session, connect, message};
use crate::nodes::NODES;
use crate::trial::tell;

/// So many clients work at once, each with the sessions of its numbers.
const CLIENTS: u64 = 24;
/// One session in so many has a request that is cancelled through another node.
const CANCELLED: u64 = 10;
/// The longest time for all sessions.
const PATIENCE: Duration = Duration::from_secs(600);

fn total() -> u64 {
    if env::var_os("RESCIND_CLUSTER_FULL").is_some() { 10_000 } else { 300 }
}

/// Handlers that were signalled on all nodes.
type Signalled = Arc<AtomicU64>;

struct Node {
    address: SocketAddr,
    _cluster: Cluster,
    server: JoinHandle<()>,
}

impl Node {
    async fn start(
        name: &'static str,
        address: ClusterAddress,
        list: &NodeList,
        signalled: Signalled,
    ) -> Self {
        let is_list = matches!(address, ClusterAddress::Static(_));
        let cluster =
            Cluster::connect(address, Some(name.parse().unwrap()), Secret::of_loopback()).await.unwrap();
        let sessions = usize::try_from(total()).unwrap();
        let server = HttpServer::new(Streamable::new()).path("/rpc").sessions(sessions);
        let listener = server.session_router(cluster.router()).bind("127.0.0.1:0").await.unwrap();
        let url = listener.endpoint().0;
        if is_list {
            list.set(name.parse().unwrap(), url.parse().unwrap());
        }
        cluster.join(&url).await.unwrap();
        let address = url.trim_start_matches("http://").trim_end_matches("/rpc").parse().unwrap();
        let router = Router::new()
            .method("initialize", |_: CallContext, _: Value| async {
                let server = json!({ "name": "node", "version": "0" });
                Ok(json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": server }))
            })
            .method("echo", move |_: CallContext, params: Value| async move {
                Ok(json!({ "node": name, "value": params["value"] }))
            })
            .method("hang", move |ctx: CallContext, _: Value| {
                let signalled = Arc::clone(&signalled);
                async move {
                    ctx.cancelled().await;
                    signalled.fetch_add(1, Ordering::Relaxed);
                    Ok(json!({}))
                }
            });
        let limits = ServerLimits::default().max_connections(sessions).client_share(Share::ALL);
        let server = Server::builder([dialect::MCP]).serve(router).server_limits(limits);
        let server = server.cluster_keys(cluster.keys()).listen(listener);
        let server = tokio::spawn(async move { drop(server.run().await) });
        Self { address, _cluster: cluster, server }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A client with an open connection to each node.
struct Client {
    nodes: Vec<SocketAddr>,
    streams: Vec<Option<BufReader<TcpStream>>>,
    sessions: Vec<(u64, Session)>,
}

impl Client {
    async fn connect(nodes: Vec<SocketAddr>) -> Self {
        let mut streams = Vec::new();
        for node in &nodes {
            streams.push(Some(connect(*node).await.unwrap()));
        }
        Self { nodes, streams, sessions: Vec::new() }
    }

    /// Opens the sessions of its numbers, in turns at the nodes.
    async fn open(&mut self, numbers: impl Iterator<Item = u64>) {
        for number in numbers {
            let at = usize::try_from(number % 3).unwrap();
            let session = Session::open(self.nodes[at], Binding::Streamable).await;
            assert_eq!(session.node(), NODES[at]);
            self.sessions.push((number, session));
        }
    }

    /// An echo of each session through each node is answered by its owner with its own value.
    async fn echo(&mut self) {
        for (number, session) in &self.sessions {
            for (through, stream) in self.streams.iter_mut().enumerate() {
                let value = format!("of {number} through {through}");
                let body = message(Some(10), "echo", &json!({ "value": value }));
                let answer = in_time("an echo", session.ask_on(stream, self.nodes[through], &body)).await;
                let answer = answer_in(&answer);
                assert_eq!(answer["result"], json!({ "node": session.node(), "value": value }));
            }
        }
    }

    /// Requests of some sessions begin through one node and are cancelled through another. Returns how many.
    async fn cancel(&self) -> u64 {
        let mut cancelled = 0;
        for (number, session) in self.sessions.iter().filter(|(number, _)| number % CANCELLED == 0) {
            let through = |after: u64| self.nodes[usize::try_from((number / CANCELLED + after) % 3).unwrap()];
            let running = session.begin(through(0), 11, "hang", &json!({})).await.unwrap();
            assert_eq!(running.status, 200);
            session.cancel(through(1), 11).await;
            let answer = in_time("the end of a cancelled request", running.answer(11)).await.unwrap();
            assert_eq!(answer, None, "MCP owes a cancelled request silence");
            cancelled += 1;
        }
        cancelled
    }
}

/// The message of a response: its body, or the data of its only message, as the answer to a slow request is an event.
fn answer_in(body: &[u8]) -> Value {
    let text = String::from_utf8_lossy(body);
    let data =
        text.lines().filter_map(|line| line.strip_prefix("data:")).rfind(|data| !data.trim().is_empty());
    serde_json::from_str(data.unwrap_or(&text)).unwrap()
}

/// Bytes of this process in memory. `None`: not on this system.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Every session is reached through every node, and every cancel stops its request.
pub(crate) async fn each_of_many_sessions_is_reached_through_every_node(backend: Backend) {
    let engine = EngineServer::start(backend, ServerOptions::Usual);
    let (list, signalled) = (NodeList::new(), Signalled::default());
    let mut nodes = Vec::new();
    for name in NODES {
        let address = match &engine {
            Some(engine) => engine.url().parse().unwrap(),
            None => ClusterAddress::from(list.clone()),
        };
        nodes.push(Node::start(name, address, &list, Arc::clone(&signalled)).await);
    }
    let addresses: Vec<_> = nodes.iter().map(|node| node.address).collect();
    let begun = Instant::now();
    let before = resident();
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let addresses = addresses.clone();
        clients.spawn(async move {
            let mut it = Client::connect(addresses).await;
            it.open((0..total()).filter(|number| number % CLIENTS == client)).await;
            it
        });
    }
    let mut clients = within(PATIENCE, "all sessions open", clients.join_all()).await;
    let opened = begun.elapsed();
    let grown = resident().zip(before).map(|(now, before)| now.saturating_sub(before) / total() / 1024);
    let working = clients.iter_mut().map(|client| async {
        client.echo().await;
        client.cancel().await
    });
    let cancelled = within(PATIENCE, "all echoes", futures_util::future::join_all(working)).await;
    let cancelled = cancelled.into_iter().sum::<u64>();
    assert_eq!(cancelled, total().div_ceil(CANCELLED));
    assert_eq!(signalled.load(Ordering::Relaxed), cancelled, "handlers were signalled");
    let grown = grown.map_or_else(|| "not measured".to_owned(), |kib| format!("{kib} KiB"));
    tell(&format!(
        "measured: {}: {} sessions over three nodes, opened in {:.1} s, {grown} each; {} echoes and {cancelled} cancels \
         through all nodes: none lost, none misrouted, {:.1} s",
        backend.name(),
        total(),
        opened.as_secs_f64(),
        total() * 3,
        begun.elapsed().as_secs_f64()
    ));
}
