//! A peer that sends requests and cancels without end, on each wire: which handlers are alive, what is kept, and
//! whether others are served.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rescind::transport::{
    ExchangeEnd, FrameInfo, FrameKind, Inbound, Lane, Link, Outbound, Sender, TransportError, TransportEvent,
};
use rescind::{CallContext, Limits, Peer, Router};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::agent::{close, limits, open_at};
use crate::raw_client::{Hears, RawClient};
use crate::wires::{Door, IS_REPORTED, Kind, Setting, WIRES, Wire, resident};
use crate::{alone, in_time, until};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    // ACP's binding posts one frame after another, so a flood over it is not one.
    for wire in WIRES.into_iter().filter(|wire| wire.name != "http-acp") {
        let name = format!("floods::pairs_of_request_and_cancel::{}", wire.name);
        trials.extend(counting(name, move || async move { on_two_workers(move || pairs(wire)) }));
    }
    for wire in floodable() {
        let name = format!("floods::cancels_for_unknown_ids::{}", wire.name);
        trials.extend(counting(name, move || unknown_cancels(wire)));
        let name = format!("floods::cross_cancels_between_64_sessions::{}", wire.name);
        trials.extend(counting(name, move || cross_cancels(wire)));
    }
    let http = floodable().find(|wire| wire.name == "http-streamable").expect("HTTP is a wire");
    trials
        .extend(counting("floods::early_cancels_then_one_request::http-streamable".to_owned(), move || {
            early_cancels(http)
        }));
    trials
}

/// How many tasks a worker polls before it asks the system which pipes and sockets are ready. tokio's default is 61:
/// a busy worker then detects an echo only after 61 turns of the flood. That wait is caused by the runtime, is longer
/// if a turn has more work, and would be the same for any server.
const EVENT_INTERVAL: u32 = 4;

/// As in a server program: the client that floods has a separate thread, and all connections share two workers.
fn on_two_workers<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .event_interval(EVENT_INTERVAL)
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(test());
    };
    std::thread::spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// The wires that carry a client's own ids and have sessions. The other bindings and versions of HTTP share their
/// code.
pub(crate) fn floodable() -> impl Iterator<Item = Wire> {
    WIRES.into_iter().filter(|wire| !matches!(wire.name, "http2-streamable" | "http-acp"))
}

/// How many handlers exist, regardless of the machine's counters.
#[derive(Clone, Default)]
pub(crate) struct Alive {
    pub(crate) now: Arc<AtomicUsize>,
    pub(crate) most: Arc<AtomicUsize>,
}

pub(crate) struct One(Alive);

impl Alive {
    pub(crate) fn enter(&self) -> One {
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

/// `deaf` ignores its cancel, `wait` does not, `echo` answers.
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

pub(crate) fn kept_open() -> Setting {
    Setting { idle: Duration::from_secs(3600), ..Setting::default() }
}

/// The memory at the beginning, and the most after that.
pub(crate) struct Memory {
    begun: usize,
    most: usize,
}

impl Memory {
    /// The process has by now allocated what it needs once.
    pub(crate) fn begin() -> Self {
        let now = resident();
        Self { begun: now, most: now }
    }

    pub(crate) fn look(&mut self, done: usize) {
        if done % 256 == 0 {
            self.most = self.most.max(resident());
        }
    }

    pub(crate) fn is_within(&self, limit: usize, what: &str) {
        let grown = self.most - self.begun;
        eprintln!("counted: {what}: {} KiB more", grown / 1024);
        assert!(grown <= limit, "I11: {grown} bytes more");
    }
}

async fn is_clean(peer: &Peer, alive: &Alive) {
    until("I3: nothing is left", || {
        let stats = peer.stats();
        (stats.slots, stats.running, stats.queued, stats.draining) == (0, 0, 0, 0)
            && alive.now.load(Ordering::SeqCst) == 0
    })
    .await;
}

// How many times an attack is played: the number of the table in a release build, and fewer in a debug build, which
// takes ten times as long for each. `.ci/attacks` runs the release build with `RESCIND_ATTACKS_SHORT=1`, a tenth of
// each flood; `.ci/nightly attacks` plays all. `RESCIND_ATTACKS_FULL=1` plays a million over HTTP too, which takes a
// quarter of an hour for each trial there.

/// If set to `1`, plays the million on every wire.
const FULL: &str = "RESCIND_ATTACKS_FULL";
/// If set to `1`, plays a tenth.
const SHORT: &str = "RESCIND_ATTACKS_SHORT";

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}

/// The million of the table. Over HTTP, where each frame is a POST with a separate response, it is the number that
/// takes about 40 s of two cores, unless [`FULL`] is set. All of them are multiples of `TOGETHER`.
pub(crate) fn million_over(wire: &Wire) -> usize {
    match (cfg!(debug_assertions), wire.kind) {
        _ if is_set(FULL) => 1_000_000,
        (true, Kind::Connection) => 5_120,
        (true, Kind::Conversation) => 2_048,
        (false, Kind::Connection) if is_set(SHORT) => 102_400,
        (false, Kind::Conversation) if is_set(SHORT) => 10_240,
        (false, Kind::Connection) => 1_000_000,
        (false, Kind::Conversation) => 40_960,
    }
}

/// Times of a wall clock are checked in a release build only.
pub(crate) const TIMED: bool = !cfg!(debug_assertions);
/// In bytes.
const MIB: usize = 1 << 20;

/// A trial that counts the memory of its process, in a separate process. If the system does not report it, no trial
/// is made, which a line on stderr says. Only these trials may call `resident` or `descriptors`.
pub(crate) fn counting<F>(name: String, test: impl FnOnce() -> F + Send + 'static) -> Option<Trial>
where
    F: Future<Output = ()>,
{
    if IS_REPORTED {
        return Some(alone(name, test));
    }
    eprintln!("attacks: SKIPPED: {name} (this system does not tell what a process holds)");
    None
}

/// The time of a core that this thread has used. Waits that other threads cause do not count.
#[cfg(unix)]
pub(crate) fn spent() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(spent).expect("a clock that runs forward")
}

/// A wall clock, for systems that do not report the time of a thread.
#[cfg(not(unix))]
pub(crate) fn spent() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGUN.elapsed()
}

