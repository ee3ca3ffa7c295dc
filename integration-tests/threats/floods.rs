//! A peer that asks and cancels without end, on each wire: what is alive, what is kept and who else is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rescind::{CallContext, Limits, Peer, Router};
use serde_json::{Value, json};

use crate::agent::{End, close, limits, open_at};
use crate::counts::{MIB, MILLION, TIMED, resident};
use crate::stranger::{Hears, Stranger};
use crate::wires::{Door, Kind, Setting, WIRES, Wire};
use crate::{alone, in_time, until};

/// What a flood of pairs may hold.
const PAIRS_MEMORY: usize = 16 * MIB;
/// What a flood of cancels for nothing may hold.
const UNKNOWN_MEMORY: usize = MIB;
/// How many times slower others may be served meanwhile, at their 99th percentile.
const SLOWER: u32 = 5;
/// The most early cancels that are kept.
const PARKED: u64 = 256;
/// Sessions with the same ids.
const SESSIONS: usize = 64;
/// Each of them has so many requests.
const SAME_IDS: usize = 2;
const ECHOES: usize = 2000;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for wire in floodable() {
        let name = format!("floods::pairs_of_request_and_cancel::{}", wire.name);
        trials.push(alone(name, move || pairs(wire)));
        let name = format!("floods::cancels_for_unknown_ids::{}", wire.name);
        trials.push(alone(name, move || unknown(wire)));
        let name = format!("floods::cross_cancels_between_64_sessions::{}", wire.name);
        trials.push(alone(name, move || cross(wire)));
    }
    let http = floodable().find(|wire| wire.name == "http-streamable").expect("HTTP is a wire");
    trials.push(alone("floods::early_cancels_then_one_request::http-streamable".to_owned(), move || {
        early(http)
    }));
    trials
}

/// What carries a stranger's own ids and has sessions; the other bindings and versions of HTTP share its code.
fn floodable() -> impl Iterator<Item = Wire> {
    WIRES.into_iter().filter(|wire| !matches!(wire.name, "http2-streamable" | "http-acp"))
}

