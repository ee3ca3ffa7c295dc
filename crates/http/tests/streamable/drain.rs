//! A server over HTTP that drains: its sessions end first, then its port closes.

use std::time::Duration;

use rescind_core::dialect::MCP;
use rescind_core::{CallContext, Router, Server, ServerHandle};
use rescind_http::{HttpClient, StreamableTransport};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::streamable::raw::{Raw, cancel, initialize, open, request};
use crate::streamable::support::{client, in_time, server};

struct Serving {
    url: String,
    handle: ServerHandle,
    running: JoinHandle<()>,
    started: mpsc::UnboundedReceiver<()>,
    cancelled: mpsc::UnboundedReceiver<()>,
}

/// A server with the method `wait`, whose handler waits for its cancel.
async fn serve() -> Serving {
    let listener = server().bind("127.0.0.1:0").await.unwrap();
    let url = rescind_core::Listener::endpoint(&listener).to_string();
    let (start, started) = mpsc::unbounded_channel();
    let (stop, cancelled) = mpsc::unbounded_channel();
    let initialize = |_: CallContext, _: Value| async move {
        Ok(
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "t", "version": "1"}}),
        )
    };
    let router =
        Router::new().method("initialize", initialize).method("wait", move |ctx: CallContext, _: Value| {
            let (start, stop) = (start.clone(), stop.clone());
            async move {
                start.send(()).unwrap();
                let cause = ctx.cancelled().await;
                stop.send(()).unwrap();
                ctx.stopped::<Value>(cause)
            }
        });
    let server = Server::builder([MCP]).serve(router).listen(listener);
    let handle = server.handle();
    let running = tokio::spawn(async move { server.run().await.unwrap() });
    Serving { url, handle, running, started, cancelled }
}

/// Waits until a new session is refused, which shows that the drain has begun.
async fn refuses_sessions(url: &str) {
    loop {
        let mut raw = Raw::connect(url).await;
        raw.send(&initialize()).await;
        let head = in_time("a head", raw.head()).await;
        if head.status == 503 {
            assert_ne!(head.header("retry-after"), "");
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn new_sessions_get_503_and_a_cancel_on_a_new_connection_still_arrives() {
    let mut serving = serve().await;
    let (mut raw, session) = open(&serving.url).await;
    raw.send(&request(2, "wait", &json!({})).of(&session)).await;
    in_time("a start", serving.started.recv()).await.unwrap();
    let handle = serving.handle.clone();
    let draining = tokio::spawn(async move { handle.drain(Duration::from_secs(3600)).await });
    refuses_sessions(&serving.url).await;
    let mut other = Raw::connect(&serving.url).await;
    other.send(&cancel(2).of(&session)).await;
    assert_eq!(in_time("a head", other.head()).await.status, 202);
    in_time("the cancel", serving.cancelled.recv()).await.unwrap();
    assert_eq!(in_time("the drain", draining).await.unwrap(), 0);
    in_time("the server's end", serving.running).await.unwrap();
    let address = serving.url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    in_time("the port's end", async {
        while TcpStream::connect(&address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_cancels_during_the_drain_over_either_version_of_http() {
    for http2 in [false, true] {
        let mut serving = serve().await;
        let http = HttpClient::new(&serving.url).unwrap();
        let http = if http2 { http.http2() } else { http };
        let peer = client(StreamableTransport::new(http), MCP).await;
        let call = peer.call::<_, Value>("wait", &json!({})).start().unwrap();
        in_time("a start", serving.started.recv()).await.unwrap();
        let handle = serving.handle.clone();
        let draining = tokio::spawn(async move { handle.drain(Duration::from_secs(3600)).await });
        refuses_sessions(&serving.url).await;
        call.canceller().cancel("enough");
        in_time("the cancel", serving.cancelled.recv()).await.unwrap();
        assert!(in_time("the outcome", call.outcome()).await.is_cancelled(), "HTTP/2: {http2}");
        assert_eq!(in_time("the drain", draining).await.unwrap(), 0);
        in_time("the server's end", serving.running).await.unwrap();
    }
}
