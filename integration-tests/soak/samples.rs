//! What is looked at each second, and what the samples say.

use std::time::Duration;

/// One look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// Since the run began.
    pub(crate) at: Duration,
    /// Resident, in bytes; over stdio the lasting child's too.
    pub(crate) memory: u64,
    /// Open descriptors; over stdio the lasting child's too.
    pub(crate) descriptors: u64,
    pub(crate) tasks: u64,
    /// Requests and calls at either end.
    pub(crate) slots: u64,
}

impl Sample {
    pub(crate) fn now(at: Duration, tasks: usize, slots: u64, child: Option<u32>) -> Self {
        let processes = ["self".to_owned()].into_iter().chain(child.map(|child| child.to_string()));
        let (mut memory, mut descriptors) = (0, 0);
        for process in processes {
            memory += resident(&process);
            descriptors += open(&process);
        }
        Self { at, memory, descriptors, tasks: tasks as u64, slots }
    }
}

fn resident(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn open(process: &str) -> u64 {
    std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, |open| open.count() as u64)
}

/// Memory may grow by so much from the third quarter of a run to the last: allocators keep what they had, and how many requests
/// there are at one moment is chance. In bytes, and as a part of what there was.
const MEMORY: u64 = 3 << 20;
const MEMORY_PART: u64 = 20;

/// What grew, and by how much; nothing if all is well. `before` is from before any peer came, `after` from when the last one had
/// gone for a while.
pub(crate) fn growth(samples: &[Sample], before: &Sample, after: &Sample) -> Vec<String> {
    let mut grown = Vec::new();
    let third = median(samples, 2);
    let last = median(samples, 3);
    let most = third + MEMORY.max(third / MEMORY_PART);
    if last > most {
        let (by, allowed) = (last - third, most - third);
        grown.push(format!(
            "memory is not flat over the last half: {by} bytes more from its first part to its second, {allowed} are allowed"
        ));
    }
    for (what, before, after) in [
        ("descriptors", before.descriptors, after.descriptors),
        ("tasks", before.tasks, after.tasks),
        ("requests and calls", before.slots, after.slots),
    ] {
        if after > before {
            grown.push(format!("{} {what} are left: {before} before, {after} after", after - before));
        }
    }
    grown
}

/// The median of memory in this quarter of the run.
fn median(samples: &[Sample], quarter: usize) -> u64 {
    let from = samples.len() * quarter / 4;
    let to = samples.len() * (quarter + 1) / 4;
    let mut memory: Vec<u64> =
        samples.get(from..to).unwrap_or_default().iter().map(|sample| sample.memory).collect();
    memory.sort_unstable();
    memory.get(memory.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(memory: impl Fn(u64) -> u64) -> Vec<Sample> {
        let sample = |at| Sample { at: Duration::from_secs(at), memory: memory(at), ..Sample::default() };
        (0..60).map(sample).collect()
    }

    #[test]
    fn what_stays_the_same_or_only_warms_up_is_no_growth() {
        let nothing = Sample::default();
        assert!(growth(&run(|_| 40 << 20), &nothing, &nothing).is_empty());
        assert!(growth(&run(|at| (40 << 20) + at.min(30) * (1 << 20)), &nothing, &nothing).is_empty());
    }

    #[test]
    fn each_kind_of_growth_is_told_with_its_number() {
        let nothing = Sample::default();
        let leak = growth(&run(|at| (40 << 20) + at * (300 << 10)), &nothing, &nothing);
        assert!(leak.len() == 1 && leak.iter().all(|told| told.starts_with("memory")), "{leak:?}");
        let after = Sample { descriptors: 2, tasks: 1, slots: 7, ..nothing };
        let left = growth(&run(|_| 1), &nothing, &after);
        let told = ["2 descriptors", "1 tasks", "7 requests and calls"];
        assert!(
            left.len() == 3 && left.iter().zip(told).all(|(left, told)| left.starts_with(told)),
            "{left:?}"
        );
    }
}
