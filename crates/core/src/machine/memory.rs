//! What became of the last keys: to answer "already", and to know that a cancel came late rather than early.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::timers::later;
use crate::id::{RequestId, Scope};

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
    known: HashMap<Name, (Settled, Instant)>,
    order: VecDeque<(Name, Instant)>,
    /// Until then something younger than `longest` is missing.
    incomplete_until: Option<Instant>,
}

impl Memory {
    pub(super) fn new(most: usize, longest: Duration) -> Self {
        Self { most, longest, known: HashMap::new(), order: VecDeque::new(), incomplete_until: None }
    }

    pub(super) fn record(&mut self, now: Instant, name: Name, settled: Settled) {
        self.forget_old(now);
        if self.most == 0 {
            return;
        }
        while self.order.len() >= self.most {
            self.forget_first();
            self.incomplete_until = Some(later(now, self.longest));
        }
        self.known.insert(name.clone(), (settled, now));
        self.order.push_back((name, now));
    }

    pub(super) fn recall(&mut self, now: Instant, name: &Name) -> Option<Settled> {
        self.forget_old(now);
        self.known.get(name).map(|(settled, _)| *settled)
    }

    /// Whether every key settled within the memory's time is still known.
    pub(super) fn is_complete(&self, now: Instant) -> bool {
        self.incomplete_until.is_none_or(|until| until <= now)
    }

    fn forget_old(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(_, at)| now.saturating_duration_since(*at) >= self.longest) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((name, at)) = self.order.pop_front() {
            // A key settled again since has a younger entry of its own.
            if self.known.get(&name).is_some_and(|(_, known_at)| *known_at == at) {
                self.known.remove(&name);
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
        memory.record(start, name(1), Settled::Completed);
        memory.record(start, name(2), Settled::Cancelled);
        assert!(memory.is_complete(start));
        memory.record(start, name(3), Settled::Completed);
        assert_eq!(memory.recall(start, &name(1)), None);
        assert_eq!(memory.recall(start, &name(2)), Some(Settled::Cancelled));
        assert!(!memory.is_complete(start));
        let later = start + Duration::from_secs(60);
        assert_eq!(memory.recall(later, &name(2)), None);
        assert!(memory.is_complete(later));
        assert!(memory.known.is_empty() && memory.order.is_empty());
    }

    #[test]
    fn a_key_settled_again_replaces_its_memory() {
        let start = Instant::now();
        let mut memory = Memory::new(8, Duration::from_secs(60));
        memory.record(start, name(1), Settled::Completed);
        memory.record(start + Duration::from_secs(30), name(1), Settled::Cancelled);
        let when = start + Duration::from_secs(61);
        assert_eq!(memory.recall(when, &name(1)), Some(Settled::Cancelled));
    }
}
