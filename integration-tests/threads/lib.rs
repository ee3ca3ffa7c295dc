//! Runs a test in many orders of its threads.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use shuttle::current::context_switches;
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::thread::yield_now;
use shuttle::{Config, MaxSteps, Runner};

/// The same orders each time.
const SEED: u64 = 0x5eed;
/// Orders by chance, unless `RESCIND_SCHEDULES` says how many.
const BY_CHANCE: usize = 1000;
/// Orders with few changes of thread, a tenth as many.
const CHANGES: usize = 3;

/// Runs the test in orders of its threads that chance picks, and in orders with few changes of thread. A hang is a failure. A
/// failure prints its schedule, and `RESCIND_SCHEDULE=<file with it> cargo test <name>` runs that one again: it may be too long for
/// a variable.
///
/// # Panics
/// The test does, or hangs, in one of the orders.
pub fn explore(name: &str, test: impl Fn() + Send + Sync + Copy + 'static) {
    // The machine asks for the time, and nothing here waits for it: the clock stands still.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let Ok(runtime) = runtime else { panic!("no runtime, so no clock") };
    let _clock = runtime.enter();
    let test = move || {
        test();
        rest();
    };
    if let Ok(file) = std::env::var("RESCIND_SCHEDULE") {
        let schedule = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        run(name, ReplayScheduler::new_from_encoded(schedule.trim()), test);
        return;
    }
    let wanted = std::env::var("RESCIND_SCHEDULES").ok().and_then(|count| count.parse().ok());
    let by_chance = wanted.unwrap_or(BY_CHANCE);
    let orders = run(name, RandomScheduler::new_from_seed(SEED, by_chance), test)
        + run(name, PctScheduler::new_from_seed(SEED, CHANGES, by_chance / 10 + 1), test);
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

fn run(name: &str, scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) -> usize {
    let mut config = Config::new();
    config.stack_size = 512 * 1024;
    config.max_steps = MaxSteps::FailAfter(100_000);
    config.max_time = Some(Duration::from_secs(60));
    config.silence_warnings = true;
    let ran = catch_unwind(AssertUnwindSafe(|| Runner::new(scheduler, config).run(test)));
    ran.unwrap_or_else(|panic| {
        eprintln!(
            "{name} failed. To run this order again: RESCIND_SCHEDULE=<file with the schedule above> cargo test {name}"
        );
        resume_unwind(panic)
    })
}

/// Makes a test of each pair: `play` of the two, in many orders of their threads.
#[macro_export]
macro_rules! pairs {
    ($($name:ident: $first:ident, $second:ident;)*) => {
        $(#[test]
        fn $name() {
            $crate::explore(stringify!($name), || play($first, $second));
        })*
    };
}
