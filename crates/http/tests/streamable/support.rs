//! A served router, and a client that writes HTTP/1.1 by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rescind_core::dialect::{Dialect, MCP};
use rescind_core::{CallContext, Limits, Listener, Peer, Router, Server};
use rescind_http::{HttpClient, HttpCounts, HttpListener, HttpServer, Streamable, StreamableTransport};
use rescind_testkit::support::Serving;
pub(crate) use rescind_testkit::support::in_time;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

/// The events of the handlers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Started(String),
    Cancelled(String),
    Notified(String),
}

/// A server that serves until it is dropped.
pub(crate) struct Served {
    pub(crate) url: String,
    pub(crate) seen: mpsc::UnboundedReceiver<Seen>,
    /// Allows `gate` to answer.
    pub(crate) gate: Arc<Notify>,
    pub(crate) peers: mpsc::UnboundedReceiver<Peer>,
    pub(crate) running: Arc<AtomicUsize>,
    pub(crate) counts: HttpCounts,
    _serving: Serving,
}

/// Counts a handler as running until it is dropped.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn server() -> HttpServer<Streamable> {
    HttpServer::new(Streamable::new())
}

pub(crate) async fn serve(server: HttpServer<Streamable>, dialect: Dialect) -> Served {
    listen(server.bind("127.0.0.1:0").await.unwrap(), dialect)
}

pub(crate) fn listen(listener: HttpListener, dialect: Dialect) -> Served {
    listen_within(listener, dialect, Limits::default())
}

pub(crate) fn listen_within(listener: HttpListener, dialect: Dialect, limits: Limits) -> Served {
    let (url, counts) = (listener.endpoint().to_string(), listener.counts());
    let (saw, seen) = mpsc::unbounded_channel();
    let (met, peers) = mpsc::unbounded_channel();
    let gate = Arc::new(Notify::new());
    let running = Arc::new(AtomicUsize::new(0));
    let router = router(&saw, &gate, &running);
    let server = Server::builder([dialect])
        .limits(limits)
        .serve(router)
        .on_peer(move |peer| {
            let _ = met.send(peer);
        })
        .listen(listener);
    let serving = Serving::spawn(async move { server.run().await.unwrap() });
    Served { url, seen, gate, peers, running, counts, _serving: serving }
}

fn router(saw: &mpsc::UnboundedSender<Seen>, gate: &Arc<Notify>, running: &Arc<AtomicUsize>) -> Router {
    let waits = saw.clone();
    let (wait_count, gate_count) = (Arc::clone(running), Arc::clone(running));
    let reported = saw.clone();
    let gated = saw.clone();
    let gate = Arc::clone(gate);
    Router::new()
        .method("initialize", |_: CallContext, asked: Value| async move {
            let revision = asked["protocolVersion"].as_str().unwrap_or("2025-11-25");
            Ok(json!({"protocolVersion": revision, "capabilities": {}, "serverInfo": {"name": "t", "version": "1"}}))
        })
        .method("echo", |_: CallContext, value: Value| async move { Ok(value) })
        .method("wait", move |ctx: CallContext, value: Value| {
            let (waits, running) = (waits.clone(), Running::new(&wait_count));
            async move {
                let _running = running;
                let _ = waits.send(Seen::Started(value.to_string()));
                let cause = ctx.cancelled().await;
                let _ = waits.send(Seen::Cancelled(value.to_string()));
                ctx.stopped::<Value>(cause)
            }
        })
        .method("gate", move |ctx: CallContext, value: Value| {
            let (gate, gated, running) = (Arc::clone(&gate), gated.clone(), Running::new(&gate_count));
            async move {
                let _running = running;
                let _ = gated.send(Seen::Started(value.to_string()));
                tokio::select! {
                    () = gate.notified() => Ok(value),
                    cause = ctx.cancelled() => {
                        let _ = gated.send(Seen::Cancelled(value.to_string()));
                        ctx.stopped::<Value>(cause)
                    }
                }
            }
        })
        .method("ticks", |ctx: CallContext, value: Value| async move {
            let count = value["count"].as_u64().unwrap_or(0);
            let filler = "x".repeat(usize::try_from(value["bytes"].as_u64().unwrap_or(0)).unwrap());
            for n in 0..count {
                ctx.notify("tick", &json!({"n": n, "filler": filler})).await?;
            }
            Ok(json!({"ticks": count}))
        })
        .method("ask", |ctx: CallContext, value: Value| async move {
            let answer: Value = ctx.call("answer", &value).await?;
            Ok(answer)
        })
        .notification("reported", move |_, value: Value| {
            let reported = reported.clone();
            async move {
                let _ = reported.send(Seen::Notified(value.to_string()));
            }
        })
}

pub(crate) fn transport(url: &str) -> StreamableTransport {
    StreamableTransport::new(HttpClient::new(url).unwrap()).retry(Duration::from_millis(20))
}

/// A client after the handshake.
pub(crate) async fn client(transport: StreamableTransport, dialect: Dialect) -> Peer {
    let router = Router::new().method("answer", |_: CallContext, value: Value| async move { Ok(value) });
    let builder = Peer::builder(dialect).serve(router).role(rescind_core::dialect::Role::Client);
    let peer = builder.connect(transport).await.unwrap();
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    in_time("the handshake", peer.call::<_, Value>("initialize", &hello)).await.unwrap();
    peer
}

pub(crate) async fn mcp() -> (Served, Peer) {
    let served = serve(server(), MCP).await;
    let peer = client(transport(&served.url), MCP).await;
    (served, peer)
}
