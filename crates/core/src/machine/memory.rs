//! What became of the last keys: to answer "already", and to know that a cancel came late rather than early.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::timers::later;
use crate::id::{Principal, RequestId, Scope};

/// A key in its space.
pub(super) type Name = (Scope, RequestId);

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// It was answered with what its handler gave.
    Completed,
    /// It was cancelled.
    Cancelled,
}

/// The last settled keys, bounded in number and age.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    most: usize,
    longest: Duration,
    known: HashMap<Name, Known>,
    order: VecDeque<Recorded>,
    /// How many were ever recorded.
    recorded: u64,
    /// Until then something younger than `longest` is missing.
    incomplete_until: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Known {
    settled: Settled,
    principal: Option<Principal>,
    number: u64,
}

#[derive(Clone, Debug)]
struct Recorded {
    name: Name,
    number: u64,
    at: Instant,
}

impl Memory {
    pub(super) fn new(most: usize, longest: Duration) -> Self {
        Self {
            most,
            longest,
            known: HashMap::new(),
            order: VecDeque::new(),
            recorded: 0,
            incomplete_until: None,
        }
    }

    pub(super) fn record(
        &mut self,
        now: Instant,
        name: Name,
        principal: Option<Principal>,
        settled: Settled,
    ) {
        self.forget_old(now);
        self.recorded += 1;
        let number = self.recorded;
        self.known.insert(name.clone(), Known { settled, principal, number });
        self.order.push_back(Recorded { name, number, at: now });
        while self.order.len() > self.most {
            self.forget_first();
            self.incomplete_until = Some(later(now, self.longest));
        }
    }

    /// What became of a key, for the principal whose it was: to others it is unknown (I4).
    pub(super) fn recall(
        &mut self,
        now: Instant,
        name: &Name,
        principal: Option<&Principal>,
    ) -> Option<Settled> {
        self.forget_old(now);
        let known = self.known.get(name)?;
        (known.principal.as_ref() == principal).then_some(known.settled)
    }

    /// Whether a key was settled of late, whoever's it was.
    pub(super) fn knows(&mut self, now: Instant, name: &Name) -> bool {
        self.forget_old(now);
        self.known.contains_key(name)
    }

    /// Whether every key settled within the memory's time is still known.
    pub(super) fn is_complete(&self, now: Instant) -> bool {
        self.incomplete_until.is_none_or(|until| until <= now)
    }

    /// What is remembered, the eldest first; without an end where a younger entry has taken its place.
    #[cfg(feature = "verify")]
    pub(super) fn inspect(&self) -> impl Iterator<Item = (&Name, Option<Settled>, Instant)> {
        self.order.iter().map(|entry| {
            let known = self.known.get(&entry.name).filter(|known| known.number == entry.number);
            (&entry.name, known.map(|known| known.settled), entry.at)
        })
    }

    #[cfg(feature = "verify")]
    pub(super) const fn incomplete_until(&self) -> Option<Instant> {
        self.incomplete_until
    }

    fn forget_old(&mut self, now: Instant) {
        while self.order.front().is_some_and(|first| now.saturating_duration_since(first.at) >= self.longest)
        {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some(Recorded { name, number, .. }) = self.order.pop_front() {
            // A key settled again since has a younger entry of its own.
            if let Entry::Occupied(known) = self.known.entry(name)
                && known.get().number == number
            {
                known.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(id: i64) -> Name {
        (Scope::Session, RequestId::number(id))
    }

    #[test]
    fn memory_is_bounded_in_number_and_age_and_says_when_it_overflowed() {
        let start = Instant::now();
        let mut memory = Memory::new(2, Duration::from_secs(60));
        memory.record(start, name(1), None, Settled::Completed);
        memory.record(start, name(2), None, Settled::Cancelled);
        assert!(memory.is_complete(start));
        memory.record(start, name(3), None, Settled::Completed);
        assert_eq!(memory.recall(start, &name(1), None), None);
        assert_eq!(memory.recall(start, &name(2), None), Some(Settled::Cancelled));
        assert!(!memory.is_complete(start));
        let later = start + Duration::from_secs(60);
        assert_eq!(memory.recall(later, &name(2), None), None);
        assert!(memory.is_complete(later));
        assert!(memory.known.is_empty() && memory.order.is_empty());
    }

    #[test]
    fn a_key_settled_again_replaces_its_memory() {
        let start = Instant::now();
        let mut memory = Memory::new(8, Duration::from_secs(60));
        memory.record(start, name(1), None, Settled::Completed);
        memory.record(start + Duration::from_secs(30), name(1), None, Settled::Cancelled);
        let when = start + Duration::from_secs(61);
        assert_eq!(memory.recall(when, &name(1), None), Some(Settled::Cancelled));
    }

    #[test]
    fn a_key_settled_twice_in_one_step_is_known_while_its_younger_entry_is() {
        let start = Instant::now();
        let mut memory = Memory::new(2, Duration::from_secs(60));
        for id in [1, 1, 2] {
            memory.record(start, name(id), None, Settled::Completed);
        }
        assert_eq!(memory.recall(start, &name(1), None), Some(Settled::Completed));
    }
}
