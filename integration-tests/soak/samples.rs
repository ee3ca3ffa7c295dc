//! What is looked at each second, and what the samples say.

use std::time::Duration;

use rescind::ServerCounts;

use crate::heap::Held;

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
    /// What the server counts over all its connections.
    pub(crate) running: u64,
    pub(crate) draining: u64,
    pub(crate) sessions: u64,
}

impl Sample {
    /// `None` where the system does not tell what a process holds, or the child is gone.
    pub(crate) fn now(
        at: Duration,
        tasks: usize,
        slots: u64,
        server: Option<&ServerCounts>,
        child: Option<u32>,
    ) -> Option<Self> {
        let processes = [None].into_iter().chain(child.map(Some));
        let (mut memory, mut descriptors) = (0, 0);
        for process in processes {
            memory += rescind_testkit::resident_memory(process)?;
            descriptors += rescind_testkit::open_descriptors(process)?;
        }
        let count = |of: fn(&ServerCounts) -> usize| server.map_or(0, of) as u64;
        let (running, draining) = (count(ServerCounts::running), count(ServerCounts::draining));
        let sessions = count(ServerCounts::sessions);
        Some(Self { at, memory, descriptors, tasks: tasks as u64, slots, running, draining, sessions })
    }

    /// What has to come back to where it was, by name.
    fn counts(&self) -> [(&'static str, u64); 6] {
        [
            ("descriptors", self.descriptors),
            ("tasks", self.tasks),
            ("requests and calls", self.slots),
            ("places for handlers", self.running),
            ("handlers that drain", self.draining),
            ("sessions", self.sessions),
        ]
    }

    /// All is as it was `before`.
    pub(crate) fn is_back(&self, before: &Self) -> bool {
        self.counts().iter().zip(before.counts()).all(|((_, now), (_, before))| *now <= before)
    }
}

/// Memory may grow by so much from the third quarter of a run to the last: allocators keep what they had, and how many requests
/// there are at one moment is chance. In bytes, and as a part of what there was.
const MEMORY: u64 = 3 << 20;
const MEMORY_PART: u64 = 20;

/// All of the process at any time, in bytes: the server's 256 MiB, and as much again by half for the clients' ends in the same process
/// and for the allocator.
const PEAK: u64 = 384 << 20;

/// A server that is too busy for more than one in so many of what good peers ask, while others flood it, is one that serves nobody.
const OVERLOADED: u64 = 2;

/// What is alive may be so much more after the second load than after the first, however many calls were made: how large the buffers
/// that stay once were is chance, some hundred KiB in a few blocks. An allocation left by each call is seen from 500 calls on, 64 bytes
/// more in a table from 8192 on; a minute makes tens of thousands. The second load is twice as long as the first, so that a table
/// that only grows has grown again by then.
const ALIVE: Held = Held { bytes: 512 << 10, blocks: 500 };

/// What is alive that was not before as many calls again.
pub(crate) fn leaked(first: Held, second: Held) -> Vec<String> {
    let mut leaked = Vec::new();
    for (what, first, second, allowed) in [
        ("bytes", first.bytes, second.bytes, ALIVE.bytes),
        ("blocks", first.blocks, second.blocks, ALIVE.blocks),
    ] {
        let by = second.saturating_sub(first);
        if by > allowed {
            leaked.push(format!(
                "I11: {by} {what} of the heap more are alive after the second load than after the first, {allowed} are allowed"
            ));
        }
    }
    leaked
}

/// Whether so many of `asked` were refused as overloaded that the server cannot be said to serve.
pub(crate) fn refused(overloaded: u64, asked: u64) -> Option<String> {
    (overloaded > asked / OVERLOADED).then(|| {
        format!("I10: {overloaded} of {asked} calls and handshakes of good peers were refused as overloaded")
    })
}

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
            "I11: memory is not flat over the last half: {by} bytes more from its first part to its second, {allowed} are allowed"
        ));
    }
    let peak = samples.iter().map(|sample| sample.memory).max().unwrap_or(0);
    if peak > PEAK {
        grown.push(format!("I11: memory rose to {peak} bytes, {PEAK} are allowed"));
    }
    for ((what, before), (_, after)) in before.counts().into_iter().zip(after.counts()) {
        if after > before {
            grown.push(format!("I3: {} {what} are left: {before} before, {after} after", after - before));
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
        assert!(leak.len() == 1 && leak.iter().all(|told| told.starts_with("I11: memory")), "{leak:?}");
        let peak = growth(&run(|at| if at == 10 { 400 << 20 } else { 40 << 20 }), &nothing, &nothing);
        assert!(peak.len() == 1 && peak.iter().all(|told| told.starts_with("I11: memory rose")), "{peak:?}");
        let after =
            Sample { descriptors: 2, tasks: 1, slots: 7, running: 3, draining: 4, sessions: 5, ..nothing };
        let left = growth(&run(|_| 1), &nothing, &after);
        let told = [
            "2 descriptors",
            "1 tasks",
            "7 requests and calls",
            "3 places for handlers",
            "4 handlers that drain",
            "5 sessions",
        ];
        assert!(
            left.len() == told.len()
                && left.iter().zip(told).all(|(left, told)| left.starts_with(&format!("I3: {told}"))),
            "{left:?}"
        );
    }

    #[test]
    fn an_entry_left_by_each_call_is_told_and_a_table_once_fuller_is_not() {
        let first = Held { bytes: 1 << 20, blocks: 5000 };
        let fuller = Held { bytes: first.bytes + (400 << 10), blocks: first.blocks + 100 };
        assert!(leaked(first, fuller).is_empty());
        let left = Held { bytes: first.bytes + 64 * 10_000, blocks: first.blocks + 10_000 };
        assert_eq!(leaked(first, left).len(), 2);
    }

    #[test]
    fn a_server_that_serves_few_is_told() {
        assert_eq!((refused(0, 0), refused(50, 100)), (None, None));
        let told = |refused: Option<String>| refused.is_some_and(|told| told.starts_with("I10: "));
        assert!(told(refused(51, 100)) && told(refused(1, 1)));
    }
}
