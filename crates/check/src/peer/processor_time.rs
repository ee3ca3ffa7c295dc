//! The processor time of a process group, as a witness that work stopped. Linux only.

use std::time::Duration;

/// The processor time that the processes of this group have used, those of ended children included. `None`: it cannot
/// be read on this system.
#[cfg(target_os = "linux")]
pub(super) fn of_group(leader: u32) -> Option<Duration> {
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    let mut ticks = 0;
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        // A process may end while the folder is read.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        ticks += ticks_of(&stat, leader).unwrap_or(0);
    }
    (ticks_per_second > 0).then(|| Duration::from_millis(ticks.saturating_mul(1_000) / ticks_per_second))
}

#[cfg(not(target_os = "linux"))]
pub(super) const fn of_group(_: u32) -> Option<Duration> {
    None
}

/// The ticks in a line of `/proc/PID/stat`, if the process belongs to the group.
#[cfg(target_os = "linux")]
fn ticks_of(stat: &str, group: u32) -> Option<u64> {
    // The name in parentheses may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // Numbered from the state, which is the third field of the line: the group is the fifth, and the times are the
    // fourteenth to the seventeenth.
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    if number(2)? != u64::from(group) {
        return None;
    }
    (11..=14).map(number).sum()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_process_and_its_ended_children_are_added() {
        let stat = "7 (a) b) R 1 42 42 0 -1 0 0 0 0 0 10 20 3 4 20 0 1 0 99 0 0";
        assert_eq!(ticks_of(stat, 42), Some(37));
        assert_eq!(ticks_of(stat, 43), None);
    }

    #[test]
    fn this_process_has_used_processor_time() {
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        let before = of_group(u32::try_from(group).unwrap()).unwrap();
        let mut sum = 0_u64;
        // Work until the counter moves, which it does every few milliseconds.
        while of_group(u32::try_from(group).unwrap()).unwrap() == before {
            for number in 0..100_000_u64 {
                sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(number));
            }
        }
        assert!(of_group(u32::try_from(group).unwrap()).unwrap() > before);
    }
}
