//! How many times an attack is played: the number of the table in a release build, and fewer in a debug build, which
//! takes ten times as long for each. `.ci/attacks` runs the release build with `RESCIND_ATTACKS_SHORT=1`, a tenth of
//! each flood; `.ci/nightly attacks` plays all. `RESCIND_ATTACKS_FULL=1` plays a million over HTTP too, which takes a
//! quarter of an hour for each trial there.

use std::future::Future;
use std::time::Duration;

use libtest_mimic::Trial;

use crate::alone;
use crate::held::IS_REPORTED;
use crate::wires::{Kind, Wire};

/// If set to `1`, plays the million on every wire.
const FULL: &str = "RESCIND_ATTACKS_FULL";
/// If set to `1`, plays a tenth.
const SHORT: &str = "RESCIND_ATTACKS_SHORT";

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}

/// The million of the table. Over HTTP, where each frame is a POST with a separate response, it is the number that
/// takes about 40 s of two cores, unless [`FULL`] is set. All of them are multiples of `pairs::TOGETHER`.
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

/// Times of a wall clock are checked in a release build only.
pub(crate) const TIMED: bool = !cfg!(debug_assertions);
/// In bytes.
pub(crate) const MIB: usize = 1 << 20;

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
