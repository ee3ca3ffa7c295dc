//! One table of hosts and origins, played against the deciding function and over each transport that uses it.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::time::Duration;

use rescind::http::{Acp, HttpServer, ServerBinding, Stateless, Streamable};
use rescind::transport::{HostRefusal, Listener};
use rescind::websocket::{UpgradeOptions, WebSocketListener, mount};
use rescind::{AcpEndpoint, HostPolicy, OriginPolicy, Router, Server, dialect};
use rescind_testkit::support::http1::read_head;
use rescind_testkit::support::table;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The status of a request that passes.
const fn passed(asked: Asked) -> u16 {
    match asked {
        Asked::Put | Asked::PutOverHttp2 => 405,
        Asked::Upgrade => 101,
    }
}

/// Plays the table. `servers` has an address for each configuration that the transport supports.
async fn play(what: &str, servers: &BTreeMap<usize, String>, path: &str, asked: Asked) {
    let mut wrong = Vec::new();
    for case in &cases() {
        let Some(address) = servers.get(&(case.policy as usize)) else { continue };
        let status = ask(address, path, asked, case).await;
        if status != case.refused.unwrap_or(passed(asked)) {
            wrong.push(format!("{status} for {case:?}"));
        }
    }
    assert!(wrong.is_empty(), "{what}, {asked:?}:\n{}", wrong.join("\n"));
}

/// Serves all connections of a listener, and returns its address.
fn serving(listener: impl Listener) -> String {
    let endpoint = listener.endpoint().0;
    let address = endpoint.split('/').nth(2).unwrap().replace("0.0.0.0", "127.0.0.1");
    drive(listener);
    address
}

fn drive(listener: impl Listener) {
    tokio::spawn(Server::builder([dialect::ACP]).serve(Router::new()).listen(listener).run());
}

const fn bound(policy: Policy) -> &'static str {
    match policy {
        Policy::Everywhere => "0.0.0.0:0",
        Policy::Default | Policy::Listed | Policy::Any => "127.0.0.1:0",
    }
}

/// A server's options with the hosts and origins that the policy allows.
macro_rules! allowing {
    ($options:expr, $policy:expr) => {{
        let options = $options;
        match $policy {
            Policy::Default | Policy::Everywhere => options,
            Policy::Listed => {
                let options = HOSTS.iter().fold(options, |options, host| options.allow_host(host).unwrap());
                ORIGINS.iter().fold(options, |options, origin| options.allow_origin(origin).unwrap())
            }
            Policy::Any => options.allow_any_host().allow_any_origin(),
        }
    }};
}

fn http<B: ServerBinding>(binding: B, policy: Policy) -> HttpServer<B> {
    allowing!(HttpServer::new(binding).path("/agent"), policy)
}

fn websocket(policy: Policy) -> UpgradeOptions {
    allowing!(UpgradeOptions::new().path("/agent"), policy)
}

async fn play_http<B: ServerBinding>(what: &str, binding: impl Fn() -> B) {
    let mut servers = BTreeMap::new();
    for policy in POLICIES {
        let listener = http(binding(), policy).bind(bound(policy)).await.unwrap();
        servers.insert(policy as usize, serving(listener));
    }
    for asked in [Asked::Put, Asked::PutOverHttp2] {
        play(what, &servers, "/agent", asked).await;
    }
}

#[test]
fn the_function_decides_as_the_table_says() {
    for case in &cases() {
        let (mut hosts, mut origins) = (HostPolicy::default(), OriginPolicy::default());
        match case.policy {
            Policy::Default => hosts.bound_to([127, 0, 0, 1].into()),
            Policy::Everywhere => hosts.bound_to([0, 0, 0, 0].into()),
            Policy::Listed => {
                for host in HOSTS {
                    hosts.allow(host).unwrap();
                }
                for origin in ORIGINS {
                    origins.allow(origin).unwrap();
                }
            }
            Policy::Any => {
                hosts.allow_any();
                origins.allow_any();
            }
        }
        assert_eq!(refusal(&hosts, &origins, case), case.refused, "{case:?}");
    }
}

fn refusal(hosts: &HostPolicy, origins: &OriginPolicy, case: &Case) -> Option<u16> {
    let host = match hosts.check(case.target, case.hosts.iter().map(String::as_bytes)) {
        Ok(host) => host,
        Err(HostRefusal::Missing | HostRefusal::Several | HostRefusal::Malformed) => return Some(400),
        Err(HostRefusal::NotServed) => return Some(421),
    };
    match origins.check(case.origins.iter().map(String::as_bytes), &host) {
        Ok(named) => {
            assert_eq!(named, case.origins.first().map(String::as_str), "what CORS is to repeat");
            None
        }
        Err(_) => Some(403),
    }
}

