//! The attacks on a cluster that `threats.md` lists.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, StatusCode};
use rescind_cluster::{CancelError, Cluster, NodeList, Secret};
use rescind_core::{Cause, CauseKind, Listener as _};
use rescind_http::{HttpServer, RouteRefusal, SessionRoute, SessionRouter, Streamable};
use tokio::sync::mpsc;

use crate::{Event, LIMIT, Node, cancel, of, open, post, read, request, secret, send};

/// A signature that is well formed.
const NO_SIGNATURE: &str = "00112233445566778899aabbccddeeff";

fn other_secret() -> Secret {
    Secret::new(*b"the secret of another cluster").unwrap()
}

/// A server that takes the place of a node, and keeps the heads that it gets.
struct Impostor(mpsc::UnboundedSender<HeaderMap>);

impl SessionRouter for Impostor {
    fn new_session_id(&self) -> Option<String> {
        None
    }

    fn route(&self, head: &mut Parts, _: Option<&str>) -> SessionRoute {
        let _ = self.0.send(head.headers.clone());
        SessionRoute::Refused(RouteRefusal::new(StatusCode::IM_A_TEAPOT, "caught".to_owned()))
    }
}

#[tokio::test]
async fn a_forged_hop_header_is_refused() {
    let nodes = NodeList::new();
    let node = Node::start("n1", &nodes, &secret()).await;
    let session = open(node.address, &[]).await;
    let signal = serde_json::json!({ "name": "cancelled.n1", "value": "{}", "keep_ms": 1000 });
    for hop in [
        "forward;n2;n1;192.0.2.7",
        "hello;n2;-;-",
        "signal;n2;n1;-",
        "status;n2;n1;-",
        "watch;-;n1;-",
        "other;n2;n1;-",
    ] {
        let hop = format!("v1;{hop};{NO_SIGNATURE}");
        let headers = [of(&session), ("rescind-hop", &*hop)];
        assert_eq!(post(node.address, &headers, &request(1, "echo")).await.status, 403, "{hop}");
        assert_eq!(post(node.address, &headers, &signal).await.status, 403, "{hop}");
    }
    for hop in ["", "v1", "v2;forward;n2;n1;-;00", NO_SIGNATURE] {
        let headers = [of(&session), ("rescind-hop", hop)];
        assert_eq!(post(node.address, &headers, &request(1, "echo")).await.status, 403, "{hop:?}");
    }
    let headers = [of(&session), ("rescind-hop", "x"), ("rescind-hop", "x")];
    assert_eq!(post(node.address, &headers, &request(1, "echo")).await.status, 403, "two of them");
    // Without one it is a client.
    assert_eq!(post(node.address, &[of(&session)], &request(1, "echo")).await.status, 200);
}

/// A node of another cluster has the same names and knows the address.
#[tokio::test]
async fn a_hop_that_another_cluster_signed_is_refused() {
    let (ours, theirs) = (NodeList::new(), NodeList::new());
    let ours = Node::start("n1", &ours, &secret()).await;
    let minting = Node::start("n1", &theirs, &other_secret()).await;
    let session = open(minting.address, &[]).await;
    theirs.set("n1".parse().unwrap(), ours.url.parse().unwrap());
    // It reads the list for the first time now.
    let attacker = Node::start("n2", &theirs, &other_secret()).await;
    assert_eq!(post(attacker.address, &[of(&session)], &request(1, "echo")).await.status, 403);
}

