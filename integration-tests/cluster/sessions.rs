//! Sessions over several replicas: their owner, the messages between nodes, and what the owner receives.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::Request;
use rescind_testkit::support::{in_time, within};
use serde_json::json;
use sha2::Sha256;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::client::{Binding, Event, Response, Session, message};
use super::nodes::{Backend, NODES, Node, Replicas, Setup};
use super::trial::poll_until;

// Sessions reach their owner, whichever replica a request reaches.

/// Requests, the event stream and DELETE of a session go through every replica, also the owner's requests.
pub(crate) async fn sessions_work_from_every_replica(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    for (owner, at) in all.iter().enumerate() {
        let session = Session::open(*at, Binding::Streamable).await;
        assert_eq!(session.node(), super::nodes::NODES[owner]);
        for (number, through) in (10..).zip(&all) {
            let value = json!({ "value": [owner, number] });
            let answer = session.ask(*through, number, "test/echo", value.clone()).await;
            assert_eq!(answer["result"]["value"], value["value"], "{answer}");
        }
        let events = session.events(all[(owner + 1) % 3], None).await;
        assert_eq!(events.status, 200);
        drop(events);
        assert_eq!(session.delete(all[(owner + 2) % 3]).await, 204);
        for through in &all {
            assert_eq!(session.status(*through).await, 404, "it has ended");
        }
    }
}

/// The same for the binding of ACP, whose answers come on the event stream.
pub(crate) async fn acp_connections_work_from_every_replica(backend: Backend) {
    let setup = Setup { binding: Binding::Acp, ..Setup::default() };
    let replicas = Replicas::start_with(backend, setup).await;
    let all = replicas.addresses();
    let session = Session::open(all[0], Binding::Acp).await;
    let mut events = session.events(all[1], None).await;
    assert_eq!(events.status, 200);
    for (number, through) in (10..).zip(&all) {
        let sent = session.begin(*through, number, "test/echo", &json!({ "value": number })).await.unwrap();
        assert_eq!(sent.status, 202);
        let answer = in_time("an answer", events.answer_of(number)).await.unwrap().unwrap();
        assert_eq!(answer["result"]["value"], number, "{answer}");
    }
    assert_eq!(session.delete(all[2]).await, 202);
    let ended = in_time("the end of the stream", async { while let Ok(Some(_)) = events.event().await {} });
    ended.await;
    assert_eq!(session.status(all[1]).await, 404);
}

/// A cancel by notification reaches its request through any replica.
pub(crate) async fn a_cancel_through_another_replica_reaches_its_request(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let session = replicas.session(0).await;
    for (number, (begins, cancels)) in (10..).zip([(0, 1), (1, 0), (1, 2), (2, 2)]) {
        let running = session.begin(all[begins], number, "test/wait", &json!({})).await.unwrap();
        assert_eq!(running.status, 200);
        let _key = session.key(all[cancels], number).await;
        session.cancel(all[cancels], number).await;
        let answer = in_time("the end of a cancelled request", running.answer(number)).await.unwrap();
        assert_eq!(answer, None, "MCP owes a cancelled request silence");
        poll_until("its handler has ended", async || {
            let stats = session.ask(all[0], 2_000_000, "test/stats", json!({})).await;
            stats["result"]["cancelled"] == number - 9 && stats["result"]["running"] == 0
        })
        .await;
    }
}

/// A stream of MCP goes on through another replica where it was left.
pub(crate) async fn a_stream_is_resumed_through_another_replica(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let all = replicas.addresses();
    let session = replicas.session(0).await;
    let progress = json!({ "count": 6, "every_ms": 20, "_meta": { "progressToken": "p" } });
    let mut first = session.begin(all[1], 10, "test/progress", &progress).await.unwrap();
    let mut seen = Vec::new();
    let mut last = None;
    while seen.len() < 2 {
        let event = in_time("an event", first.event()).await.unwrap().expect("the stream ended early");
        last = event.id.or(last);
        if event.message["method"] == "notifications/progress" {
            seen.push(event.message["params"]["progress"].as_f64().unwrap());
        }
    }
    drop(first);
    let mut again = session.events(all[2], last.as_deref()).await;
    assert_eq!(again.status, 200);
    loop {
        let event = in_time("an event", again.event()).await.unwrap().expect("no answer on the stream");
        match event.message["method"].as_str() {
            Some(_) => seen.push(event.message["params"]["progress"].as_f64().unwrap()),
            None if event.message["id"] == 10 => break,
            None => {}
        }
    }
    assert_eq!(seen, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "each event once, in order");
}

