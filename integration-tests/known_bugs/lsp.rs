//! Libraries of the Language Server Protocol.

use std::time::Duration;

use rescind::dialect::{ACP, LSP, Role};
use rescind::transport::Decoded;
use rescind::{ByteStream, Framing, Limits, Outcome, Peer, memory_pair};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::raw_peer::{RawPeer, agent, in_time, is_about, is_clean, request, until};

// async-lsp.

/// async-lsp reads no answers when it runs the maximum number of handlers and these wait for the answers.
#[tokio::test]
async fn async_lsp_deadlock_at_its_concurrency_limit() {
    const LIMIT: usize = 4;
    is_about!("L2");
    let mut limits = Limits::default();
    limits.max_running_handlers = LIMIT;
    let (mut client, server, _told) = RawPeer::meet(LSP, limits);
    client.opens().await;
    // As many again wait for a permit meanwhile.
    for id in 0..2 * LIMIT {
        client.ask(id, "ask", &json!({"n": id})).await;
    }
    until("the limit is reached, and as many wait", || {
        let stats = server.stats();
        (stats.running, stats.queued) == (LIMIT as u64, LIMIT as u64)
    })
    .await;
    let mut answered = Vec::new();
    while answered.len() < 2 * LIMIT {
        let frame = client.hear().await;
        if frame["method"] == "echo" {
            client.say(&json!({"jsonrpc": "2.0", "id": frame["id"], "result": frame["params"]})).await;
        } else {
            assert_eq!(frame["result"]["n"], frame["id"]);
            answered.push(frame["id"].as_u64());
        }
    }
    is_clean(&server).await;
}

/// async-lsp forgets the first request when the second arrives.
#[tokio::test]
async fn async_lsp_a_duplicate_id_makes_the_first_uncancellable() {
    is_about!("I4");
    let (mut client, server, mut reported) = RawPeer::meet(LSP, Limits::default());
    client.opens().await;
    client.ask(1, "wait", &json!({"n": "first"})).await;
    reported.hears("wait \"first\" began").await;
    client.ask(1, "echo", &json!({})).await;
    let refused = client.hear().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&Value::Null, &json!(-32_600)));
    client.cancel(1, "$/cancelRequest", "id").await;
    reported.hears("wait \"first\" peer").await;
    let answer = client.hear().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32_800)));
    is_clean(&server).await;
}

// `StreamJsonRpc`.

