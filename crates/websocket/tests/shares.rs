//! Clients that differ by their addresses: one of them holds connections without using them, and others are still
//! accepted.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what the tests share is part of them")]

use crate::common::{accept, in_time, listen};
use futures_util::{SinkExt, StreamExt};
use rescind_core::dialect::ACP;
use rescind_core::{CallContext, Listener, Router, Server, ServerCounts, ServerLimits};
use rescind_websocket::{LinkOptions, UpgradeOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

const MALLORY: &str = "127.0.0.1";
const ADA: &str = "127.0.0.2";
const MOST: usize = 8;

type Client = WebSocketStream<TcpStream>;

async fn socket(url: &str, from: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let address = url.trim_start_matches("ws://").trim_end_matches('/');
    socket.connect(address.parse().unwrap()).await.unwrap()
}

async fn client(url: &str, from: &str) -> Client {
    tokio_tungstenite::client_async(url, socket(url, from).await).await.unwrap().0
}

async fn serve() -> (String, ServerCounts, JoinHandle<()>) {
    let ping = LinkOptions::new().ping_every(std::time::Duration::from_millis(50));
    let listener = listen(UpgradeOptions::new().link(ping)).await;
    let url = listener.endpoint().0;
    let router = Router::new().method("echo", async |_: CallContext, value: Value| Ok(value));
    let mut limits = ServerLimits::default();
    limits.max_connections = MOST;
    let server = Server::builder([ACP]).serve(router).server_limits(limits).listen(listener);
    let counts = server.counts();
    (url, counts, tokio::spawn(async move { server.run().await.unwrap() }))
}

/// Waits until the server closes it, and returns the code and the reason. Until then pings are answered.
async fn closed(client: &mut Client) -> (u16, String) {
    in_time("the close", async {
        loop {
            match client.next().await {
                Some(Ok(Message::Close(Some(frame)))) => {
                    return (frame.code.into(), frame.reason.to_string());
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                other => panic!("expected a close, got {other:?}"),
            }
        }
    })
    .await
}

/// An echo. `Err`: the connection was closed instead.
async fn echo(client: &mut Client) -> Result<(), (u16, String)> {
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": [1]});
    let _ = client.send(Message::text(ask.to_string())).await;
    in_time("the echo", async {
        loop {
            match client.next().await {
                Some(Ok(Message::Text(_))) => return Ok(()),
                Some(Ok(Message::Close(Some(frame)))) => {
                    return Err((frame.code.into(), frame.reason.to_string()));
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                other => panic!("expected an answer, got {other:?}"),
            }
        }
    })
    .await
}

#[tokio::test]
async fn idle_connections_that_answer_pings_are_displaced() {
    let (url, counts, serving) = serve().await;
    let mut used = client(&url, ADA).await;
    echo(&mut used).await.unwrap();
    // Every connection answers its pings all the time: one that does not is cut off soon.
    let (ask, asked) = tokio::sync::oneshot::channel();
    let used = tokio::spawn(async move {
        tokio::select! {
            _ = asked => echo(&mut used).await,
            close = closed(&mut used) => Err(close),
        }
    });
    let mut idle = Vec::new();
    for _ in 0..5 * MOST {
        let mut client = client(&url, MALLORY).await;
        idle.push(tokio::spawn(async move { closed(&mut client).await }));
    }
    // The oldest one is closed in the same way as an idle one.
    assert_eq!(idle.remove(0).await.unwrap().0, 1001);
    let mut ada = client(&url, ADA).await;
    ask.send(()).unwrap();
    assert_eq!((echo(&mut ada).await, used.await.unwrap()), (Ok(()), Ok(())));
    assert!(counts.sessions() <= MOST && counts.displaced() >= 4 * MOST, "{counts:?}");
    for task in idle {
        task.abort();
    }
    serving.abort();
}

#[tokio::test]
async fn connections_in_use_of_one_address_are_half_of_them_at_most() {
    let (url, counts, serving) = serve().await;
    let mut open = Vec::new();
    for _ in 0..MOST {
        let mut client = client(&url, MALLORY).await;
        match echo(&mut client).await {
            Ok(()) => open.push(client),
            Err((code, why)) => assert_eq!((code, &*why), (1008, "too many connections of this client")),
        }
    }
    assert_eq!((open.len(), counts.sessions(), counts.clients()), (MOST / 2, MOST / 2, 1));
    let mut ada = client(&url, ADA).await;
    assert_eq!(echo(&mut ada).await, Ok(()));
    drop((open, ada));
    in_time("the end of all", async {
        while counts.clients() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    serving.abort();
}

#[tokio::test]
async fn slow_handshakes_of_one_address_use_at_most_half_of_the_handshakes() {
    let mut listener = listen(UpgradeOptions::new().handshakes(4)).await;
    let url = listener.endpoint().0;
    let mut slow = Vec::new();
    for _ in 0..16 {
        slow.push(socket(&url, MALLORY).await);
    }
    let (ada, link) = tokio::join!(client(&url, ADA), accept(&mut listener));
    link.unwrap();
    drop(ada);
    // Above twice its share a connection is cut off without a response. Below that it gets one.
    let mut reported = Vec::new();
    let last = slow.last_mut().unwrap();
    let _ = last.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").await;
    assert!(in_time("the cut", last.read_to_end(&mut reported)).await.is_err() || reported.is_empty());
}
