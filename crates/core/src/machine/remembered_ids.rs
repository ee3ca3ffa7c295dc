//! The ids that the machine remembers: the results of the last keys, to answer "already" and to recognise that a cancel is late
//! and not early; and the early cancels, which wait for their request.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::cause::Cause;
use crate::collections::HashIndex;
use crate::failpoint::{self, Failpoint};
use crate::id::{Principal, RequestId, Scope};

/// A key and its scope.
pub(super) type Name = (Scope, RequestId);

/// The approximate size of a settled key without the text of its id, in bytes. There may be room for twice as many.
const ENTRY_BYTES: usize = 160;
const _: () = assert!(2 * size_of::<SettledEntry>() <= ENTRY_BYTES);

/// The bytes of a key's text. 0: it is a number.
pub(super) fn text_of((_, id): &Name) -> usize {
    id.as_text().map_or(0, str::len)
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// It was answered: with the result of its handler, with the handle of its task, or with a refusal.
    Completed,
    /// It was cancelled.
    Cancelled,
}

/// The last settled keys, limited in number and age.
#[derive(Clone, Debug)]
pub(super) struct SettledCache {
    most: usize,
    longest: Duration,
    /// The youngest entry of each key, by its number. The lower bits of an entry's number are enough, because there are
    /// far fewer entries.
    known: HashIndex,
    /// The entries, numbered one after another.
    order: VecDeque<SettledEntry>,
    /// The number of the first of them.
    first: u32,
    /// Bytes of the ids in `order`.
    text: usize,
    forgotten: Forgotten,
}

/// The settled keys that were forgotten since the connection began, because of their number or their age. A cancel of
/// one of them may arrive at any time, and is late.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forgotten {
    /// The highest number among them.
    pub(super) highest: Option<i64>,
    /// Whether a string was among them: strings have no order.
    pub(super) strings: bool,
}

impl Forgotten {
    fn note(&mut self, id: &RequestId) {
        match id.as_number() {
            Some(number) => self.highest = self.highest.max(Some(number)),
            None => self.strings = true,
        }
    }

    /// Whether this id may be one of them.
    pub(super) fn may_hold(self, id: &RequestId) -> bool {
        match id.as_number() {
            Some(number) => self.highest.is_some_and(|highest| number <= highest),
            None => self.strings,
        }
    }
}

#[derive(Clone, Debug)]
struct SettledEntry {
    name: Name,
    hash: u64,
    principal: Option<Principal>,
    settled: Settled,
    at: Instant,
}

/// The entry with this number.
fn entry(order: &VecDeque<SettledEntry>, first: u32, number: u32) -> Option<&SettledEntry> {
    order.get(number.wrapping_sub(first) as usize)
}

impl SettledCache {
    pub(super) fn new(most: usize, longest: Duration) -> Self {
        Self {
            most,
            longest,
            known: HashIndex::default(),
            order: VecDeque::new(),
            first: 0,
            text: 0,
            forgotten: Forgotten::default(),
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
        self.text += text_of(&name);
        let hash = self.known.hash(&name);
        if let Some(number) = self.number_of(hash, &name) {
            self.known.remove_hashed(hash, number);
        }
        // Before it is added, so that no room is made for one more.
        if self.order.len() >= self.most {
            self.forget_first();
        }
        let number = self.number_at(self.order.len());
        self.order.push_back(SettledEntry { name, hash, principal, settled, at: now });
        let hash_of = |number| entry(&self.order, self.first, number).map_or(0, |entry| entry.hash);
        self.known.insert_hashed(hash, number, hash_of);
        if self.most == 0 {
            self.forget_first();
        }
    }

    /// The number of the entry at this place.
    fn number_at(&self, place: usize) -> u32 {
        self.first.wrapping_add(u32::try_from(place).unwrap_or(u32::MAX))
    }

    /// Its approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.order.len() * ENTRY_BYTES + self.text
    }

