//! The admission of clients, on a server's own socket and on a route of axum: each refusal with its status; the input of
//! the auth hook and its possible results; and what ends when a credential expires.
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rescind_core::{
    CallContext, Listener, Outcome, Peer, Principal, Router, Server, Transport, TransportErrorKind, dialect,
};
use rescind_net::{AuthRefusal, AuthRequest, Credential};
use rescind_testkit::support::Serving;
use rescind_testkit::support::http1::read_head;
use rescind_websocket::{LinkOptions, UpgradeOptions, Upgrades, WebSocketListener, connect, upgrade};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::common::{self, accept, body, event, in_time, listen, send};

const METADATA: &str = "https://agent.example/.well-known/oauth-protected-resource";

/// A valid request, in the order of its lines.
const GOOD: [(&str, &str); 5] = [
    ("Host", "127.0.0.1"),
    ("Connection", "keep-alive, Upgrade"),
    ("Upgrade", "WebSocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

/// The request with these lines in place of those of the same name. An empty value removes a line.
fn request(line: &str, other: &[(&str, &str)]) -> String {
    let kept = GOOD.iter().filter(|(name, _)| other.iter().all(|(changed, _)| changed != name));
    let lines = kept.chain(other.iter().filter(|(_, value)| !value.is_empty()));
    let head = [format!("{line} HTTP/1.1")].into_iter();
    let lines: Vec<_> = head.chain(lines.map(|(name, value)| format!("{name}: {value}"))).collect();
    lines.join("\r\n") + "\r\n\r\n"
}

async fn asked(address: &str, request: String) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    read_head(&mut socket).await
}

fn status(head: &str) -> u16 {
    head.split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("no status: {head:?}"))
}

fn strict() -> UpgradeOptions {
    UpgradeOptions::new()
        .path("/agent")
        .allow_host("agent.example")
        .unwrap()
        .allow_origin("https://app.example")
        .unwrap()
        .subprotocol("acp.v2")
        .subprotocol("acp.v1")
        .auth(async |request| match request.header("Authorization") {
            None => Ok(Credential::anonymous()),
            Some("Bearer good") => Ok(Credential::of(Principal("ada".into()))),
            Some("Bearer bad") => Err(AuthRefusal::forbidden("not you")),
            Some(_) => Err(AuthRefusal::unauthorized("Bearer")),
        })
}

type Change<'a> = (&'a str, &'a str);

