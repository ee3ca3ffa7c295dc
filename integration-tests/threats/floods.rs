//! A peer that asks and cancels without end, on each wire: what is alive, what is kept and who else is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rescind::{CallContext, Limits, Peer, Router};
use serde_json::{Value, json};

use crate::agent::{End, close, limits, open_at};
use crate::counts::{MIB, TIMED, counting, million_over, resident};
use crate::floor;
use crate::stranger::{Hears, Stranger};
use crate::wires::{Door, Kind, Setting, WIRES, Wire};
use crate::{in_time, until};

/// What a flood of pairs may hold.
const PAIRS_MEMORY: usize = 16 * MIB;
/// What a flood of cancels for nothing may hold.
const UNKNOWN_MEMORY: usize = MIB;
/// How many times slower others may be served meanwhile, at their 99th percentile.
const SLOWER: u32 = 5;
/// The most early cancels that are kept.
const PARKED: u64 = 256;
/// POSTs may overtake one another, and of ids that are not in order a cancel that comes first is dropped once many requests have ended
/// (SEMANTICS, "Parked"): what it was for runs on, and a flood would come to wait for nothing else. So many requests are taken in, then
/// come their cancels.
const TOGETHER: usize = 64;
/// Handlers that may run then; the others wait in the queue.
const RUNNING: usize = 32;
/// Sessions with the same ids.
const SESSIONS: usize = 64;
/// Each of them has so many requests.
const SAME_IDS: usize = 2;
/// So many cancels of one session are, before it waits until they have arrived.
const ON_THE_WAY: usize = 16;
const ECHOES: usize = 2000;
const WHILE: Duration = Duration::from_secs(3);
/// So many times of echoes are kept.
const KEPT: usize = 100_000;
/// So many cancels for nothing come before memory is looked at.
const WARM_UP: usize = 5000;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    // ACP's binding posts one frame after another, so that a flood of it is none.
    for wire in WIRES.into_iter().filter(|wire| wire.name != "http-acp") {
        let name = format!("floods::pairs_of_request_and_cancel::{}", wire.name);
        trials.push(counting(name, move || async move { on_two_workers(move || pairs(wire)) }));
    }
    for wire in floodable() {
        let name = format!("floods::cancels_for_unknown_ids::{}", wire.name);
        trials.push(counting(name, move || unknown(wire)));
        let name = format!("floods::cross_cancels_between_64_sessions::{}", wire.name);
        trials.push(counting(name, move || cross(wire)));
    }
    let http = floodable().find(|wire| wire.name == "http-streamable").expect("HTTP is a wire");
    trials.push(counting("floods::early_cancels_then_one_request::http-streamable".to_owned(), move || {
        early(http)
    }));
    trials
}

/// As a server is run: who floods has a thread of its own, all connections share two workers.
fn on_two_workers<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(test());
    };
    std::thread::spawn(run).join().expect("it holds");
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

/// What memory was at the beginning, and the most it came to after that.
struct Memory {
    begun: usize,
    most: usize,
}

impl Memory {
    /// What the process needs once it has by now.
    fn begin() -> Self {
        let now = resident();
        Self { begun: now, most: now }
    }

    fn look(&mut self, done: usize) {
        if done % 256 == 0 {
            self.most = self.most.max(resident());
        }
    }

    fn is_within(&self, limit: usize, what: &str) {
        let grown = self.most - self.begun;
        eprintln!("counted: {what}: {} KiB more", grown / 1024);
        assert!(grown <= limit, "I11: {grown} bytes more");
    }
}

/// The 99th percentile of how long echoes take, one after another; of the last [`KEPT`] where there are more.
async fn echoes(peer: Peer, go_on: impl Fn(usize) -> bool) -> Duration {
    // All of it is there before memory is looked at.
    let mut times = vec![Duration::ZERO; KEPT];
    let mut done = 0;
    while go_on(done) {
        let since = Instant::now();
        let answer = in_time("an echo", peer.call::<_, Value>("echo", &json!([done]))).await;
        assert_eq!(answer.expect("an echo"), json!([done]));
        times[done % KEPT] = since.elapsed();
        done += 1;
    }
    times.truncate(done);
    times.sort_unstable();
    times.get(times.len() * 99 / 100).copied().unwrap_or_default()
}