#[tokio::test]
async fn a_captured_hop_is_only_of_use_for_the_same_node_session_and_path() {
    let secret = secret();
    let (nodes, misled) = (NodeList::new(), NodeList::new());
    let entry = Node::start("n1", &misled, &secret).await;
    let owner = Node::start("n2", &nodes, &secret).await;
    let another = Node::start("n3", &nodes, &secret).await;
    let (sender, mut caught) = mpsc::unbounded_channel();
    let impostor = HttpServer::new(Streamable::new()).path("/mcp").session_router(Arc::new(Impostor(sender)));
    let impostor = impostor.bind("127.0.0.1:0").await.unwrap();
    misled.set("n2".parse().unwrap(), impostor.endpoint().0.parse().unwrap());

    let session = open(owner.address, &[]).await;
    let second = open(owner.address, &[]).await;
    assert_eq!(post(entry.address, &[of(&session)], &request(1, "echo")).await.status, 418);
    let caught = tokio::time::timeout(LIMIT, caught.recv()).await.unwrap().unwrap();
    let hop = ("rescind-hop", caught["rescind-hop"].to_str().unwrap());
    let again = request(1, "echo");
    // It does what the request would have done: the owner checks the client as ever.
    assert_eq!(post(owner.address, &[of(&session), hop], &again).await.status, 200);
    assert_eq!(post(another.address, &[of(&session), hop], &again).await.status, 403, "another node");
    assert_eq!(post(owner.address, &[of(&second), hop], &again).await.status, 403, "another session");
    assert_eq!(post(owner.address, &[hop], &again).await.status, 403, "no session");
    let opened = send(owner.address, "GET", &[of(&session), hop], "").await;
    assert_eq!(read(opened).await.status, 403, "another method");
}

/// Neither an id nor a header of a client leads a node to an address.
#[tokio::test]
async fn a_client_cannot_name_an_address() {
    let nodes = NodeList::new();
    let node = Node::start("n1", &nodes, &secret()).await;
    let theirs = NodeList::new();
    let foreign = Node::start("n2", &theirs, &other_secret()).await;
    let foreign = open(foreign.address, &[]).await;
    let session = open(node.address, &[]).await;
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    trap.set_nonblocking(true).unwrap();
    let address = trap.local_addr().unwrap().to_string();
    let url = format!("http://{address}/mcp");
    let rest = session.split_once('.').unwrap().1;
    for id in [
        format!("{address}.{rest}"),
        format!("{url}.{rest}"),
        format!("n2.{rest}"),
        format!("n2.{rest}@{address}"),
        format!("n2=http:..{address}.{rest}"),
        format!("{}0", &session[..session.len() - 1]),
        format!("{}1", &session[..session.len() - 1]),
        foreign,
    ] {
        // One of the last digits is the right one.
        let expected = if id == session { 200 } else { 404 };
        assert_eq!(post(node.address, &[of(&id)], &request(1, "echo")).await.status, expected, "{id}");
    }
    for name in ["x-forwarded-host", "x-forwarded-for", "forwarded", "x-rescind-node", "location"] {
        let headers = [of(&session), (name, &*address)];
        assert_eq!(post(node.address, &headers, &request(1, "echo")).await.status, 200, "{name}");
    }
    assert_eq!(trap.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "a node went there");
}

#[tokio::test]
async fn another_principal_cancels_nothing_through_any_node() {
    let (nodes, secret) = (NodeList::new(), secret());
    let mut owner = Node::start("n1", &nodes, &secret).await;
    let other = Node::start("n2", &nodes, &secret).await;
    let (ada, bob) = (("authorization", "Bearer ada"), ("authorization", "Bearer bob"));
    let session = open(owner.address, &[ada]).await;
    let body = request(1, "hang").to_string();
    let _request = send(other.address, "POST", &[ada, of(&session)], &body).await;
    let _key = owner.key().await;
    for node in [&owner, &other] {
        assert_eq!(post(node.address, &[bob, of(&session)], &cancel(1)).await.status, 404);
        assert_eq!(post(node.address, &[of(&session)], &cancel(1)).await.status, 404);
        let ended = send(node.address, "DELETE", &[bob, of(&session)], "").await;
        assert_eq!(read(ended).await.status, 404);
    }
    // The session has handled all that was sent before this.
    assert_eq!(post(other.address, &[ada, of(&session)], &request(2, "echo")).await.status, 200);
    assert!(owner.events.try_recv().is_err(), "it was cancelled");
    assert_eq!(post(other.address, &[ada, of(&session)], &cancel(1)).await.status, 202);
    assert_eq!(owner.event().await, Event::Cancelled);
}

