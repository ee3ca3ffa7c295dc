//! The guarantees of the WebSocket transport for peers that do nothing.

use std::time::Duration;

use futures_util::SinkExt;
use rescind::dialect::ACP;
use rescind::transport::Listener;
use rescind::websocket::{LinkOptions, UpgradeOptions, WebSocketListener};
use rescind::{CallContext, CauseKind, Router, Server};
use rescind_testkit::support::within;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use crate::HANG;

/// An agent that reports why its handler of `wait` ended, and a client that reads only on request.
async fn served(
    options: LinkOptions,
) -> (
    mpsc::UnboundedReceiver<CauseKind>,
    tokio_tungstenite::WebSocketStream<tokio::net::TcpStream>,
    tokio::task::JoinHandle<()>,
) {
    let options = UpgradeOptions::new().link(options);
    let listener = WebSocketListener::builder().options(options).bind("127.0.0.1:0").await.unwrap();
    let (url, address) = (listener.endpoint().0, listener.address());
    let (events_tx, events) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("much", async |_: CallContext, _: Value| Ok("x".repeat(64 * 1024)))
        .method("wait", move |ctx: CallContext, _: Value| {
            let events_tx = events_tx.clone();
            async move {
                let cause = ctx.cancelled().await;
                events_tx.send(cause.kind()).unwrap();
                ctx.stopped::<Value>(cause)
            }
        });
    let serving = tokio::spawn(async move {
        let _ = Server::builder([ACP]).serve(router).listen(listener).run().await;
    });
    // A small buffer at the reader: few answers fill it.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    let socket = socket.connect(address).await.unwrap();
    let (client, _) = tokio_tungstenite::client_async(&url, socket).await.unwrap();
    (events, client, serving)
}

fn ask(id: i64, method: &str) -> Message {
    Message::text(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {}}).to_string())
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_is_lost() {
    let options = LinkOptions::new().ping_every(Duration::from_millis(50));
    let (mut events, mut client, serving) = served(options).await;
    client.send(ask(1, "wait")).await.unwrap();
    // A client answers pings while it reads, and this one never does.
    let cause = within(HANG, "L3: the loss", events.recv()).await;
    assert_eq!(cause, Some(CauseKind::Disconnected));
    serving.abort();
}

#[tokio::test]
async fn a_cancel_reaches_the_handler_while_answers_wait() {
    let (mut events, mut client, serving) = served(LinkOptions::new()).await;
    client.send(ask(0, "wait")).await.unwrap();
    // More than the sender's buffer takes, which grows to a few MiB.
    for id in 1..=128 {
        client.feed(ask(id, "much")).await.unwrap();
    }
    client.flush().await.unwrap();
    let cancel = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 0}});
    client.send(Message::text(cancel.to_string())).await.unwrap();
    assert_eq!(within(HANG, "L2: the handler's end", events.recv()).await, Some(CauseKind::Peer));
    serving.abort();
}
