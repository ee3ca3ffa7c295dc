//! Messages between nodes: what is accepted, and what is refused.
//!
//! These tests sign messages themselves, as a node does: the format of crates/cluster/src/hop.rs.

use std::fmt::Write as _;
use std::net::SocketAddr;

use hmac::{Hmac, KeyInit as _, Mac as _};
use rescind_testkit::support::in_time;
use serde_json::json;
use sha2::Sha256;

use crate::backend::Backend;
use crate::client::{Session, message};
use crate::nodes::{Replicas, Setup};

pub(crate) const SECRET: &str = "the secret of the proofs";
const ANOTHER: &str = "the secret of somebody else";

/// A signature as of `Secret::sign`.
pub(crate) fn sign(secret: &str, purpose: &str, parts: &[&str]) -> String {
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
