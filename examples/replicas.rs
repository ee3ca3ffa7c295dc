//! Three nodes of a cluster in one process, with a balancer that sends each connection to the next node, and a live page of
//! each node.
//!
//! Run it with `cargo run -p rescind-examples --example replicas -- --stay` and open the URLs that it prints: three clients
//! keep the nodes busy until Ctrl-C. The page of a node shows the requests of its sessions, whichever node received them.
//! With `--redis URL` the nodes meet in Redis, otherwise they have a list of each other. Without `--stay` each client makes
//! some calls, one call is cancelled by its key from another node, and the program ends.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rescind::http::{HttpClient, HttpServer, SessionRoute, SessionRouter, Streamable, StreamableTransport};
use rescind::page::Page;
use rescind::transport::Listener as _;
use rescind::{
    CallContext, Cause, CauseKind, HandlerResult, Outcome, Peer, Router, Server, ServerHandle, dialect,
};
use rescind_cluster::{Cluster, ClusterAddress, NodeList, NodeName, Secret};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

type Failure = Box<dyn Error + Send + Sync>;

/// The router of a node, which counts what it passes on.
struct Counted {
    router: Arc<dyn SessionRouter>,
    forwarded: Arc<AtomicU64>,
}

impl SessionRouter for Counted {
    fn new_session_id(&self) -> Option<String> {
        self.router.new_session_id()
    }

    fn route(&self, head: &mut axum::http::request::Parts, session: Option<&str>) -> SessionRoute {
        let is_of_client = !head.headers.contains_key("rescind-hop");
        let route = self.router.route(head, session);
        if is_of_client && matches!(route, SessionRoute::Elsewhere(_)) {
            self.forwarded.fetch_add(1, Ordering::Relaxed);
        }
        route
    }
}

/// A node that runs.
struct Node {
    name: NodeName,
    address: SocketAddr,
    cluster: Cluster,
    server: ServerHandle,
    forwarded: Arc<AtomicU64>,
}

/// Starts a node and its page.
async fn start(name: &str, meeting: ClusterAddress, list: &NodeList) -> Result<Node, Failure> {
    let name: NodeName = name.parse()?;
    let cluster = Cluster::connect(meeting, Some(name.clone()), Secret::of_loopback()).await?;
    let forwarded = Arc::new(AtomicU64::new(0));
    let router = Counted { router: cluster.router(), forwarded: Arc::clone(&forwarded) };
    let http = HttpServer::new(Streamable::new()).path("/mcp").session_router(Arc::new(router));
    let listener = http.bind("127.0.0.1:0").await?;
    let url = listener.endpoint().0;
    list.set(name.clone(), url.parse()?);
    cluster.join(&url).await?;

    let shown = name.to_string();
    let work = move |ctx: CallContext, (ms,): (u64,)| work(ctx, shown.clone(), ms);
    let router = Router::new().method("initialize", initialize).method("work", work);
    let server = Server::builder(dialect::MCP).serve(router).cluster_keys(cluster.keys()).listen(listener);
    let handle = server.handle();
    tokio::spawn(server.run());
    let page = Page::of_server(&handle)?.title(format!("node {name}")).bind("127.0.0.1:0").await?;
    println!("node {name} on {url}, its page on {}", page.url());
    tokio::spawn(page.run());
    let address = url.trim_start_matches("http://").trim_end_matches("/mcp").parse()?;
    Ok(Node { name, address, cluster, server: handle, forwarded })
}

