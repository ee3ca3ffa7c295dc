//! Runs a test in many orders of its threads.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use shuttle::current::context_switches;
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::thread::yield_now;
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// The same orders each time.
const SEED: u64 = 0x5eed;
/// Orders by chance, unless `RESCIND_SCHEDULES` says how many.
const BY_CHANCE: usize = 1000;
/// Orders with few changes of thread, a tenth as many.
const CHANGES: usize = 3;

/// With a file's path, which is absolute as cargo runs a test in its package's folder: the one order to run.
const SCHEDULE: &str = "RESCIND_SCHEDULE";

/// Runs the test in orders of its threads that chance picks, and in orders with few changes of thread. `name` is the test's in its
/// program, behind the program's: `calls::drop_and_drop`; `hangs` is the number of the invariant that a hang breaks. A failure leaves
/// its schedule in a file, as it may be too long for a variable, and prints the command that runs that one again.
///
/// # Panics
/// The test does, or hangs, in one of the orders.
pub fn explore(name: &str, hangs: &str, test: impl Fn() + Send + Sync + Copy + 'static) {
    // The machine asks for the time, and nothing here waits for it: the clock stands still.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let Ok(runtime) = runtime else { panic!("no runtime, so no clock") };
    // It is never dropped: behind a failure it would wake tasks of an order that is over, which ends the process with nothing told.
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

/// Lets tasks that are left over come to where they wait: one that is dropped while another one waits for its turn with a lock
/// in hand could not end.
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

    /// What a hang breaks, and how to run the order again from the repository's root.
    fn tell(&self, panic: &(dyn Any + Send), new: &[PathBuf]) {
        let Self { name, hangs } = self;
        let said = panic.downcast_ref::<String>().map_or("", String::as_str);
        if said.contains("deadlock") || said.contains("max_steps") {
            eprintln!("{hangs} is broken: {name} hangs in this order of its threads");
        }
        let file = match new {
            [file] => file.display().to_string(),
            // Others failed at the same time.
            _ => "<the file named above>".to_owned(),
        };
        let (program, test) = name.split_once("::").unwrap_or(("", name));
        eprintln!(
            "{name} failed. To run this order again: {SCHEDULE}={file} cargo test --manifest-path integration-tests/threads/Cargo.toml \
             --test {program} -- --exact {test}"
        );
    }
}

/// Where schedules are left: beside this program.
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

/// Makes a test of each line, which is run in many orders of its threads: `tests! { "I13"; name: expression; }`, with the number of
/// the invariant that a hang breaks.
#[macro_export]
macro_rules! tests {
    ($hangs:literal; $($name:ident: $test:expr;)*) => {
        $(#[test]
        fn $name() {
            $crate::explore(concat!(module_path!(), "::", stringify!($name)), $hangs, || $test);
        })*
    };
}

/// Makes a test of each pair: `play` of the two, in many orders of their threads.
#[macro_export]
macro_rules! pairs {
    ($hangs:literal; $($name:ident: $first:ident, $second:ident;)*) => {
        $crate::tests! { $hangs; $($name: play($first, $second);)* }
    };
}