/// `StreamJsonRpc` registers a request after it has continued to read, and a cancel that arrives in between finds
/// nothing.
#[tokio::test]
async fn streamjsonrpc_56_cancel_before_registration() {
    const ROUNDS: u64 = 500;
    is_about!("L1");
    let (mut ours, theirs) = tokio::io::duplex(1 << 20);
    let (router, reported) = agent();
    let link = ByteStream::whole(theirs).framing(Framing::ContentLength).into_link();
    let server = Peer::builder(LSP).role(Role::Server).serve(router).attach(link).unwrap();
    let headed = |body: &str| format!("Content-Length: {}\r\n\r\n{body}", body.len());
    let mut frames = Framing::ContentLength.decoder(1 << 20);
    ours.write_all(headed(&request("hello", "initialize", &json!({})).to_string()).as_bytes()).await.unwrap();
    assert_eq!(next(&mut ours, &mut frames).await.expect("an answer")["id"], "hello");
    // Both in one write, so that one read receives both.
    for id in 0..ROUNDS {
        let ask = request(id, "wait", &json!({"n": id})).to_string();
        let cancel = json!({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": id}}).to_string();
        ours.write_all((headed(&ask) + &headed(&cancel)).as_bytes()).await.unwrap();
    }
    for _ in 0..ROUNDS {
        let answer = next(&mut ours, &mut frames).await.expect("an answer for each");
        assert_eq!(answer["error"]["code"], -32_800, "{answer}");
    }
    until("all have ended", || server.stats().running == 0).await;
    let stats = server.stats();
    assert_eq!(stats.unknown_cancels, 0, "each found its request");
    // The handshake started a handler too.
    assert_eq!(stats.started, stats.cancelled + 1, "whoever was entered was signalled");
    assert_eq!(reported.entered() as u64 + 1, stats.started);
    is_clean(&server).await;
}

async fn next(stream: &mut DuplexStream, frames: &mut rescind::transport::Decoder) -> Option<Value> {
    loop {
        match frames.next_frame() {
            Some(Decoded::Frame(body)) => return serde_json::from_slice(&body).ok(),
            Some(other) => panic!("a torn frame: {other:?}"),
            None => {}
        }
        let mut bytes = [0; 4096];
        let count = in_time("a frame", stream.read(&mut bytes)).await.unwrap();
        if count == 0 {
            return None;
        }
        frames.push(&bytes[..count]);
    }
}

/// `StreamJsonRpc` stops the write in the middle of a frame, which breaks the connection.
#[tokio::test]
async fn streamjsonrpc_489_cancel_during_flush() {
    // A transport that accepts a few bytes at a time: a request of this size is still being written when it is
    // cancelled.
    const SIZE: usize = 20_000;
    is_about!("I6 or I12");
    let mut limits = Limits::default();
    limits.cancel_response_timeout = std::time::Duration::from_secs(60);
    for room in [1, 16, 4096] {
        let (mut ours, theirs) = tokio::io::duplex(room);
        let link = ByteStream::whole(theirs).framing(Framing::Newline).into_link();
        let client = Peer::builder(ACP).role(Role::Client).limits(limits.clone()).attach(link).unwrap();
        let mut frames = Framing::Newline.decoder(1 << 20);
        for how in ["cancel", "drop"] {
            let params = json!({"filler": "x".repeat(SIZE)});
            let call = client.call::<_, Value>("test/big", &params).start().unwrap();
            let mut bytes = vec![0; room.min(SIZE / 2)];
            let count = in_time("its first bytes", ours.read(&mut bytes)).await.unwrap();
            frames.push(&bytes[..count]);
            let cancelled = (how == "cancel").then(|| call.canceller().cancel("stop"));
            let outcome = if cancelled.is_some() {
                Some(call)
            } else {
                drop(call);
                None
            };
            let asked = next(&mut ours, &mut frames).await.expect("the connection goes on");
            assert_eq!(asked["params"]["filler"].as_str().map(str::len), Some(SIZE), "the frame is whole");
            let cancel = next(&mut ours, &mut frames).await.expect("the connection goes on");
            assert_eq!(cancel["params"]["requestId"], asked["id"], "I12: and its cancel behind it");
            let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32_800, "message": "Request cancelled"}});
            ours.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
            if let Some(call) = outcome {
                let outcome = in_time("I13: the call", call.outcome()).await;
                assert!(matches!(&outcome, Outcome::Cancelled(it) if it.confirmed), "{outcome:?}");
            }
        }
        let call = client.call::<_, Value>("echo", &json!([1])).start().unwrap();
        let asked = next(&mut ours, &mut frames).await.expect("the connection goes on");
        let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": asked["params"]});
        ours.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
        assert_eq!(in_time("I13: a call after", call).await, Ok(json!([1])));
        is_clean(&client).await;
    }
    // In the other direction: the agent's large answer is being written when its cancel arrives, which is too late.
    let (mut client, server, _told) = RawPeer::meet(ACP, Limits::default());
    let large = json!({"n": "x".repeat(1 << 20)});
    client.ask(1, "echo", &large).await;
    until("it is answered", || server.stats().finished == 1).await;
    client.cancel(1, "$/cancel_request", "requestId").await;
    let before = client.until_echo().await;
    assert_eq!((before.len(), &before[0]["result"]), (1, &large), "I6: the answer is sent unchanged");
}

// tower-lsp-server.

/// tower-lsp-server stops reading when four handlers run, so it does not read their cancels.
#[tokio::test]
async fn tower_lsp_server_no_cancel_once_4_handlers_run() {
    is_about!("L2");
    for running in [4, 1024] {
        let mut limits = Limits::default();
        limits.max_running_handlers = running;
        let (mut client, server, mut reported) = RawPeer::meet(LSP, limits);
        client.opens().await;
        for id in 1..=4 {
            client.ask(id, "wait", &json!({"n": id})).await;
            reported.hears(&format!("wait {id} began")).await;
        }
        client.ask(5, "wait", &json!({"n": 5})).await;
        if running > 4 {
            reported.hears("wait 5 began").await;
        }
        for id in [4, 1, 3, 2] {
            client.cancel(id, "$/cancelRequest", "id").await;
            reported.hears(&format!("wait {id} peer")).await;
            let answer = client.hear().await;
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(id), &json!(-32_800)));
            if running == 4 && id == 4 {
                reported.hears("wait 5 began").await;
            }
        }
        client.cancel(5, "$/cancelRequest", "id").await;
        reported.hears("wait 5 peer").await;
        assert_eq!(client.hear().await["id"], 5);
        is_clean(&server).await;
    }
}

// vscode-jsonrpc.

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
