//! How many times an attack is played: the number of the table in a release build, less in a debug build, which takes ten
//! times as long for each. `.ci/threats` runs the release build.

use std::future::Future;

use libtest_mimic::Trial;

use crate::alone;

/// The million of the table.
pub(crate) const MILLION: usize = if cfg!(debug_assertions) { 5_000 } else { 1_000_000 };
/// What a wall clock says holds in a release build only.
pub(crate) const TIMED: bool = !cfg!(debug_assertions);
/// In bytes.
pub(crate) const MIB: usize = 1 << 20;

/// Whether this system tells a process what it holds.
const IS_TOLD: bool = cfg!(target_os = "linux");

/// A trial that counts what its process holds, in a process of its own. Where no system tells that, it is ignored and its name
/// says why.
pub(crate) fn counting<F>(name: String, test: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()>,
{
    if IS_TOLD {
        return alone(name, test);
    }
    let name = format!("{name} (this system does not tell what a process holds)");
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

/// The descriptors this process has open.
pub(crate) fn descriptors() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("the system tells").count();
    assert!(open > 0, "this one at least");
    open
}
