//! What the owner of a session sees of a request that another node forwards: these tests are the owner.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::{Request, Response};
use rescind_testkit::support::in_time;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::backend::Backend;
use crate::client::{Binding, Session};
use crate::hops::{SECRET, sign};
use crate::nodes::{NODES, Node, Replicas, Setup};

/// The node n1, and this test as the node n2 with a session.
struct Forwarding {
    replicas: Replicas,
    owner: Owner,
    session: Session,
}

impl Forwarding {
    async fn start() -> Self {
        let setup = Setup { secret: Some(SECRET), ..Setup::default() };
        let mut replicas = Replicas::without_nodes(Backend::List, setup);
        let owner = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = owner.local_addr().unwrap();
        let node = Node::start(NODES[0], replicas.command(NODES[0], &[])).await.unwrap();
        let lines = format!("n1=http://{}/rpc\nn2=http://{address}/rpc\n", node.address);
        replicas.write_lines(&lines);
        let session = Session::open(node.address, Binding::Streamable).await;
        let unsigned = session.id.rsplit_once('.').unwrap().0.replacen("n1", "n2", 1);
        let session = session.named(format!("{unsigned}.{}", sign(SECRET, "session", &[&unsigned])));
        replicas.nodes.push(node);
        Self { replicas, owner: Owner { socket: owner, connection: None, task: None }, session }
    }

    fn entry(&self) -> SocketAddr {
        self.replicas.nodes[0].address
    }
}

/// A server of HTTP/2.
struct Owner {
    socket: TcpListener,
    connection: Option<Connection<TcpStream, Bytes>>,
    /// Drives the connection after the request of the test was taken.
    task: Option<JoinHandle<()>>,
}

impl Owner {
    /// The next request. The connection is driven by a task from then on.
    async fn request(&mut self) -> (Request<RecvStream>, SendResponse<Bytes>) {
        let taking = async {
            if self.connection.is_none() {
                let (stream, _) = self.socket.accept().await.unwrap();
                self.connection = Some(h2::server::handshake(stream).await.unwrap());
            }
            let mut connection = self.connection.take().unwrap();
            let request = connection.accept().await.unwrap().unwrap();
            self.task = Some(tokio::spawn(async move { while connection.accept().await.is_some() {} }));
            request
        };
        in_time("a forwarded request", taking).await
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// The body as it arrived.
async fn read(mut body: RecvStream) -> String {
    let mut text = Vec::new();
    while let Some(part) = in_time("the body", body.data()).await {
        text.extend_from_slice(&part.unwrap());
    }
    String::from_utf8(text).unwrap()
}

/// A client that leaves the node it reached leaves the owner: before the head of the response, and during its body.
pub(crate) async fn a_client_that_leaves_the_entry_node_leaves_the_owner(_: Backend) {
    for answers in [false, true] {
        let mut all = Forwarding::start().await;
        let (session, entry) = (all.session.clone(), all.entry());
        let client = tokio::spawn(async move {
            let mut events = session.request(entry, "GET", &[], "").await?;
            let event = events.event().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            Ok::<_, io::Error>((events, event))
        });
        let (_request, mut respond) = all.owner.request().await;
        let reset = if answers {
            let head = Response::builder().header("content-type", "text/event-stream").body(()).unwrap();
            let mut body = respond.send_response(head, false).unwrap();
            body.send_data(Bytes::from_static(b"data: {\"method\":\"first\"}\n\n"), false).unwrap();
            let (events, event) = in_time("the event", client).await.unwrap().unwrap();
            assert_eq!(event.message, json!({ "method": "first" }));
            drop(events);
            in_time("the owner sees it", std::future::poll_fn(|cx| body.poll_reset(cx))).await
        } else {
            client.abort();
            in_time("the owner sees it", std::future::poll_fn(|cx| respond.poll_reset(cx))).await
        };
        assert_eq!(reset.unwrap(), Reason::CANCEL);
    }
}

/// Method, path, headers and body arrive as the client sent them; the response goes back as the owner sent it.
pub(crate) async fn a_request_is_forwarded_as_it_is(_: Backend) {
    let mut all = Forwarding::start().await;
    let (session, entry) = (all.session.clone(), all.entry());
    let body = r#"{"jsonrpc":"2.0",  "id":1,"method":"x","params":{"n":1.0e400}}"#;
    let headers = [("Authorization", "Bearer of-the-client"), ("X-Own", "1"), ("Keep-Alive", "5")];
    let client = tokio::spawn(async move {
        let response = session.request(entry, "POST", &headers, body).await?;
        let (status, own) = (response.status, response.header("x-answer").map(str::to_owned));
        Ok::<_, io::Error>((status, own, response.text().await?))
    });
    let (request, mut respond) = all.owner.request().await;
    let (head, sent) = request.into_parts();
    assert_eq!((head.method.as_str(), head.uri.path()), ("POST", "/rpc"));
    assert_eq!(head.uri.authority().unwrap().as_str(), entry.to_string(), "the host that the client named");
    assert_eq!(head.headers["authorization"], "Bearer of-the-client");
    assert_eq!(head.headers["x-own"], "1");
    assert!(head.headers.get("keep-alive").is_none(), "it is about one connection");
    assert_eq!(head.headers["mcp-session-id"], all.session.id.as_str());
    let hop = head.headers["rescind-hop"].to_str().unwrap();
    let (unsigned, signature) = hop.rsplit_once(';').unwrap();
    assert_eq!(unsigned, "v1;forward;n1;n2;127.0.0.1");
    assert_eq!(signature, sign(SECRET, "hop", &[unsigned, "POST", "/rpc", &all.session.id]));
    assert_eq!(read(sent).await, body, "byte for byte");
    let response = Response::builder().status(418).header("x-answer", "7").body(()).unwrap();
    let mut answer = respond.send_response(response, false).unwrap();
    answer.send_data(Bytes::from_static(b"an answer"), true).unwrap();
    let (status, own, text) = in_time("the response", client).await.unwrap().unwrap();
    assert_eq!((status, own.as_deref(), text.as_str()), (418, Some("7"), "an answer"));
}
