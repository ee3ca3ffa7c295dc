//! One path, both wires: ACP's endpoint with clients over HTTP and over WebSocket.
#![cfg(all(feature = "http", feature = "websocket"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::{Arc, Mutex};

use rescind::dialect::{ACP, Role};
use rescind::http::{Acp, AcpTransport, HttpClient, HttpServer};
use rescind::transport::{Listener, Transport};
use rescind::websocket::{IgnoredCounter, LinkOptions, UpgradeOptions, WebSocketTransport, connect};
use rescind::{
    AcpEndpoint, AcpListener, AuthRefusal, CallContext, Credential, Outcome, Peer, Principal, Router, Server,
};
use rescind_testkit::support::{Serving, in_time};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// An endpoint that serves until it is dropped.
struct Served {
    address: String,
    peers: mpsc::UnboundedReceiver<Peer>,
    events: mpsc::UnboundedReceiver<String>,
    _serving: Serving,
}

fn server() -> HttpServer<Acp> {
    HttpServer::new(Acp::new()).path("/acp").auth(async |request| {
        let name = request.header("x-user").unwrap_or("anyone");
        if name == "nobody" {
            return Err(AuthRefusal::unauthorized("Bearer"));
        }
        Ok(Credential::of(Principal(name.into())))
    })
}

async fn serve(endpoint: AcpEndpoint) -> Served {
    let listener = endpoint.bind("127.0.0.1:0").await.unwrap();
    let url = listener.endpoint().to_string();
    let address = url.strip_prefix("http://").unwrap().strip_suffix("/acp").unwrap().to_owned();
    listen(address, listener)
}

fn listen(address: String, listener: AcpListener) -> Served {
    let (events_tx, events) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async move {
            Ok::<_, rescind::HandlerError>(json!({"protocolVersion": 1, "agentCapabilities": {}}))
        })
        .method("wait", move |ctx: CallContext, params: Value| {
            let events_tx = events_tx.clone();
            async move {
                let name = params.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
                let _ = events_tx.send(format!("{name} started"));
                let cause = ctx.cancelled().await;
                let _ = events_tx.send(format!("{name} {}", cause.kind().name()));
                ctx.stopped::<Value>(cause)
            }
        });
    let (met, peers) = mpsc::unbounded_channel();
    let server =
        Server::builder([ACP]).serve(router).on_peer(move |peer| drop(met.send(peer))).listen(listener);
    let serving = Serving::spawn(async move { server.run().await.unwrap() });
    Served { address, peers, events, _serving: serving }
}

async fn client(transport: impl Transport) -> Peer {
    let peer = Peer::builder(ACP).role(Role::Client).connect(transport).await.unwrap();
    let hello = json!({"protocolVersion": 1, "clientCapabilities": {}});
    let _: Value = in_time("the handshake", peer.call("initialize", &hello)).await.unwrap();
    peer
}

fn over_http(served: &Served) -> AcpTransport {
    AcpTransport::new(HttpClient::new(&format!("http://{}/acp", served.address)).unwrap())
}

fn over_websocket(served: &Served) -> WebSocketTransport {
    connect(&format!("ws://{}/acp", served.address))
}

/// Calls, cancels, and sees the cancel confirmed.
async fn calls_and_cancels(served: &mut Served, peer: &Peer, name: &str) {
    let call = peer.call::<_, Value>("wait", &json!({"name": name})).start().unwrap();
    assert_eq!(in_time(name, served.events.recv()).await.unwrap(), format!("{name} started"));
    call.canceller().cancel("the user pressed stop");
    assert_eq!(in_time(name, served.events.recv()).await.unwrap(), format!("{name} peer"));
    match in_time(name, call.outcome()).await {
        Outcome::Cancelled(cancelled) => assert!(cancelled.confirmed, "{name}"),
        other => panic!("{name}: {other:?}"),
    }
}

#[tokio::test]
async fn both_wires_call_and_cancel_under_one_path() {
    // covers: RULE-13
    let mut served = serve(AcpEndpoint::new(server())).await;
    let http = client(over_http(&served)).await;
    let websocket = client(over_websocket(&served)).await;
    calls_and_cancels(&mut served, &http, "http").await;
    calls_and_cancels(&mut served, &websocket, "websocket").await;
    calls_and_cancels(&mut served, &http, "http again").await;
    in_time("both are met", served.peers.recv()).await.unwrap();
    in_time("both are met", served.peers.recv()).await.unwrap();
}

