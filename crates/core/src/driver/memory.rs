//! The bytes that a connection holds, as its budget counts them.

use crate::byte_budget::ByteBudget;
use crate::transport::Inbound;

/// The budget is told of a change of at least so many bytes. Most steps change less, and touch nothing that connections share.
const STEP: usize = 8 * 1024;
/// About what a request takes beside its frame, in bytes: its slots, its task, its handler's own state.
const REQUEST: usize = 1024;

/// What a connection holds.
#[derive(Debug)]
pub(crate) struct Memory {
    budget: ByteBudget,
    /// Bytes the budget knows of.
    told: usize,
    /// Bytes of requests that wait or run.
    requests: usize,
}

impl Memory {
    pub(crate) fn new(budget: &ByteBudget) -> Self {
        Self { budget: budget.clone(), told: 0, requests: 0 }
    }

    /// A request was taken in.
    pub(crate) const fn request_came(&mut self, bytes: u32) {
        self.requests += bytes as usize;
    }

    /// A request is gone.
    pub(crate) const fn request_gone(&mut self, bytes: u32) {
        self.requests -= bytes as usize;
    }

    /// The answer of a request waits for room. From now on the request counts for whichever is larger, its frame or its answer.
    pub(crate) fn answer_waits(&mut self, held: &mut u32, answer: usize) {
        let answer = u32::try_from(answer).unwrap_or(u32::MAX);
        if answer > *held {
            self.requests += (answer - *held) as usize;
            *held = answer;
        }
    }
}

impl Memory {
    /// Bytes of requests that wait or run.
    pub(crate) const fn of_requests(&self) -> usize {
        self.requests
    }

    /// Tells the budget at the end of each step what the connection holds. Returns the bytes that are to be given back: the caller does
    /// that without the lock, as it wakes others.
    #[must_use]
    pub(crate) fn count(&mut self, held: usize) -> usize {
        let told = self.told;
        if held.abs_diff(told) < STEP && (held > 0 || told == 0) {
            return 0;
        }
        self.told = held;
        if held > told {
            self.budget.add(held - told);
        }
        told.saturating_sub(held)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.budget.remove(self.told);
    }
}

/// What a request counts for, in bytes.
pub(crate) fn bytes_of_request(inbound: &Inbound) -> u32 {
    u32::try_from(inbound.body.len().saturating_add(REQUEST)).unwrap_or(u32::MAX)
}
