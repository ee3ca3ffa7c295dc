//! How a connection is opened: its dialects, and the declarations of each side.

use rescind_core::dialect::{ACP, ACP_DRAFT, MCP};
use rescind_core::{
    ApiMisuse, CallContext, ConnectionError, Declaration, Limits, Peer, RequestId, Router, memory_pair,
};
use serde_json::{Value, json};

use crate::driver::wire::probe::{self, TRAITS};

#[tokio::test]
async fn attach_needs_exactly_one_dialect() {
    let open = |dialects: &[_]| {
        let (near, _far) = memory_pair();
        match Peer::builder(dialects.iter().cloned()).attach(near) {
            Ok(_) => Ok(()),
            Err(ConnectionError::Misuse(misuse)) => Err(misuse),
            Err(other) => panic!("{other}"),
        }
    };
    assert!(matches!(open(&[]), Err(ApiMisuse::NoDialect)));
    assert!(matches!(open(&[ACP]), Ok(())));
    assert!(matches!(open(&[ACP, MCP]), Err(ApiMisuse::SeveralDialects)));
}

#[tokio::test(start_paused = true)]
async fn a_side_declares_that_it_handles_cancels_unless_that_is_withheld() {
    let declared = json!({"protocolVersion": 1, "clientCapabilities": {"cancellation": {"request": true}}});
    let bare = json!({"protocolVersion": 1, "clientCapabilities": {}});
    for (declaration, expected) in [(Declaration::Declared, &declared), (Declaration::Withheld, &bare)] {
        let (near, far) = memory_pair();
        let reported =
            Router::new().method("initialize", |_: CallContext, reported: Value| async move { Ok(reported) });
        let _server = Peer::builder(ACP_DRAFT).serve(reported).attach(far).unwrap();
        let client = Peer::builder(ACP_DRAFT).declare_cancellation(declaration).attach(near).unwrap();
        // The server's part contains the client's declaration, and its own one next to it.
        let reported: Value = client.call("initialize", &bare).await.unwrap();
        assert_eq!(reported.get("clientCapabilities"), expected.get("clientCapabilities"), "{declaration:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_cancel_is_sent_for_a_call_with_task_params() {
    for (params, expected) in [
        (json!({"name": "slow"}), &["Control Cancel 1 on ours 2"][..]),
        (json!({"name": "task"}), &["Control Cancel 1 on ours 2"]),
        (json!({"name": "slow", "task": {"ttl": 1}}), &[]),
    ] {
        let (peer, wire) = probe::open(MCP, TRAITS, Limits::default());
        let call = peer.call::<_, Value>("tools/call", &params).start().unwrap();
        assert_eq!(wire.recorded().await, ["Data Request 1 tools/call on ours 1"]);
        drop(call);
        assert_eq!(wire.recorded().await, expected, "{params}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_counts_cancelled_requests_and_has_the_peer_info_of_its_transport() {
    let (peer, wire) = probe::open(ACP, TRAITS, Limits::default());
    wire.says(0, &probe::request(1, "deaf", &json!({})));
    wire.recorded().await;
    let cancelled = || peer.registry().is_cancelled(peer.session(), &RequestId::number(1));
    assert!(!cancelled());
    wire.says(0, &json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}}));
    wire.recorded().await;
    assert!(cancelled());
    let (near, _far) = memory_pair();
    let peer = Peer::builder(ACP).attach(near).unwrap();
    assert_eq!(peer.meta().peer.as_deref(), Some("memory client"));
}
