//! How many times an attack is played: the number of the table in a release build, less in a debug build, which takes ten
//! times as long for each. `.ci/threats` runs the release build with `RESCIND_THREATS_SHORT=1`, a tenth of each flood; `.ci/nightly
//! threats` plays all. `RESCIND_THREATS_FULL=1` plays a million over HTTP too, which takes a quarter of an hour for each trial there.

use std::future::Future;
use std::time::Duration;

use libtest_mimic::Trial;

use crate::alone;
use crate::wires::{Kind, Wire};

/// Set to `1` it asks for the million on every wire.
const FULL: &str = "RESCIND_THREATS_FULL";
/// Set to `1` it asks for a tenth.
const SHORT: &str = "RESCIND_THREATS_SHORT";

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}

/// The million of the table. Over HTTP, where each frame is a POST with a response of its own, it is as many as take about 40 s of two
/// cores, unless [`FULL`] asks for all. Whole turns of `pairs::TOGETHER`, all of them.
pub(crate) fn million_over(wire: &Wire) -> usize {
    match (cfg!(debug_assertions), wire.kind) {
        _ if is_set(FULL) => 1_000_000,
        (true, _) => 5_120,
        (false, Kind::Connection) if is_set(SHORT) => 102_400,
        (false, Kind::Conversation) if is_set(SHORT) => 10_240,
        (false, Kind::Connection) => 1_000_000,
        (false, Kind::Conversation) => 40_960,
    }
}

/// What a wall clock says holds in a release build only.
pub(crate) const TIMED: bool = !cfg!(debug_assertions);
/// In bytes.
pub(crate) const MIB: usize = 1 << 20;

/// Whether this system tells a process what it holds.
const IS_TOLD: bool = cfg!(target_os = "linux");

/// A trial that counts what its process holds, in a process of its own. Where no system tells that, none is made, which a line says
/// aloud. Nothing else here may ask `resident` or `descriptors`.
pub(crate) fn counting<F>(name: String, test: impl FnOnce() -> F + Send + 'static) -> Option<Trial>
where
    F: Future<Output = ()>,
{
    if IS_TOLD {
        return Some(alone(name, test));
    }
    eprintln!("threats: SKIPPED: {name} (this system does not tell what a process holds)");
    None
}

/// This process's resident memory, in bytes.
pub(crate) fn resident() -> usize {
    let held = rescind_testkit::resident_memory(None).expect("the system tells");
    usize::try_from(held).expect("no process holds more than it can address")
}

/// The descriptors this process has open. The losses ask for it, which are played on Unix.
#[cfg(unix)]
pub(crate) fn descriptors() -> usize {
    let open = rescind_testkit::open_descriptors(None).expect("the system tells");
    usize::try_from(open).expect("no process has so many")
}

/// What this thread had of a core since a first look at it. What others make it wait is not in it.
#[cfg(unix)]
pub(crate) fn spent() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(spent).expect("a clock that runs forward")
}

/// A wall clock, where none tells what a thread had.
#[cfg(not(unix))]
pub(crate) fn spent() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGUN.elapsed()
}
