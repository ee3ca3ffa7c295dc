//! Tasks of MCP 2026-07-28 at three nodes: cancels at two nodes at once, ids that are forged, and other principals.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rescind_cluster::{Cluster, NodeList, NodeName, Secret};
use rescind_core::{CallContext, Listener as _, Router, Server, Tasks, dialect};
use rescind_http::{HttpServer, Stateless};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{LIMIT, post, secret, who};

/// A node whose tool calls are tasks that wait for their cancel.
struct Node {
    address: SocketAddr,
    running: Arc<AtomicUsize>,
    /// How many handlers were signalled.
    signalled: Arc<AtomicUsize>,
    _cluster: Cluster,
    server: JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Node {
    async fn start(name: &str, nodes: &NodeList, secret: &Secret) -> Self {
        let name: NodeName = name.parse().unwrap();
        let cluster =
            Cluster::connect(nodes.clone().into(), Some(name.clone()), secret.clone()).await.unwrap();
        let server =
            HttpServer::new(Stateless::new()).path("/mcp").session_router(cluster.router()).auth(who);
        let listener = server.bind("127.0.0.1:0").await.unwrap();
        let url = listener.endpoint().0;
        nodes.set(name, url.parse().unwrap());
        cluster.join(&url).await.unwrap();
        let (running, signalled) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (runs, signals) = (Arc::clone(&running), Arc::clone(&signalled));
        let tasks = Tasks::default();
        tasks.set_store(cluster.task_store());
        let router = Router::new().tasks(&tasks).task("tools/call", move |ctx: CallContext, _: Value| {
            let (runs, signals) = (Arc::clone(&runs), Arc::clone(&signals));
            async move {
                runs.fetch_add(1, Ordering::SeqCst);
                let cause = ctx.cancelled().await;
                signals.fetch_add(1, Ordering::SeqCst);
                runs.fetch_sub(1, Ordering::SeqCst);
                ctx.stopped::<Value>(cause)
            }
        });
        let server =
            Server::builder([dialect::MCP_2026]).serve(router).cluster_keys(cluster.keys()).listen(listener);
        let server = tokio::spawn(async move { drop(server.run().await) });
        let address = url.trim_start_matches("http://").trim_end_matches("/mcp").parse().unwrap();
        Self { address, running, signalled, _cluster: cluster, server }
    }

    /// Sends a request as this user, and returns the answer.
    async fn ask(&self, user: &str, method: &str, params: &Value) -> Value {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
        });
        let mut params = params.clone();
        let name = params["taskId"].as_str().or(params["name"].as_str()).unwrap_or_default().to_owned();
        params["_meta"] = meta;
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let user = format!("Bearer {user}");
        let headers = [
            ("authorization", &*user),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", method),
            ("mcp-name", &*name),
        ];
        let answer = post(self.address, &headers, &body).await;
        let at = answer.text.find(r#"{"jsonrpc""#).unwrap_or_else(|| panic!("{method}: {answer:?}"));
        let mut read = serde_json::Deserializer::from_str(&answer.text[at..]).into_iter();
        read.next().unwrap().unwrap_or_else(|error| panic!("{error}: {answer:?}"))
    }

    async fn begin(&self, user: &str) -> Value {
        let answer = self.ask(user, "tools/call", &json!({ "name": "wait", "arguments": {} })).await;
        assert_eq!(answer["result"]["resultType"], "task", "{answer}");
        json!({ "taskId": answer["result"]["taskId"] })
    }

    async fn status(&self, user: &str, task: &Value) -> Value {
        let answer = self.ask(user, "tasks/get", task).await;
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"]["status"].clone()
    }

    async fn runs(&self, count: usize) {
        let waiting = async {
            while self.running.load(Ordering::SeqCst) != count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, waiting).await.unwrap();
    }
}

async fn three() -> [Node; 3] {
    let (nodes, secret) = (NodeList::new(), secret());
    [
        Node::start("n1", &nodes, &secret).await,
        Node::start("n2", &nodes, &secret).await,
        Node::start("n3", &nodes, &secret).await,
    ]
}

/// The error code of an answer.
fn code(answer: &Value) -> &Value {
    assert!(answer["result"].is_null(), "{answer}");
    &answer["error"]["code"]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancels_at_two_nodes_at_once_stop_a_task_and_are_both_answered() {
    let [one, two, three] = three().await;
    for round in 1..=20 {
        let task = one.begin("ada").await;
        one.runs(1).await;
        let (second, third) =
            tokio::join!(two.ask("ada", "tasks/cancel", &task), three.ask("ada", "tasks/cancel", &task));
        for told in [second, third] {
            assert_eq!(told["result"]["resultType"], "complete", "{told}");
        }
        for node in [&three, &two, &one] {
            assert_eq!(node.status("ada", &task).await, "cancelled", "I17");
        }
        one.runs(0).await;
        assert_eq!(one.signalled.load(Ordering::SeqCst), round);
    }
}

#[tokio::test]
async fn a_task_of_another_principal_is_unknown_through_every_node() {
    let nodes = three().await;
    let task = nodes[0].begin("ada").await;
    nodes[0].runs(1).await;
    for node in &nodes {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let mut params = task.clone();
            params["inputResponses"] = json!({});
            assert_eq!(code(&node.ask("bob", method, &params).await), -32602, "{method}");
        }
        assert_eq!(node.status("ada", &task).await, "working");
    }
    nodes[2].ask("ada", "tasks/cancel", &task).await;
    nodes[0].runs(0).await;
}

#[tokio::test]
async fn an_id_with_another_digit_is_unknown_at_every_node_and_stops_nothing() {
    let nodes = three().await;
    let task = nodes[0].begin("ada").await;
    let id = task["taskId"].as_str().unwrap();
    nodes[0].runs(1).await;
    let after_the_name = id.find('.').unwrap() + 1;
    for (at, digit) in id.bytes().enumerate().skip(after_the_name).filter(|(_, digit)| *digit != b'.') {
        let mut forged = id.as_bytes().to_vec();
        forged[at] = if digit == b'0' { b'1' } else { b'0' };
        let forged = json!({ "taskId": String::from_utf8(forged).unwrap() });
        // The node that it names, and another.
        for node in &nodes[..2] {
            let method = if at % 2 == 0 { "tasks/get" } else { "tasks/cancel" };
            assert_eq!(code(&node.ask("ada", method, &forged).await), -32602, "{forged}");
        }
    }
    let rest = &id[after_the_name..];
    let theirs = NodeList::new();
    let foreign = Node::start("n1", &theirs, &Secret::new(*b"the secret of another cluster").unwrap()).await;
    let foreign = foreign.begin("ada").await["taskId"].as_str().unwrap().to_owned();
    let others = [
        format!("n2.{rest}"),
        format!("n9.{rest}"),
        format!("127.0.0.1:1.{rest}"),
        format!("{id}0"),
        id[..id.len() - 1].to_owned(),
        "x".repeat(4000),
        foreign,
    ];
    for forged in &others {
        let forged = json!({ "taskId": forged });
        for node in &nodes {
            for method in ["tasks/get", "tasks/cancel"] {
                assert_eq!(code(&node.ask("ada", method, &forged).await), -32602, "{forged}");
            }
        }
    }
    for node in &nodes {
        assert_eq!(node.status("ada", &task).await, "working");
    }
    assert_eq!(nodes[0].signalled.load(Ordering::SeqCst), 0);
    nodes[1].ask("ada", "tasks/cancel", &task).await;
    nodes[0].runs(0).await;
}