/// How many handlers exist, whatever the machine believes.
#[derive(Clone, Default)]
struct Alive {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

struct One(Alive);

impl Alive {
    fn enter(&self) -> One {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        One(self.clone())
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// `deaf` ignores its cancel, `wait` does not; `echo` answers.
fn router(alive: &Alive) -> Router {
    let (deaf, wait) = (alive.clone(), alive.clone());
    Router::new()
        .method("initialize", |_: CallContext, _: Value| async { Ok(json!({"protocolVersion": 1})) })
        .method("echo", |_: CallContext, value: Value| async { Ok(value) })
        .method("deaf", move |_: CallContext, _: Value| {
            let one = deaf.enter();
            async move {
                std::future::pending::<()>().await;
                drop(one);
                Ok(Value::Null)
            }
        })
        .method("wait", move |ctx: CallContext, _: Value| {
            let one = wait.enter();
            async move {
                let cause = ctx.cancelled().await;
                drop(one);
                ctx.stopped::<Value>(cause)
            }
        })
}

fn kept_open() -> Setting {
    Setting { idle: Duration::from_secs(3600), ..Setting::default() }
}

/// What memory was after the first twentieth, and the most it came to after that.
struct Memory {
    settled: Option<usize>,
    most: usize,
}

impl Memory {
    const fn new() -> Self {
        Self { settled: None, most: 0 }
    }

    /// `done` of `all`.
    fn look(&mut self, done: usize, all: usize) {
        if done < all / 20 || done % 256 != 0 {
            return;
        }
        let now = resident();
        self.settled.get_or_insert(now);
        self.most = self.most.max(now);
    }

    fn is_within(&self, limit: usize, what: &str) {
        let grown = self.most.saturating_sub(self.settled.unwrap_or(0));
        eprintln!("counted: {what}: {} KiB more", grown / 1024);
        assert!(grown <= limit, "I11: {grown} bytes more");
    }
}

/// The 99th percentile of how long echoes take, one after another.
struct Slowest(Vec<Duration>);

impl Slowest {
    fn percentile(mut self) -> Duration {
        self.0.sort_unstable();
        self.0.get(self.0.len() * 99 / 100).copied().unwrap_or_default()
    }
}

async fn echoes(peer: &Peer, go_on: impl Fn(usize) -> bool) -> Slowest {
    let mut times = Vec::new();
    while go_on(times.len()) {
        let since = Instant::now();
        let answer = in_time("an echo", peer.call::<_, Value>("echo", &json!([times.len()]))).await;
        assert_eq!(answer.expect("an echo"), json!([times.len()]));
        times.push(since.elapsed());
    }
    Slowest(times)
}

async fn is_clean(peer: &Peer, alive: &Alive) {
    until("I3: nothing is left", || {
        let stats = peer.stats();
        (stats.slots, stats.running, stats.queued, stats.draining) == (0, 0, 0, 0)
            && alive.now.load(Ordering::SeqCst) == 0
    })
    .await;
}

async fn second_connection(door: &mut Door) -> (End, End) {
    open_at(door, &limits()).await
}

async fn pairs(wire: Wire) {
    let alive = Alive::default();
    let mut limits: Limits = limits();
    // What ignores its cancel is aborted after this: the more often, the more are started.
    limits.cancel_grace = Duration::from_millis(20);
    let mut door = wire.listen(kept_open()).await;
    let (mut stranger, server) = Stranger::meet(&mut door, router(&alive), &limits, Hears::Counts).await;
    let (client, other) = second_connection(&mut door).await;
    let quiet = echoes(&client.peer, |done| done < ECHOES).await.percentile();
    let over = Arc::new(AtomicBool::new(false));
    let (is_over, asks) = (Arc::clone(&over), client.peer.clone());
    let beside = tokio::spawn(async move {
        echoes(&asks, |done| done < ECHOES || !is_over.load(Ordering::SeqCst)).await.percentile()
    });
    let mut memory = Memory::new();
    let since = Instant::now();
    for n in 0..MILLION {
        let id = json!(n);
        stranger.request(&id, "deaf", &json!({})).await;
        stranger.cancel(&id).await;
        memory.look(n, MILLION);
    }
    stranger.flush().await;
    over.store(true, Ordering::SeqCst);
    let loaded = beside.await.expect("others are served");
    let most = alive.most.load(Ordering::SeqCst);
    eprintln!(
        "counted: {MILLION} pairs over {} in {:?}: at most {most} handlers alive, others' p99 {loaded:?} after {quiet:?}, {:?}",
        wire.name,
        since.elapsed(),
        server.stats()
    );
    memory.is_within(PAIRS_MEMORY, "pairs");
    assert!(most <= limits.running, "I10: {most} handlers alive");
    assert!(!TIMED || loaded <= quiet * SLOWER, "others' p99 is {loaded:?}, quiet it is {quiet:?}");
    if wire.kind == Kind::Connection {
        // POSTs have no order: of cancels that overtook their requests only so many are kept, and those requests run on.
        is_clean(&server, &alive).await;
    }
    assert!(stranger.heard() > 1, "it is answered");
    stranger.leave();
    in_time("the end", server.shutdown(Duration::ZERO)).await;
    is_clean(&server, &alive).await;
    close(&client, &other).await;
}

async fn unknown(wire: Wire) {
    let alive = Alive::default();
    let mut door = wire.listen(kept_open()).await;
    let (mut stranger, server) = Stranger::meet(&mut door, router(&alive), &limits(), Hears::Counts).await;
    let named_nothing = || {
        let stats = server.stats();
        usize::try_from(
            stats.unknown_cancels
                + stats.malformed_cancels
                + stats.ignored_cancels
                + stats.parked_cancels
                + stats.refused,
        )
        .unwrap_or(usize::MAX)
    };
    let mut memory = Memory::new();
    let long = "x".repeat(1024);
    for n in 0..MILLION {
        let id = match n % 16 {
            // No id at all: too long.
            0 => json!(format!("{n} {long}")),
            1 => json!(format!("{n}")),
            _ => json!(n),
        };
        stranger.cancel(&id).await;
        memory.look(n, MILLION);
    }
    stranger.flush().await;
    until("every cancel is counted (I8)", || named_nothing() >= MILLION).await;
    memory.look(MILLION / 256 * 256, MILLION);
    memory.is_within(UNKNOWN_MEMORY, "cancels for nothing");
    let stats = server.stats();
    assert_eq!((stats.slots, stats.calls), (0, 0), "I8: a table has an entry: {stats:?}");
    assert!(stats.parked_cancels <= PARKED, "I8: {stats:?}");
    assert_eq!(stranger.heard(), 1, "a cancel for nothing is not answered");
    stranger.request(&json!("after"), "echo", &json!({})).await;
    stranger.flush().await;
    until("the connection goes on", || stranger.heard() == 2).await;
    stranger.leave();
    in_time("the end", server.shutdown(Duration::ZERO)).await;
}

async fn early(wire: Wire) {
    let alive = Alive::default();
    let mut limits = limits();
    limits.parked_time = Duration::from_secs(3600);
    let mut door = wire.listen(kept_open()).await;
    let (mut stranger, server) = Stranger::meet(&mut door, router(&alive), &limits, Hears::Keeps).await;
    let mut memory = Memory::new();
    for n in 0..MILLION {
        stranger.cancel(&json!(n)).await;
        memory.look(n, MILLION);
    }
    stranger.flush().await;
    let taken = || {
        let stats = server.stats();
        usize::try_from(stats.parked_cancels + stats.refused + stats.unknown_cancels).unwrap_or(usize::MAX)
    };
    until("every cancel is counted (I8)", || taken() >= MILLION).await;
    assert_eq!(server.stats().parked_cancels, PARKED, "I8: {:?}", server.stats());
    memory.is_within(UNKNOWN_MEMORY, "early cancels");
    stranger.request(&json!(MILLION), "echo", &json!({"n": 1})).await;
    let answer = stranger.hear().await;
    assert_eq!((&answer["id"], &answer["result"]), (&json!(MILLION), &json!({"n": 1})), "it runs");
    is_clean(&server, &alive).await;
    stranger.leave();
    in_time("the end", server.shutdown(Duration::ZERO)).await;
}

/// Half of the sessions have requests that run; the others had them under the same ids, and cancel.
async fn cross(wire: Wire) {
    let mut door = wire.listen(kept_open()).await;
    let limits = limits();
    let (mut victims, mut attackers) = (Vec::new(), Vec::new());
    for at in 0..SESSIONS {
        let alive = Alive::default();
        let (mut stranger, server) = Stranger::meet(&mut door, router(&alive), &limits, Hears::Keeps).await;
        let runs = at % 2 == 0;
        for id in 0..SAME_IDS {
            stranger.request(&json!(id), if runs { "wait" } else { "echo" }, &json!({})).await;
        }
        stranger.flush().await;
        if runs {
            until("they run", || alive.now.load(Ordering::SeqCst) == SAME_IDS).await;
            victims.push((stranger, server, alive));
        } else {
            for _ in 0..SAME_IDS {
                assert_eq!(stranger.hear().await["result"], json!({}));
            }
            attackers.push((stranger, server));
        }
    }
    let each = MILLION / attackers.len();
    let attacks = attackers.into_iter().map(|(mut stranger, server)| {
        tokio::spawn(async move {
            for n in 0..each {
                let id = n / 2 % SAME_IDS;
                stranger.cancel(&if n % 2 == 0 { json!(id) } else { json!(id.to_string()) }).await;
            }
            stranger.flush().await;
            (stranger, server)
        })
    });
    let mut gone = Vec::new();
    for attack in attacks.collect::<Vec<_>>() {
        let (stranger, server) = attack.await.expect("an attack");
        let taken = || {
            let stats = server.stats();
            stats.unknown_cancels + stats.parked_cancels + stats.refused
        };
        until("every cancel is counted", || taken() >= each as u64).await;
        assert_eq!(server.stats().cancelled, 0);
        gone.push((stranger, server));
    }
    for (_, server, alive) in &victims {
        let stats = server.stats();
        let untouched = (alive.now.load(Ordering::SeqCst), stats.running, stats.cancelled);
        assert_eq!(untouched, (SAME_IDS, SAME_IDS as u64, 0), "I4: {stats:?}");
    }
    // Their own cancels hit.
    for (stranger, _, alive) in &mut victims {
        stranger.cancel(&json!(0)).await;
        stranger.flush().await;
        assert_eq!(stranger.hear().await["error"]["code"], -32_800);
        assert_eq!(alive.now.load(Ordering::SeqCst), SAME_IDS - 1);
    }
    for (stranger, server) in gone.into_iter().chain(victims.into_iter().map(|(s, p, _)| (s, p))) {
        stranger.leave();
        in_time("the end", server.shutdown(Duration::ZERO)).await;
    }
}