    /// The result of a key, for the principal of its request. For other principals the key is unknown (I4).
    pub(super) fn recall(
        &mut self,
        now: Instant,
        name: &Name,
        principal: Option<&Principal>,
    ) -> Option<Settled> {
        self.forget_old(now);
        let number = self.number_of(self.known.hash(name), name)?;
        let known = entry(&self.order, self.first, number)?;
        (known.principal.as_ref() == principal).then_some(known.settled)
    }

    /// Whether a key was settled recently, by any principal.
    pub(super) fn knows(&mut self, now: Instant, name: &Name) -> bool {
        self.forget_old(now);
        self.number_of(self.known.hash(name), name).is_some()
    }

    /// The number of the youngest entry of a key.
    fn number_of(&self, hash: u64, name: &Name) -> Option<u32> {
        let is = |number| entry(&self.order, self.first, number).is_some_and(|entry| entry.name == *name);
        self.known.find_hashed(hash, is)
    }

    /// The settled keys that were forgotten.
    pub(super) fn forgotten(&mut self, now: Instant) -> Forgotten {
        self.forget_old(now);
        self.forgotten
    }

    /// The same, including the keys that are too old at `now`. `None`: no key is too old.
    #[cfg(feature = "verify")]
    pub(super) fn inspect_forgotten(&self, now: Option<Instant>) -> Forgotten {
        let mut forgotten = self.forgotten;
        let is_old = |at: Instant| now.is_some_and(|now| now.saturating_duration_since(at) >= self.longest);
        for (name, ..) in self.inspect().filter(|(_, known, at)| known.is_some() && is_old(*at)) {
            forgotten.note(&name.1);
        }
        forgotten
    }

    /// The remembered keys, the oldest first. A key that was settled again has its result in the younger entry only.
    #[cfg(feature = "verify")]
    pub(super) fn inspect(
        &self,
    ) -> impl Iterator<Item = (&Name, Option<(Settled, Option<&Principal>)>, Instant)> {
        self.order.iter().enumerate().map(|(place, entry)| {
            let youngest = self.number_of(entry.hash, &entry.name);
            let is_youngest = youngest == Some(self.number_at(place));
            (&entry.name, is_youngest.then_some((entry.settled, entry.principal.as_ref())), entry.at)
        })
    }

    fn forget_old(&mut self, now: Instant) {
        while self.order.front().is_some_and(|first| now.saturating_duration_since(first.at) >= self.longest)
        {
            self.forget_first();
        }
    }

    /// Removes the first entry, and its key. A key that was settled again has a younger entry and stays.
    fn forget_first(&mut self) {
        let Some(SettledEntry { name, hash, .. }) = self.order.pop_front() else { return };
        self.text -= text_of(&name);
        if self.known.remove_hashed(hash, self.first) {
            self.forgotten.note(&name.1);
        }
        self.first = self.first.wrapping_add(1);
    }
}

#[derive(Clone, Debug)]
pub(super) struct EarlyCancels {
    most: usize,
    longest: Duration,
    waiting: HashMap<Wanted, Cause>,
    order: VecDeque<(Wanted, Instant)>,
}

/// The approximate maximum size of an early cancel, in bytes: its id and its reason are bounded.
const EARLY_ENTRY_BYTES: usize = 1024;

/// A key and its principal: a cancel of one principal has no effect on requests of another (I4).
pub(super) type Wanted = (Name, Option<Principal>);

impl EarlyCancels {
    pub(super) fn new(most: usize, longest: Duration) -> Self {
        Self { most, longest, waiting: HashMap::new(), order: VecDeque::new() }
    }

