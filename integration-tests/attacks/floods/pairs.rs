//! Pairs of request and cancel: the handler limit holds, and others are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rescind::{Limits, Peer};
use serde_json::{Value, json};

use super::{Alive, Memory, is_clean, kept_open, router};
use crate::agent::{close, limits, open_at};
use crate::bare_server;
use crate::flood_sizes::{MIB, TIMED, million_over};
use crate::raw_client::{Hears, RawClient};
use crate::wires::{Door, Kind, Wire};
use crate::{in_time, until};

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
async fn echoes(peer: Peer, go_on: impl Fn(usize) -> bool) -> Duration {
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
    let serve =
        |link| tokio::spawn(bare_server::serve(link, limits.max_running_handlers, limits.cancel_grace));
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

pub(super) async fn pairs(wire: Wire) {
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
