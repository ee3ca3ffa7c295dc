//! The memory and descriptors of a process, as the system reports them.

use std::fs;

/// The path of a file about this process, or about a child process with this id.
fn proc_field(process: Option<u32>, what: &str) -> String {
    match process {
        None => format!("/proc/self/{what}"),
        Some(id) => format!("/proc/{id}/{what}"),
    }
}

/// Resident memory in bytes, of this process (`None`) or of the process with that id. Returns `None` if the system
/// does not report it as Linux does, or if there is no such process.
#[must_use]
pub fn resident_memory(process: Option<u32>) -> Option<u64> {
    let status = fs::read_to_string(proc_field(process, "status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// The number of open descriptors of this process (`None`) or of the process with that id. Returns `None` as
/// [`resident_memory`] does.
#[must_use]
pub fn open_descriptors(process: Option<u32>) -> Option<u64> {
    Some(fs::read_dir(proc_field(process, "fd")).ok()?.count() as u64)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_stats_of_this_process_are_the_same_by_its_id() {
        let held = resident_memory(None).unwrap();
        let by_id = resident_memory(Some(std::process::id())).unwrap();
        assert!(held > 0 && by_id.abs_diff(held) < 64 << 20, "{held} and {by_id} bytes");
        assert!(open_descriptors(Some(std::process::id())).unwrap() > 0);
    }

    #[test]
    fn a_missing_process_has_no_stats() {
        assert_eq!(resident_memory(Some(u32::MAX)), None);
        assert_eq!(open_descriptors(Some(u32::MAX)), None);
    }
}