    /// Approximate bytes of all early cancels.
    pub(super) fn bytes(&self) -> usize {
        self.order.len() * EARLY_ENTRY_BYTES
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

#[cfg(test)]
mod tests {
    use super::*;

    fn name(id: i64) -> Name {
        (Scope::Session, RequestId::number(id))
    }

    fn forgotten(cache: &mut SettledCache, now: Instant) -> (Option<i64>, bool) {
        let Forgotten { highest, strings } = cache.forgotten(now);
        (highest, strings)
    }

    #[test]
    fn the_cache_is_bounded_in_number_and_age_and_reports_what_it_forgot() {
        let start = Instant::now();
        let mut cache = SettledCache::new(2, Duration::from_secs(60));
        cache.record(start, name(1), None, Settled::Completed);
        cache.record(start, name(2), None, Settled::Cancelled);
        assert_eq!(forgotten(&mut cache, start), (None, false));
        cache.record(start, name(3), None, Settled::Completed);
        assert_eq!(cache.recall(start, &name(1), None), None);
        assert_eq!(cache.recall(start, &name(2), None), Some(Settled::Cancelled));
        assert_eq!(forgotten(&mut cache, start), (Some(1), false));
        let later = start + Duration::from_secs(60);
        assert_eq!(cache.recall(later, &name(2), None), None);
        assert_eq!(forgotten(&mut cache, later), (Some(3), false));
        assert!(cache.known.is_empty() && cache.order.is_empty());
    }

    #[test]
    fn the_numbers_of_the_entries_begin_again_after_the_largest() {
        let start = Instant::now();
        let mut cache = SettledCache::new(3, Duration::from_secs(60));
        cache.first = u32::MAX - 1;
        for id in 1..=6 {
            cache.record(start, name(id), None, Settled::Completed);
            let known = (1..=6).filter(|known| cache.knows(start, &name(*known)));
            assert!(known.eq((id - 2).max(1)..=id), "after {id}");
        }
        assert_eq!(forgotten(&mut cache, start), (Some(3), false));
    }

    #[test]
    fn nothing_is_remembered_if_nothing_may_be() {
        let start = Instant::now();
        let mut cache = SettledCache::new(0, Duration::from_secs(60));
        cache.record(start, name(7), None, Settled::Completed);
        assert_eq!(cache.recall(start, &name(7), None), None);
        assert_eq!((cache.bytes(), forgotten(&mut cache, start)), (0, (Some(7), false)));
    }

    #[test]
    fn a_key_settled_again_replaces_its_entry() {
        let start = Instant::now();
        let mut cache = SettledCache::new(8, Duration::from_secs(60));
        cache.record(start, name(1), None, Settled::Completed);
        cache.record(start + Duration::from_secs(30), name(1), None, Settled::Cancelled);
        let when = start + Duration::from_secs(61);
        assert_eq!(cache.recall(when, &name(1), None), Some(Settled::Cancelled));
        assert_eq!(forgotten(&mut cache, when), (None, false));
    }

    #[test]
    fn a_key_settled_twice_in_one_step_is_known_while_its_younger_entry_is() {
        let start = Instant::now();
        let mut cache = SettledCache::new(2, Duration::from_secs(60));
        for id in [1, 1, 2] {
            cache.record(start, name(id), None, Settled::Completed);
        }
        assert_eq!(cache.recall(start, &name(1), None), Some(Settled::Completed));
        assert_eq!(forgotten(&mut cache, start), (None, false), "nothing is missing");
    }

    #[test]
    fn the_highest_that_was_forgotten_is_kept_for_good() {
        let start = Instant::now();
        let mut cache = SettledCache::new(1, Duration::from_secs(60));
        for id in [7, 3, 4] {
            cache.record(start, name(id), None, Settled::Completed);
        }
        assert_eq!(forgotten(&mut cache, start), (Some(7), false));
        let text = RequestId::text("a").unwrap();
        cache.record(start, (Scope::Session, text.clone()), None, Settled::Completed);
        assert_eq!(forgotten(&mut cache, start), (Some(7), false));
        let hours = start + Duration::from_secs(7200);
        assert_eq!(forgotten(&mut cache, hours), (Some(7), true), "strings have no order");
        let forgotten = cache.forgotten(hours);
        assert!(forgotten.may_hold(&7.into()) && forgotten.may_hold(&text) && !forgotten.may_hold(&8.into()));
    }
}
