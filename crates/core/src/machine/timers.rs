//! What is due when. Every entry can be taken out again, so the set is as large as what waits, never larger (I3).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::id::{InboundKey, OutboundKey};

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A request waited too long for a permit.
    Queue(InboundKey),
    /// A signalled handler had its grace.
    Grace(InboundKey),
    /// A shield held a cancel off long enough.
    Shield(InboundKey),
    /// A lost stream was not taken up again.
    Detach(InboundKey),
    /// A call's own deadline.
    Deadline(OutboundKey),
    /// The peer had its time to answer a cancelled call.
    PeerWait(OutboundKey),
    /// The connection's own: half-close, drain, grace, detach. One at a time.
    Lifecycle,
}

/// What is further off than this never comes: a limit may be as long as a `Duration` can be.
const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The end of a time that begins now.
pub(super) fn later(now: Instant, time: Duration) -> Instant {
    now.checked_add(time).unwrap_or(now + NEVER)
}

#[derive(Clone, Debug, Default)]
pub(super) struct Timers(BTreeSet<(Instant, Timer)>);

impl Timers {
    pub(super) fn set(&mut self, at: Instant, timer: Timer) {
        self.0.insert((at, timer));
    }

    pub(super) fn clear(&mut self, at: Option<Instant>, timer: Timer) {
        if let Some(at) = at {
            self.0.remove(&(at, timer));
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Timer> {
        let (at, _) = self.0.first()?;
        if *at > now {
            return None;
        }
        self.0.pop_first().map(|(_, timer)| timer)
    }

    #[cfg(feature = "verify")]
    pub(super) fn inspect(&self) -> impl Iterator<Item = (Instant, Timer)> {
        self.0.iter().copied()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
