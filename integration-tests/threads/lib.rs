//! Runs a test in many orders of its threads, and what such tests share.

use std::any::Any;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use rescind_core::{
    CallContext, ExchangeId, FrameInfo, FrameKind, HandlerError, Lane, Outbound, Peer, Receiver, Router,
    TransportEvent,
};
use serde_json::{Value, json};
use shuttle::current::context_switches;
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::thread::{self, JoinHandle, yield_now};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use tokio::sync::watch;

/// The seed, so that the orders are the same each time.
const SEED: u64 = 0x5eed;
/// The number of random orders, unless `RESCIND_SCHEDULES` sets it.
const BY_CHANCE: usize = 1000;
/// The most thread changes in orders with few changes, of which there are a tenth as many.
const CHANGES: usize = 3;

/// The variable with the path of a file with the one order to run. The path is absolute, because cargo runs a test in
/// its package's folder.
const SCHEDULE: &str = "RESCIND_SCHEDULE";

/// Runs the test in random orders of its threads, and in orders with few changes of thread. `name`: that of the test,
/// with the name of its program as a prefix: `calls::drop_and_drop`. `hangs`: the number of the invariant that a hang
/// violates. A failure writes its schedule to a file, because it may be too long for a variable, and prints the
/// command that runs it again.
///
/// # Panics
/// If the test panics or hangs in one of the orders.
pub fn explore(name: &str, hangs: &str, test: impl Fn() + Send + Sync + Copy + 'static) {
    // The machine reads the time, but nothing here waits for it: the clock is paused.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let Ok(runtime) = runtime else { panic!("no runtime, so no clock") };
    // The runtime is never dropped: after a failure the drop would wake tasks of an order that is over, which would
    // end the process without a message.
    let runtime = Box::leak(Box::new(runtime));
    let _clock = runtime.enter();
    let test = move || {
        test();
        rest();
    };
    let tried = Tried { name, hangs };
    if let Ok(file) = std::env::var(SCHEDULE) {
        let schedule = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        tried.run(ReplayScheduler::new_from_encoded(schedule.trim()), test);
        return;
    }
    let wanted = std::env::var("RESCIND_SCHEDULES").ok().and_then(|count| count.parse().ok());
    let by_chance = wanted.unwrap_or(BY_CHANCE);
    let orders = tried.run(RandomScheduler::new_from_seed(SEED, by_chance), test)
        + tried.run(PctScheduler::new_from_seed(SEED, CHANGES, by_chance / 10 + 1), test);
    assert_eq!(
        orders,
        by_chance + by_chance / 10 + 1,
        "{name}: the time was up before all orders were tried"
    );
    println!("{name}: {orders} orders");
}

/// Runs the remaining tasks until they wait: a task that is dropped while another one holds a lock and waits for its
/// turn could not end.
fn rest() {
    let mut alone = 0;
    while alone < 32 {
        let before = context_switches();
        yield_now();
        alone = if context_switches() == before + 1 { alone + 1 } else { 0 };
    }
}

struct Tried<'a> {
    name: &'a str,
    hangs: &'a str,
}

impl Tried<'_> {
    fn run(&self, scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) -> usize {
        let folder = schedules();
        let before = files(&folder);
        let mut config = Config::new();
        config.stack_size = 512 * 1024;
        config.max_steps = MaxSteps::FailAfter(100_000);
        config.max_time = Some(Duration::from_secs(60));
        config.silence_warnings = true;
        config.failure_persistence = FailurePersistence::File(Some(folder.clone()));
        let ran = catch_unwind(AssertUnwindSafe(|| Runner::new(scheduler, config).run(test)));
        ran.unwrap_or_else(|panic| {
            let new: Vec<_> = files(&folder).difference(&before).cloned().collect();
            self.tell(&*panic, &new);
            resume_unwind(panic)
        })
    }

    /// Prints the invariant that a hang violates, and the command that runs the order again from the repository's
    /// root.
    fn tell(&self, panic: &(dyn Any + Send), new: &[PathBuf]) {
        let Self { name, hangs } = self;
        let said = panic.downcast_ref::<String>().map_or("", String::as_str);
        if said.contains("deadlock") || said.contains("max_steps") {
            eprintln!("{hangs} is broken: {name} hangs in this order of its threads");
        }
        let file = match new {
            [file] => file.display().to_string(),
            // Other tests failed at the same time.
            _ => "<the file named above>".to_owned(),
        };
        let (program, test) = name.split_once("::").unwrap_or(("", name));
        eprintln!(
            "{name} failed. To run this order again: {SCHEDULE}={file} cargo test --manifest-path integration-tests/threads/Cargo.toml \
             --test {program} -- --exact {test}"
        );
    }
}