/// The stream of a connection of ACP goes on through another replica where it was left.
pub(crate) async fn an_acp_stream_is_resumed_through_another_replica(backend: Backend) {
    let setup = Setup { binding: Binding::Acp, ..Setup::default() };
    let replicas = Replicas::start_with(backend, setup).await;
    let all = replicas.addresses();
    let session = Session::open(all[0], Binding::Acp).await;
    let mut first = session.events(all[1], None).await;
    let echo = async |number: u64| {
        let sent = session.begin(all[0], number, "test/echo", &json!({ "value": number })).await.unwrap();
        assert_eq!(sent.status, 202);
    };
    echo(10).await;
    let before = next_message(&mut first).await;
    assert_eq!(before.message["id"], 10);
    drop(first);
    echo(11).await;
    echo(12).await;
    let mut again = session.events(all[2], before.id.as_deref()).await;
    assert_eq!(again.status, 200);
    // The handlers of both run at once, so either may be answered first.
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(next_message(&mut again).await.message["id"].as_u64().unwrap());
    }
    seen.sort_unstable();
    assert_eq!(seen, [11, 12], "each event once");
}

async fn next_message(events: &mut Response) -> Event {
    loop {
        let event = in_time("an event", events.event()).await.unwrap().expect("the stream ended early");
        if !event.message.is_null() {
            return event;
        }
    }
}

/// A session of one principal is unknown to another one, also through another replica.
pub(crate) async fn a_session_of_another_principal_is_unknown_on_every_replica(backend: Backend) {
    let (one, two) = ("one=a-long-token-of-one", "two=a-long-token-of-two");
    let arguments = ["--token", one, "--token", two].map(str::to_owned).to_vec();
    let replicas = Replicas::start_with(backend, Setup { arguments, ..Setup::default() }).await;
    let all = replicas.addresses();
    let session = Session::open_as(all[0], Binding::Streamable, Some("a-long-token-of-one")).await;
    let other = session.with_token("a-long-token-of-two");
    let nobody = session.with_token("a-token-that-is-wrong");
    for through in &all {
        assert_eq!(session.status(*through).await, 200);
        assert_eq!(other.status(*through).await, 404);
        assert_eq!(other.delete(*through).await, 404);
        assert_eq!(other.events(*through, None).await.status, 404);
        assert_eq!(nobody.status(*through).await, 401);
    }
    let running = session.begin(all[1], 10, "test/wait", &json!({})).await.unwrap();
    let _key = session.key(all[2], 10).await;
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":10}}"#;
    assert_eq!(other.post(all[2], cancel).await.unwrap().status, 404);
    let stats = session.ask(all[0], 11, "test/stats", json!({})).await;
    assert_eq!((&stats["result"]["running"], &stats["result"]["cancelled"]), (&json!(1), &json!(0)));
    session.cancel(all[2], 10).await;
    assert_eq!(in_time("its end", running.answer(10)).await.unwrap(), None);
}

/// A node whose name a living node has does not start.
pub(crate) async fn a_second_node_of_the_same_name_does_not_start(backend: Backend) {
    let replicas = Replicas::start(backend).await;
    let command = replicas.command("n2", &[]);
    let starting = within(Duration::from_secs(15), "the second node ends", Node::start("n2", command));
    let said = starting.await.err().expect("two nodes have the name n2");
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    assert!(said.stderr.contains("another living node has the name n2"), "{}", said.stderr);
    let session = replicas.session(1).await;
    assert_eq!(session.status(replicas.nodes[0].address).await, 200);
}

// Messages between nodes: what is accepted, and what is refused.
//
// These tests sign messages themselves, as a node does: the format of crates/cluster/src/hop.rs.

pub(crate) const SECRET: &str = "the secret of the proofs";
const ANOTHER: &str = "the secret of somebody else";

