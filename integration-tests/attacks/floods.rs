//! A peer that sends requests and cancels without end, on each wire: which handlers are alive, what is kept, and
//! whether others are served.

mod cross_session;
mod pairs;
mod unknown_cancels;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libtest_mimic::Trial;
use rescind::{CallContext, Peer, Router};
use serde_json::{Value, json};

use crate::flood_sizes::counting;
use crate::held::resident;
use crate::until;
use crate::wires::{Setting, WIRES, Wire};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    // ACP's binding posts one frame after another, so a flood over it is not one.
    for wire in WIRES.into_iter().filter(|wire| wire.name != "http-acp") {
        let name = format!("floods::pairs_of_request_and_cancel::{}", wire.name);
        trials.extend(counting(name, move || async move { on_two_workers(move || pairs::pairs(wire)) }));
    }
    for wire in floodable() {
        let name = format!("floods::cancels_for_unknown_ids::{}", wire.name);
        trials.extend(counting(name, move || unknown_cancels::unknown(wire)));
        let name = format!("floods::cross_cancels_between_64_sessions::{}", wire.name);
        trials.extend(counting(name, move || cross_session::cross(wire)));
    }
    let http = floodable().find(|wire| wire.name == "http-streamable").expect("HTTP is a wire");
    trials
        .extend(counting("floods::early_cancels_then_one_request::http-streamable".to_owned(), move || {
            unknown_cancels::early(http)
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
fn floodable() -> impl Iterator<Item = Wire> {
    WIRES.into_iter().filter(|wire| !matches!(wire.name, "http2-streamable" | "http-acp"))
}

/// How many handlers exist, regardless of the machine's counters.
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

fn kept_open() -> Setting {
    Setting { idle: Duration::from_secs(3600), ..Setting::default() }
}

/// The memory at the beginning, and the most after that.
struct Memory {
    begun: usize,
    most: usize,
}

impl Memory {
    /// The process has by now allocated what it needs once.
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

async fn is_clean(peer: &Peer, alive: &Alive) {
    until("I3: nothing is left", || {
        let stats = peer.stats();
        (stats.slots, stats.running, stats.queued, stats.draining) == (0, 0, 0, 0)
            && alive.now.load(Ordering::SeqCst) == 0
    })
    .await;
}
