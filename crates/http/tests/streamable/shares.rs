//! One client opens sessions by the thousand, and others still get theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::request;
use rescind_core::Principal;
use rescind_core::dialect::MCP;
use rescind_http::{SessionRoute, SessionRouter};
use rescind_net::{AuthRefusal, AuthRequest, Credential, PeerAddress};
use serde_json::json;

use crate::streamable::raw::{Ask, Raw, initialize, request as ask};
use crate::streamable::support::{Served, serve, server};

/// A client: an address of this machine, and the name that the auth hook gives it.
type Who = (&'static str, &'static str);

const MOST: usize = 8;
/// Clients that differ by their address, and by their principal.
const PAIRS: [(Who, Who); 2] =
    [(("127.0.0.1", "all"), ("127.0.0.2", "all")), (("127.0.0.1", "mallory"), ("127.0.0.1", "ada"))];

async fn served((_, user): Who) -> Served {
    let server = server().sessions(MOST);
    if user == "all" {
        return serve(server, MCP).await;
    }
    let auth = async |request: AuthRequest| match request.header("X-User") {
        Some(user) => Ok(Credential::of(Principal(user.into()))),
        None => Err(AuthRefusal::unauthorized("Bearer")),
    };
    serve(server.auth(auth), MCP).await
}

async fn session(served: &Served, (from, user): Who) -> Result<(Raw, String), String> {
    let mut raw = Raw::connect_from(&served.url, from).await;
    let (head, body) = raw.ask(&initialize().with("X-User", user)).await;
    match head.status {
        200 => Ok((raw, head.header("mcp-session-id").to_owned())),
        429 => {
            assert_eq!(head.header("retry-after"), "1");
            Err(body)
        }
        status => panic!("{status}: {body}"),
    }
}

/// The status of an echo in a session.
async fn echo(raw: &mut Raw, session: &str, user: &str) -> u16 {
    let echo: Ask = ask(1, "echo", &json!({"n": 1}));
    raw.ask(&echo.of(session).with("X-User", user)).await.0.status
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_flood_of_initialize_displaces_only_its_own_unused_sessions() {
    for (mallory, ada) in PAIRS {
        let served = served(mallory).await;
        let (mut used, kept) = session(&served, ada).await.unwrap();
        assert_eq!(echo(&mut used, &kept, ada.1).await, 200);
        let mut opened = Vec::new();
        for _ in 0..10 * MOST {
            opened.push(session(&served, mallory).await.expect("the oldest unused one makes room"));
        }
        let displaced = usize::try_from(served.counts.displaced_sessions()).unwrap();
        assert_eq!(displaced, 10 * MOST - MOST / 2, "{mallory:?}: half of all are its own");
        let (raw, first) = &mut opened[0];
        assert_eq!(echo(raw, first, mallory.1).await, 404, "it made room");
        let (raw, last) = opened.last_mut().unwrap();
        assert_eq!(echo(raw, last, mallory.1).await, 200, "the newest is there");
        let (mut raw, new) = session(&served, ada).await.expect("another client is let in");
        assert_eq!((echo(&mut raw, &new, ada.1).await, echo(&mut used, &kept, ada.1).await), (200, 200));
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_client_that_uses_its_sessions_holds_half_of_them_at_most() {
    for (mallory, ada) in PAIRS {
        let served = served(mallory).await;
        let mut open = Vec::new();
        for round in 0..MOST {
            match session(&served, mallory).await {
                Ok((mut raw, session)) => {
                    assert_eq!(echo(&mut raw, &session, mallory.1).await, 200);
                    open.push((raw, session));
                }
                Err(reported) => {
                    assert!(round >= MOST / 2, "{mallory:?}: {reported}");
                    assert!(reported.contains("this client"), "{reported}");
                }
            }
        }
        assert_eq!((open.len(), served.counts.displaced_sessions()), (MOST / 2, 0), "{mallory:?}");
        let (mut raw, new) = session(&served, ada).await.expect("another client is let in");
        assert_eq!(echo(&mut raw, &new, ada.1).await, 200);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn silent_connections_of_one_address_leave_half_to_others() {
    let served = serve(server().connections(MOST), MCP).await;
    let (mallory, ada) = PAIRS[0];
    let mut silent = Vec::new();
    for _ in 0..5 * MOST {
        silent.push(Raw::connect_from(&served.url, mallory.0).await);
    }
    // The latest session of the client has a place: the oldest one was closed for it.
    let (mut raw, id) = session(&served, mallory).await.unwrap();
    assert_eq!(echo(&mut raw, &id, mallory.1).await, 200);
    let (mut other, id) = session(&served, ada).await.expect("another client is let in");
    assert_eq!(echo(&mut other, &id, ada.1).await, 200);
    silent.swap_remove(0).is_closed().await;
}

/// A router to which another process passes requests on, with the address of the client in a field.
#[derive(Default)]
struct PassedOn(AtomicUsize);

impl SessionRouter for PassedOn {
    fn new_session_id(&self) -> Option<String> {
        Some(format!("session-{}", self.0.fetch_add(1, Ordering::Relaxed)))
    }

    fn route(&self, head: &mut request::Parts, _: Option<&str>) -> SessionRoute {
        let client = head.headers.get("x-user").and_then(|value| value.to_str().ok()?.parse().ok());
        head.extensions.remove::<PeerAddress>();
        if let Some(client) = client {
            head.extensions.insert(PeerAddress(client));
        }
        SessionRoute::Here
    }
}

#[tokio::test]
async fn the_limits_of_a_client_count_for_the_address_that_a_router_gives() {
    let served = serve(server().sessions(MOST).session_router(Arc::new(PassedOn::default())), MCP).await;
    let (mallory, ada) = ("203.0.113.1", "203.0.113.2");
    // One connection, as from another process: its requests are of two clients.
    let mut raw = Raw::connect(&served.url).await;
    let mut open = async |user: &str| {
        let (head, body) = raw.ask(&initialize().with("X-User", user)).await;
        if head.status == 200 {
            let id = head.header("mcp-session-id").to_owned();
            assert_eq!(echo(&mut raw, &id, user).await, 200);
        }
        (head.status, body)
    };
    for _ in 0..MOST / 2 {
        assert_eq!(open(mallory).await.0, 200);
    }
    let (status, body) = open(mallory).await;
    assert!(status == 429 && body.contains("this client"), "{status}: {body}");
    assert_eq!(open(ada).await.0, 200, "another client is let in on the same connection");
}