#[tokio::test]
async fn a_websocket_gets_the_first_subprotocol_that_it_offers_and_acp_knows() {
    let served = serve(AcpEndpoint::new(server())).await;
    let (sent, mut selected) = mpsc::unbounded_channel();
    let page = connect(&format!("ws://{}/acp/", served.address)).subprotocol("x").subprotocol("acp");
    let page = page.on_answer(move |answer| drop(sent.send(answer.subprotocol().map(str::to_owned))));
    let _peer = client(page).await;
    assert_eq!(in_time("the answer", selected.recv()).await.unwrap().as_deref(), Some("acp"));
}

#[tokio::test]
async fn both_wires_come_through_a_route_of_axum() {
    let (service, listener) = AcpEndpoint::new(server()).mount();
    let app = axum::Router::new().route_service("/acp", service);
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut served = listen(socket.local_addr().unwrap().to_string(), listener);
    let serving = tokio::spawn(async move { axum::serve(socket, app).await.unwrap() });
    let http = client(over_http(&served).http1()).await;
    let websocket = client(over_websocket(&served)).await;
    calls_and_cancels(&mut served, &http, "http").await;
    calls_and_cancels(&mut served, &websocket, "websocket").await;
    serving.abort();
}

#[tokio::test]
async fn the_end_of_the_one_connection_leaves_the_other() {
    let mut served = serve(AcpEndpoint::new(server())).await;
    let http = client(over_http(&served)).await;
    let of_http = in_time("the peer over HTTP", served.peers.recv()).await.unwrap();
    let websocket = client(over_websocket(&served)).await;
    let running = websocket.call::<_, Value>("wait", &json!({"name": "kept"})).start().unwrap();
    assert_eq!(in_time("start", served.events.recv()).await.unwrap(), "kept started");
    // Says farewell with DELETE.
    drop(http);
    let _closed = in_time("the end of the one over HTTP", of_http.closed()).await;
    assert!(served.events.try_recv().is_err(), "what runs over the other goes on");
    running.canceller().cancel("enough");
    assert!(matches!(in_time("its outcome", running.outcome()).await, Outcome::Cancelled(_)));
    assert_eq!(in_time("the cancel", served.events.recv()).await.unwrap(), "kept peer");
    calls_and_cancels(&mut served, &websocket, "websocket").await;
}

#[tokio::test]
async fn a_websocket_has_a_connection_id_of_its_own() {
    // covers: RULE-13
    let served = serve(AcpEndpoint::new(server())).await;
    let ids = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..2 {
        let seen = Arc::clone(&ids);
        let transport = over_websocket(&served).on_answer(move |answer| {
            seen.lock().unwrap().push(answer.header("acp-connection-id").map(ToOwned::to_owned));
        });
        drop(client(transport).await);
    }
    let ids: Vec<String> = ids.lock().unwrap().iter().cloned().map(Option::unwrap).collect();
    let [one, two] = ids.as_slice() else { panic!("{ids:?}") };
    assert_eq!((one.len(), two.len()), (32, 32), "128 bits");
    assert_ne!(one, two);
}

#[tokio::test]
async fn the_auth_hooks_principal_is_used_on_both_transports() {
    let mut served = serve(AcpEndpoint::new(server())).await;
    let url = format!("http://{}/acp", served.address);
    let http = AcpTransport::new(HttpClient::new(&url).unwrap().header("x-user", "ann").unwrap());
    let websocket = over_websocket(&served).header("x-user", "bob");
    let _http = client(http).await;
    let of_http = in_time("the peer over HTTP", served.peers.recv()).await.unwrap();
    let _websocket = client(websocket).await;
    let of_websocket = in_time("the peer over WebSocket", served.peers.recv()).await.unwrap();
    for (peer, name) in [(of_http, "ann"), (of_websocket, "bob")] {
        assert_eq!(peer.meta().principal, Some(Principal(name.into())));
    }
}

