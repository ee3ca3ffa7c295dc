//! Early cancels: cancels that wait for their request, if the transport and the dialect allow it (I8).

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::settled_cache::Name;
use crate::cause::Cause;
use crate::failpoint::{self, Failpoint};
use crate::id::Principal;

#[derive(Clone, Debug)]
pub(super) struct EarlyCancels {
    most: usize,
    longest: Duration,
    waiting: HashMap<Wanted, Cause>,
    order: VecDeque<(Wanted, Instant)>,
}

/// The approximate maximum size of an early cancel, in bytes: its id and its reason are bounded.
const ENTRY_BYTES: usize = 1024;

/// A key and its principal: a cancel of one principal has no effect on requests of another (I4).
pub(super) type Wanted = (Name, Option<Principal>);

impl EarlyCancels {
    pub(super) fn new(most: usize, longest: Duration) -> Self {
        Self { most, longest, waiting: HashMap::new(), order: VecDeque::new() }
    }

    /// Approximate bytes of all early cancels.
    pub(super) fn bytes(&self) -> usize {
        self.order.len() * ENTRY_BYTES
    }

    /// Keeps a cancel for its request. `false`: there is no room, or a cancel of the same key waits already.
    pub(super) fn park(&mut self, now: Instant, wanted: Wanted, cause: Cause) -> bool {
        self.forget_old(now);
        let is_full = self.order.len() >= self.most && !failpoint::active(Failpoint::ParkUnbounded);
        if is_full || self.waiting.contains_key(&wanted) {
            return false;
        }
        self.order.push_back((wanted.clone(), now));
        self.waiting.insert(wanted, cause);
        true
    }

    /// The cancel that waited for this request of this principal.
    pub(super) fn take(&mut self, now: Instant, name: &Name, principal: Option<&Principal>) -> Option<Cause> {
        if self.order.is_empty() {
            return None;
        }
        self.forget_old(now);
        let wanted = (name.clone(), principal.cloned());
        let cause = self.waiting.remove(&wanted)?;
        if let Some(place) = self.order.iter().position(|(waiting, _)| *waiting == wanted) {
            self.order.remove(place);
        }
        Some(cause)
    }

    #[cfg(feature = "verify")]
    pub(super) fn inspect(&self) -> impl Iterator<Item = (&Wanted, Instant)> {
        self.order.iter().map(|(wanted, at)| (wanted, *at))
    }

    fn forget_old(&mut self, now: Instant) {
        if failpoint::active(Failpoint::EarlyCancelStays) {
            return;
        }
        while let Some((wanted, at)) = self.order.front() {
            if now.saturating_duration_since(*at) < self.longest {
                return;
            }
            self.waiting.remove(wanted);
            self.order.pop_front();
        }
    }
}
