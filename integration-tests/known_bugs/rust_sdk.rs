//! The Rust SDK of MCP.

use rescind::dialect::{MCP, Role};
use rescind::{CancelResult, Peer, memory_pair};
use serde_json::{Value, json};

use crate::raw_peer::{agent, in_time, is_about, is_clean};

/// The SDK looks up a cancel among the calls that it made itself: the client's own call with that id is cancelled
/// instead.
#[tokio::test]
async fn rust_sdk_1251_a_cancel_for_a_server_request_hits_the_clients_own() {
    is_about!("I4");
    let (near, far) = memory_pair();
    let ((ours, mut told_by_client), (theirs, mut heard_by_server)) = (agent(), agent());
    let server = Peer::builder(MCP).role(Role::Server).serve(theirs).attach(far).unwrap();
    let client = Peer::builder(MCP).role(Role::Client).serve(ours).attach(near).unwrap();
    // Both count from the same number.
    let of_client = client.call::<_, Value>("wait", &json!({"n": "client's"})).start().unwrap();
    let of_server = server.call::<_, Value>("wait", &json!({"n": "server's"})).start().unwrap();
    heard_by_server.hears("wait \"client's\" began").await;
    told_by_client.hears("wait \"server's\" began").await;
    assert_eq!(told_by_client.ids(), heard_by_server.ids(), "one id, in each direction");
    assert_eq!(of_server.canceller().cancel("stop"), CancelResult::Sent);
    told_by_client.hears("wait \"server's\" peer").await;
    assert!(in_time("I13: the server's call", of_server.outcome()).await.is_cancelled());
    let answer = in_time("I13: an echo", client.call::<_, Value>("echo", &json!([1]))).await;
    assert_eq!(answer, Ok(json!([1])), "the session goes on");
    assert_eq!((server.stats().running, client.stats().calls), (1, 1), "I4: the client's own still runs");
    assert_eq!(of_client.canceller().cancel("stop"), CancelResult::Sent);
    heard_by_server.hears("wait \"client's\" peer").await;
    assert!(in_time("I13: the client's call", of_client.outcome()).await.is_cancelled());
    is_clean(&server).await;
    is_clean(&client).await;
}