/// Asks for an upgrade by hand; what is answered, head and body.
async fn asks(served: &Served, host: &str, headers: &str) -> String {
    let mut socket = TcpStream::connect(&served.address).await.unwrap();
    let request = format!(
        "GET /acp HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    let mut buffer = [0; 1024];
    while !text.windows(4).any(|four| four == b"\r\n\r\n") {
        let count = in_time("the answer", socket.read(&mut buffer)).await.unwrap();
        assert!(count > 0, "it ended without an answer");
        text.extend_from_slice(buffer.get(..count).unwrap());
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn the_servers_hosts_origins_and_hook_hold_for_the_upgrade() {
    let served = serve(AcpEndpoint::new(server().allow_origin("https://app.example").unwrap())).await;
    let own = served.address.clone();
    for (host, headers, status) in [
        (own.as_str(), "", "101"),
        (own.as_str(), "Origin: https://app.example\r\n", "101"),
        (own.as_str(), "Origin: https://evil.example\r\n", "403"),
        ("evil.example", "", "421"),
        (own.as_str(), "X-User: nobody\r\n", "401"),
    ] {
        let said = asks(&served, host, headers).await;
        assert!(said.starts_with(&format!("HTTP/1.1 {status}")), "{host} {headers}: {said}");
        assert_eq!(said.to_ascii_lowercase().contains("acp-connection-id: "), status == "101", "{said}");
    }
}

#[tokio::test]
async fn a_bad_handshake_is_refused_and_a_get_without_upgrade_is_a_stream() {
    let served = serve(AcpEndpoint::new(server())).await;
    let mut socket = TcpStream::connect(&served.address).await.unwrap();
    for (upgrade, status) in
        [("Connection: Upgrade\r\nUpgrade: WebSocket\r\n", "426"), ("Accept: text/event-stream\r\n", "400")]
    {
        let request = format!("GET /acp HTTP/1.1\r\nHost: {}\r\n{upgrade}\r\n", served.address);
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut buffer = [0; 1024];
        let count = in_time("the answer", socket.read(&mut buffer)).await.unwrap();
        let said = String::from_utf8_lossy(buffer.get(..count).unwrap()).into_owned();
        assert!(said.starts_with(&format!("HTTP/1.1 {status}")), "{upgrade}: {said}");
    }
}

#[tokio::test]
async fn an_upgrade_over_http_1_0_is_a_get_like_any_other() {
    let served = serve(AcpEndpoint::new(server())).await;
    let mut socket = TcpStream::connect(&served.address).await.unwrap();
    let request = format!(
        "GET /acp HTTP/1.0\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        served.address
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 4096];
    let count = in_time("the answer", socket.read(&mut buffer)).await.unwrap();
    let said = String::from_utf8_lossy(buffer.get(..count).unwrap()).to_ascii_lowercase();
    // It accepts no event stream.
    assert!(said.starts_with("http/1.0 406") || said.starts_with("http/1.1 406"), "{said}");
    assert!(!said.contains("acp-connection-id"), "{said}");
}

#[tokio::test]
async fn binary_messages_are_ignored_and_counted() {
    // covers: RULE-05
    let ignored = IgnoredCounter::new();
    let link = LinkOptions::new().binary(rescind::websocket::BinaryMessages::Ignore(ignored.clone()));
    let endpoint = AcpEndpoint::new(server()).websocket(UpgradeOptions::new().path("/other").link(link));
    let served = serve(endpoint).await;
    let mut socket = TcpStream::connect(&served.address).await.unwrap();
    let request = format!(
        "GET /acp HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        served.address
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 4096];
    let count = in_time("the handshake", socket.read(&mut buffer)).await.unwrap();
    assert!(buffer.get(..count).unwrap().starts_with(b"HTTP/1.1 101"));
    // A binary message of one byte, then the handshake as text, both masked with zeros.
    socket.write_all(&[0x82, 0x81, 0, 0, 0, 0, 7]).await.unwrap();
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": 1, "clientCapabilities": {}}})
    .to_string();
    let length = u8::try_from(hello.len()).unwrap();
    assert!(length < 126, "the frame has a short head");
    socket.write_all(&[0x81, 0x80 | length, 0, 0, 0, 0]).await.unwrap();
    socket.write_all(hello.as_bytes()).await.unwrap();
    let count = in_time("the answer", socket.read(&mut buffer)).await.unwrap();
    let said = String::from_utf8_lossy(buffer.get(..count).unwrap()).into_owned();
    assert!(said.contains("protocolVersion"), "{said}");
    assert_eq!(ignored.total(), 1);
}