async fn initialize(_: CallContext, _: Value) -> HandlerResult<Value> {
    let server = json!({ "name": "replicas", "version": env!("CARGO_PKG_VERSION") });
    Ok(json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": server }))
}

/// Sends the key of the request to its caller, works, and returns the name of its node.
async fn work(ctx: CallContext, node: String, ms: u64) -> HandlerResult<String> {
    if let Some(key) = ctx.cluster_key() {
        ctx.notify("key", &[&*key]).await?;
    }
    ctx.run_until_cancelled(sleep(Duration::from_millis(ms))).await?;
    Ok(node)
}

/// Passes each connection to the next node, and knows nothing of sessions.
async fn balance(listener: TcpListener, nodes: Vec<SocketAddr>) {
    for node in nodes.iter().cycle().copied() {
        let Ok((mut client, _)) = listener.accept().await else { return };
        tokio::spawn(async move {
            if let Ok(mut server) = TcpStream::connect(node).await {
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            }
        });
    }
}

/// Opens a session through the balancer.
async fn open(url: &str) -> Result<Peer, Failure> {
    let peer = Peer::builder(dialect::MCP).connect(StreamableTransport::new(HttpClient::new(url)?)).await?;
    let client = json!({ "name": "replicas", "version": env!("CARGO_PKG_VERSION") });
    let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
    peer.call::<_, Value>("initialize", &hello).await?;
    peer.try_notify("notifications/initialized", &json!({}))?;
    Ok(peer)
}

/// A client with several calls at once, so that it has several connections.
async fn client(url: String, number: u64, is_endless: bool) -> Result<(), Failure> {
    let peer = open(&url).await?;
    for turn in number.. {
        let ms = if is_endless { 2000 + (turn * 7919 + number * 3001) % 9000 } else { 20 };
        let calls = [ms, ms * 2, ms * 3].map(|ms| peer.call::<_, String>("work", &[ms]).start());
        let mut ran = Vec::new();
        for call in calls {
            match call?.outcome().await {
                Outcome::Completed(node) => ran.push(node),
                // The page has a button that stops a request.
                Outcome::Cancelled(_) | Outcome::Failed(_) if is_endless => {}
                other => return Err(format!("a call ended otherwise: {other:?}").into()),
            }
        }
        if !is_endless {
            println!("client {number}: its calls ran on {ran:?}");
            break;
        }
    }
    peer.shutdown(Duration::ZERO).await;
    Ok(())
}

/// Cancels a call by its key from a node that need not be the one where it runs.
async fn cancel_elsewhere(url: &str, node: &Node) -> Result<(), Failure> {
    let peer = open(url).await?;
    let call = peer.call::<_, String>("work", &[3_600_000_u64]).start()?;
    let mut keys = call.notifications_where(|notification| notification.method() == "key");
    let (key,): (String,) = keys.next().await.ok_or("the call has ended")?.params()?;
    let (runs_on, _) = key.split_once('.').ok_or("this is not a key")?;
    println!("a call on {runs_on} is cancelled by its key from {}", node.name);
    node.cluster.cancel_bus().cancel(&key, &Cause::new(CauseKind::Operator)).await?;
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => {
            println!("its caller is answered: cancelled, because {}", cancelled.cause);
        }
        other => return Err(format!("the call ended otherwise: {other:?}").into()),
    }
    peer.shutdown(Duration::ZERO).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let (mut redis, mut is_endless) = (None, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match (&*argument, &redis) {
            ("--redis", None) => redis = Some(arguments.next().ok_or("--redis needs a URL")?),
            ("--stay", _) => is_endless = true,
            _ => return Err("usage: replicas [--redis redis://HOST:PORT] [--stay]".into()),
        }
    }
    let list = NodeList::new();
    let mut nodes = Vec::new();
    for name in ["n1", "n2", "n3"] {
        let meeting = match &redis {
            Some(url) => url.parse()?,
            None => ClusterAddress::Static(list.clone()),
        };
        nodes.push(start(name, meeting, &list).await?);
    }
    let balancer = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/mcp", balancer.local_addr()?);
    println!("balancer on {url}");
    tokio::spawn(balance(balancer, nodes.iter().map(|node| node.address).collect()));

    let clients: Vec<_> =
        (1..=3).map(|number| tokio::spawn(client(url.clone(), number, is_endless))).collect();
    if is_endless {
        tokio::signal::ctrl_c().await?;
    } else {
        for client in clients {
            client.await??;
        }
        cancel_elsewhere(&url, nodes.last().ok_or("there are no nodes")?).await?;
    }
    for node in &nodes {
        println!("{} passed on {} requests", node.name, node.forwarded.load(Ordering::Relaxed));
        node.server.drain(Duration::ZERO).await;
        node.cluster.leave().await?;
    }
    Ok(())
}
