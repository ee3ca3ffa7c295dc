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
    /// What of the last `longest` had to make room.
    forgotten: Option<Forgotten>,
}

/// Keys that were forgotten before their time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forgotten {
    /// The highest of those that are numbers.
    pub(super) highest: Option<i64>,
    /// Until then one of them may still be asked for.
    pub(super) until: Instant,
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
        Self { most, longest, known: HashMap::new(), order: VecDeque::new(), recorded: 0, forgotten: None }
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
            if let Some((_, id)) = self.forget_first() {
                self.note_forgotten(now, &id);
            }
        }
    }

    fn note_forgotten(&mut self, now: Instant, id: &RequestId) {
        let highest = self.forgotten(now).and_then(|forgotten| forgotten.highest);
        self.forgotten =
            Some(Forgotten { highest: highest.max(id.as_number()), until: later(now, self.longest) });
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

    /// What was settled within the memory's time and is not known any more.
    pub(super) fn forgotten(&self, now: Instant) -> Option<Forgotten> {
        self.forgotten.filter(|forgotten| now < forgotten.until)
    }

    /// What is remembered, the eldest first; without an end where a younger entry has taken its place.
    #[cfg(feature = "verify")]
    pub(super) fn inspect(
        &self,
    ) -> impl Iterator<Item = (&Name, Option<(Settled, Option<&Principal>)>, Instant)> {
        self.order.iter().map(|entry| {
            let known = self.known.get(&entry.name).filter(|known| known.number == entry.number);
            (&entry.name, known.map(|known| (known.settled, known.principal.as_ref())), entry.at)
        })
    }

    fn forget_old(&mut self, now: Instant) {
        while self.order.front().is_some_and(|first| now.saturating_duration_since(first.at) >= self.longest)
        {
            self.forget_first();
        }
    }

    /// The first entry goes, and its key with it: that is what is returned. A key settled again since has a younger entry of
    /// its own, and stays.
    fn forget_first(&mut self) -> Option<Name> {
        let Recorded { name, number, .. } = self.order.pop_front()?;
        match self.known.entry(name) {
            Entry::Occupied(known) if known.get().number == number => Some(known.remove_entry().0),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(id: i64) -> Name {
        (Scope::Session, RequestId::number(id))
    }

    fn highest_forgotten(memory: &Memory, now: Instant) -> Option<i64> {
        memory.forgotten(now).expect("something was forgotten").highest
    }

    #[test]
    fn memory_is_bounded_in_number_and_age_and_says_when_it_overflowed() {
        let start = Instant::now();
        let mut memory = Memory::new(2, Duration::from_secs(60));
        memory.record(start, name(1), None, Settled::Completed);
        memory.record(start, name(2), None, Settled::Cancelled);
        assert!(memory.forgotten(start).is_none());
        memory.record(start, name(3), None, Settled::Completed);
        assert_eq!(memory.recall(start, &name(1), None), None);
        assert_eq!(memory.recall(start, &name(2), None), Some(Settled::Cancelled));
        assert_eq!(highest_forgotten(&memory, start), Some(1));
        let later = start + Duration::from_secs(60);
        assert_eq!(memory.recall(later, &name(2), None), None);
        assert!(memory.forgotten(later).is_none());
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
        assert!(memory.forgotten(start).is_none(), "nothing is missing");
    }

    #[test]
    fn the_highest_that_was_forgotten_is_kept_while_it_counts() {
        let start = Instant::now();
        let mut memory = Memory::new(1, Duration::from_secs(60));
        for id in [7, 3, 4] {
            memory.record(start, name(id), None, Settled::Completed);
        }
        assert_eq!(highest_forgotten(&memory, start), Some(7));
        let text = (Scope::Session, RequestId::text("a").unwrap());
        memory.record(start, text, None, Settled::Completed);
        memory.record(start, name(1), None, Settled::Completed);
        assert_eq!(highest_forgotten(&memory, start), Some(7), "words have no order");
        let later = start + Duration::from_secs(60);
        memory.record(later, name(2), None, Settled::Completed);
        assert!(memory.forgotten(later).is_none(), "what is too old was not forgotten before its time");
        memory.record(later, name(1), None, Settled::Completed);
        assert_eq!(highest_forgotten(&memory, later), Some(2));
    }
}