#[test]
fn an_invalid_origin_or_host_cannot_be_allowed() {
    for entry in NO_ORIGINS {
        let reported = OriginPolicy::default().allow(entry).unwrap_err().to_string();
        assert!(reported.contains("cannot be allowed"), "{reported}");
        assert!(UpgradeOptions::new().allow_origin(entry).is_err(), "{entry}");
        assert!(HttpServer::new(Acp::new()).allow_origin(entry).is_err(), "{entry}");
    }
    for entry in NO_HOSTS {
        assert!(HostPolicy::default().allow(entry).is_err(), "{entry}");
        assert!(UpgradeOptions::new().allow_host(entry).is_err(), "{entry}");
        assert!(HttpServer::new(Acp::new()).allow_host(entry).is_err(), "{entry}");
    }
}

#[tokio::test]
async fn streamable_answers_as_the_table_says() {
    play_http("streamable", Streamable::new).await;
}

#[tokio::test]
async fn stateless_answers_as_the_table_says() {
    play_http("stateless", Stateless::new).await;
}

#[tokio::test]
async fn acp_answers_as_the_table_says() {
    play_http("acp", Acp::new).await;
}

#[tokio::test]
async fn websocket_answers_as_the_table_says() {
    let mut servers = BTreeMap::new();
    for policy in POLICIES {
        let listener = WebSocketListener::builder().options(websocket(policy)).bind(bound(policy)).await;
        servers.insert(policy as usize, serving(listener.unwrap()));
    }
    play("websocket", &servers, "/agent", Asked::Upgrade).await;
}

#[tokio::test]
async fn the_acp_endpoint_answers_as_the_table_says() {
    let mut servers = BTreeMap::new();
    for policy in POLICIES {
        let listener = AcpEndpoint::new(http(Acp::new(), policy)).bind(bound(policy)).await.unwrap();
        servers.insert(policy as usize, serving(listener));
    }
    for asked in [Asked::Put, Asked::PutOverHttp2, Asked::Upgrade] {
        play("ACP's endpoint", &servers, "/agent", asked).await;
    }
}

/// A service in another server does not know the address to which it is bound.
#[tokio::test]
async fn routes_of_axum_answer_as_the_table_says() {
    let mut servers = BTreeMap::new();
    for policy in [Policy::Default, Policy::Listed, Policy::Any] {
        let (service, listener) = http(Streamable::new(), policy).mount();
        drive(listener);
        let (upgrades, listener) = mount(websocket(policy).any_path());
        drive(listener);
        let routes = axum::Router::new()
            .route_service("/agent", service)
            .route("/socket", axum::routing::any(upgrades));
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        servers.insert(policy as usize, tcp.local_addr().unwrap().to_string());
        tokio::spawn(async { axum::serve(tcp, routes).await });
    }
    play("a service among routes", &servers, "/agent", Asked::Put).await;
    play("an upgrade among routes", &servers, "/socket", Asked::Upgrade).await;
}

// The table of hosts and origins, `hosts_cases.txt`.

/// The configuration of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// The default, on a loopback address.
    Default,
    /// The default, on every address of the machine.
    Everywhere,
    /// With lists: [`HOSTS`] and [`ORIGINS`].
    Listed,
    /// Any host, any origin.
    Any,
}

const POLICIES: [Policy; 4] = [Policy::Default, Policy::Everywhere, Policy::Listed, Policy::Any];

const HOSTS: [&str; 4] = ["agent.example", "Ports.Example:8443", "web.example:443", "[2001:db8:0::1]"];
const ORIGINS: [&str; 4] = [
    "https://app.example",
    "http://Tool.Example:8080",
    "https://plain.example:443",
    "vscode-webview://panel",
];

/// The relevant parts of a request: its target's authority (`:authority`, or the absolute form of HTTP/1.1), and its
/// `Host` and `Origin` lines.
#[derive(Clone, Debug)]
struct Case {
    pub policy: Policy,
    pub target: Option<&'static str>,
    pub hosts: Vec<String>,
    pub origins: Vec<String>,
    /// The status of the refusal. `None`: the request passes.
    pub refused: Option<u16>,
}

/// Reads the table: policy, target, hosts, origins, status.
fn cases() -> Vec<Case> {
    let rows = table(include_str!("hosts_cases.txt")).map(|[policy, target, hosts, origins, status]| Case {
        policy: *POLICIES.iter().find(|known| format!("{known:?}") == policy).unwrap(),
        target: Some(target).filter(|target| *target != "-"),
        hosts: serde_json::from_str(hosts).unwrap(),
        origins: serde_json::from_str(origins).unwrap(),
        refused: (status != "passes").then(|| status.parse().unwrap()),
    });
    let cases: Vec<_> = rows.collect();
    assert_eq!(cases.len(), 129, "the rows of the table");
    cases
}