/// A signature as of `Secret::sign`.
fn sign(secret: &str, purpose: &str, parts: &[&str]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    for part in ["rescind", purpose].iter().chain(parts) {
        mac.update(&u64::try_from(part.len()).unwrap().to_be_bytes());
        mac.update(part.as_bytes());
    }
    mac.finalize().into_bytes()[..16].iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The header of a request that is forwarded to the node `to`.
fn hop(secret: &str, to: &str, session: &Session) -> String {
    let unsigned = format!("v1;forward;n1;{to};192.0.2.7");
    let signature = sign(secret, "hop", &[&unsigned, "POST", "/rpc", &session.id]);
    format!("{unsigned};{signature}")
}

/// The status and body of an echo with these headers.
async fn echo(session: &Session, at: SocketAddr, hops: &[&str]) -> (u16, String) {
    let headers: Vec<_> = hops.iter().map(|hop| ("Rescind-Hop", *hop)).collect();
    let body = message(Some(10), "test/echo", &json!({ "value": 1 }));
    let sending = session.request(at, "POST", &headers, &body);
    let response = in_time("an echo", sending).await.unwrap();
    (response.status, response.text().await.unwrap())
}

async fn with_secret(backend: Backend) -> Replicas {
    Replicas::start_with(backend, Setup { secret: Some(SECRET), ..Setup::default() }).await
}

/// A node that does not hold a session answers 404 to another node, and forwards nothing.
pub(crate) async fn a_forwarded_request_is_never_forwarded_again(backend: Backend) {
    let replicas = with_secret(backend).await;
    let all = replicas.addresses();
    let session = replicas.session(1).await;
    let (status, body) = echo(&session, all[1], &[&hop(SECRET, "n2", &session)]).await;
    assert_eq!(status, 200, "the owner serves it: {body}");
    let (status, body) = echo(&session, all[2], &[]).await;
    assert_eq!(status, 200, "a client's is forwarded: {body}");
    let (status, body) = echo(&session, all[2], &[&hop(SECRET, "n3", &session)]).await;
    assert_eq!(status, 404, "{body}");
}

/// A message that this cluster has not signed for this node and this request is refused.
pub(crate) async fn a_hop_that_is_not_signed_for_this_node_is_refused(backend: Backend) {
    let replicas = with_secret(backend).await;
    let all = replicas.addresses();
    let session = replicas.session(1).await;
    let other = replicas.session(1).await;
    let valid = hop(SECRET, "n2", &session);
    let of_another = hop(SECRET, "n2", &other);
    let (by_another, for_another) = (hop(ANOTHER, "n2", &session), hop(SECRET, "n3", &session));
    let unsigned = valid.rsplit_once(';').unwrap().0;
    let wrong: [(&str, Vec<&str>); 8] = [
        ("no signature", vec![unsigned]),
        ("not a hop", vec!["1"]),
        ("an empty one", vec![""]),
        ("another secret", vec![&by_another]),
        ("for another node", vec![&for_another]),
        ("of another session", vec![&of_another]),
        ("twice the same", vec![&valid, &valid]),
        ("a valid one and another", vec![&valid, "1"]),
    ];
    for (what, hops) in &wrong {
        let (status, body) = echo(&session, all[1], hops).await;
        assert_eq!(status, 403, "{what}: {body}");
        assert!(!body.contains(SECRET), "{body}");
    }
    let (status, body) = echo(&session, all[1], &[&valid]).await;
    assert_eq!(status, 200, "{body}");
}

/// An id that another cluster has signed, or nobody, is unknown on every replica.
pub(crate) async fn an_id_that_this_cluster_did_not_sign_is_unknown(backend: Backend) {
    let replicas = with_secret(backend).await;
    let all = replicas.addresses();
    let session = replicas.session(1).await;
    let unsigned = session.id.rsplit_once('.').unwrap().0;
    let of_another = format!("{unsigned}.{}", sign(ANOTHER, "session", &[unsigned]));
    let by_us = format!("{unsigned}.{}", sign(SECRET, "session", &[unsigned]));
    assert_eq!(by_us, session.id, "these tests sign as the nodes do");
    // A key is no session, though both are signed.
    let as_key = format!("{unsigned}.{}", sign(SECRET, "key", &[unsigned]));
    // A node that does not exist, signed by this cluster.
    let nowhere = unsigned.replacen("n2", "n9", 1);
    let nowhere = format!("{nowhere}.{}", sign(SECRET, "session", &[&nowhere]));
    for id in [of_another.as_str(), &as_key, unsigned, &nowhere, "x", "n2", "n2.1.2.3"] {
        for through in &all {
            assert_eq!(session.named(id).status(*through).await, 404, "{id}");
        }
    }
    assert_eq!(session.status(all[0]).await, 200);
}

// What the owner of a session sees of a request that another node forwards: these tests are the owner.

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
            let head =
                http::Response::builder().header("content-type", "text/event-stream").body(()).unwrap();
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
    let response = http::Response::builder().status(418).header("x-answer", "7").body(()).unwrap();
    let mut answer = respond.send_response(response, false).unwrap();
    answer.send_data(Bytes::from_static(b"an answer"), true).unwrap();
    let (status, own, text) = in_time("the response", client).await.unwrap().unwrap();
    assert_eq!((status, own.as_deref(), text.as_str()), (418, Some("7"), "an answer"));
}
