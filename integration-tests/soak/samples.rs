//! What this program holds: the counts of its heap, and the samples of each second.

use std::alloc::System;
use std::time::Duration;

use rescind::{CallError, Peer, ServerCounts};
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

// Every allocation of this program is counted, to find those that are alive. The pages that the system keeps for a
// process hide a leak of a few bytes for each request; these counts do not.

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The method that returns the counts of a child.
pub(crate) const HELD: &str = "held";

/// Allocations that are alive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

impl Held {
    /// The counts of this process.
    pub(crate) fn now() -> Self {
        let stats = HEAP.stats();
        let alive = |taken: usize, given_back: usize| taken.saturating_sub(given_back) as u64;
        Self {
            bytes: alive(stats.bytes_allocated, stats.bytes_deallocated),
            blocks: alive(stats.allocations, stats.deallocations),
        }
    }

    /// The smaller of each count.
    pub(crate) fn least(self, other: Self) -> Self {
        Self { bytes: self.bytes.min(other.bytes), blocks: self.blocks.min(other.blocks) }
    }

    /// The answer of a child to [`HELD`].
    pub(crate) fn reported(self) -> Value {
        json!([self.bytes, self.blocks])
    }

    /// Adds the counts of a child.
    pub(crate) async fn and_of(self, child: &Peer) -> Result<Self, CallError> {
        let [bytes, blocks]: [u64; 2] = child.call(HELD, &json!({})).await?;
        Ok(Self { bytes: self.bytes + bytes, blocks: self.blocks + blocks })
    }
}

// The sampled values of each second, and their evaluation.

/// One sample.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// The time since the run began.
    pub(crate) at: Duration,
    /// Resident memory, in bytes. Over stdio it includes the lasting child's.
    pub(crate) memory: u64,
    /// Open descriptors. Over stdio they include the lasting child's.
    pub(crate) descriptors: u64,
    pub(crate) tasks: u64,
    /// Requests and calls at either end.
    pub(crate) slots: u64,
    /// The server's counts over all its connections.
    pub(crate) running: u64,
    pub(crate) draining: u64,
    pub(crate) sessions: u64,
}

impl Sample {
    /// `None` if the system does not report the memory of a process, or the child is gone.
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

    /// The values that must return to their initial value, by name.
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

    /// Whether all values are as `before`.
    pub(crate) fn is_back(&self, before: &Self) -> bool {
        self.counts().iter().zip(before.counts()).all(|((_, now), (_, before))| *now <= before)
    }
}

/// How much memory may grow from the third quarter of a run to the last, in bytes and as a part of the memory:
/// allocators keep memory, and the number of requests at one moment is random.
const MEMORY: u64 = 3 << 20;
const MEMORY_PART: u64 = 20;

/// The highest allowed memory of the process, in bytes: the server's 256 MiB, and half of that again for the clients'
/// ends in the same process and for the allocator.
const PEAK: u64 = 384 << 20;

/// A server fails if it refuses more than one in this many requests of good peers as overloaded, while others flood
/// it.
const OVERLOADED: u64 = 2;

/// How much more may be alive after the second load than after the first, independent of the number of calls. The
/// size of the buffers that stay is random: some hundred KiB in a few blocks. A leak of one allocation for each call
/// is visible from 500 calls on, and one of 64 bytes in a table from 8192 on; a minute makes tens of thousands of
/// calls. The second load is twice as long as the first, so that a table that only grows has grown again by then.
const ALIVE: Held = Held { bytes: 512 << 10, blocks: 500 };

/// Compares the heap after the second load with the heap after the first.
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

/// Whether so many of `asked` were refused as overloaded that the server counts as not serving.
pub(crate) fn refused(overloaded: u64, asked: u64) -> Option<String> {
    (overloaded > asked / OVERLOADED).then(|| {
        format!("I10: {overloaded} of {asked} calls and handshakes of good peers were refused as overloaded")
    })
}

/// The values that grew, and by how much. Empty if none did. `before`: before any peer came. `after`: some time after
/// the last one has gone.
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
    fn constant_values_and_a_warm_up_do_not_count_as_growth() {
        let nothing = Sample::default();
        assert!(growth(&run(|_| 40 << 20), &nothing, &nothing).is_empty());
        assert!(growth(&run(|at| (40 << 20) + at.min(30) * (1 << 20)), &nothing, &nothing).is_empty());
    }

    #[test]
    fn each_kind_of_growth_is_reported_with_its_number() {
        let nothing = Sample::default();
        let leak = growth(&run(|at| (40 << 20) + at * (300 << 10)), &nothing, &nothing);
        assert!(
            leak.len() == 1 && leak.iter().all(|reported| reported.starts_with("I11: memory")),
            "{leak:?}"
        );
        let peak = growth(&run(|at| if at == 10 { 400 << 20 } else { 40 << 20 }), &nothing, &nothing);
        assert!(
            peak.len() == 1 && peak.iter().all(|reported| reported.starts_with("I11: memory rose")),
            "{peak:?}"
        );
        let after =
            Sample { descriptors: 2, tasks: 1, slots: 7, running: 3, draining: 4, sessions: 5, ..nothing };
        let left = growth(&run(|_| 1), &nothing, &after);
        let reported = [
            "2 descriptors",
            "1 tasks",
            "7 requests and calls",
            "3 places for handlers",
            "4 handlers that drain",
            "5 sessions",
        ];
        assert!(
            left.len() == reported.len()
                && left
                    .iter()
                    .zip(reported)
                    .all(|(left, reported)| left.starts_with(&format!("I3: {reported}"))),
            "{left:?}"
        );
    }

    #[test]
    fn an_entry_left_by_each_call_is_reported_and_a_table_that_was_once_larger_is_not() {
        let first = Held { bytes: 1 << 20, blocks: 5000 };
        let fuller = Held { bytes: first.bytes + (400 << 10), blocks: first.blocks + 100 };
        assert!(leaked(first, fuller).is_empty());
        let left = Held { bytes: first.bytes + 64 * 10_000, blocks: first.blocks + 10_000 };
        assert_eq!(leaked(first, left).len(), 2);
    }

    #[test]
    fn a_server_that_serves_few_requests_is_reported() {
        assert_eq!((refused(0, 0), refused(50, 100)), (None, None));
        let reported =
            |refused: Option<String>| refused.is_some_and(|reported| reported.starts_with("I10: "));
        assert!(reported(refused(51, 100)) && reported(refused(1, 1)));
    }
}
