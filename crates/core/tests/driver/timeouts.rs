//! The timeouts of calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rescind_core::dialect::{ACP, LSP, MCP, Role};
use rescind_core::{
    ByteStream, Call, CallContext, CauseKind, Event, Outcome, Peer, PeerBuilder, Router, Server,
    ServerLimits, memory_listener,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::driver::protocol_requirements::Lines;

async fn open(builder: PeerBuilder) -> (Peer, Lines) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (from, to) = tokio::io::split(ours);
    let peer = builder.role(Role::Client).connect(ByteStream::new(from, to)).await.unwrap();
    (peer, Lines::new(theirs))
}

/// How long it took until the deadline ended the call.
async fn times_out(call: Call<Value>, since: Instant) -> Duration {
    match tokio::time::timeout(Duration::from_secs(86_400), call.outcome())
        .await
        .expect("it does not time out")
    {
        Outcome::Cancelled(cancelled) => assert_eq!(cancelled.cause.kind(), CauseKind::Deadline),
        other => panic!("{other:?}"),
    }
    since.elapsed()
}

// MCP, "Timeouts": a sender should have a timeout for each request, and send a cancel when it ends.
#[tokio::test(start_paused = true)]
async fn a_client_of_mcp_times_out_and_cancels_all_calls_except_initialize() {
    let (peer, mut server) = open(Peer::builder(MCP)).await;
    let since = Instant::now();
    let initialize = peer.call::<_, Value>("initialize", &json!({})).start().unwrap();
    assert_eq!(server.next().await["method"], "initialize");
    assert_eq!(times_out(initialize, since).await.as_secs(), 60);
    let since = Instant::now();
    let call = peer.call::<_, Value>("tools/call", &json!({})).start().unwrap();
    let id = server.next().await["id"].clone();
    assert_eq!(times_out(call, since).await.as_secs(), 60);
    let cancel = server.next().await;
    assert_eq!((&cancel["method"], &cancel["params"]["requestId"]), (&json!("notifications/cancelled"), &id));
}

