//! `StreamJsonRpc`.

use rescind::dialect::{ACP, LSP, Role};
use rescind::transport::Decoded;
use rescind::{ByteStream, Framing, Limits, Outcome, Peer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::raw_peer::{RawPeer, agent, in_time, is_about, is_clean, request, until};

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