// Pairs of request and cancel: the handler limit holds, and others are served.

/// The most memory that a flood of pairs may use.
const PAIRS_MEMORY: usize = 16 * MIB;
/// How many times slower others may be served meanwhile, at their 99th percentile.
const SLOWER: u32 = 5;
/// How many requests are taken in before their cancels are sent. POSTs may overtake one another, and with unordered
/// ids an early cancel is dropped after many requests have ended (docs/semantics.md, Order). Its request then continues,
/// and a flood would finally only wait for such requests.
const TOGETHER: usize = 64;
/// The most handlers then. The other requests wait in the queue.
const RUNNING: usize = 32;
/// The most requests without an answer, including the 1024 running ones, before the flood waits for some. A client
/// that is more than the reserve of 4096 refusals behind with reading is cut off, and this one must flood to its end.
const OPEN: usize = 4096;
const ECHOES: usize = 2000;
const WHILE: Duration = Duration::from_secs(3);
/// How many times of echoes are kept.
const KEPT: usize = 100_000;

/// The 99th percentile of the time of echoes, one after another; of the last [`KEPT`] if there are more.
pub(crate) async fn echoes(peer: Peer, go_on: impl Fn(usize) -> bool) -> Duration {
    // Allocated completely before memory is read.
    let mut times = vec![Duration::ZERO; KEPT];
    let mut done = 0;
    while go_on(done) {
        let since = Instant::now();
        let answer = in_time("I13: an echo", peer.call::<_, Value>("echo", &json!([done]))).await;
        assert_eq!(answer.expect("an echo"), json!([done]));
        times[done % KEPT] = since.elapsed();
        done += 1;
    }
    times.truncate(done);
    times.sort_unstable();
    times.get(times.len() * 99 / 100).copied().unwrap_or_default()
}

/// The same while as many threads as in a flood, the attacker's and one that serves it, do other work. The waits for
/// a core that the system causes are then in both values.
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

/// Enough echoes, and enough time, that the waits for a core that the system causes are included: it gives a core
/// away for milliseconds, which one echo in a hundred then waits for.
fn for_a_while() -> impl Fn(usize) -> bool {
    let since = Instant::now();
    move |done| done < ECHOES || TIMED && since.elapsed() < WHILE
}

fn together_over(wire: &Wire) -> usize {
    match wire.kind {
        Kind::Connection => 1,
        Kind::Conversation => TOGETHER,
    }
}

