//! Several clients of one server: none of them can exclude the others.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use rescind_core::dialect::ACP;
use rescind_core::{
    CallContext, CallError, Endpoint, Limits, Link, Listener, MemoryListener, MemoryTransport, Peer,
    Principal, Router, Server, ServerCounts, ServerLimits, Share, Transport, TransportError, memory_listener,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

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
async fn refused(peer: &Peer) -> Option<String> {
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
        let reported = refused(&mallory).await.expect("the attacker is refused");
        assert!(reported.contains("client_draining"), "{attacker:?}: {reported}");
        assert_eq!(refused(&ada).await, None, "{attacker:?} locks {other:?} out");
        served.deaf.let_go();
        served.deaf.until(0).await;
        in_time(async {
            while refused(&mallory).await.is_some() {
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
                usize::from(refused(peer).await.is_some_and(|reported| reported.contains("client_running")));
        }
        assert_eq!((served.counts.running(), refusals), (8, 2), "{attacker:?}");
        let ada = served.connect(other).await;
        assert_eq!(refused(&ada).await, None, "{attacker:?} locks {other:?} out");
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
        assert_eq!(refused(&used).await, None);
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
            (refused(&ada).await, refused(&used).await),
            (None, None),
            "{attacker:?} locks {other:?} out"
        );
        let last = idle.pop().unwrap();
        assert_eq!(refused(&last).await, None, "the newest is there");
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
            assert_eq!(refused(&peer).await.is_none(), round < 4, "{attacker:?}: connection {round}");
            open.push(peer);
        }
        assert_eq!((served.counts.sessions(), served.counts.displaced()), (4, 0));
        let ada = served.connect(other).await;
        assert_eq!(refused(&ada).await, None, "{attacker:?} locks {other:?} out");
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
        assert_eq!(refused(&peer).await, None);
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
