//! Many cancels over three members of one cluster in this process. Each cancel must reach the request of its key, and no other.
//!
//! The reason of each cancel is the number of its request, so a cancel that reaches another one is seen.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::time::{Duration, Instant};

use rescind::http::{HttpListener, HttpServer, Streamable};
use rescind::transport::Listener as _;
use rescind::{Call, CallContext, Cause, CauseKind, Limits, Outcome, Peer, Router, dialect, memory_pair};
use rescind_cluster::{CancelBus, Cluster, ClusterAddress, NodeList, NodeName, Secret};
use rescind_testkit::support::{in_time, within};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::backend::{Backend, EngineServer, ServerOptions};
use crate::nodes::NODES;
use crate::trial::tell;

/// How many requests run at once.
const BATCH: u64 = 500;
/// The longest time for the cancels of a batch.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many requests are made.
fn total(backend: Backend) -> u64 {
    let number = env::var("RESCIND_CLUSTER_CANCELS").ok().map(|text| text.parse().unwrap());
    let default = match (env::var_os("RESCIND_CLUSTER_FULL"), backend) {
        (Some(_), _) => 1_000_000,
        (None, Backend::List) => 20_000,
        (None, Backend::Redis | Backend::Nats) => 100_000,
    };
    number.unwrap_or(default)
}

/// When a request is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    /// While it runs, by another member.
    InTime,
    /// Before a third member watches its key.
    Early,
    /// After its end.
    Late,
    /// By all members at once, and again after its end.
    Repeated,
    /// Never by the bus.
    Never,
}

impl When {
    const ALL: [Self; 5] = [Self::InTime, Self::Early, Self::Late, Self::Repeated, Self::Never];

    fn of(number: u64) -> Self {
        Self::ALL[usize::try_from(number / 3 % 5).unwrap()]
    }
}

/// A member of the cluster that serves requests of its own client.
pub(crate) struct Member {
    pub(crate) cluster: Cluster,
    pub(crate) client: Peer,
    pub(crate) heard: mpsc::UnboundedReceiver<Heard>,
    _server: Peer,
    _listener: Option<HttpListener>,
}

/// What a handler reports.
#[derive(Debug)]
pub(crate) enum Heard {
    Began(u64, String),
    Signalled(u64, Cause, Instant),
}

/// Three members, and what they share.
pub(crate) struct Members {
    pub(crate) engine: Option<EngineServer>,
    pub(crate) all: Vec<Member>,
}

impl Members {
    pub(crate) async fn start(backend: Backend) -> Self {
        let engine = EngineServer::start(backend, ServerOptions::Usual);
        let list = NodeList::new();
        let mut all = Vec::new();
        for name in NODES {
            let address = match &engine {
                Some(engine) => engine.url().parse().unwrap(),
                None => ClusterAddress::from(list.clone()),
            };
            all.push(Member::start(name.parse().unwrap(), address, &list).await);
        }
        Self { engine, all }
    }

    /// The bus of the member that comes so many after the one that serves this request.
    pub(crate) fn bus(&self, number: u64, after: u64) -> CancelBus {
        self.all[usize::try_from((number + after) % 3).unwrap()].cluster.cancel_bus()
    }

    pub(crate) fn of(&self, number: u64) -> &Member {
        &self.all[usize::try_from(number % 3).unwrap()]
    }
}

impl Member {
    async fn start(name: NodeName, address: ClusterAddress, list: &NodeList) -> Self {
        let is_list = matches!(address, ClusterAddress::Static(_));
        let cluster = Cluster::connect(address, Some(name.clone()), Secret::of_loopback()).await.unwrap();
        // Members of a list send their signals to each other.
        let listener = if is_list {
            let server = HttpServer::new(Streamable::new()).session_router(cluster.router());
            let listener = server.bind("127.0.0.1:0").await.unwrap();
            let url = listener.endpoint().0;
            list.set(name, url.parse().unwrap());
            cluster.join(&url).await.unwrap();
            Some(listener)
        } else {
            None
        };
        let (reports, heard) = mpsc::unbounded_channel();
        let router = Router::new().method("work", move |ctx: CallContext, params: Value| {
            let reports = reports.clone();
            async move {
                let number = params["n"].as_u64().unwrap();
                let key = ctx.cluster_key().unwrap().to_string();
                let _ = reports.send(Heard::Began(number, key));
                if params["ends"] == true {
                    return Ok(json!({}));
                }
                let cause = ctx.cancelled().await;
                let _ = reports.send(Heard::Signalled(number, cause, Instant::now()));
                Ok(json!({}))
            }
        });
        let (near, far) = memory_pair();
        let mut limits = Limits::default();
        limits.max_queued_requests = 4096;
        let server = Peer::builder(dialect::ACP).serve(router).limits(limits).cluster_keys(cluster.keys());
        let server = server.attach(far).unwrap();
        let client = Peer::builder(dialect::ACP).attach(near).unwrap();
        Self { cluster, client, heard, _server: server, _listener: listener }
    }

    /// Begins a request.
    pub(crate) fn begin(&self, number: u64, ends: bool) -> Call<Value> {
        self.client.call("work", &json!({ "n": number, "ends": ends })).start().unwrap()
    }
}

