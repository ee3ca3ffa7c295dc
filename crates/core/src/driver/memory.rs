//! The bytes that a connection holds, as its budget counts them.

use crate::byte_budget::ByteBudget;
use crate::transport::Inbound;

/// The least change, in bytes, that is passed to the budget. Most steps change less and do not use what connections
/// share.
const REPORT_STEP: usize = 8 * 1024;
/// The approximate size of a request in addition to its frame, in bytes: its slots, its task, the state of its handler.
const REQUEST_BYTES: usize = 1024;

/// The bytes that a connection holds.
#[derive(Debug)]
pub(crate) struct Memory {
    budget: ByteBudget,
    /// The bytes that the budget counts for it.
    reported: usize,
    /// Bytes of requests that wait or run.
    requests: usize,
}

impl Memory {
    pub(crate) fn new(budget: &ByteBudget) -> Self {
        Self { budget: budget.clone(), reported: 0, requests: 0 }
    }

    /// A request was admitted.
    pub(crate) const fn request_came(&mut self, bytes: u32) {
        self.requests += bytes as usize;
    }

    /// A request has ended.
    pub(crate) const fn request_gone(&mut self, bytes: u32) {
        self.requests -= bytes as usize;
    }

    /// The answer of a request waits for room. From now on the request counts with the larger of its frame and its
    /// answer.
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

    /// Updates the budget at the end of each step. Returns the bytes that must be given back. The caller does that
    /// without the lock, because it wakes tasks.
    #[must_use]
    pub(crate) fn count(&mut self, held: usize) -> usize {
        let reported = self.reported;
        if held.abs_diff(reported) < REPORT_STEP && (held > 0 || reported == 0) {
            return 0;
        }
        self.reported = held;
        if held > reported {
            self.budget.add(held - reported);
        }
        reported.saturating_sub(held)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.budget.remove(self.reported);
    }
}

/// The bytes that a request counts.
pub(crate) fn bytes_of_request(inbound: &Inbound) -> u32 {
    u32::try_from(inbound.body.len().saturating_add(REQUEST_BYTES)).unwrap_or(u32::MAX)
}