/// The folder of schedules, next to this program.
fn schedules() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_else(|error| panic!("this program is nowhere: {error}"));
    let folder = program.with_file_name("schedules");
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    folder
}

fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.path().canonicalize().ok()).collect()
}

/// Makes a test of each line, which runs in many orders of its threads: `tests! { "I13"; name: expression; }`, with
/// the number of the invariant that a hang violates.
#[macro_export]
macro_rules! tests {
    ($hangs:literal; $($name:ident: $test:expr;)*) => {
        $(#[test]
        fn $name() {
            $crate::explore(concat!(module_path!(), "::", stringify!($name)), $hangs, || $test);
        })*
    };
}

/// Makes a test of each pair: `play` with both, in many orders of their threads.
#[macro_export]
macro_rules! pairs {
    ($hangs:literal; $($name:ident: $first:ident, $second:ident;)*) => {
        $crate::tests! { $hangs; $($name: play($first, $second);)* }
    };
}

// The threads, the handler and the frames of every test of threads.

/// The threads of a test.
#[derive(Debug, Default)]
pub struct Threads(Vec<JoinHandle<()>>);

impl Threads {
    /// Starts one more.
    pub fn spawn(&mut self, run: impl FnOnce() + Send + 'static) {
        self.0.push(thread::spawn(run));
    }

    /// Starts one that opens the gate.
    pub fn open(&mut self, gate: watch::Sender<bool>) {
        self.spawn(move || {
            gate.send_replace(true);
        });
    }

    /// Waits for all of them.
    ///
    /// # Panics
    /// If one of them did.
    pub fn join(self) {
        for thread in self.0 {
            assert!(thread.join().is_ok(), "a thread panicked");
        }
    }
}

/// A server whose method `work` waits until its gate is open, or for its cancel. It can send a notification first.
pub fn gated(gate: watch::Receiver<bool>, ticks: bool) -> Router {
    Router::new()
        .method("initialize", |_: CallContext, _: Value| async {
            Ok::<_, HandlerError>(json!({"protocolVersion": 1}))
        })
        .method("work", move |context: CallContext, _: Value| {
            let gate = gate.clone();
            async move {
                if ticks {
                    let _ = context.try_notify("tick", &json!({}));
                }
                until_open(context, gate, json!("done")).await
            }
        })
}

/// Waits until the gate is open, or for the cancel.
///
/// # Errors
/// If the request is cancelled first.
pub async fn until_open(
    context: CallContext,
    mut gate: watch::Receiver<bool>,
    done: Value,
) -> Result<Value, HandlerError> {
    tokio::select! {
        biased;
        cause = context.cancelled() => Err(HandlerError::stopped(cause)),
        _ = gate.wait_for(|open| *open) => Ok(done),
    }
}

/// Waits until nothing of a request is left at the peer. A hang is detected.
pub fn until_free(peer: &Peer) {
    while peer.stats().slots > 0 {
        thread::yield_now();
    }
}

/// A frame as a peer's driver would send it.
#[must_use]
pub fn frame(kind: FrameKind, body: &Value) -> Outbound {
    Outbound {
        body: body.to_string().into(),
        exchange: ExchangeId::NONE,
        lane: Lane::Data,
        head: FrameInfo { kind, id: None, method: None, trace: None },
        last: false,
    }
}

/// The next message. `None` at the end.
pub async fn next(rx: &mut Pin<Box<dyn Receiver>>) -> Option<Value> {
    loop {
        match poll_fn(|cx| rx.as_mut().poll_event(cx)).await {
            Some(Ok(TransportEvent::Message(inbound))) => return serde_json::from_slice(&inbound.body).ok(),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return None,
        }
    }
}