/// Sends the requests `first` to `first + together`, and their cancels. With more than one request, the cancels are
/// sent after the requests are taken in, and the answers are awaited.
async fn some_pairs(
    stranger: &mut RawClient,
    first: usize,
    together: usize,
    are_taken_in: impl FnMut() -> bool,
) {
    for n in first..first + together {
        stranger.request(&json!(n), "deaf", &json!({})).await;
    }
    let open = |heard: usize| first + together - heard.min(first);
    if open(stranger.heard()) > OPEN {
        stranger.flush().await;
        until("I1: refusals are answered", || open(stranger.heard()) <= OPEN / 2).await;
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

/// The same at the time of a flood of the same frames that is served without this library.
async fn echoes_beside_the_floor(peer: Peer, door: &mut Door, limits: &Limits, together: usize) -> Duration {
    let serve = |link| tokio::spawn(serve_bare(link, limits.max_running_handlers, limits.cancel_grace));
    let (mut stranger, serving) = RawClient::meet_with(door, serve, Hears::Counts).await;
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
    let least = million_over(&wire);
    let alive = Alive::default();
    let mut limits: Limits = limits();
    // A handler that ignores its cancel is aborted after this. A shorter grace starts more handlers.
    limits.cancel_grace = Duration::from_millis(20);
    if wire.kind == Kind::Conversation {
        limits.max_running_handlers = RUNNING;
    }
    let mut door = wire.listen(kept_open()).await;
    let (mut stranger, server) = RawClient::meet(&mut door, router(&alive), &limits, Hears::Counts).await;
    let (client, other) = open_at(&mut door, &crate::agent::limits()).await;
    // A debug build checks no times, so it needs none to compare with.
    let quiet = if TIMED { quiet_echoes(client.peer.clone()).await } else { Duration::ZERO };
    let over = Arc::new(AtomicBool::new(false));
    let (is_over, asks) = (Arc::clone(&over), client.peer.clone());
    let beside = tokio::spawn(echoes(asks, move |done| done < ECHOES || !is_over.load(Ordering::SeqCst)));
    let mut memory = Memory::begin();
    let since = Instant::now();
    let together = together_over(&wire);
    // First the maximum number of handlers, so that the limit is reached on a slow machine too. Then the flood.
    let filling = together.max(limits.max_running_handlers);
    some_pairs(&mut stranger, 0, filling, || server.stats().slots == filling as u64).await;
    let mut count = filling;
    while count < least || TIMED && since.elapsed() < WHILE {
        some_pairs(&mut stranger, count, together, || server.stats().slots == together as u64).await;
        memory.look(count);
        count += together;
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
    assert_eq!(most, limits.max_running_handlers, "the flood comes up to the limit, I10 not over it");
    is_clean(&server, &alive).await;
    until("I1: each request is answered once", || stranger.heard() == count + 1).await;
    stranger.leave();
    in_time("L3: the end", server.shutdown(Duration::ZERO)).await;
    is_clean(&server, &alive).await;
    let floor = if TIMED {
        echoes_beside_the_floor(client.peer.clone(), &mut door, &limits, together).await
    } else {
        Duration::ZERO
    };
    close(&client, &other).await;
    eprintln!(
        "counted: others' p99 {loaded:?}; quiet it is {quiet:?}, beside a flood served without us {floor:?}"
    );
    // The limit is a multiple of the larger time: on a machine that is busy with other work, or with the same flood
    // served without this library.
    assert!(!TIMED || loaded <= quiet.max(floor) * SLOWER, "others' p99 is {loaded:?}");
}

// The floor: the flood is served by code that only handles frames. The waits of a second connection are then caused
// by the machine and the transport.

/// How many frames are read before other tasks have a turn, as in our driver.
const BATCH: usize = 16;

/// Starts a task for each request, as any server does, answers it when the task ends, and reads each cancel, until
/// the connection ends. A task ends after the grace of the flood's handlers. Above the handler limit, requests are
/// answered at once.
async fn serve_bare(link: Link, most: usize, grace: Duration) {
    let Link { mut rx, mut tx, .. } = link;
    let mut running = JoinSet::new();
    let mut read = 0;
    loop {
        let event = poll_fn(|cx| {
            let event = rx.as_mut().poll_event(cx);
            if event.is_pending() {
                let _ = tx.as_mut().poll_flush(cx);
            }
            event
        });
        let ended = tokio::select! {
            Some(ended) = running.join_next() => Some(ended.expect("it waits")),
            event = event => match event {
                Some(Ok(TransportEvent::Message(inbound))) if !is_request(&inbound) => {
                    if inbound.exchange.is_peers() {
                        tx.as_mut().finish_exchange(inbound.exchange, ExchangeEnd::Accepted);
                    }
                    None
                }
                // The first message opens the connection.
                Some(Ok(TransportEvent::Message(inbound))) if read > 0 && running.len() < most => {
                    running.spawn(async move {
                        tokio::time::sleep(grace).await;
                        inbound
                    });
                    None
                }
                Some(Ok(TransportEvent::Message(inbound))) => Some(inbound),
                Some(Ok(_)) => None,
                Some(Err(_)) | None => return,
            },
        };
        if let Some(ended) = ended {
            if send(&mut tx, answer(ended)).await.is_err() {
                return;
            }
        }
        read += 1;
        if read % BATCH == 0 {
            poll_fn(|cx| Poll::Ready(tx.as_mut().poll_flush(cx).is_ready())).await;
            tokio::task::yield_now().await;
        }
    }
}

/// Among the frames of a flood only requests have this member.
fn is_request(inbound: &Inbound) -> bool {
    inbound.body.windows(5).any(|bytes| bytes == b"\"id\":")
}

fn answer(inbound: Inbound) -> Outbound {
    let head = FrameInfo { kind: FrameKind::Answer, id: None, method: None, trace: None };
    let exchange = inbound.exchange;
    Outbound { body: inbound.body, exchange, lane: Lane::Data, head, last: exchange.is_peers() }
}

async fn send(tx: &mut Pin<Box<dyn Sender>>, out: Outbound) -> Result<(), TransportError> {
    poll_fn(|cx| match tx.as_mut().poll_ready(Lane::Data, cx) {
        Poll::Pending => {
            // Frames that are not flushed make no room.
            let _ = tx.as_mut().poll_flush(cx);
            tx.as_mut().poll_ready(Lane::Data, cx)
        }
        ready @ Poll::Ready(_) => ready,
    })
    .await?;
    tx.as_mut().start_send(out)
}

// Cancels that name nothing: unknown ids, invalid ids, and cancels whose requests never arrive.

/// The most memory that a flood of them may use.
const MEMORY: usize = MIB;
/// The most early cancels that are kept.
const PARKED: u64 = 256;
/// How many are sent before memory is read: as many as a debug build sends over HTTP afterwards, so that what a busy machine has
/// under way at once has been allocated. A debug build takes ten times as long for each.
pub(crate) const WARM_UP: usize = if cfg!(debug_assertions) { 2048 } else { 5000 };

async fn unknown_cancels(wire: Wire) {
    let count = million_over(&wire);
    let alive = Alive::default();
    let mut door = wire.listen(kept_open()).await;
    let (mut stranger, server) = RawClient::meet(&mut door, router(&alive), &limits(), Hears::Counts).await;
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
        // Too long to be an id.
        0 => json!(format!("{n} {long}")),
        1 => json!(format!("{n}")),
        _ => json!(n),
    };
    // The buffers of both ends, and the few early cancels that are kept, have reached their size.
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
    memory.is_within(MEMORY, "cancels for nothing");
    let stats = server.stats();
    assert_eq!((stats.slots, stats.calls), (0, 0), "I8: a table has an entry: {stats:?}");
    assert!(stats.parked_cancels <= PARKED, "I8: {stats:?}");
    assert_eq!(stranger.heard(), 1, "a cancel for nothing is not answered");
    stranger.request(&json!("after"), "echo", &json!({})).await;
    stranger.flush().await;
    until("the connection goes on", || stranger.heard() == 2).await;
    stranger.leave();
    in_time("L3: the end", server.shutdown(Duration::ZERO)).await;
}

async fn early_cancels(wire: Wire) {
    let count = million_over(&wire);
    let alive = Alive::default();
    let mut limits = limits();
    limits.early_cancel_timeout = Duration::from_secs(3600);
    let mut door = wire.listen(kept_open()).await;
    let (mut stranger, server) = RawClient::meet(&mut door, router(&alive), &limits, Hears::Keeps).await;
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
    memory.is_within(MEMORY, "early cancels");
    let id = json!(WARM_UP + count);
    stranger.request(&id, "echo", &json!({"n": 1})).await;
    let answer = stranger.hear().await;
    assert_eq!((&answer["id"], &answer["result"]), (&id, &json!({"n": 1})), "it runs");
    is_clean(&server, &alive).await;
    stranger.leave();
    in_time("L3: the end", server.shutdown(Duration::ZERO)).await;
}

// Cancels between sessions that have the same ids.

/// Sessions with the same ids.
const SESSIONS: usize = 64;
/// The number of requests of each session.
const SAME_IDS: usize = 2;
/// How many cancels one session sends before it waits until they have arrived.
const ON_THE_WAY: usize = 16;

/// Half of the sessions have running requests. The others have had requests with the same ids, and send cancels.
async fn cross_cancels(wire: Wire) {
    let mut door = wire.listen(kept_open()).await;
    let limits = limits();
    let (mut victims, mut attackers) = (Vec::new(), Vec::new());
    for at in 0..SESSIONS {
        let alive = Alive::default();
        let (mut stranger, server) = RawClient::meet(&mut door, router(&alive), &limits, Hears::Keeps).await;
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
                // Over HTTP/1.1 each cancel on its way has a connection.
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
    // Their own cancels have an effect.
    for (stranger, _, alive) in &mut victims {
        stranger.cancel(&json!(0)).await;
        stranger.flush().await;
        assert_eq!(stranger.hear().await["error"]["code"], -32_800);
        assert_eq!(alive.now.load(Ordering::SeqCst), SAME_IDS - 1);
    }
    for (stranger, server) in gone.into_iter().chain(victims.into_iter().map(|(s, p, _)| (s, p))) {
        stranger.leave();
        in_time("L3: the end", server.shutdown(Duration::ZERO)).await;
    }
}
