//! How many times an attack is played: the number of the table in a release build, less in a debug build, which takes ten
//! times as long for each. `.ci/threats` runs the release build.

use std::future::Future;
use std::time::Duration;

use libtest_mimic::Trial;

use crate::alone;
use crate::wires::{Kind, Wire};

/// The million of the table. Over HTTP, where each frame is a POST with a response of its own, it is as many as take about 40 s of two
/// cores. Whole turns of `floods::TOGETHER`, all of them.
pub(crate) fn million_over(wire: &Wire) -> usize {
    match (cfg!(debug_assertions), wire.kind) {
        (true, _) => 5_120,
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

/// A trial that counts what its process holds, in a process of its own. Where no system tells that, it is ignored, which its name
/// and a line say aloud. Nothing else here may ask `resident` or `descriptors`.
pub(crate) fn counting<F>(name: String, test: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()>,
{
    if IS_TOLD {
        return alone(name, test);
    }
    let name = format!("{name} (this system does not tell what a process holds)");
    eprintln!("threats: SKIPPED: {name}");
    Trial::test(name, || Ok(())).with_ignored_flag(true)
}

/// This process's resident memory, in bytes.
pub(crate) fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the system tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("memory is told");
    let kibibytes: usize =
        line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number");
    assert!(kibibytes > 0, "no process is empty");
    kibibytes * 1024
}

/// The descriptors this process has open. The losses ask for it, which are played on Unix.
#[cfg(unix)]
pub(crate) fn descriptors() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("the system tells").count();
    assert!(open > 0, "this one at least");
    open
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
