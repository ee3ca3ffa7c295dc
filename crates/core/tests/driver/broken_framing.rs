//! What a connection must still send when its input can no longer be split into frames.

use std::time::Duration;

use rescind_core::{ByteStream, CallContext, Framing, Peer, Router, dialect};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn frame(body: &str) -> String {
    format!("Content-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test(start_paused = true)]
async fn an_invalid_header_loses_no_pending_answer() {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    let router =
        Router::new().method("test/echo", |_ctx: CallContext, params: Value| async move { Ok(params) });
    let served = ByteStream::whole(ours).framing(Framing::ContentLength).into_link();
    let peer = Peer::builder(dialect::ACP).serve(router).attach(served).unwrap();
    let burst = [
        frame(r#"{"jsonrpc":"2.0","id":1,"method":"test/echo","params":{"value":1}}"#),
        frame("bad"),
        "Content-Length: -4\r\n\r\n".to_owned(),
    ];
    theirs.write_all(burst.concat().as_bytes()).await.unwrap();
    let mut answered = String::new();
    let read = theirs.read_to_string(&mut answered);
    tokio::time::timeout(Duration::from_secs(60), read).await.expect("the connection closes").unwrap();
    assert!(answered.contains(r#""id":1,"result":{"value":1}"#), "the answer was lost: {answered}");
    assert_eq!(answered.matches("-32700").count(), 2, "each bad frame gets its error: {answered}");
    peer.closed().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_error_for_an_oversize_frame_has_the_limit() {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    let served = ByteStream::whole(ours).framing(Framing::Newline).max_frame(1024).into_link();
    let peer = Peer::builder(dialect::ACP).role(dialect::Role::Server).serve(Router::new());
    let _peer = peer.attach(served).unwrap();
    theirs.write_all(format!("{}\n", "x".repeat(5000)).as_bytes()).await.unwrap();
    theirs.shutdown().await.unwrap();
    let mut answered = String::new();
    theirs.read_to_string(&mut answered).await.unwrap();
    assert!(answered.contains("1024 bytes"), "{answered}");
}
