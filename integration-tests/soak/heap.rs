//! Every allocation of this program, counted: what is alive of them. A page that the system keeps for a process hides a leak of a
//! few bytes a request; this does not.

use std::alloc::System;

use rescind::{CallError, Peer};
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The method by which a child is asked.
pub(crate) const HELD: &str = "held";

/// Allocations that are alive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

impl Held {
    /// Of this process.
    pub(crate) fn now() -> Self {
        let stats = HEAP.stats();
        let alive = |taken: usize, given_back: usize| taken.saturating_sub(given_back) as u64;
        Self {
            bytes: alive(stats.bytes_allocated, stats.bytes_deallocated),
            blocks: alive(stats.allocations, stats.deallocations),
        }
    }

    /// The less of either.
    pub(crate) fn least(self, other: Self) -> Self {
        Self { bytes: self.bytes.min(other.bytes), blocks: self.blocks.min(other.blocks) }
    }

    /// As a child answers [`HELD`].
    pub(crate) fn told(self) -> Value {
        json!([self.bytes, self.blocks])
    }

    /// With what a child has.
    pub(crate) async fn and_of(self, child: &Peer) -> Result<Self, CallError> {
        let [bytes, blocks]: [u64; 2] = child.call(HELD, &json!({})).await?;
        Ok(Self { bytes: self.bytes + bytes, blocks: self.blocks + blocks })
    }
}