/// Early, in time, late and repeated cancels, and requests without one.
pub(crate) async fn each_cancel_in_bulk_reaches_exactly_its_request(backend: Backend) {
    let mut members = Members::start(backend).await;
    let (total, begun) = (total(backend), Instant::now());
    let mut counts = BTreeMap::new();
    let mut first = 0;
    while first < total {
        let numbers = first..total.min(first + BATCH);
        within(PATIENCE, "a batch of cancels", batch(&mut members, numbers.clone(), &mut counts)).await;
        first = numbers.end;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let each = counts.iter().map(|(when, count)| format!("{when:?} {count}")).collect::<Vec<_>>().join(", ");
    tell(&format!(
        "measured: {}: {total} requests ({each}): none lost, none misrouted, {seconds:.1} s",
        backend.name()
    ));
    assert_eq!(counts.values().sum::<u64>(), total);
}

async fn batch(members: &mut Members, numbers: std::ops::Range<u64>, counts: &mut BTreeMap<When, u64>) {
    let mut calls: HashMap<u64, Call<Value>> = HashMap::new();
    for number in numbers.clone() {
        calls.insert(number, members.of(number).begin(number, When::of(number) == When::Late));
    }
    let keys = keys(members, numbers.clone()).await;
    // A late cancel comes after the answer.
    for number in numbers.clone().filter(|number| When::of(*number) == When::Late) {
        let outcome = calls.remove(&number).unwrap().outcome().await;
        assert!(matches!(outcome, Outcome::Completed(_)), "{number}: {outcome:?}");
    }
    let mut cancels = JoinSet::new();
    for number in numbers.clone() {
        let buses = [0, 1, 2].map(|after| members.bus(number, after));
        cancels.spawn(cancel(number, keys[&number].clone(), buses));
    }
    while let Some(done) = cancels.join_next().await {
        done.unwrap();
    }
    let mut signalled = HashMap::new();
    let expected =
        numbers.clone().filter(|number| !matches!(When::of(*number), When::Late | When::Never)).count();
    for member in &mut members.all {
        while let Ok(heard) = member.heard.try_recv() {
            note(heard, &mut signalled);
        }
    }
    while signalled.len() < expected {
        let [one, two, three] = &mut members.all[..] else { panic!("three members") };
        let heard = tokio::select! {
            heard = one.heard.recv() => heard,
            heard = two.heard.recv() => heard,
            heard = three.heard.recv() => heard,
        };
        note(heard.unwrap(), &mut signalled);
    }
    for (number, call) in calls {
        let when = When::of(number);
        if when == When::Never {
            assert!(!signalled.contains_key(&number), "{number} was not cancelled, and was signalled");
            assert!(!members.of(number).cluster.cancel_bus().is_cancelled(&keys[&number]));
            let _sent = call.canceller().cancel("the end of the test");
        } else {
            assert!(signalled.contains_key(&number), "{when:?} {number} was lost");
        }
        let outcome = call.outcome().await;
        assert!(!matches!(outcome, Outcome::Disconnected { .. }), "{number}: {outcome:?}");
    }
    // The signals of those that the client cancelled.
    for member in &mut members.all {
        while let Ok(heard) = member.heard.try_recv() {
            let Heard::Signalled(number, cause, _) = heard else { panic!("{heard:?}") };
            assert_eq!((When::of(number), cause.kind()), (When::Never, CauseKind::Peer), "{number}");
        }
    }
    for number in numbers {
        *counts.entry(When::of(number)).or_default() += 1;
    }
}

/// Waits until all requests have begun.
async fn keys(members: &mut Members, numbers: std::ops::Range<u64>) -> HashMap<u64, String> {
    let mut keys = HashMap::new();
    for (index, member) in (0..).zip(&mut members.all) {
        for _ in numbers.clone().filter(|number| number % 3 == index) {
            let heard = in_time("a request begins", member.heard.recv()).await.unwrap();
            let Heard::Began(number, key) = heard else { panic!("signalled before its cancel: {heard:?}") };
            assert_eq!(number % 3, index);
            keys.insert(number, key);
        }
    }
    keys
}

/// Records that a handler was signalled, which must be by the cancel of its own request, and once.
fn note(heard: Heard, signalled: &mut HashMap<u64, Instant>) {
    let Heard::Signalled(number, cause, at) = heard else { panic!("{heard:?}") };
    assert_eq!(cause.kind(), CauseKind::Operator, "{number}");
    assert_eq!(cause.reason(), Some(number.to_string().as_str()), "a cancel was misrouted");
    assert!(signalled.insert(number, at).is_none(), "{number} was signalled twice");
}

/// Cancels one request in its way.
async fn cancel(number: u64, key: String, [own, other, third]: [CancelBus; 3]) {
    let cause = Cause::new(CauseKind::Operator).with_reason(&number.to_string());
    match When::of(number) {
        When::InTime => other.cancel(&key, &cause).await.unwrap(),
        When::Repeated => {
            let (one, two, three) = tokio::join!(
                own.cancel(&key, &cause),
                other.cancel(&key, &cause),
                third.cancel(&key, &cause)
            );
            one.and(two).and(three).unwrap();
            other.cancel(&key, &cause).await.unwrap();
        }
        When::Early | When::Late => {
            other.cancel(&key, &cause).await.unwrap();
            // A later watch finds it.
            let watch = third.watch(&key).unwrap();
            let found = watch.cancelled().await;
            assert_eq!(found.reason(), cause.reason(), "a cancel was misrouted");
            assert!(third.is_cancelled(&key));
        }
        When::Never => {
            let watch = third.watch(&key).unwrap();
            tokio::task::yield_now().await;
            assert!(watch.cause().is_none(), "{number} was not cancelled");
        }
    }
}