/// Request line, changed headers, status, a part of the answer's head.
const TABLE: &[(&str, &[Change<'_>], u16, &str)] = &[
    ("GET /agent", &[], 101, "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
    ("GET /agent?token=1", &[], 101, "upgrade: websocket"),
    ("GET /agent", &[("Host", "localhost:1234")], 101, ""),
    ("GET /agent", &[("Host", "agent.example")], 101, ""),
    ("GET /agent", &[("Host", "evil.example")], 421, ""),
    ("GET /agent", &[("Host", "192.0.2.1")], 421, ""),
    ("GET /agent", &[("Host", "")], 400, ""),
    ("GET /agent", &[("Host", "localhost\r\nHost: localhost")], 400, ""),
    ("GET /agent", &[("Host", "a b")], 400, ""),
    ("GET /agent", &[("Host", "user@localhost")], 400, ""),
    ("GET /", &[], 404, ""),
    ("GET /agent/", &[], 101, ""),
    ("GET /agent//", &[], 404, ""),
    ("GET /agen", &[], 404, ""),
    ("GET /agent", &[("Origin", "http://localhost:5173")], 101, ""),
    ("GET /agent", &[("Origin", "https://app.example")], 101, ""),
    ("GET /agent", &[("Host", "agent.example"), ("Origin", "https://agent.example")], 101, ""),
    ("GET /agent", &[("Origin", "https://evil.example")], 403, ""),
    ("GET /agent", &[("Origin", "null")], 403, ""),
    ("GET /agent", &[("Origin", "https://app.example\r\nOrigin: https://app.example")], 403, ""),
    ("POST /agent", &[], 405, "allow: GET"),
    ("OPTIONS /agent", &[], 405, "allow: GET"),
    ("GET /agent", &[("Upgrade", "")], 426, "upgrade: websocket"),
    ("GET /agent", &[("Upgrade", "h2c")], 426, "upgrade: websocket"),
    ("GET /agent", &[("Connection", "close")], 426, "upgrade: websocket"),
    ("GET /agent", &[("Sec-WebSocket-Version", "8")], 426, "sec-websocket-version: 13"),
    ("GET /agent", &[("Sec-WebSocket-Version", "")], 426, "sec-websocket-version: 13"),
    ("GET /agent", &[("Sec-WebSocket-Key", "")], 400, ""),
    ("GET /agent", &[("Sec-WebSocket-Key", "short==")], 400, ""),
    ("GET /agent", &[("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ!!")], 400, ""),
    ("GET /agent", &[("Authorization", "Bearer good")], 101, ""),
    ("GET /agent", &[("Authorization", "Bearer bad")], 403, ""),
    ("GET /agent", &[("Authorization", "Basic x")], 401, "www-authenticate: Bearer"),
    ("GET /agent", &[("Sec-WebSocket-Protocol", "x, acp.v1")], 101, "sec-websocket-protocol: acp.v1"),
    // The first that the client offers and the server knows.
    ("GET /agent", &[("Sec-WebSocket-Protocol", "acp.v1,acp.v2")], 101, "sec-websocket-protocol: acp.v1"),
    (
        "GET /agent",
        &[("Sec-WebSocket-Protocol", "y\r\nSec-WebSocket-Protocol: x ,acp.v2")],
        101,
        "sec-websocket-protocol: acp.v2",
    ),
];

#[tokio::test]
async fn each_request_gets_the_status_of_the_table() {
    let mut listener = listen(strict()).await;
    let address = listener.address().to_string();
    for &(line, changes, expected, holds) in TABLE {
        let asking = asked(&address, request(line, changes));
        let (head, link) = tokio::join!(asking, accept(&mut listener));
        assert_eq!(status(&head), expected, "{line} {changes:?}: {head}");
        assert!(head.contains(holds), "{line} {changes:?} must hold {holds:?}: {head}");
        assert_eq!(link.is_ok(), expected == 101, "{line} {changes:?}: {link:?}");
        assert_eq!(head.contains("connection: close"), expected != 101, "a refused socket is closed: {head}");
    }
}

#[tokio::test]
async fn a_client_that_offers_only_unknown_subprotocols_is_connected_without_one() {
    let mut listener = listen(strict()).await;
    let address = listener.address().to_string();
    let long = "x".repeat(4000);
    for offered in ["x", "acp.v", "ACP.V1", "acp.v1x", "", ",,,", long.as_str()] {
        let asking = asked(&address, request("GET /agent", &[("Sec-WebSocket-Protocol", offered)]));
        let (head, link) = tokio::join!(asking, accept(&mut listener));
        assert_eq!(status(&head), 101, "{offered:.20}: {head}");
        assert!(!head.contains("sec-websocket-protocol"), "{offered:.20}: {head}");
        assert!(link.is_ok());
    }
}

#[tokio::test]
async fn the_refusal_of_a_host_says_what_its_operator_chose() {
    for (options, said) in [
        (strict(), "only the host names that are configured"),
        (strict().host_advice("ask ada to allow it"), "ask ada to allow it"),
    ] {
        let mut listener = listen(options).await;
        let address = listener.address().to_string();
        let asking = async {
            let mut socket = TcpStream::connect(&address).await.unwrap();
            socket.write_all(request("GET /agent", &[("Host", "evil.example")]).as_bytes()).await.unwrap();
            let mut answer = String::new();
            in_time("the end of the answer", socket.read_to_string(&mut answer)).await.unwrap();
            answer
        };
        let (answer, refused) = tokio::join!(asking, accept(&mut listener));
        assert!(refused.is_err());
        assert_eq!(status(&answer), 421);
        assert!(answer.contains(said), "{answer}");
    }
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn an_axum_route_makes_the_same_checks() {
    let (mut listener, url, _serving) = common::route::serve(strict()).await;
    let address = url.trim_start_matches("ws://").trim_end_matches("/agent").to_owned();
    for &(line, changes, expected, holds) in TABLE.iter().filter(|(line, ..)| !line.ends_with('/')) {
        let mut socket = TcpStream::connect(&address).await.unwrap();
        socket.write_all(request(line, changes).as_bytes()).await.unwrap();
        let head = read_head(&mut socket).await;
        assert_eq!(status(&head), expected, "{line} {changes:?}: {head}");
        assert!(head.contains(holds), "{line} {changes:?} must hold {holds:?}: {head}");
        if expected == 101 {
            accept(&mut listener).await.unwrap();
        }
    }
    // The application's other routes are not affected.
    assert_eq!(status(&asked(&address, request("GET /", &[("Host", "evil.example")])).await), 200);
}

/// The same request in HTTP/1.0, which has no upgrades.
fn request_of_http_1_0() -> String {
    request("GET /agent", &[]).replacen("HTTP/1.1", "HTTP/1.0", 1)
}

#[tokio::test]
async fn an_upgrade_over_http_1_0_is_refused() {
    let mut listener = listen(strict()).await;
    let address = listener.address().to_string();
    let (head, link) = tokio::join!(asked(&address, request_of_http_1_0()), accept(&mut listener));
    assert_eq!(status(&head), 426, "{head}");
    assert!(link.is_err(), "{link:?}");
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn an_upgrade_over_http_1_0_is_refused_under_a_route_of_axum() {
    let (_listener, url, _serving) = common::route::serve(strict()).await;
    let address = url.trim_start_matches("ws://").trim_end_matches("/agent");
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request_of_http_1_0().as_bytes()).await.unwrap();
    let head = read_head(&mut socket).await;
    assert_eq!(status(&head), 426, "{head}");
}

/// The docs list exactly the statuses that a socket receives: their table is compared with `TABLE` and with the two
/// statuses that have separate tests below.
#[test]
fn the_docs_list_every_refusal() {
    let docs = include_str!("../src/refusals.md");
    let cells = docs.lines().filter_map(|line| line.split('|').nth(1)?.trim().parse().ok());
    let documented: BTreeSet<u16> = cells.collect();
    let asked = TABLE.iter().map(|&(_, _, status, _)| status).filter(|status| *status != 101);
    let asked: BTreeSet<u16> = asked.chain([431, 503]).collect();
    assert_eq!(documented, asked);
}

#[tokio::test]
async fn a_head_over_its_bounds_gets_431() {
    let mut listener = listen(UpgradeOptions::new()).await;
    let address = listener.address().to_string();
    let long = "x".repeat(20 * 1024);
    let names: Vec<_> = (0..101).map(|n| format!("X-{n}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), "x")).collect();
    for changes in [&[("X", long.as_str())][..], &many] {
        let asking = asked(&address, request("GET /", changes));
        let (head, refused) = tokio::join!(asking, accept(&mut listener));
        assert_eq!(status(&head), 431, "{head}");
        refused.unwrap_err();
    }
}

#[tokio::test]
async fn a_refused_client_gets_the_reason() {
    let mut listener = listen(strict()).await;
    let url = listener.endpoint().0;
    assert!(url.ends_with("/agent"), "{url}");
    let transport = connect(&url).header("Authorization", "Bearer bad");
    let (refused, _) = tokio::join!(Box::new(transport).open(), accept(&mut listener));
    let error = refused.unwrap_err();
    assert_eq!(error.kind, TransportErrorKind::Open);
    assert!(error.to_string().contains("403 Forbidden: not you"), "{error}");
    assert!(!error.to_string().contains("Bearer"), "a secret is shown: {error}");
}

#[tokio::test]
async fn the_principal_of_the_auth_hook_is_the_principal_of_the_connection() {
    let mut listener = listen(strict()).await;
    let url = listener.endpoint().0;
    let (event_tx, event_rx) = std::sync::mpsc::channel();
    let transport = connect(&url)
        .header("Authorization", "Bearer good")
        .subprotocol("acp.v1")
        .on_answer(move |answer| event_tx.send(answer.subprotocol().map(str::to_owned)).unwrap());
    let (client, server) = tokio::join!(Box::new(transport).open(), accept(&mut listener));
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    assert_eq!(server.meta.principal, Some(Principal("ada".into())));
    assert!(server.meta.peer.as_deref().unwrap().starts_with("127.0.0.1:"));
    assert_eq!(event_rx.recv().unwrap().as_deref(), Some("acp.v1"));
    send(&mut client, "{}").await.unwrap();
    assert_eq!(body(&mut server).await, "{}");
}

#[tokio::test]
async fn a_failed_open_reports_its_reason() {
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let table = [
        ("nonsense".to_owned(), "must begin with"),
        ("http://127.0.0.1/".to_owned(), "must begin with"),
        ("ws://".to_owned(), ""),
        ("ws://user:secret@127.0.0.1/".to_owned(), "send a header"),
        (format!("ws://127.0.0.1:{port}/?token=secret"), "127.0.0.1"),
    ];
    for (url, holds) in table {
        let error = Box::new(connect(&url)).open().await.unwrap_err();
        assert_eq!(error.kind, TransportErrorKind::Open, "{url}: {error}");
        assert!(error.to_string().contains(holds), "{url}: {error}");
        assert!(!error.to_string().contains("secret"), "a secret is shown: {error}");
        assert!(!format!("{:?}", connect(&url)).contains("token"), "a secret is shown");
    }
    for name in ["Host", "Upgrade", "sec-websocket-key", "a b", ""] {
        let error = Box::new(connect("ws://127.0.0.1:9/").header(name, "x")).open().await.unwrap_err();
        assert!(error.to_string().contains("cannot be part of a handshake"), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_slow_handshake_does_not_delay_others() {
    let mut listener = listen(UpgradeOptions::new()).await;
    let url = listener.endpoint().0;
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut socket = TcpStream::connect(listener.address()).await.unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.").await.unwrap();
        slow.push(socket);
    }
    let (client, server) = tokio::join!(Box::new(connect(&url)).open(), accept(&mut listener));
    client.unwrap();
    server.unwrap();
    // One of the slow clients continues and is accepted.
    let rest = request("", &[("Host", "")]).replacen(" HTTP/1.1\r\n", "0.1\r\n", 1);
    let mut first = slow.remove(0);
    first.write_all(rest.as_bytes()).await.unwrap();
    let (head, link) = tokio::join!(read_head(&mut first), accept(&mut listener));
    assert_eq!(status(&head), 101, "{head}");
    link.unwrap();
}

#[tokio::test]
async fn a_handshake_over_its_timeout_is_dropped() {
    let options = UpgradeOptions::new().handshake_timeout(Duration::from_millis(50));
    let mut listener = listen(options).await;
    let mut socket = TcpStream::connect(listener.address()).await.unwrap();
    let error = accept(&mut listener).await.unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    assert_eq!(in_time("the end", socket.read(&mut [0; 16])).await.unwrap(), 0);
}

#[tokio::test]
async fn a_client_times_out_if_the_server_does_not_answer() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", tcp.local_addr().unwrap());
    let transport = connect(&url).handshake_timeout(Duration::from_millis(50));
    let error = in_time("opening", Box::new(transport).open()).await.unwrap_err();
    assert!(error.to_string().contains("in time"), "{error}");
}

#[tokio::test]
async fn over_the_limit_of_handshakes_a_request_gets_503() {
    // One address may use half of them.
    let mut listener = listen(UpgradeOptions::new().handshakes(4)).await;
    let address = listener.address().to_string();
    let slow = [TcpStream::connect(&address).await.unwrap(), TcpStream::connect(&address).await.unwrap()];
    let (head, refused) = tokio::join!(asked(&address, request("GET /", &[])), accept(&mut listener));
    assert_eq!(status(&head), 503, "{head}");
    assert!(refused.unwrap_err().to_string().contains("503"));
    drop(slow);
    for _ in 0..2 {
        accept(&mut listener).await.unwrap_err();
    }
    let (head, link) = tokio::join!(asked(&address, request("GET /", &[])), accept(&mut listener));
    assert_eq!(status(&head), 101, "{head}");
    link.unwrap();
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let mut listener = listen(UpgradeOptions::new()).await;
    let mut socket = TcpStream::connect(listener.address()).await.unwrap();
    let flood = async {
        let long = "x".repeat(8192);
        let _ = socket.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ").await;
        while socket.write_all(long.as_bytes()).await.is_ok() {}
    };
    let (refused, ()) = in_time("the refusal", async { tokio::join!(accept(&mut listener), flood) }).await;
    refused.unwrap_err();
}

/// A server that is bound to more than loopback also accepts IP addresses, but no names: no page can be directed to
/// it without notice (DNS rebinding).
#[tokio::test]
async fn a_non_loopback_server_accepts_ip_addresses_as_host() {
    let mut listener = WebSocketListener::builder().bind("0.0.0.0:0").await.unwrap();
    let address = format!("127.0.0.1:{}", listener.address().port());
    for (host, expected) in [("192.0.2.1:9000", 101), ("localhost", 101), ("evil.example", 421)] {
        let asking = asked(&address, request("GET /", &[("Host", host)]));
        let (head, _) = tokio::join!(asking, accept(&mut listener));
        assert_eq!(status(&head), expected, "{host}");
    }
}

#[tokio::test]
async fn a_request_can_be_upgraded_by_hand_with_headers_and_a_hook() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/acp", tcp.local_addr().unwrap());
    let closed = Arc::new(AtomicUsize::new(0));
    let (event_tx, mut links) = tokio::sync::mpsc::unbounded_channel();
    let hook = Arc::clone(&closed);
    let serving = tokio::spawn(async move {
        let (socket, _) = tcp.accept().await.unwrap();
        let service = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
            let (hook, event_tx) = (Arc::clone(&hook), event_tx.clone());
            async move {
                let upgraded = upgrade(&mut request, &UpgradeOptions::new()).await;
                let (mut response, upgrading) = upgraded.unwrap();
                response.headers_mut().insert("acp-connection-id", http::HeaderValue::from_static("c-7"));
                let upgrading = upgrading.peer("by hand").on_close(move || {
                    hook.fetch_add(1, Ordering::SeqCst);
                });
                tokio::spawn(async move { event_tx.send(upgrading.link().await) });
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        let socket = hyper_util::rt::TokioIo::new(socket);
        hyper::server::conn::http1::Builder::new()
            .serve_connection(socket, service)
            .with_upgrades()
            .await
            .unwrap();
    });
    let (saw, seen) = std::sync::mpsc::channel();
    let transport = connect(&url)
        .on_answer(move |answer| saw.send(answer.header("Acp-Connection-Id").map(str::to_owned)).unwrap());
    let mut client = Box::new(transport).open().await.unwrap();
    assert_eq!(seen.recv().unwrap().as_deref(), Some("c-7"));
    serving.await.unwrap();
    let mut server = links.recv().await.unwrap().unwrap();
    assert_eq!(server.meta.peer.as_deref(), Some("by hand"));
    send(&mut client, "1").await.unwrap();
    assert_eq!(body(&mut server).await, "1");
    assert_eq!(closed.load(Ordering::SeqCst), 0);
    drop(server);
    assert_eq!(closed.load(Ordering::SeqCst), 1);
    assert!(event(&mut client).await.is_none());
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn a_route_whose_listener_is_gone_answers_503_and_one_without_routes_ends() {
    let (listener, url, serving) = common::route::serve(UpgradeOptions::new()).await;
    drop(listener);
    let error = Box::new(connect(&url)).open().await.unwrap_err();
    assert!(error.to_string().contains("503"), "{error}");
    drop(serving);

    let (upgrades, mut listener) = rescind_websocket::mount(UpgradeOptions::new());
    drop(upgrades);
    let end = in_time("the end", listener.accept()).await;
    assert!(end.is_none());
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn wss_trusts_only_the_configured_authorities() {
    use rescind_websocket::Pem;
    let (ours, other) = (common::tls::Authority::new(), common::tls::Authority::new());
    let mut listener = WebSocketListener::builder().tls(ours.server()).bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().0;
    assert!(url.starts_with("wss://127.0.0.1:"), "{url}");
    let untrusted = connect(&url).tls(other.client());
    let (client, server) = tokio::join!(Box::new(untrusted).open(), accept(&mut listener));
    let error = client.unwrap_err();
    assert!(error.to_string().contains("TLS with 127.0.0.1"), "{error}");
    server.unwrap_err();
    // A client without TLS has no effect on others.
    let mut plain = TcpStream::connect(listener.address()).await.unwrap();
    plain.write_all(request("GET /", &[]).as_bytes()).await.unwrap();
    accept(&mut listener).await.unwrap_err();
    let trusted = connect(&url.replace("127.0.0.1", "localhost")).tls(ours.client());
    let (client, server) = tokio::join!(Box::new(trusted).open(), accept(&mut listener));
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    send(&mut client, "\"over TLS\"").await.unwrap();
    assert_eq!(body(&mut server).await, "\"over TLS\"");
    let missing = rescind_websocket::ClientTls::trusting(Pem::file(ours.file("nothing.pem"))).unwrap_err();
    assert!(missing.to_string().contains("nothing.pem"), "{missing}");
    let (authority, key) = (Pem::file(ours.file("ca.pem")), Pem::file(ours.file("key.pem")));
    let swapped = rescind_websocket::ServerTls::from_pem(authority, key);
    assert!(swapped.is_err(), "a key of another certificate is no key");
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn a_changed_certificate_is_served_by_the_next_handshake_and_a_broken_one_is_not() {
    let (ours, other) = (common::tls::Authority::new(), common::tls::Authority::new());
    let tls = ours.server().check_every(Duration::ZERO);
    let mut listener = WebSocketListener::builder().tls(tls).bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().0.replace("127.0.0.1", "localhost");
    let mut opens = async |client: rescind_websocket::ClientTls| {
        let transport = Box::new(connect(&url).tls(client));
        let (client, server) = tokio::join!(transport.open(), accept(&mut listener));
        assert_eq!(client.is_ok(), server.is_ok());
        client.is_ok()
    };
    assert!(opens(ours.client()).await && !opens(other.client()).await);
    for name in ["certificate.pem", "key.pem"] {
        std::fs::copy(other.file(name), ours.file(name)).unwrap();
    }
    assert!(opens(other.client()).await && !opens(ours.client()).await);
    std::fs::write(ours.file("certificate.pem"), "no certificate").unwrap();
    assert!(opens(other.client()).await && !opens(ours.client()).await);
}

/// Answers of servers to a client that offers `acp.v1`, each with the error if the client refuses it. `KEY` is the right
/// `Sec-WebSocket-Accept`.
const ANSWERS: [(&str, Option<&str>); 11] = [
    (
        "101 OK\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: KEY\r\nSec-WebSocket-Protocol: acp.v1",
        None,
    ),
    (
        "101 OK\r\nconnection: keep-alive, upgrade\r\nupgrade: WebSocket\r\nsec-websocket-accept: KEY\r\nSec-WebSocket-Protocol: acp.v1",
        None,
    ),
    (
        "101 OK\r\nConnection: keep-alive\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: KEY\r\nSec-WebSocket-Protocol: acp.v1",
        None,
    ),
    (
        "101 OK\r\nConnection: close\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: KEY",
        Some("does not upgrade"),
    ),
    ("101 OK\r\nConnection: upgrade\r\nUpgrade: h2c\r\nSec-WebSocket-Accept: KEY", Some("does not upgrade")),
    (
        "101 OK\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: no",
        Some("Sec-WebSocket-Accept"),
    ),
    (
        "101 OK\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: KEY",
        Some("none of the subprotocols"),
    ),
    (
        "101 OK\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: KEY\r\nSec-WebSocket-Protocol: x",
        Some("not offered"),
    ),
    ("503 Busy\r\nContent-Length: 0", Some("the server answered 503")),
    ("\u{fffd}", Some("not HTTP/1.1")),
    ("", Some("ended the connection")),
];

#[tokio::test]
async fn a_client_takes_the_answers_that_upgrade_and_says_what_is_wrong_with_others() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    for (answer, why) in ANSWERS {
        let server = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let head = read_head(&mut socket).await;
            let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
            let right = tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.trim().as_bytes());
            if answer.is_empty() {
                return None;
            }
            // The first message comes with the head.
            let head = format!("HTTP/1.1 {}\r\n\r\n", answer.replace("KEY", &right));
            socket.write_all(&[head.as_bytes(), b"\x81\x02\"\""].concat()).await.unwrap();
            Some(socket)
        };
        let transport = Box::new(connect(&url).subprotocol("acp.v1"));
        let (opened, _socket) = tokio::join!(transport.open(), server);
        match (opened, why) {
            (Ok(mut link), None) => assert_eq!(body(&mut link).await, "\"\""),
            (Err(error), Some(why)) => assert!(error.to_string().contains(why), "{answer:?}: {error}"),
            (opened, _) => panic!("{answer:?}: {:?}", opened.map(|_| ())),
        }
    }
}

/// The client of a page: the request of a browser, including its `Origin`.
#[tokio::test]
async fn a_tungstenite_client_with_an_allowed_origin_is_accepted() {
    use tokio_tungstenite::tungstenite::client::IntoClientRequest;
    let mut listener = listen(UpgradeOptions::new().allow_origin("https://app.example").unwrap()).await;
    let mut request = listener.endpoint().0.into_client_request().unwrap();
    request.headers_mut().insert("Origin", http::HeaderValue::from_static("https://app.example"));
    let address = listener.address();
    let client = async {
        let tcp = TcpStream::connect(address).await.unwrap();
        tokio_tungstenite::client_async(request, tcp).await.unwrap().0
    };
    let (mut client, server) = tokio::join!(client, accept(&mut listener));
    let mut server = server.unwrap();
    client.send("\"from a page\"".into()).await.unwrap();
    assert_eq!(body(&mut server).await, "\"from a page\"");
    send(&mut server, "\"to a page\"").await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap().into_text().unwrap(), "\"to a page\"");
}

/// Requests an upgrade by hand. Returns the head and the body of a refusal, in lower case.
async fn asked_with(address: &str, headers: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET /agent?mode=test HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    read_head(&mut socket).await.to_ascii_lowercase()
}

/// Servers that are polled until the test ends: one on its own socket and, with the feature, one on a route of axum.
async fn served(options: UpgradeOptions) -> Vec<(String, Box<dyn std::any::Any>)> {
    let listener = listen(options.clone()).await;
    let address = listener.address().to_string();
    let mut served: Vec<(String, Box<dyn std::any::Any>)> = vec![(address, Box::new(serving(listener)))];
    #[cfg(feature = "axum")]
    {
        let (listener, url, routes) = common::route::serve(options).await;
        let address = url.trim_start_matches("ws://").trim_end_matches("/agent").to_owned();
        served.push((address, Box::new((serving(listener), routes))));
    }
    served
}

fn serving(listener: impl Listener) -> Serving {
    let router = Router::new().method("echo", async |_: CallContext, params: Value| Ok(params));
    let server = Server::builder([dialect::ACP]).serve(router).listen(listener);
    Serving::spawn(async move { drop(server.run().await) })
}

#[tokio::test]
async fn a_refusal_has_the_hooks_status_and_headers() {
    let options =
        UpgradeOptions::new().auth(async |request: AuthRequest| match request.header("Authorization") {
            None => Err(AuthRefusal::bearer(METADATA).with_header("X-Reason", "none")),
            Some("Bearer narrow") => Err(AuthRefusal::insufficient_scope("files:write", METADATA)),
            Some("Bearer slow") => {
                tokio::task::yield_now().await;
                Err(AuthRefusal::new(429, "too many")
                    .with_header("Retry-After", "60")
                    .with_header("a b", "left out"))
            }
            Some(_) => Ok(Credential::of(Principal("ada".into()))),
        });
    for (address, _serving) in served(options).await {
        for (headers, status, holds) in [
            (
                "",
                "401",
                format!("www-authenticate: bearer resource_metadata=\"{METADATA}\"\r\nx-reason: none"),
            ),
            (
                "Authorization: Bearer narrow\r\n",
                "403",
                format!(
                    "www-authenticate: bearer error=\"insufficient_scope\", scope=\"files:write\", \
                     resource_metadata=\"{METADATA}\""
                ),
            ),
            ("Authorization: Bearer slow\r\n", "429", "retry-after: 60\r\n".to_owned()),
            ("Authorization: Bearer ada\r\n", "101", "upgrade: websocket".to_owned()),
        ] {
            let head = asked_with(&address, headers).await;
            assert!(
                head.starts_with(&format!("http/1.1 {status} ")) && head.contains(&holds),
                "{headers}: {head}"
            );
        }
    }
}

#[tokio::test]
async fn the_hook_sees_the_request_and_its_address() {
    let seen: Arc<Mutex<Vec<AuthRequest>>> = Arc::default();
    let requests = Arc::clone(&seen);
    let options = UpgradeOptions::new().auth(move |request| {
        requests.lock().unwrap().push(request);
        std::future::ready(Ok(Credential::anonymous()))
    });
    for (nth, (address, _serving)) in served(options).await.into_iter().enumerate() {
        asked_with(&address, "X-Token: a\r\nX-Token: b\r\n").await;
        let asked = seen.lock().unwrap().pop().unwrap();
        assert_eq!((asked.method(), asked.path(), asked.query()), ("GET", "/agent", Some("mode=test")));
        assert_eq!(asked.headers("x-token").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(asked.header("upgrade"), Some("websocket"));
        // In a route of another server the address is known only if that server provides it.
        let address = asked.address().map(|address| address.is_loopback());
        assert_eq!(address, (nth == 0).then_some(true));
        assert!(asked.certificates().is_empty());
    }
}

#[tokio::test]
async fn a_hook_that_hangs_gets_503_and_one_that_panics_500_and_neither_holds_up_others() {
    let options = UpgradeOptions::new().handshake_timeout(Duration::from_millis(300));
    let options = options.auth(async |request: AuthRequest| match request.header("X-User") {
        Some("slow") => std::future::pending().await,
        Some("bad") => panic!("on purpose"),
        Some(_) | None => Ok(Credential::anonymous()),
    });
    for (address, _serving) in served(options).await {
        let slow = asked_with(&address, "X-User: slow\r\n");
        let others = async {
            let bad = asked_with(&address, "X-User: bad\r\n").await;
            assert!(bad.starts_with("http/1.1 500 "), "{bad}");
            let good = asked_with(&address, "").await;
            assert!(good.starts_with("http/1.1 101 "), "{good}");
        };
        let (slow, ()) = tokio::join!(slow, others);
        assert!(slow.starts_with("http/1.1 503 ") && slow.contains("retry-after: 1"), "{slow}");
    }
}

fn short(_: AuthRequest) -> std::future::Ready<Result<Credential, AuthRefusal>> {
    let credential = Credential::of(Principal("ada".into()));
    std::future::ready(Ok(credential.expires_in(Duration::from_millis(200))))
}

/// The view of a client that is not of this library.
#[tokio::test]
async fn a_connection_whose_credential_expires_is_closed_with_1008() {
    for (address, _serving) in served(UpgradeOptions::new().auth(short)).await {
        let request = format!("ws://{address}/agent").into_client_request().unwrap();
        let tcp = TcpStream::connect(&address).await.unwrap();
        let (mut client, _) = tokio_tungstenite::client_async(request, tcp).await.unwrap();
        match in_time("the close frame", client.next()).await {
            Some(Ok(Message::Close(Some(frame)))) => {
                assert_eq!(frame.code, CloseCode::Policy);
                assert_eq!(frame.reason.as_str(), "the credentials have expired");
            }
            other => panic!("{other:?}"),
        }
        // The close frame arrived whole, so the end is not a reset.
        assert!(matches!(in_time("the end", client.next()).await, None | Some(Err(Error::ConnectionClosed))));
    }
}

#[tokio::test]
async fn requests_in_flight_are_lost_when_a_credential_expires() {
    let (event_tx, mut event_rx) = tokio::sync::mpsc::unbounded_channel();
    let router = Router::new().method("wait", move |ctx: CallContext, _: Value| {
        let event_tx = event_tx.clone();
        async move {
            let cause = ctx.cancelled().await;
            let _ = event_tx.send(cause.kind().name());
            ctx.stopped::<Value>(cause)
        }
    });
    let listener = listen(UpgradeOptions::new().auth(short)).await;
    let url = listener.endpoint().0;
    let server = Server::builder([dialect::ACP]).serve(router).listen(listener);
    let _serving = Serving::spawn(async move { drop(server.run().await) });
    let peer = Peer::builder(dialect::ACP).connect(connect(&url)).await.unwrap();
    let outcome = peer.call::<_, Value>("wait", &json!({})).start().unwrap().outcome();
    let outcome = in_time("the outcome", outcome).await;
    assert!(matches!(outcome, Outcome::Disconnected { .. }), "{outcome:?}");
    assert_eq!(in_time("the cancel", event_rx.recv()).await, Some("disconnected"));
}

#[tokio::test(start_paused = true)]
async fn a_link_ends_at_the_deadline_of_its_credential() {
    let hour = Duration::from_secs(3600);
    let options = UpgradeOptions::new()
        .auth(async |_| Ok(Credential::of(Principal("ada".into())).expires_in(Duration::from_secs(3600))));
    // With a clock that jumps, no ping is answered in time.
    let options = options.link(LinkOptions::new().no_pings());
    let mut listener = listen(options).await;
    let url = listener.endpoint().0;
    let (client, server) = tokio::join!(Box::new(connect(&url)).open(), accept(&mut listener));
    let (_client, mut server) = (client.unwrap(), server.unwrap());
    assert_eq!(server.meta.principal, Some(Principal("ada".into())));
    let begun = tokio::time::Instant::now();
    let ended = std::future::poll_fn(|cx| server.rx.as_mut().poll_event(cx)).await;
    let error = ended.unwrap().unwrap_err();
    assert!(error.to_string().contains("expired"), "{error}");
    let lasted = begun.elapsed();
    assert!(lasted <= hour && lasted + Duration::from_secs(60) > hour, "{lasted:?}");
    assert!(event(&mut server).await.is_none());
}

/// One credential of the HTTP server, one of the hook: the earlier expiry counts.
#[tokio::test]
async fn an_http_servers_credential_ends_the_connection_too() {
    let (upgrades, listener): (Upgrades, _) = rescind_websocket::mount(UpgradeOptions::new());
    let _serving = serving(listener);
    // The listener ends when the last of them is dropped.
    let _kept = upgrades.clone();
    let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    tokio::spawn(async move {
        let (socket, _) = tcp.accept().await.unwrap();
        let service = hyper::service::service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
            let upgrades = upgrades.clone();
            async move {
                let credential = Credential::anonymous().expires_in(Duration::from_millis(100));
                Ok::<_, std::convert::Infallible>(upgrades.answer_for(&mut request, &credential).await)
            }
        });
        let served = hyper::server::conn::http1::Builder::new()
            .serve_connection(hyper_util::rt::TokioIo::new(socket), service)
            .with_upgrades();
        served.await
    });
    let mut client = Box::new(connect(&format!("ws://{address}/"))).open().await.unwrap();
    let ended = event(&mut client).await.unwrap().unwrap_err();
    assert!(ended.to_string().contains("1008"), "{ended}");
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn the_hook_sees_the_certificate_of_a_client() {
    use rescind_net::ClientCertificates;
    use rescind_websocket::Pem;
    let (ours, other) = (common::tls::Authority::new(), common::tls::Authority::new());
    for demand in [ClientCertificates::Optional, ClientCertificates::Required] {
        let seen: Arc<Mutex<Vec<Vec<Vec<u8>>>>> = Arc::default();
        let certificates = Arc::clone(&seen);
        let options = UpgradeOptions::new().auth(move |request| {
            certificates.lock().unwrap().push(request.certificates().to_vec());
            std::future::ready(Ok(Credential::anonymous()))
        });
        let tls = ours.server().client_certificates(Pem::file(ours.file("ca.pem")), demand).unwrap();
        let builder = WebSocketListener::builder().tls(tls).options(options);
        let mut listener = builder.bind("127.0.0.1:0").await.unwrap();
        let url = listener.endpoint().0.replace("127.0.0.1", "localhost");
        let passes = [
            (ours.client_of(&ours), Some(vec![ours.certificate().to_vec()])),
            (ours.client(), (demand == ClientCertificates::Optional).then(Vec::new)),
            (ours.client_of(&other), None),
        ];
        for (client, shown) in passes {
            let transport = Box::new(connect(&url).tls(client));
            let (client, server) = tokio::join!(transport.open(), accept(&mut listener));
            assert_eq!((client.is_ok(), server.is_ok()), (shown.is_some(), shown.is_some()), "{demand:?}");
            assert_eq!(seen.lock().unwrap().pop(), shown, "{demand:?}");
        }
    }
    let missing = Pem::file(ours.file("nothing.pem"));
    let missing = ours.server().client_certificates(missing, ClientCertificates::Required);
    assert!(missing.is_err());
}