#[tokio::test(start_paused = true)]
async fn progress_restarts_a_timeout_up_to_the_maximum() {
    let (peer, mut server) = open(Peer::builder(MCP).call_timeout(Duration::from_secs(10))).await;
    let since = Instant::now();
    let call = peer
        .call::<_, Value>("tools/call", &json!({}))
        .reset_timeout_on_progress()
        .max_timeout(Duration::from_secs(25))
        .start()
        .unwrap();
    let token = server.next().await["params"]["_meta"]["progressToken"].clone();
    let tells = async {
        for progress in 1..=20 {
            tokio::time::sleep(Duration::from_secs(8)).await;
            let params = json!({"progressToken": token, "progress": progress});
            server
                .send(json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
                .await;
        }
    };
    let took = tokio::select! {
        took = times_out(call, since) => took,
        () = tells => panic!("the maximum did not end it"),
    };
    assert_eq!(took.as_secs(), 25);
    // Without that option, the call ends at its first timeout.
    let since = Instant::now();
    let call = peer.call::<_, Value>("tools/call", &json!({})).progress().start().unwrap();
    assert_eq!(times_out(call, since).await.as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn other_dialects_have_a_timeout_where_it_is_set() {
    for dialect in [ACP, LSP] {
        let (peer, _server) = open(Peer::builder(dialect.clone())).await;
        let call = peer.call::<_, Value>("slow", &json!({})).start().unwrap();
        let waited = tokio::time::timeout(Duration::from_secs(86_400), call).await;
        assert!(waited.is_err(), "it ended: {waited:?}");
        let (peer, _server) = open(Peer::builder(dialect).call_timeout(Duration::from_secs(5))).await;
        let since = Instant::now();
        let call = peer.call::<_, Value>("slow", &json!({})).start().unwrap();
        // 5 s, and then the wait for an answer to the cancel.
        assert_eq!(times_out(call, since).await.as_secs(), 10);
    }
}

const LIMIT: Duration = Duration::from_secs(60);
const NEARLY: Duration = Duration::from_secs(59);
const LONG: Duration = Duration::from_secs(100_000);

struct Served {
    client: Peer,
    /// The server's end.
    server: Peer,
    closed_for_idleness: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

async fn serve(idle: Option<Duration>) -> Served {
    let (listener, transport) = memory_listener();
    let router = Router::new()
        .method("echo", |_: CallContext, value: Value| async move { Ok(value) })
        .method("work", |ctx: CallContext, (seconds,): (u64,)| async move {
            tokio::select! {
                cause = ctx.cancelled() => ctx.stopped(cause),
                () = tokio::time::sleep(Duration::from_secs(seconds)) => Ok(seconds),
            }
        })
        .notification("reported", |_, _: Value| async {});
    let mut limits = ServerLimits::default();
    limits.idle_timeout = idle;
    let closed_for_idleness = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&closed_for_idleness);
    let (opened, mut peers) = mpsc::unbounded_channel();
    let server = Server::builder([ACP])
        .serve(router)
        .server_limits(limits)
        .on_peer(move |peer| drop(opened.send(peer)))
        .on_event(move |event| {
            if *event == Event::LimitReached("idle") {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        })
        .listen(listener);
    let serving = tokio::spawn(async move { server.run().await.unwrap() });
    let client = Peer::builder(ACP).connect(transport).await.unwrap();
    let server = peers.recv().await.unwrap();
    Served { client, server, closed_for_idleness, serving }
}

impl Served {
    /// Waits for the end that the server causes, and returns how long that took.
    async fn ended(&self) -> Duration {
        let begun = Instant::now();
        let ended = timeout(LONG, self.client.closed()).await;
        assert!(ended.unwrap().is_ok(), "it is closed in good order");
        begun.elapsed()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_and_counted() {
    let served = serve(Some(LIMIT)).await;
    let first = served.ended().await;
    assert!(first >= NEARLY && first <= LIMIT + Duration::from_secs(1), "{first:?}");
    assert_eq!(served.closed_for_idleness.load(Ordering::SeqCst), 1, "a limit that fires is counted");
    assert_eq!(served.server.stats().refused, 1);
}

#[tokio::test(start_paused = true)]
async fn each_frame_in_either_direction_restarts_the_idle_timer() {
    let served = serve(Some(LIMIT)).await;
    for round in 0..5 {
        tokio::time::advance(NEARLY).await;
        match round % 3 {
            0 => assert_eq!(
                served.client.call::<_, Value>("echo", &json!([round])).await.unwrap(),
                json!([round])
            ),
            1 => served.client.try_notify("reported", &json!({})).unwrap(),
            _ => served.server.try_notify("reported", &json!({})).unwrap(),
        }
        // The written frames are read after the other tasks have run.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    let rest = served.ended().await;
    assert!(rest >= NEARLY && rest <= LIMIT + Duration::from_secs(1), "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_in_flight_either_way_keeps_its_connection() {
    let served = serve(Some(LIMIT)).await;
    let worked: u64 = served.client.call("work", &[3600_u64]).await.unwrap();
    assert_eq!(worked, 3600);
    let asked = served.server.call::<_, Value>("no/such", &json!({})).await;
    assert!(asked.is_err() && !served.client.is_closed());
    let rest = served.ended().await;
    assert!(rest >= NEARLY && rest <= LIMIT + Duration::from_secs(1), "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn without_an_idle_limit_a_connection_stays_open() {
    for never in [None, Some(Duration::MAX)] {
        let served = serve(never).await;
        assert!(timeout(LONG, served.client.closed()).await.is_err(), "{never:?}");
        let echoed: Value = served.client.call("echo", &json!([7])).await.unwrap();
        assert_eq!(echoed, json!([7]));
    }
}
