//! Two nodes without sessions: a request runs at one, and its cancel comes to the other.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rescind_cluster::{Cluster, NodeList, NodeName, Secret};
use rescind_core::dialect::MCP;
use rescind_core::{CallContext, Listener, Principal, Router, Server};
use rescind_http::{HttpServer, SHARED_CANCEL_KEPT, Streamable};
use rescind_net::{AuthRefusal, AuthRequest, Credential};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Far more than any wait of a test needs.
const HANG: Duration = Duration::from_secs(30);

async fn in_time<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, wait).await.unwrap_or_else(|_| panic!("hangs: {what}"))
}

#[derive(Debug, PartialEq)]
enum Seen {
    Started,
    Cancelled,
}

/// A node that serves until it is dropped.
struct Node {
    url: String,
    seen: mpsc::UnboundedReceiver<Seen>,
    _cluster: Cluster,
    serving: JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Node {
    async fn start(name: &str, list: &NodeList, secret: &Secret) -> Self {
        let name: NodeName = name.parse().unwrap();
        let cluster =
            Cluster::connect(list.clone().into(), Some(name.clone()), secret.clone()).await.unwrap();
        let auth = async |request: AuthRequest| match request.header("x-user") {
            Some(user) => Ok(Credential::of(Principal(user.into()))),
            None => Err(AuthRefusal::unauthorized("Bearer")),
        };
        let server =
            HttpServer::new(Streamable::new().sessionless()).auth(auth).session_router(cluster.router());
        let listener = server.bind("127.0.0.1:0").await.unwrap();
        let url = listener.endpoint().to_string();
        list.set(name, url.parse().unwrap());
        let (saw, seen) = mpsc::unbounded_channel();
        let router = Router::new()
            .method("echo", |_: CallContext, value: Value| async move { Ok(value) })
            .method("wait", move |ctx: CallContext, _: Value| {
                let saw = saw.clone();
                async move {
                    let _ = saw.send(Seen::Started);
                    let cause = ctx.cancelled().await;
                    let _ = saw.send(Seen::Cancelled);
                    ctx.stopped::<Value>(cause)
                }
            });
        let server = Server::builder([MCP]).serve(router).listen(listener);
        let serving = tokio::spawn(async move { server.run().await.unwrap() });
        cluster.join(&url).await.unwrap();
        Self { url, seen, _cluster: cluster, serving }
    }

    async fn saw(&mut self, expected: Seen) {
        assert_eq!(in_time("an event", self.seen.recv()).await, Some(expected));
    }

    /// Sends a message on a connection of its own. Other headers name a session that this server ignores.
    async fn post(&self, user: &str, message: &Value) -> Response<Incoming> {
        let address = self.url.trim_start_matches("http://").trim_end_matches('/');
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post(&self.url)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-session-id", "n9.1.2.3")
            .header("x-user", user)
            .body(Full::new(Bytes::from(message.to_string())))
            .unwrap();
        in_time("a response", sender.send_request(request)).await.unwrap()
    }

    async fn cancel(&self, user: &str, id: u64) -> StatusCode {
        let params = json!({"requestId": id, "reason": "the \"user\" stopped it"});
        let message = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        self.post(user, &message).await.status()
    }
}

fn request(id: u64, method: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"n": id}})
}

async fn whole(response: Response<Incoming>) -> String {
    let body = in_time("a body", response.into_body().collect()).await.unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

async fn two_nodes() -> (Node, Node) {
    let (list, secret) = (NodeList::new(), Secret::of_loopback());
    (Node::start("n1", &list, &secret).await, Node::start("n2", &list, &secret).await)
}

#[tokio::test]
async fn a_cancel_at_another_node_stops_the_work_and_its_stream_ends_without_an_answer() {
    let (mut one, two) = two_nodes().await;
    let running = one.post("ada", &request(7, "wait")).await;
    one.saw(Seen::Started).await;
    assert_eq!(two.cancel("ada", 7).await, StatusCode::ACCEPTED);
    one.saw(Seen::Cancelled).await;
    assert_eq!((running.status(), whole(running).await), (StatusCode::OK, String::new()));
}

#[tokio::test]
async fn a_cancel_of_another_principal_at_another_node_has_no_effect() {
    let (mut one, two) = two_nodes().await;
    let running = one.post("ada", &request(7, "wait")).await;
    one.saw(Seen::Started).await;
    assert_eq!(two.cancel("bob", 7).await, StatusCode::ACCEPTED);
    assert_eq!(two.cancel("ada", 8).await, StatusCode::ACCEPTED);
    // A request of the other principal with this id shows that its cancel has arrived.
    let other = one.post("bob", &request(7, "wait")).await;
    one.saw(Seen::Started).await;
    one.saw(Seen::Cancelled).await;
    assert_eq!(whole(other).await, "");
    assert!(one.seen.try_recv().is_err(), "the first one goes on");
    assert_eq!(two.cancel("ada", 7).await, StatusCode::ACCEPTED);
    one.saw(Seen::Cancelled).await;
    assert_eq!(whole(running).await, "");
}

#[tokio::test]
async fn a_cancel_at_another_node_may_come_before_its_request_but_not_long_before() {
    let (one, two) = two_nodes().await;
    assert_eq!(two.cancel("ada", 7).await, StatusCode::ACCEPTED);
    let cancelled = one.post("ada", &request(7, "wait")).await;
    assert_eq!(whole(cancelled).await, "");
    assert_eq!(two.cancel("ada", 8).await, StatusCode::ACCEPTED);
    tokio::time::pause();
    tokio::time::advance(SHARED_CANCEL_KEPT + Duration::from_millis(1)).await;
    tokio::time::resume();
    let answered = whole(one.post("ada", &request(8, "echo")).await).await;
    assert!(answered.contains(r#""result":{"n":8}"#), "{answered}");
}

#[tokio::test]
async fn a_cancel_that_did_not_reach_a_node_is_no_silent_success() {
    let (list, secret) = (NodeList::new(), Secret::of_loopback());
    let mut one = Node::start("n1", &list, &secret).await;
    let two = Node::start("n2", &list, &secret).await;
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    list.set("n3".parse().unwrap(), format!("http://{closed}/").parse().unwrap());
    let running = one.post("ada", &request(7, "wait")).await;
    one.saw(Seen::Started).await;
    let message = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
    let response = two.post("ada", &message).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let text = whole(response).await;
    assert!(text.contains("the node n3"), "{text}");
    one.saw(Seen::Cancelled).await;
    assert_eq!(whole(running).await, "", "the other nodes have got it");
}
