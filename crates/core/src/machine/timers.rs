//! The timers. Every timer can be removed, so the set never contains more than what waits (I3).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::id::{InboundKey, OutboundKey};

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A request has waited too long for a permit.
    Queue(InboundKey),
    /// The grace of a signalled handler has elapsed.
    Grace(InboundKey),
    /// The longest time of a shield has elapsed.
    Shield(InboundKey),
    /// A lost stream was not resumed.
    Detach(InboundKey),
    /// The deadline of a call.
    Deadline(OutboundKey),
    /// The peer did not answer a cancelled call in time.
    PeerWait(OutboundKey),
    /// The timer of the connection: half-close, drain, grace, detach. Only one of them at a time.
    Lifecycle,
}

/// A time later than this is never reached: a limit may be as long as the longest `Duration`.
const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The end of a period that begins now.
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
