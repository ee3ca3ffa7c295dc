//! Nodes with a list of each other, in this process, and what their clients and others see. Here: a node, a client that writes
//! its HTTP by hand, and cancels of requests that have a key.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

mod cluster {
    mod numbers;
    mod threats;
}
mod sessionless;
mod tasks;

use std::net::SocketAddr;
use std::time::Duration;

use rescind_cluster::{Cluster, NodeList, Secret};
use rescind_core::{CallContext, Cause, CauseKind, Listener, Principal, Router, Server, dialect};
use rescind_http::{HttpServer, Streamable};
use rescind_net::{AuthRefusal, AuthRequest, Credential};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// A wait that takes longer has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn secret() -> Secret {
    Secret::new(*b"the secret of these tests").unwrap()
}

/// What the handler of `hang` reports.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// It began, and has this key.
    Began(String),
    /// It was cancelled.
    Cancelled,
}

/// A node of MCP over streamable HTTP. Its bearer tokens are names of principals.
pub(crate) struct Node {
    pub(crate) url: String,
    pub(crate) address: SocketAddr,
    pub(crate) cluster: Cluster,
    pub(crate) events: mpsc::UnboundedReceiver<Event>,
    server: JoinHandle<()>,
}

impl Node {
    /// Starts a node that knows the others by this list, and adds it there.
    pub(crate) async fn start(name: &str, nodes: &NodeList, secret: &Secret) -> Self {
        let name: rescind_cluster::NodeName = name.parse().unwrap();
        let cluster =
            Cluster::connect(nodes.clone().into(), Some(name.clone()), secret.clone()).await.unwrap();
        let server =
            HttpServer::new(Streamable::new()).path("/mcp").session_router(cluster.router()).auth(who);
        let listener = server.bind("127.0.0.1:0").await.unwrap();
        let url = listener.endpoint().0;
        nodes.set(name, url.parse().unwrap());
        cluster.join(&url).await.unwrap();
        let (sender, events) = mpsc::unbounded_channel();
        let hang = move |ctx: CallContext, _: Value| {
            let sender = sender.clone();
            async move {
                sender.send(Event::Began(ctx.cluster_key().unwrap().to_string())).unwrap();
                let waiting: Result<Value, _> = ctx.run_until_cancelled(std::future::pending()).await;
                let _ = sender.send(Event::Cancelled);
                Ok(waiting?)
            }
        };
        let router = Router::new()
            .method("initialize", |_: CallContext, _: Value| async {
                let server = json!({ "name": "node", "version": "0" });
                Ok(json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": server }))
            })
            .method("echo", |_: CallContext, params: Value| async { Ok(params) })
            .method("hang", hang);
        let server =
            Server::builder([dialect::MCP]).serve(router).cluster_keys(cluster.keys()).listen(listener);
        let server = tokio::spawn(async move { drop(server.run().await) });
        let address = url.trim_start_matches("http://").trim_end_matches("/mcp").parse().unwrap();
        Self { url, address, cluster, events, server }
    }

    pub(crate) async fn event(&mut self) -> Event {
        tokio::time::timeout(LIMIT, self.events.recv()).await.unwrap().unwrap()
    }

    /// The key of the request `hang` that begins next.
    pub(crate) async fn key(&mut self) -> String {
        match self.event().await {
            Event::Began(key) => key,
            Event::Cancelled => panic!("it was cancelled and had not begun"),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.abort();
    }
}

pub(crate) async fn who(request: AuthRequest) -> Result<Credential, AuthRefusal> {
    match request.header("Authorization").and_then(|header| header.strip_prefix("Bearer ")) {
        Some(name) => Ok(Credential::of(Principal(name.into()))),
        None => Ok(Credential::anonymous()),
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) text: String,
}

/// Sends a request and does not wait for the response.
pub(crate) async fn send(to: SocketAddr, method: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let mut head = format!("{method} /mcp HTTP/1.1\r\nconnection: close\r\n");
    let host = ("host", &*to.to_string());
    let usual =
        [host, ("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    let length = body.len().to_string();
    let given = |name: &str| headers.iter().any(|(other, _)| *other == name);
    for (name, value) in usual.iter().filter(|(name, _)| !given(name)).chain(headers) {
        head.extend([name, ": ", value, "\r\n"]);
    }
    if !given("content-length") {
        head.extend(["content-length: ", &length, "\r\n"]);
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).await.unwrap();
    stream
}

/// Reads a response to its end.
pub(crate) async fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A server that refuses a body may reset the connection behind its response.
    let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut bytes)).await.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    Answer { status: status.unwrap_or_else(|| panic!("no response: {text:?}")), text }
}

/// Sends a POST and reads its response.
pub(crate) async fn post(to: SocketAddr, headers: &[(&str, &str)], body: &Value) -> Answer {
    read(send(to, "POST", headers, &body.to_string()).await).await
}

pub(crate) fn request(id: u32, method: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": {} })
}

pub(crate) fn cancel(id: u32) -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } })
}

/// Opens a session and returns its id.
pub(crate) async fn open(to: SocketAddr, headers: &[(&str, &str)]) -> String {
    let client = json!({ "name": "test", "version": "0" });
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
    let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    let answer = post(to, headers, &initialize).await;
    let line = answer.text.lines().find(|line| line.to_lowercase().starts_with("mcp-session-id: "));
    line.unwrap_or_else(|| panic!("no session: {answer:?}"))[16..].to_owned()
}

/// The header that names a session.
pub(crate) fn of(session: &str) -> (&str, &str) {
    ("mcp-session-id", session)
}

/// A worker in another process watches the key of its request.
#[tokio::test]
async fn a_watcher_on_another_node_is_signalled_when_the_caller_cancels() {
    let (nodes, secret) = (NodeList::new(), secret());
    let mut owner = Node::start("n1", &nodes, &secret).await;
    let other = Node::start("n2", &nodes, &secret).await;
    let session = open(owner.address, &[]).await;
    let body = request(1, "hang").to_string();
    let _request = send(owner.address, "POST", &[of(&session)], &body).await;
    let key = owner.key().await;
    let watch = other.cluster.cancel_bus().watch(&key).unwrap();
    assert_eq!(post(other.address, &[of(&session)], &cancel(1)).await.status, 202);
    assert_eq!(owner.event().await, Event::Cancelled);
    tokio::time::timeout(LIMIT, watch.cancelled()).await.unwrap();
    // A watch that begins after the request has ended finds the record.
    let late = other.cluster.cancel_bus().watch(&key).unwrap();
    tokio::time::timeout(LIMIT, late.cancelled()).await.unwrap();
}

#[tokio::test]
async fn a_cancel_by_the_key_reaches_the_handler_and_its_caller_is_answered() {
    let (nodes, secret) = (NodeList::new(), secret());
    let mut owner = Node::start("n1", &nodes, &secret).await;
    let other = Node::start("n2", &nodes, &secret).await;
    let session = open(owner.address, &[]).await;
    let body = request(1, "hang").to_string();
    let asked = send(other.address, "POST", &[of(&session)], &body).await;
    let key = owner.key().await;
    let cause = Cause::new(CauseKind::Operator);
    other.cluster.cancel_bus().cancel(&key, &cause).await.unwrap();
    assert_eq!(owner.event().await, Event::Cancelled);
    let answer = read(asked).await;
    assert!(answer.text.contains("cancelled by an operator"), "{answer:?}");
}