/// The same while as many threads as a flood keeps busy, the attacker's and one that serves it, do something else. What
/// the system makes others wait for a core is not ours, and is in both values.
async fn quiet_echoes(peer: Peer) -> Duration {
    let over = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = (0..2)
        .map(|_| {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let quiet = tokio::spawn(echoes(peer, for_a_while())).await;
    over.store(true, Ordering::Relaxed);
    for other in others {
        other.join().expect("it only counts");
    }
    quiet.expect("others are served")
}

/// For as many echoes, and so long, that what the system makes one of them wait for a core is seen too: it gives cores away for
/// milliseconds, which one echo in a hundred then waits for.
fn for_a_while() -> impl Fn(usize) -> bool {
    let since = Instant::now();
    move |done| done < ECHOES || TIMED && since.elapsed() < WHILE
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

fn together_over(wire: &Wire) -> usize {
    match wire.kind {
        Kind::Connection => 1,
        Kind::Conversation => TOGETHER,
    }
}

/// Requests `first` to `first + together`, and their cancels: of more than one, once they are taken in, and then it waits for the answers.
async fn some_pairs(
    stranger: &mut Stranger,
    first: usize,
    together: usize,
    are_taken_in: impl FnMut() -> bool,
) {
    for n in first..first + together {
        stranger.request(&json!(n), "deaf", &json!({})).await;
    }
    if together > 1 {
        stranger.flush().await;
        until("they are taken in", are_taken_in).await;
    }
    for n in first..first + together {
        stranger.cancel(&json!(n)).await;
    }
    if together > 1 {
        stranger.flush().await;
        until("I1: each request is answered", || stranger.heard() == first + together + 1).await;
    }
}

/// The same beside a flood of the same frames that is served without us.
async fn echoes_beside_the_floor(peer: Peer, door: &mut Door, limits: &Limits, together: usize) -> Duration {
    let serve = |link| tokio::spawn(floor::serve(link, limits.running, limits.cancel_grace));
    let (mut stranger, serving) = Stranger::meet_with(door, serve, Hears::Counts).await;
    let beside = tokio::spawn(echoes(peer, for_a_while()));
    let mut pairs = 0;
    while !beside.is_finished() {
        some_pairs(&mut stranger, pairs, together, || true).await;
        pairs += together;
    }
    let slow = beside.await.expect("others are served");
    stranger.leave();
    serving.abort();
    let _ = serving.await;
    slow
}

async fn pairs(wire: Wire) {
    let count = million_over(&wire);
    let alive = Alive::default();
    let mut limits: Limits = limits();
    // What ignores its cancel is aborted after this: the more often, the more are started.
    limits.cancel_grace = Duration::from_millis(20);
    if wire.kind == Kind::Conversation {
        limits.running = RUNNING;
    }
    let mut door = wire.listen(kept_open()).await;
    let (mut stranger, server) = Stranger::meet(&mut door, router(&alive), &limits, Hears::Counts).await;
    let (client, other) = second_connection(&mut door).await;
    let quiet = quiet_echoes(client.peer.clone()).await;
    let over = Arc::new(AtomicBool::new(false));
    let (is_over, asks) = (Arc::clone(&over), client.peer.clone());
    let beside = tokio::spawn(echoes(asks, move |done| done < ECHOES || !is_over.load(Ordering::SeqCst)));
    let mut memory = Memory::begin();
    let since = Instant::now();
    let together = together_over(&wire);
    // First as many as may run, so that the limit is reached however slow this machine is; then the flood.
    let filling = together.max(limits.running);
    some_pairs(&mut stranger, 0, filling, || server.stats().slots == filling as u64).await;
    for first in (filling..count).step_by(together) {
        some_pairs(&mut stranger, first, together, || server.stats().slots == together as u64).await;
        memory.look(first);
    }
    stranger.flush().await;
    over.store(true, Ordering::SeqCst);
    let loaded = beside.await.expect("others are served");
    let most = alive.most.load(Ordering::SeqCst);
    eprintln!(
        "counted: {count} pairs over {} in {:?}: at most {most} handlers alive, {:?}",
        wire.name,
        since.elapsed(),
        server.stats()
    );
    memory.is_within(PAIRS_MEMORY, "pairs");
    assert_eq!(most, limits.running, "the flood comes up to the limit, I10 not over it");
    is_clean(&server, &alive).await;
    until("I1: each request is answered once", || stranger.heard() == count + 1).await;
    stranger.leave();
    in_time("the end", server.shutdown(Duration::ZERO)).await;
    is_clean(&server, &alive).await;
    let floor = echoes_beside_the_floor(client.peer.clone(), &mut door, &limits, together).await;
    close(&client, &other).await;
    eprintln!(
        "counted: others' p99 {loaded:?}; quiet it is {quiet:?}, beside a flood served without us {floor:?}"
    );
    // Slower than on a machine as busy with something else, and than beside the same flood served without us.
    assert!(!TIMED || loaded <= quiet.max(floor) * SLOWER, "others' p99 is {loaded:?}");
}

async fn unknown(wire: Wire) {
    let count = million_over(&wire);
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
    let long = "x".repeat(1024);
    let id = |n: usize| match n % 16 {
        // No id at all: too long.
        0 => json!(format!("{n} {long}")),
        1 => json!(format!("{n}")),
        _ => json!(n),
    };
    // Buffers of both ends, and the few cancels that may be kept, have come to what they are for.
    for n in 0..WARM_UP {
        stranger.cancel(&id(n)).await;
    }
    stranger.flush().await;
    until("they are counted", || named_nothing() >= WARM_UP).await;
    let mut memory = Memory::begin();
    for n in WARM_UP..WARM_UP + count {
        stranger.cancel(&id(n)).await;
        memory.look(n);
    }
    stranger.flush().await;
    until("every cancel is counted (I8)", || named_nothing() >= WARM_UP + count).await;
    memory.look(0);
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
    let count = million_over(&wire);
    let alive = Alive::default();
    let mut limits = limits();
    limits.parked_time = Duration::from_secs(3600);
    let mut door = wire.listen(kept_open()).await;
    let (mut stranger, server) = Stranger::meet(&mut door, router(&alive), &limits, Hears::Keeps).await;
    let taken = || {
        let stats = server.stats();
        usize::try_from(stats.parked_cancels + stats.refused + stats.unknown_cancels).unwrap_or(usize::MAX)
    };
    for n in 0..WARM_UP {
        stranger.cancel(&json!(n)).await;
    }
    until("they are counted", || taken() >= WARM_UP).await;
    let mut memory = Memory::begin();
    for n in WARM_UP..WARM_UP + count {
        stranger.cancel(&json!(n)).await;
        memory.look(n);
    }
    stranger.flush().await;
    until("every cancel is counted (I8)", || taken() >= WARM_UP + count).await;
    assert_eq!(server.stats().parked_cancels, PARKED, "I8: {:?}", server.stats());
    memory.is_within(UNKNOWN_MEMORY, "early cancels");
    let id = json!(WARM_UP + count);
    stranger.request(&id, "echo", &json!({"n": 1})).await;
    let answer = stranger.hear().await;
    assert_eq!((&answer["id"], &answer["result"]), (&id, &json!({"n": 1})), "it runs");
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
    let each = million_over(&wire) / attackers.len();
    let attacks = attackers.into_iter().map(|(mut stranger, server)| {
        tokio::spawn(async move {
            for n in 0..each {
                let id = n / 2 % SAME_IDS;
                stranger.cancel(&if n % 2 == 0 { json!(id) } else { json!(id.to_string()) }).await;
                // Over HTTP/1.1 each on its way has a connection.
                if n % ON_THE_WAY == 0 {
                    stranger.flush().await;
                }
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
