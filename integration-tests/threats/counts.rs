//! How many times an attack is played: the number of the table in a release build, less in a debug build, which takes ten
//! times as long for each. `.ci/threats` runs the release build.

/// The million of the table.
pub(crate) const MILLION: usize = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
/// What a wall clock says holds in a release build only.
pub(crate) const TIMED: bool = !cfg!(debug_assertions);
/// In bytes.
pub(crate) const MIB: usize = 1 << 20;

/// This process's resident memory, in bytes; 0 where the system does not tell.
pub(crate) fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0) * 1024
}

/// The descriptors this process has open.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
