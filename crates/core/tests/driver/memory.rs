//! The bytes that a connection and a server hold, and the behaviour at the limit `memory`.
//!
//! Several clients of one server: none of them can exclude the others.
//!
//! Tasks that wait for room in the outbox of a connection whose peer does not read.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use rescind_core::dialect::{ACP, MCP};
use rescind_core::{
    ByteBudget, ByteStream, CallContext, CallError, Capabilities, CloseReason, Endpoint, Event, Framing,
    HandlerError, Inbound, Lane, Limits, Link, Listener, MemoryListener, MemoryTransport, Outbound, Outcome,
    Peer, PeerInfo, Principal, Receiver, Router, Sender, Server, ServerCounts, ServerLimits, Share,
    Transport, TransportError, TransportEvent, memory_listener, memory_pair,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::driver::wire::{self, TRAITS};

const MIB: usize = 1 << 20;

/// Handlers of all kinds, and the names of those that have started.
fn router() -> (Router, mpsc::UnboundedReceiver<String>) {
    let (event_tx, began) = mpsc::unbounded_channel();
    let router = Router::new()
        .method("echo", |_: CallContext, params: Value| async move { Ok(params) })
        .method("hang", move |ctx: CallContext, _: Value| {
            event_tx.send(ctx.request_id().to_string()).unwrap();
            async move {
                let cause = ctx.cancelled().await;
                ctx.stopped::<Value>(cause)
            }
        })
        .method("deaf", |_: CallContext, _: Value| std::future::pending::<Result<(), HandlerError>>());
    (router, began)
}

fn limits(memory: usize) -> Limits {
    let mut limits = Limits::default();
    (limits.max_memory_bytes, limits.max_frame_bytes) = (memory, MIB);
    limits
}

fn filled(bytes: usize) -> Value {
    json!({ "pad": "x".repeat(bytes) })
}

fn refused(answer: Result<Value, CallError>) -> String {
    match answer {
        Err(CallError::Failed(error)) => error.data.map(|data| data.to_string()).unwrap_or(error.message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn requests_over_the_memory_of_their_connection_are_refused_and_a_cancel_passes() {
    let (router, mut began) = router();
    let (near, far) = memory_pair();
    let server = Peer::builder(MCP).serve(router).limits(limits(2 * MIB)).attach(far).unwrap();
    let client = Peer::builder(MCP).attach(near).unwrap();
    let hang = || client.call::<_, Value>("hang", &filled(900_000)).start().unwrap();
    let (first, second) = (hang(), hang());
    began.recv().await.unwrap();
    began.recv().await.unwrap();
    let third = refused(client.call("hang", &filled(900_000)).await);
    assert!(third.contains(r#""limit":"memory""#), "{third}");
    // A small request still fits, and a cancel always does.
    let echoed: Value = client.call("echo", &json!({ "a": 1 })).await.unwrap();
    assert_eq!(echoed, json!({ "a": 1 }));
    assert!(server.queue_stats().memory > 1_800_000, "{:?}", server.queue_stats());
    first.canceller().cancel("enough");
    assert!(matches!(first.outcome().await, Outcome::Cancelled(_)));
    while server.queue_stats().memory > MIB {
        tokio::task::yield_now().await;
    }
    let fourth = hang();
    began.recv().await.unwrap();
    drop((second, fourth));
    // Only the remembered ids are left.
    while server.queue_stats().memory > 8 * 1024 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_a_permit_count_too() {
    let (router, mut began) = router();
    let (near, far) = memory_pair();
    let mut limits = limits(2 * MIB);
    limits.max_running_handlers = 1;
    let _server = Peer::builder(MCP).serve(router).limits(limits).attach(far).unwrap();
    let client = Peer::builder(MCP).attach(near).unwrap();
    let hang = || client.call::<_, Value>("hang", &filled(900_000)).start().unwrap();
    let (_running, _queued) = (hang(), hang());
    began.recv().await.unwrap();
    let third = refused(client.call("hang", &filled(900_000)).await);
    assert!(third.contains(r#""limit":"memory""#), "I11: {third}");
}

#[tokio::test(start_paused = true)]
async fn all_connections_of_a_server_share_its_memory() {
    let (router, mut began) = router();
    let (listener, transport) = memory_listener();
    let mut bounds = ServerLimits::default();
    bounds.max_memory_bytes = 3 * MIB;
    let server =
        Server::builder([MCP]).serve(router).limits(limits(2 * MIB)).server_limits(bounds).listen(listener);
    let counts = server.counts();
    let serving = tokio::spawn(server.run());
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Peer::builder(MCP).connect(transport.clone()).await.unwrap());
    }
    let hang = |client: &Peer| client.call::<_, Value>("hang", &filled(900_000)).start().unwrap();
    let held = [hang(&clients[0]), hang(&clients[1]), hang(&clients[2])];
    for _ in &held {
        began.recv().await.unwrap();
    }
    let fourth = refused(clients[0].call("hang", &filled(900_000)).await);
    assert!(fourth.contains(r#""limit":"memory""#), "I11: {fourth}");
    assert!(counts.memory() > 2_700_000, "{counts:?}");
    drop(held);
    clients.clear();
    while counts.memory() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn an_unread_answer_is_kept_and_new_requests_are_refused() {
    let (router, _began) = router();
    let router =
        router.method("big", |_: CallContext, (size,): (usize,)| async move { Ok("x".repeat(size)) });
    let (peer, wire) = wire::serve(router, MCP, TRAITS, limits(2 * MIB));
    wire.state().full = Some(rescind_core::Lane::Data);
    for id in 1..=3 {
        wire.says(id, &wire::request(id, "big", &json!([900_000])));
    }
    wire.recorded().await;
    // The requests were small and all were accepted. Their answers are above the limit.
    assert!(peer.queue_stats().memory > 2_700_000, "{:?}", peer.queue_stats());
    wire.says(4, &wire::request(4, "big", &json!([1])));
    let recorded = wire.recorded().await;
    assert_eq!(recorded, ["fault 4 Overloaded", "Control Answer 4 on 4, last"]);
    let refusal = String::from_utf8(wire.state().frame.to_vec()).unwrap();
    assert!(refusal.contains(r#""limit":"memory""#), "{refusal}");
    wire.make_room();
    let recorded = wire.recorded().await;
    let answers = recorded.iter().filter(|line| line.starts_with("Data Answer")).count();
    assert_eq!(answers, 3, "{recorded:?}");
    assert!(
        peer.queue_stats().memory < 1024,
        "what is left are the ids that are remembered: {:?}",
        peer.queue_stats()
    );
}

#[tokio::test(start_paused = true)]
async fn notifications_over_the_memory_are_dropped_and_counted() {
    let (event_tx, mut event_rx) = mpsc::unbounded_channel();
    let router = Router::new().notification("note", |_, _: Value| std::future::pending());
    let (link, wire) = wire::wire(TRAITS);
    let events = move |event: &Event| {
        if let Event::LimitReached(limit) = event {
            event_tx.send(*limit).unwrap();
        }
    };
    let peer =
        Peer::builder(MCP).serve(router).limits(limits(2 * MIB)).on_event(events).attach(link).unwrap();
    for _ in 0..5 {
        let note = json!({ "jsonrpc": "2.0", "method": "note", "params": filled(900_000) });
        wire.says(0, &note);
        wire.recorded().await;
    }
    // One is already with its handler.
    assert_eq!(peer.queue_stats().notifications_dropped, 2, "I11");
    assert_eq!((event_rx.recv().await, event_rx.recv().await), (Some("memory"), Some("memory")));
}

/// A served byte stream whose budget belongs to `server`.
fn served(framing: Framing, server: &ByteBudget) -> (tokio::io::DuplexStream, Peer) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let link: Link = ByteStream::whole(far).framing(framing).into_link();
    link.budget.set_parent(server);
    let (router, _) = router();
    (near, Peer::builder(MCP).serve(router).attach(link).unwrap())
}

/// Reads until the text ends with `end`.
async fn read_until(reads: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut read = String::new();
    while !read.ends_with(end) {
        read.push(char::from(reads.read_u8().await.unwrap()));
    }
    read
}

#[tokio::test(start_paused = true)]
async fn a_frame_for_which_the_server_has_no_memory_waits_and_is_refused_and_the_next_is_served() {
    for framing in [Framing::Newline, Framing::ContentLength] {
        let server = ByteBudget::new(MIB);
        let others = server.hold(MIB);
        let (near, _peer) = served(framing, &server);
        let (mut reads, mut writes) = tokio::io::split(near);
        let large = wire::request(1, "echo", &filled(900_000)).to_string();
        let small = wire::request(2, "echo", &json!({ "a": 1 })).to_string();
        tokio::spawn(async move {
            for body in [large, small] {
                let mut frame = bytes::BytesMut::new();
                framing.encode(body.as_bytes(), &mut frame);
                writes.write_all(&frame).await.unwrap();
            }
            std::future::pending::<()>().await;
        });
        let begun = tokio::time::Instant::now();
        let refusal = read_until(&mut reads, "}}}").await;
        assert!(refusal.contains(r#""limit":"memory""#), "{framing:?}: {refusal}");
        assert_eq!(begun.elapsed().as_secs(), 10, "{framing:?}: it waits for what others hold");
        // The next request is read and refused with its id, because the memory is still full.
        let refusal = read_until(&mut reads, "}}}").await;
        assert!(refusal.contains(r#""id":2"#), "{framing:?}: {refusal}");
        assert!(refusal.contains(r#""limit":"memory""#), "{framing:?}: {refusal}");
        drop(others);
        assert_eq!(server.used(), 0, "{framing:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_waits_for_memory_goes_on_when_others_give_it_back() {
    let server = ByteBudget::new(MIB);
    let others = server.hold(MIB);
    let (near, _peer) = served(Framing::Newline, &server);
    let (reads, mut writes) = tokio::io::split(near);
    let mut lines = BufReader::new(reads).lines();
    let frame = format!("{}\n", wire::request(1, "echo", &filled(900_000)));
    tokio::spawn(async move {
        writes.write_all(frame.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    });
    tokio::time::sleep(Duration::from_secs(9)).await;
    drop(others);
    let answer = lines.next_line().await.unwrap().unwrap();
    assert!(answer.contains(r#""id":1"#) && answer.len() > 900_000, "{} bytes", answer.len());
    // Only the remembered ids are left.
    while server.used() > 8 * 1024 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn ids_that_are_remembered_and_early_cancels_count() {
    let (router, _began) = router();
    let (peer, wire) = wire::serve(router, MCP, TRAITS, limits(2 * MIB));
    for n in 0..100 {
        let id = format!("{n:0>256}");
        wire.says(0, &json!({ "jsonrpc": "2.0", "id": id, "method": "echo", "params": {} }));
    }
    wire.recorded().await;
    let settled = peer.queue_stats().memory;
    assert!(settled > 100 * 256, "I11: {settled}");
    for n in 0..100 {
        wire.says(0, &wire::cancel(1000 + n));
    }
    wire.recorded().await;
    assert!(peer.queue_stats().memory > settled + 100 * 256, "I11: {:?}", peer.queue_stats());
}

// Several clients of one server: none of them can exclude the others.

/// The origin of the next connections.
#[derive(Clone, Debug)]
enum Who {
    From(IpAddr),
    Named(&'static str),
    /// Unknown: each connection counts as a client.
    Nobody,
}

/// A transport that knows the origin of its connections.
struct Known {
    listener: MemoryListener,
    who: Arc<Mutex<Who>>,
}

impl Listener for Known {
    fn poll_accept(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Link, TransportError>>> {
        let accepted = Pin::new(&mut self.listener).poll_accept(cx);
        accepted.map_ok(|mut link| {
            match &*self.who.lock().unwrap() {
                Who::From(address) => link.meta.address = Some(*address),
                Who::Named(name) => link.meta.principal = Some(Principal((*name).into())),
                Who::Nobody => {}
            }
            link
        })
    }

    fn endpoint(&self) -> Endpoint {
        self.listener.endpoint()
    }
}

/// Threads that block until they are released.
#[derive(Clone, Default)]
struct Deaf(Arc<(Mutex<(bool, usize)>, Condvar)>);

impl Deaf {
    fn block(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        state.1 += 1;
        while !state.0 {
            state = changed.wait(state).unwrap();
        }
        state.1 -= 1;
    }

    async fn until(&self, blocked: usize) {
        in_time(async {
            while self.0.0.lock().unwrap().1 != blocked {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    fn let_go(&self) {
        self.0.0.lock().unwrap().0 = true;
        self.0.1.notify_all();
    }
}

struct Served {
    transport: MemoryTransport,
    who: Arc<Mutex<Who>>,
    counts: ServerCounts,
    deaf: Deaf,
    serving: JoinHandle<()>,
}

async fn in_time<T>(what: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what.into_future()).await.expect("it takes too long")
}

fn serve(limits: ServerLimits) -> Served {
    let (listener, transport) = memory_listener();
    let deaf = Deaf::default();
    let blocking = deaf.clone();
    let router = Router::new()
        .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"protocolVersion": 1})) })
        .method("echo", |_: CallContext, value: Value| async move { Ok(value) })
        .method("hang", |ctx: CallContext, _: Value| async move {
            ctx.cancelled().await;
            std::future::pending::<Result<Value, _>>().await
        })
        .blocking("block", move |_: CallContext, _: Value| {
            blocking.block();
            Ok(Value::Null)
        });
    let who = Arc::new(Mutex::new(Who::Nobody));
    let mut own = Limits::default();
    own.cancel_grace = Duration::from_millis(1);
    let server = Server::builder([ACP])
        .serve(router)
        .limits(own)
        .server_limits(limits)
        .listen(Known { listener, who: Arc::clone(&who) });
    let counts = server.counts();
    let serving = tokio::spawn(async move { server.run().await.unwrap() });
    Served { transport, who, counts, deaf, serving }
}

impl Served {
    async fn connect(&self, who: &Who) -> Peer {
        let before = self.counts.sessions() + self.counts.displaced();
        *self.who.lock().unwrap() = who.clone();
        let peer = Peer::builder(ACP).connect(self.transport.clone()).await.unwrap();
        // The next connection may have another origin.
        in_time(async {
            for _ in 0..1000 {
                if self.counts.sessions() + self.counts.displaced() > before {
                    break;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        peer
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.deaf.let_go();
        self.serving.abort();
    }
}

/// The limit by which an echo is refused, if it is.
async fn refusal(peer: &Peer) -> Option<String> {
    match in_time(peer.call::<_, Value>("echo", &json!({}))).await {
        Ok(_) => None,
        Err(CallError::Failed(error)) => Some(error.message),
        Err(other) => Some(other.to_string()),
    }
}

const NEAR: Who = Who::From(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
const FAR: Who = Who::From(IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2)));
/// Pairs of clients that differ in each way: the attacker, and a client that only sends an echo.
const PAIRS: [(Who, Who); 4] = [
    (NEAR, FAR),
    (Who::Named("mallory"), Who::Named("ada")),
    // A principal takes precedence over the address. Nothing else is known about the attacker.
    (Who::Named("mallory"), NEAR),
    (Who::Nobody, Who::Nobody),
];

#[tokio::test]
async fn draining_blocking_handlers_of_one_client_do_not_refuse_other_clients() {
    for (attacker, other) in PAIRS {
        let mut limits = ServerLimits::default();
        limits.max_draining_handlers = 10;
        let served = serve(limits);
        let (mallory, ada) = (served.connect(&attacker).await, served.connect(&other).await);
        let calls: Vec<_> =
            (0..32).map(|_| mallory.call::<_, Value>("block", &json!({})).start().unwrap()).collect();
        served.deaf.until(32).await;
        for call in calls {
            call.canceller().cancel("stop");
            let _ = in_time(call.outcome()).await;
        }
        in_time(async {
            while served.counts.draining() < 32 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let reported = refusal(&mallory).await.expect("the attacker is refused");
        assert!(reported.contains("client_draining"), "{attacker:?}: {reported}");
        assert_eq!(refusal(&ada).await, None, "{attacker:?} locks {other:?} out");
        served.deaf.let_go();
        served.deaf.until(0).await;
        in_time(async {
            while refusal(&mallory).await.is_some() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn hanging_handlers_of_one_client_use_at_most_half_of_the_permits() {
    for (attacker, other) in &PAIRS[..3] {
        let mut limits = ServerLimits::default();
        limits.max_running_handlers = 16;
        let served = serve(limits);
        let mut hanging = Vec::new();
        let mut refusals = 0;
        let attackers = [served.connect(attacker).await, served.connect(attacker).await];
        for peer in &attackers {
            for _ in 0..8 {
                hanging.push(peer.call::<_, Value>("hang", &json!({})).start().unwrap());
            }
            refusals +=
                usize::from(refusal(peer).await.is_some_and(|reported| reported.contains("client_running")));
        }
        assert_eq!((served.counts.running(), refusals), (8, 2), "{attacker:?}");
        let ada = served.connect(other).await;
        assert_eq!(refusal(&ada).await, None, "{attacker:?} locks {other:?} out");
        drop(hanging);
    }
}

#[tokio::test]
async fn unused_connections_are_displaced_and_those_in_use_are_not() {
    for (attacker, other) in PAIRS {
        let mut limits = ServerLimits::default();
        limits.max_connections = 8;
        let served = serve(limits);
        let used = served.connect(&other).await;
        assert_eq!(refusal(&used).await, None);
        let mut idle = Vec::new();
        for _ in 0..20 {
            let peer = served.connect(&attacker).await;
            in_time(peer.call::<_, Value>("initialize", &json!({"protocolVersion": 1}))).await.unwrap();
            idle.push(peer);
        }
        assert!(served.counts.sessions() <= 8);
        assert!(served.counts.displaced() >= 12, "{attacker:?}: the oldest made room");
        in_time(idle[0].closed()).await.unwrap();
        let ada = served.connect(&other).await;
        assert_eq!(
            (refusal(&ada).await, refusal(&used).await),
            (None, None),
            "{attacker:?} locks {other:?} out"
        );
        let last = idle.pop().unwrap();
        assert_eq!(refusal(&last).await, None, "the newest is there");
    }
}

#[tokio::test]
async fn a_client_that_uses_its_connections_holds_half_of_them_at_most() {
    for (attacker, other) in &PAIRS[..3] {
        let mut limits = ServerLimits::default();
        limits.max_connections = 8;
        let served = serve(limits);
        let mut open = Vec::new();
        for round in 0..8 {
            let peer = served.connect(attacker).await;
            assert_eq!(refusal(&peer).await.is_none(), round < 4, "{attacker:?}: connection {round}");
            open.push(peer);
        }
        assert_eq!((served.counts.sessions(), served.counts.displaced()), (4, 0));
        let ada = served.connect(other).await;
        assert_eq!(refusal(&ada).await, None, "{attacker:?} locks {other:?} out");
    }
}

#[tokio::test]
async fn with_a_share_of_all_one_client_may_use_everything_and_the_table_empties() {
    let mut limits = ServerLimits::default();
    (limits.max_connections, limits.client_share) = (4, Share::ALL);
    let served = serve(limits);
    let mut open = Vec::new();
    for _ in 0..4 {
        let peer = served.connect(&NEAR).await;
        assert_eq!(refusal(&peer).await, None);
        open.push(peer);
    }
    assert_eq!((served.counts.sessions(), served.counts.clients()), (4, 1));
    drop(open);
    in_time(async {
        while served.counts.clients() > 0 || served.counts.sessions() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// These connections have no message yet, so their dialect is unknown.
#[tokio::test]
async fn connections_without_a_message_are_displaced_too() {
    let (listener, transport) = memory_listener();
    let router = Router::new().method("echo", |_: CallContext, value: Value| async move { Ok(value) });
    let mut limits = ServerLimits::default();
    limits.max_connections = 2;
    let server = Server::builder([ACP, rescind_core::dialect::LSP])
        .serve(router)
        .server_limits(limits)
        .listen(listener);
    let counts = server.counts();
    let serving = tokio::spawn(async move { server.run().await.unwrap() });
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.push(Box::new(transport.clone()).open().await.unwrap());
    }
    in_time(async {
        while counts.displaced() < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(counts.sessions(), 2);
    serving.abort();
}

// Tasks that wait for room in the outbox of a connection whose peer does not read.

struct Comes(mpsc::UnboundedReceiver<Value>);

impl Receiver for Comes {
    fn poll_event(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<TransportEvent, TransportError>>> {
        let message = |body: Value| TransportEvent::Message(Inbound::new(Bytes::from(body.to_string())));
        self.0.poll_recv(cx).map(|body| body.map(|body| Ok(message(body))))
    }
}

/// Accepts no frame.
struct Full;

impl Sender for Full {
    fn poll_ready(self: Pin<&mut Self>, _: Lane, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Pending
    }

    fn start_send(self: Pin<&mut Self>, _: Outbound) -> Result<(), TransportError> {
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        Poll::Pending
    }

    fn poll_close(
        self: Pin<&mut Self>,
        _: &CloseReason,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        Poll::Ready(Ok(()))
    }
}

const STREAM_TRAITS: Capabilities = Capabilities::of_stream(1 << 20);

/// A side whose outbox is full, and the input from its peer.
fn full(router: Router) -> (Peer, mpsc::UnboundedSender<Value>) {
    let (says, comes) = mpsc::unbounded_channel();
    let mut limits = Limits::default();
    limits.max_outbox_frames = 1;
    let link = Link::new(Comes(comes), Full, STREAM_TRAITS, PeerInfo::default());
    let peer = Peer::builder(MCP).limits(limits).serve(router).attach(link).unwrap();
    peer.try_notify("noise", &json!({})).unwrap();
    assert!(matches!(peer.try_notify("noise", &json!({})), Err(CallError::OutboxFull)));
    (peer, says)
}

fn request(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "work", "params": {}})
}

fn cancel(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_waits_to_notify_is_woken_at_the_end_of_its_request() {
    let (tell, mut heard) = mpsc::unbounded_channel();
    let router = Router::new().method("work", move |ctx: CallContext, _: Value| {
        let tell = tell.clone();
        async move {
            tell.send(None).unwrap();
            let reported = ctx.notify("step", &json!({})).await;
            tell.send(Some(reported)).unwrap();
            Ok(())
        }
    });
    let (_peer, says) = full(router);
    says.send(request(1)).unwrap();
    assert!(heard.recv().await.unwrap().is_none());
    says.send(cancel(1)).unwrap();
    let reported = tokio::time::timeout(std::time::Duration::from_secs(1), heard.recv()).await;
    assert!(matches!(reported, Ok(Some(Some(Err(CallError::Ended))))), "{reported:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_handler_whose_value_waits_for_room_gives_its_permit_back_at_once() {
    let router = Router::new().method("work", |_: CallContext, _: Value| async { Ok(()) });
    let (peer, says) = full(router);
    for id in 1..=100 {
        says.send(request(id)).unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        assert_eq!((peer.stats().running, peer.stats().finished), (1, id - 1));
        says.send(cancel(id)).unwrap();
        let begun = tokio::time::Instant::now();
        while peer.stats().finished < id {
            assert!(begun.elapsed().as_secs() < 1, "a value that nobody may have holds a permit");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
    assert_eq!((peer.stats().aborted, peer.stats().slots), (0, 0));
}

/// A waker of a waiting task.
struct Waits;

impl Wake for Waits {
    fn wake(self: Arc<Self>) {}
}

#[tokio::test]
async fn a_dropped_notify_leaves_no_waiter() {
    let (peer, _says) = full(Router::new());
    let params = json!({});
    for _ in 0..10 {
        let waits = Arc::new(Waits);
        let waker = Waker::from(Arc::clone(&waits));
        let mut notify = Box::pin(peer.notify("step", &params));
        assert!(notify.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop((notify, waker));
        assert_eq!(Arc::strong_count(&waits), 1, "I11: the waker of one who is gone is kept");
    }
}
