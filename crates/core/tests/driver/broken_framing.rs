//! What a connection must still send when its input can no longer be split into frames.

use std::time::Duration;

use rescind_core::dialect::{self, ACP, Dialect, LSP};
use rescind_core::{ByteStream, CallContext, Framing, Link, Peer, Router};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

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

const ASK: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{}}}"#;
const ASK_ACP: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}"#;
const TOLD: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"capabilities":{}}}"#;

/// Writes a body as a frame.
type Writes = fn(&str) -> String;

fn headed(body: &str) -> String {
    format!("Content-Length: {}\r\n\r\n{body}", body.len())
}

fn line(body: &str) -> String {
    format!("{body}\n")
}

fn unframed() -> (Link, DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    (ByteStream::whole(ours).into_link(), theirs)
}

async fn serve(dialects: &[Dialect], link: Link) -> Peer {
    let router = Router::new().method("initialize", |_: CallContext, _: Value| async {
        Ok(serde_json::json!({ "capabilities": {} }))
    });
    let builder = Peer::builder(dialects.iter().cloned()).serve(router);
    builder.connect(link).await.expect("the connection opens")
}

/// The bytes that the peer receives in answer to these bytes.
async fn answered(theirs: &mut DuplexStream, bytes: &str) -> String {
    theirs.write_all(bytes.as_bytes()).await.expect("it is read");
    theirs.shutdown().await.expect("it is read");
    let mut answered = String::new();
    theirs.read_to_string(&mut answered).await.expect("text comes");
    answered
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_bytes_takes_the_framing_of_its_dialect() {
    let cases: [(Dialect, &str, Writes); 2] = [(LSP, ASK, headed), (ACP, ASK_ACP, line)];
    for (dialect, ask, framed) in cases {
        let (link, mut theirs) = unframed();
        let peer = serve(&[dialect], link).await;
        assert_eq!(answered(&mut theirs, &framed(ask)).await, framed(TOLD));
        peer.closed().await.expect("it ends with its input");
    }
}

#[tokio::test(start_paused = true)]
async fn an_explicit_framing_is_kept() {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    let link = ByteStream::whole(ours).framing(Framing::Newline).into_link();
    let peer = serve(&[LSP], link).await;
    assert_eq!(answered(&mut theirs, &line(ASK)).await, line(TOLD));
    peer.closed().await.expect("it ends with its input");
}

#[tokio::test(start_paused = true)]
async fn the_first_byte_decides_the_framing_if_dialects_of_both_are_offered() {
    let cases: [(&str, Writes, &str); 2] = [(ASK, headed, "lsp"), (ASK_ACP, line, "acp")];
    for (ask, framed, dialect) in cases {
        let (link, mut theirs) = unframed();
        let opening = tokio::spawn(async move { serve(&[ACP, LSP], link).await });
        assert_eq!(answered(&mut theirs, &framed(ask)).await, framed(TOLD));
        let peer = opening.await.expect("no panic");
        assert_eq!(peer.dialect().name(), dialect);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_writes_first_in_the_framing_of_its_dialect() {
    let (link, mut theirs) = unframed();
    let peer = Peer::builder(LSP).attach(link).expect("the connection opens");
    peer.try_notify("initialized", &serde_json::json!({})).expect("there is room");
    let mut first = [0; 14];
    theirs.read_exact(&mut first).await.expect("a frame comes");
    assert_eq!(&first, b"Content-Length");
}