/// Values that are invalid in a list of origins.
const NO_ORIGINS: &[&str] = &[
    "null",
    "NULL",
    "https://app.example/",
    "https://app.example/path",
    "https://user@app.example",
    "https://app.example?x",
    "app.example",
    "https://",
    "https://*",
    "https://app.example:port",
    "",
    "*",
];

/// Values that are invalid in a list of hosts.
const NO_HOSTS: &[&str] =
    &["", "https://agent.example", "agent.example/", "a@agent.example", "::1", "agent.example:x", "*", "a b"];

// Requests with the hosts and origins of a case, as bytes, and the status of the response.

const HANG: Duration = Duration::from_secs(30);

/// The kind of request of a case.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// PUT, which no binding serves: 405 if it passes.
    Put,
    /// PUT over HTTP/2.
    PutOverHttp2,
    /// GET with the upgrade to a WebSocket: 101.
    Upgrade,
}

/// The status of the response to a case.
async fn ask(address: &str, path: &str, asked: Asked, case: &Case) -> u16 {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let answer = async {
        match asked {
            Asked::Put => http1(&mut socket, "PUT", path, "Content-Length: 0\r\n", case).await,
            Asked::Upgrade => {
                let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                               Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
                http1(&mut socket, "GET", path, upgrade, case).await
            }
            Asked::PutOverHttp2 => http2(&mut socket, path, case).await,
        }
    };
    tokio::time::timeout(HANG, answer).await.unwrap_or_else(|_| panic!("hangs: {case:?}"))
}

async fn http1(socket: &mut TcpStream, method: &str, path: &str, fields: &str, case: &Case) -> u16 {
    let target = case.target.map_or_else(String::new, |target| format!("http://{target}"));
    let mut request = format!("{method} {target}{path} HTTP/1.1\r\n{fields}");
    for host in &case.hosts {
        request.extend(["Host: ", host, "\r\n"]);
    }
    for origin in &case.origins {
        request.extend(["Origin: ", origin, "\r\n"]);
    }
    request += "\r\n";
    socket.write_all(request.as_bytes()).await.unwrap();
    let head = read_head(socket).await;
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
/// The stream and its headers end with this frame.
const END: u8 = 5;

async fn http2(socket: &mut TcpStream, path: &str, case: &Case) -> u16 {
    let mut block = Vec::new();
    for (name, value) in [(":method", "PUT"), (":scheme", "http"), (":path", path)] {
        field(&mut block, name, value);
    }
    if let Some(target) = case.target {
        field(&mut block, ":authority", target);
    }
    for host in &case.hosts {
        field(&mut block, "host", host);
    }
    for origin in &case.origins {
        field(&mut block, "origin", origin);
    }
    let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut request, SETTINGS, 0, 0, &[]);
    frame(&mut request, HEADERS, END, 1, &block);
    socket.write_all(&request).await.unwrap();
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut body = vec![0; usize::try_from(length).unwrap()];
        socket.read_exact(&mut body).await.unwrap();
        match head[3] {
            HEADERS => return status(&body),
            // A malformed request is an error of its stream, which counts as a refusal.
            RST_STREAM => return 400,
            _ => {}
        }
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, body: &[u8]) {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    out.extend(&length[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(body);
}

/// A literal that is not added to the table (RFC 7541, 6.2.2).
fn field(out: &mut Vec<u8>, name: &str, value: &str) {
    out.push(0);
    for text in [name, value] {
        assert!(text.len() < 127);
        out.push(u8::try_from(text.len()).unwrap());
        out.extend(text.as_bytes());
    }
}

/// The status at the start of a block: an index of the static table, or a literal of three digits, which may be
/// Huffman-coded (5 bits for 0 to 2, 6 for the others).
fn status(block: &[u8]) -> u16 {
    match block {
        [0x88, ..] => 200,
        [0x8c, ..] => 400,
        [0x8d, ..] => 404,
        [0x8e, ..] => 500,
        [0x48, 3, digits @ ..] => std::str::from_utf8(&digits[..3]).unwrap().parse().unwrap(),
        [0x48, length, coded @ ..] => {
            let bits: Vec<u8> = coded[..usize::from(length & 0x7f)]
                .iter()
                .flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1))
                .collect();
            let number = |bits: &[u8]| bits.iter().fold(0_u16, |sum, bit| sum * 2 + u16::from(*bit));
            let (mut at, mut status) = (0, 0);
            for _ in 0..3 {
                let short = number(&bits[at..at + 5]);
                let digit = if short <= 2 { short } else { number(&bits[at..at + 6]) - 0x19 + 3 };
                at += if short <= 2 { 5 } else { 6 };
                status = status * 10 + digit;
            }
            status
        }
        other => panic!("{other:02x?}"),
    }
}