#[tokio::test]
async fn a_key_that_is_guessed_or_changed_cancels_nothing() {
    let (nodes, secret) = (NodeList::new(), secret());
    let mut owner = Node::start("n1", &nodes, &secret).await;
    let session = open(owner.address, &[]).await;
    let body = request(1, "hang").to_string();
    let _request = send(owner.address, "POST", &[of(&session)], &body).await;
    let key = owner.key().await;
    let cause = Cause::new(CauseKind::Operator);
    let bus = owner.cluster.cancel_bus();
    // Each digit of the random part and of the signature.
    for at in key.rmatch_indices('.').nth(1).unwrap().0 + 1..key.len() {
        let mut guess = key.clone().into_bytes();
        guess[at] = if guess[at] == b'0' { b'1' } else { b'0' };
        let guess = String::from_utf8(guess).unwrap();
        assert_eq!(bus.cancel(&guess, &cause).await, Err(CancelError::UnknownKey), "{guess}");
    }
    // An id of a session is no key, and another cluster has no keys of this one.
    assert_eq!(bus.cancel(&session, &cause).await, Err(CancelError::UnknownKey));
    let outside = Cluster::connect(nodes.clone().into(), None, other_secret()).await.unwrap();
    assert_eq!(outside.cancel_bus().cancel(&key, &cause).await, Err(CancelError::UnknownKey));
    assert!(owner.events.try_recv().is_err(), "it was cancelled");
    bus.cancel(&key, &cause).await.unwrap();
    assert_eq!(owner.event().await, Event::Cancelled);
}

#[tokio::test]
async fn a_long_message_between_nodes_is_refused_before_it_is_read() {
    let node = Node::start("n1", &NodeList::new(), &secret()).await;
    let hop = format!("v1;hello;n2;-;-;{NO_SIGNATURE}");
    let headers = [("rescind-hop", &*hop), ("content-length", "1000000")];
    let sent = send(node.address, "POST", &headers, &"x".repeat(17 * 1024)).await;
    assert_eq!(read(sent).await.status, 400, "the rest was waited for");
    // A body of the greatest length is read, and its signature is looked at.
    let sent = send(node.address, "POST", &[("rescind-hop", &*hop)], &"x".repeat(16 * 1024)).await;
    assert_eq!(read(sent).await.status, 403);
}

/// Three nodes have lists that are wrong, so that each would send on what is not its own.
#[tokio::test]
async fn a_request_goes_from_node_to_node_once() {
    let secret = secret();
    let (ring, itself) = ([NodeList::new(), NodeList::new()], NodeList::new());
    let one = Node::start("n1", &ring[0], &secret).await;
    let two = Node::start("n2", &ring[1], &secret).await;
    let itself_node = Node::start("n4", &itself, &secret).await;
    let right = NodeList::new();
    let owner = Node::start("n3", &right, &secret).await;
    let entry = Node::start("n5", &right, &secret).await;
    let session = open(owner.address, &[]).await;
    let set = |list: &NodeList, node: &Node| list.set("n3".parse().unwrap(), node.url.parse().unwrap());
    set(&ring[0], &two);
    set(&ring[1], &one);
    set(&itself, &itself_node);
    for wrong in [&one, &two, &itself_node] {
        assert_eq!(
            post(wrong.address, &[of(&session)], &request(1, "echo")).await.status,
            403,
            "{}",
            wrong.url
        );
    }
    assert_eq!(post(entry.address, &[of(&session)], &request(1, "echo")).await.status, 200);
}

// The table of `threats.md` names a test for each attack.

/// The rows of the table, without its head.
fn rows(page: &str) -> Vec<&str> {
    page.lines().filter(|line| line.starts_with('|')).skip(2).collect()
}

/// Each test is written as `FILE::NAME`, with a file of this package.
#[test]
fn each_threat_has_tests_that_exist() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rows = rows(include_str!("threats.md"));
    assert_eq!(rows.len(), 13, "the rows of the table");
    for row in rows {
        let tests = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
        let named: Vec<_> = tests.split('`').filter_map(|test| test.split_once("::")).collect();
        assert!(!named.is_empty(), "{row}: it names no test");
        for (file, test) in named {
            let source =
                fs::read_to_string(package.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let is_a_test = source.split("test]\n").skip(1).any(|rest| {
                let head = rest.lines().find(|line| line.contains("fn ")).unwrap_or_default();
                head.contains(&format!("fn {test}("))
            });
            assert!(is_a_test, "{file} has no test {test}");
        }
    }
}
