//! One table of hosts and origins, played against the deciding function and over each transport that uses it.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod cases;
mod requests;

use std::collections::BTreeMap;

use rescind::http::{Acp, HttpServer, ServerBinding, Stateless, Streamable};
use rescind::transport::{HostRefusal, Listener};
use rescind::websocket::{UpgradeOptions, WebSocketListener, mount};
use rescind::{AcpEndpoint, HostPolicy, OriginPolicy, Router, Server, dialect};

use crate::hosts::cases::{Case, HOSTS, NO_HOSTS, NO_ORIGINS, ORIGINS, POLICIES, Policy, cases};
use crate::hosts::requests::{Asked, ask};

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
