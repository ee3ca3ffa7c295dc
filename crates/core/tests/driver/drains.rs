//! How a server drains: what it refuses, what it waits for, and when it ends.
//!
//! The timeouts of calls.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc as threads};
use std::task::{Context, Poll};
use std::time::Duration;

use rescind_core::dialect::{ACP, ACP_DRAFT, Dialect, LSP, MCP, Role};
use rescind_core::{
    BoxFuture, ByteStream, Call, CallContext, CallError, CauseKind, Endpoint, Event, Limits, Link, Listener,
    MemoryTransport, Outcome, Peer, PeerBuilder, Router, Server, ServerHandle, ServerLimits, TransportError,
    memory_listener,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::driver::calls::Lines;

struct Serving {
    handle: ServerHandle,
    running: JoinHandle<()>,
    transport: MemoryTransport,
    /// Says when a handler has started.
    started: mpsc::UnboundedReceiver<()>,
}

/// A server of the method `wait`, which answers after the milliseconds of its params.
fn serve_to_drain() -> Serving {
    let (listener, transport) = memory_listener();
    let (tell, started) = mpsc::unbounded_channel();
    let initialize = |_: CallContext, _: Value| async move { Ok(json!({"capabilities": {}})) };
    let router = Router::new().method("initialize", initialize).method(
        "wait",
        move |ctx: CallContext, (ms,): (u64,)| {
            let tell = tell.clone();
            async move {
                tell.send(()).unwrap();
                ctx.run_until_cancelled(tokio::time::sleep(Duration::from_millis(ms))).await?;
                Ok("done")
            }
        },
    );
    let server = Server::builder([ACP]).serve(router).listen(listener);
    let handle = server.handle();
    let running = tokio::spawn(async move { server.run().await.unwrap() });
    Serving { handle, running, transport, started }
}

async fn client(transport: &MemoryTransport) -> Peer {
    let peer = Peer::builder(ACP).connect(transport.clone()).await.unwrap();
    let _: Value = peer.call("initialize", &json!({"protocolVersion": 1})).await.unwrap();
    peer
}

#[tokio::test(start_paused = true)]
async fn running_requests_end_and_new_ones_are_refused() {
    let mut serving = serve_to_drain();
    let (one, two) = (client(&serving.transport).await, client(&serving.transport).await);
    let call = one.call::<_, String>("wait", &(500,)).start().unwrap();
    serving.started.recv().await.unwrap();
    let handle = serving.handle.clone();
    let draining = tokio::spawn(async move { handle.drain(Duration::from_secs(10)).await });
    two.closed().await.unwrap();
    match one.call::<_, Value>("wait", &(1,)).await {
        Err(CallError::Cancelled(cancelled)) => assert_eq!(cancelled.cause.kind(), CauseKind::Peer),
        other => panic!("a new request during a drain: {other:?}"),
    }
    let refused = Peer::builder(ACP).connect(serving.transport.clone()).await;
    let is_refused = match refused {
        Err(_) => true,
        Ok(peer) => peer.call::<_, Value>("wait", &(1,)).await.is_err(),
    };
    assert!(is_refused, "a new connection during a drain is refused");
    assert!(matches!(call.outcome().await, Outcome::Completed(done) if done == "done"));
    assert_eq!(draining.await.unwrap(), 0);
    serving.running.await.unwrap();
    serving.handle.closed().await;
    assert_eq!(serving.handle.counts().sessions(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_does_not_end_is_cancelled_at_the_deadline() {
    let mut serving = serve_to_drain();
    let peer = client(&serving.transport).await;
    let call = peer.call::<_, String>("wait", &(3_600_000,)).start().unwrap();
    serving.started.recv().await.unwrap();
    let begun = tokio::time::Instant::now();
    assert_eq!(serving.handle.drain(Duration::from_secs(3)).await, 0);
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(4), "{took:?}");
    match call.outcome().await {
        Outcome::Cancelled(cancelled) => assert_eq!(cancelled.cause.kind(), CauseKind::Peer),
        other => panic!("{other:?}"),
    }
    serving.running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_second_drain_shortens_the_first_and_never_lengthens_it() {
    for (first, then) in [(3600, 3), (3, 3600)] {
        let mut serving = serve_to_drain();
        let peer = client(&serving.transport).await;
        let _call = peer.call::<_, String>("wait", &(86_400_000,)).start().unwrap();
        serving.started.recv().await.unwrap();
        let begun = tokio::time::Instant::now();
        let handle = serving.handle.clone();
        let drained = tokio::join!(
            handle.drain(Duration::from_secs(first)),
            serving.handle.drain(Duration::from_secs(then))
        );
        assert_eq!(drained, (0, 0));
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(4), "{first}, {then}: {took:?}");
        serving.running.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_without_connections_and_one_that_never_ran_drain_at_once() {
    let serving = serve_to_drain();
    assert_eq!(serving.handle.drain(Duration::from_secs(3600)).await, 0);
    serving.running.await.unwrap();
    let (listener, _transport) = memory_listener();
    let server = Server::builder([ACP]).listen(listener);
    let handle = server.handle();
    assert_eq!(handle.drain(Duration::from_secs(3600)).await, 0);
    drop(server);
}

#[tokio::test(start_paused = true)]
async fn a_handle_learns_the_end_of_a_server_that_never_ran() {
    let (listener, _transport) = memory_listener();
    let server = Server::builder(ACP).listen(listener);
    let handle = server.handle();
    drop(server.run());
    handle.closed().await;
}

/// A listener that has something to send after it was dropped.
struct LateListener {
    inner: rescind_core::MemoryListener,
    /// Dropped with the listener.
    _open: oneshot::Sender<()>,
    sent: Arc<Notify>,
}

impl Listener for LateListener {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        Pin::new(&mut self.inner).poll_accept(cx)
    }

    fn finished(&self) -> BoxFuture<'static, ()> {
        let sent = Arc::clone(&self.sent);
        Box::pin(async move { sent.notified().await })
    }

    fn endpoint(&self) -> Endpoint {
        self.inner.endpoint()
    }
}

#[tokio::test(start_paused = true)]
async fn a_drained_server_ends_when_its_listener_has_sent_everything() {
    let (inner, transport) = memory_listener();
    let (open, dropped) = oneshot::channel();
    let sent = Arc::new(Notify::new());
    let listener = LateListener { inner, _open: open, sent: Arc::clone(&sent) };
    let server = Server::builder([ACP]).serve(Router::new()).listen(listener);
    let handle = server.handle();
    let mut running = tokio::spawn(async move { server.run().await.unwrap() });
    assert_eq!(handle.drain(Duration::from_secs(1)).await, 0);
    dropped.await.unwrap_err();
    // The clock is paused, so this time passes only when nothing else can happen.
    let early = tokio::time::timeout(Duration::from_secs(60), &mut running).await;
    assert!(early.is_err(), "it ended before the listener had sent everything");
    sent.notify_one();
    running.await.unwrap();
    handle.closed().await;
    drop(transport);
}

/// How the request of a handler that continues has ended.
#[derive(Clone, Copy, Debug)]
enum Ending {
    AnsweredAfterTheGrace,
    Silenced,
    WireLost,
}

/// A request of a second connection. Returns the reason if it is refused.
async fn refused(peer: &Peer) -> Option<String> {
    match peer.call::<_, Value>("echo", &json!({})).await {
        Ok(_) => None,
        Err(CallError::Failed(error)) => Some(error.message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_handler_that_goes_on_after_its_request_is_settled_counts_as_draining_until_it_ends() {
    settled(ACP, Ending::AnsweredAfterTheGrace).await;
    settled(MCP, Ending::Silenced).await;
    // Without a handshake, this dialect allows no cancels.
    settled(ACP_DRAFT, Ending::WireLost).await;
}

async fn settled(dialect: Dialect, how: Ending) {
    let (release, blocked) = threads::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let (tell, mut entered) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("echo", |_ctx: CallContext, params: Value| async move { Ok(params) })
        .blocking("block", move |_ctx: CallContext, _: Value| {
            tell.send(()).unwrap();
            let _ = blocked.lock().unwrap().recv();
            Ok(())
        });
    let (listener, transport) = memory_listener();
    let mut limits = Limits::default();
    limits.cancel_grace = match how {
        Ending::AnsweredAfterTheGrace => Duration::from_millis(1),
        // The handler counts at once, not only when it is aborted.
        Ending::Silenced | Ending::WireLost => Duration::from_secs(3600),
    };
    // One draining handler is above the limit.
    let mut bounds = ServerLimits::default();
    bounds.max_draining_handlers = 0;
    let server = Server::builder([dialect.clone()])
        .serve(router)
        .limits(limits)
        .server_limits(bounds)
        .listen(listener);
    let counts = server.counts();
    let serving = tokio::spawn(server.run());
    let one = Peer::builder(dialect.clone()).connect(transport.clone()).await.unwrap();
    let two = Peer::builder(dialect).connect(transport).await.unwrap();
    for _ in 0..3 {
        assert_eq!(refused(&two).await, None, "{how:?}: a handler that has ended does not drain");
    }
    let call = one.call::<_, Value>("block", &json!({})).start().unwrap();
    entered.recv().await.unwrap();
    assert_eq!(refused(&two).await, None, "{how:?}: a handler that runs does not drain");
    match how {
        Ending::AnsweredAfterTheGrace | Ending::Silenced => {
            call.canceller().cancel("");
            assert!(call.outcome().await.is_cancelled());
        }
        Ending::WireLost => drop((call, one)),
    }
    // The effect on the server is visible after a short time.
    let until_refused = async {
        loop {
            if let Some(why) = refused(&two).await {
                return why;
            }
        }
    };
    let why = tokio::time::timeout(Duration::from_secs(10), until_refused).await;
    let why = why.unwrap_or_else(|_| panic!("I10, {how:?}: it is not counted"));
    assert!(why.contains("server_draining"), "I10, {how:?}: {why}");
    assert_eq!(counts.draining(), 1, "I10, {how:?}");
    drop(release);
    let until_let_in = async { while refused(&two).await.is_some() {} };
    let let_in = tokio::time::timeout(Duration::from_secs(10), until_let_in).await;
    assert!(let_in.is_ok(), "I10, {how:?}: it is counted although it has ended");
    assert_eq!(counts.draining(), 0, "I10, {how:?}");
    serving.abort();
}

// The timeouts of calls.

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
