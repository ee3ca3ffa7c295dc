//! Every allocation of this program is counted, to find those that are alive. The pages that the system keeps for a
//! process hide a leak of a few bytes for each request; these counts do not.

use std::alloc::System;

use rescind::{CallError, Peer};
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

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
