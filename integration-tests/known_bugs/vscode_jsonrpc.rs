//! vscode-jsonrpc.

use std::time::Duration;

use rescind::dialect::{LSP, Role};
use rescind::{Limits, Outcome, Peer, memory_pair};
use serde_json::{Value, json};

use crate::raw_peer::{RawPeer, agent, in_time, is_about, is_clean};

/// vscode-jsonrpc never settles the promises of a closed connection.
#[tokio::test]
async fn vscode_jsonrpc_1621_calls_hang_on_close() {
    is_about!("I13");
    for closes in ["the peer", "this side", "the wire"] {
        let (near, far) = memory_pair();
        let client = Peer::builder(LSP).role(Role::Client).attach(near).unwrap();
        let (router, mut reported) = agent();
        let server = Peer::builder(LSP).role(Role::Server).serve(router);
        let (server, wire) = match closes {
            "the wire" => (None, Some(far)),
            _ => (Some(server.attach(far).unwrap()), None),
        };
        if server.is_some() {
            let hello = client.call::<_, Value>("initialize", &json!({}));
            in_time("the handshake", hello).await.unwrap();
        }
        let calls: Vec<_> =
            (0..3).map(|n| client.call::<_, Value>("wait", &json!({"n": n})).start().unwrap()).collect();
        if server.is_some() {
            reported.hears("wait 0 began").await;
        }
        match &server {
            Some(server) if closes == "the peer" => drop(server.shutdown(Duration::ZERO).await),
            Some(_) => drop(client.shutdown(Duration::ZERO).await),
            None => drop(wire),
        }
        for call in calls {
            match in_time("I13: a call", call.outcome()).await {
                Outcome::Disconnected { .. } | Outcome::Cancelled(_) => {}
                // LSP's error for a request that the server itself cancels.
                Outcome::Failed(error) if closes == "the peer" => {
                    assert_eq!(error.code.0, -32_803, "{error}");
                }
                other => panic!("I13: closed by {closes}: {other:?}"),
            }
        }
        let late = client.call::<_, Value>("echo", &json!([])).start().unwrap();
        let outcome = in_time("I13: a call after it", late.outcome()).await;
        assert!(
            matches!(outcome, Outcome::Disconnected { may_have_run: false } | Outcome::Cancelled(_)),
            "closed by {closes}: {outcome:?}"
        );
        is_clean(&client).await;
    }
}

/// vscode-jsonrpc keeps both under one key: a cancel cancels the other one.
#[tokio::test]
async fn vscode_jsonrpc_1_and_its_text_share_a_key() {
    is_about!("I4");
    let (mut client, server, mut reported) = RawPeer::meet(LSP, Limits::default());
    client.opens().await;
    client.ask(1, "wait", &json!({"n": 1})).await;
    client.ask("1", "wait", &json!({"n": "1"})).await;
    reported.hears("wait 1 began").await;
    reported.hears("wait \"1\" began").await;
    client.cancel("1", "$/cancelRequest", "id").await;
    reported.hears("wait \"1\" peer").await;
    let answer = client.hear().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("1"), &json!(-32_800)), "I4");
    assert_eq!(server.stats().running, 1, "I4: the number's still runs");
    client.cancel(1, "$/cancelRequest", "id").await;
    reported.hears("wait 1 peer").await;
    assert_eq!(client.hear().await["id"], 1);
    is_clean(&server).await;
}
