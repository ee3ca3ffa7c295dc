//! Tables by slot, for the machine and the driver. A slot is used again under a new generation, so that an old key finds
//! nothing (I14). They grow by one page at a time: a full page does not move.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

use hashbrown::HashTable;

use crate::failpoint::{self, Failpoint};
use crate::id::CallKey;

/// A table that gives each value a key.
#[derive(Clone, Debug)]
pub(crate) struct SlotMap<T> {
    slots: Pages<Slot<T>>,
    free: Option<u32>,
    occupied: usize,
}

#[derive(Clone, Debug)]
enum Slot<T> {
    Free { generation: u32, next: Option<u32> },
    Occupied { generation: u32, value: T },
}

impl<T> SlotMap<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Pages::new(), free: None, occupied: 0 }
    }

    pub(crate) fn insert(&mut self, value: T) -> CallKey {
        self.occupied += 1;
        if let Some(slot) = self.free {
            if let Some(entry) = self.slots.get_mut(slot as usize) {
                if let Slot::Free { generation, next } = *entry {
                    self.free = next;
                    *entry = Slot::Occupied { generation, value };
                    return CallKey { slot, generation };
                }
            }
        }
        // The limits of a session, and the handles that a program keeps, keep the table far below this.
        let slot = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.slots.push(Slot::Occupied { generation: 0, value });
        CallKey { slot, generation: 0 }
    }

    pub(crate) fn get(&self, key: CallKey) -> Option<&T> {
        match self.slots.get(key.slot as usize)? {
            Slot::Occupied { generation, value } if is_meant(*generation, key) => Some(value),
            Slot::Occupied { .. } | Slot::Free { .. } => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: CallKey) -> Option<&mut T> {
        match self.slots.get_mut(key.slot as usize)? {
            Slot::Occupied { generation, value } if is_meant(*generation, key) => Some(value),
            Slot::Occupied { .. } | Slot::Free { .. } => None,
        }
    }

    /// The value of a slot, and its key.
    pub(crate) fn at(&self, slot: u32) -> Option<(CallKey, &T)> {
        match self.slots.get(slot as usize)? {
            Slot::Occupied { generation, value } => Some((CallKey { slot, generation: *generation }, value)),
            Slot::Free { .. } => None,
        }
    }

    pub(crate) fn remove(&mut self, key: CallKey) -> Option<T> {
        self.get(key)?;
        let generation = key.generation.wrapping_add(1);
        let entry = self.slots.get_mut(key.slot as usize)?;
        match std::mem::replace(entry, Slot::Free { generation, next: self.free }) {
            Slot::Occupied { value, .. } => {
                self.free = Some(key.slot);
                self.occupied -= 1;
                Some(value)
            }
            Slot::Free { .. } => None,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.occupied
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (CallKey, &T)> {
        (0u32..).zip(self.slots.iter()).filter_map(|(slot, entry)| match entry {
            Slot::Occupied { generation, value } => Some((CallKey { slot, generation: *generation }, value)),
            Slot::Free { .. } => None,
        })
    }

    /// The keys of all values, for loops that change the table.
    pub(crate) fn keys(&self) -> Vec<CallKey> {
        self.iter().map(|(key, _)| key).collect()
    }
}

fn is_meant(generation: u32, key: CallKey) -> bool {
    generation == key.generation || failpoint::active(Failpoint::NoGeneration)
}

/// More values for the keys of a [`SlotMap`]. The driver keeps its own data of the machine's slots in it.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub(crate) struct SideTable<T> {
    slots: Pages<Option<(u32, T)>>,
}

#[cfg(feature = "tokio")]
impl<T> SideTable<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Pages::new() }
    }

    pub(crate) fn insert(&mut self, key: CallKey, value: T) {
        let index = key.slot as usize;
        while index >= self.slots.len() {
            self.slots.push(None);
        }
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some((key.generation, value));
        }
    }

    pub(crate) fn get(&self, key: CallKey) -> Option<&T> {
        match self.slots.get(key.slot as usize)? {
            Some((generation, value)) if *generation == key.generation => Some(value),
            Some(_) | None => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: CallKey) -> Option<&mut T> {
        match self.slots.get_mut(key.slot as usize)? {
            Some((generation, value)) if *generation == key.generation => Some(value),
            Some(_) | None => None,
        }
    }

    pub(crate) fn remove(&mut self, key: CallKey) -> Option<T> {
        self.get(key)?;
        self.slots.get_mut(key.slot as usize)?.take().map(|(_, value)| value)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten().map(|(_, value)| value)
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.values().count()
    }
}

/// The number of slots in a page.
const CHUNK_LEN: usize = 64;

/// A list that grows by one page at a time. At most one page has unused room.
#[derive(Clone, Debug)]
struct Pages<T>(Vec<Vec<T>>);

impl<T> Pages<T> {
    const fn new() -> Self {
        Self(Vec::new())
    }

    fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * CHUNK_LEN + last.len())
    }

    fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index / CHUNK_LEN)?.get(index % CHUNK_LEN)
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.0.get_mut(index / CHUNK_LEN)?.get_mut(index % CHUNK_LEN)
    }

    fn push(&mut self, value: T) {
        match self.0.last_mut() {
            Some(last) if last.len() < CHUNK_LEN => last.push(value),
            Some(_) => {
                let mut page = Vec::with_capacity(CHUNK_LEN);
                page.push(value);
                self.0.push(page);
            }
            // The first page grows by doubling: most connections have only a few requests at once.
            None => self.0.push(vec![value]),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    #[cfg(feature = "tokio")]
    fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten()
    }
}

/// The most boxes that are kept.
const MAX_POOLED: usize = 64;

#[derive(Debug)]
#[cfg_attr(feature = "verify", derive(Clone))]
pub(crate) struct Pool<T>(Vec<Box<T>>);

impl<T: Default> Pool<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// A box with the default value.
    #[expect(clippy::unnecessary_box_returns, reason = "the box is what is wanted")]
    pub(crate) fn take(&mut self) -> Box<T> {
        self.0.pop().unwrap_or_default()
    }

    /// Resets a box that is not used any more, and keeps it.
    pub(crate) fn keep(&mut self, used: Option<Box<T>>) {
        if let Some(mut used) = used.filter(|_| self.0.len() < MAX_POOLED) {
            *used = T::default();
            self.0.push(used);
        }
    }
}

/// Positions by the hash of their name. A name is read from the place where it is stored already. Where the peer chooses
/// the names, the hash is the standard library's, with a random key for each index.
#[derive(Clone, Debug, Default)]
pub(crate) struct HashIndex<S = RandomState> {
    hasher: S,
    table: HashTable<u32>,
}

/// The positions of numbers that this side chooses, one after another. A peer adds none. By what it answers it can
/// only choose which of the open calls remain, so the hash has no key.
pub(crate) type NumberIndex = HashIndex<BuildHasherDefault<UnkeyedHasher>>;

/// The hash of a number or a text that this side chooses: for each eight bytes a product whose high bits, which depend on
/// all of them, are folded into its low ones. Consecutive numbers differ in both.
#[derive(Debug, Default)]
pub(crate) struct UnkeyedHasher(u64);

impl Hasher for UnkeyedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let words = bytes.chunks_exact(8);
        let rest = words.remainder().iter().fold(0, |word, byte| (word << 8) | u64::from(*byte));
        for word in words {
            self.write_u64(u64::from_le_bytes(word.try_into().unwrap_or_default()));
        }
        self.write_u64(rest);
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio.
        let product = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

impl<S: BuildHasher> HashIndex<S> {
    /// The place of this name: of the places with the same hash, the one for which `is` returns `true`.
    pub(crate) fn find(&self, name: &impl Hash, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.find_hashed(self.hash(name), is)
    }

    /// The hash of a name. A name that is looked up and then added is hashed once.
    pub(crate) fn hash(&self, name: &impl Hash) -> u64 {
        self.hasher.hash_one(name)
    }

    /// As [`find`](Self::find), for a name with this hash.
    pub(crate) fn find_hashed(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.table.find(hash, |slot| is(*slot)).copied()
    }

    /// Adds a place whose name is not in the index and has this hash. `name` returns the name of each place in the
    /// index.
    pub(crate) fn insert<N: Hash>(&mut self, hash: u64, slot: u32, name: impl Fn(u32) -> Option<N>) {
        let again = |slot: &u32| name(*slot).map_or(0, |name| self.hasher.hash_one(name));
        self.table.insert_unique(hash, slot, again);
    }

    /// As [`insert`](Self::insert), where the hash of each name in the index is stored and not computed again.
    pub(crate) fn insert_hashed(&mut self, hash: u64, slot: u32, hash_of: impl Fn(u32) -> u64) {
        self.table.insert_unique(hash, slot, |slot| hash_of(*slot));
    }

    /// Removes a place.
    pub(crate) fn remove(&mut self, name: &impl Hash, slot: u32) {
        self.remove_hashed(self.hasher.hash_one(name), slot);
    }

    /// Removes a place whose name has this hash. `false`: it is not in the index.
    pub(crate) fn remove_hashed(&mut self, hash: u64, slot: u32) -> bool {
        self.table.find_entry(hash, |known| *known == slot).is_ok_and(|found| {
            found.remove();
            true
        })
    }

    #[cfg(feature = "verify")]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_finds_nothing_after_its_slot_is_reused() {
        let mut table = SlotMap::new();
        let old = table.insert('a');
        assert_eq!(table.remove(old), Some('a'));
        let new = table.insert('b');
        assert_eq!(old.slot, new.slot);
        assert_eq!(table.get(old), None, "I14: a key of one generation found another");
        assert_eq!(table.get_mut(old), None, "I14: and could have changed it");
        assert_eq!(table.remove(old), None);
        assert_eq!(table.get(new), Some(&'b'));
        assert_eq!(table.len(), 1);
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn a_side_table_checks_the_generation_of_the_machines_keys() {
        let key = |generation| CallKey { slot: 3, generation };
        let mut table = SideTable::new();
        table.insert(key(0), 'a');
        assert_eq!(table.get(key(0)), Some(&'a'));
        assert_eq!(table.get_mut(key(0)), Some(&mut 'a'));
        table.insert(key(1), 'b');
        assert_eq!(table.get(key(0)), None, "I14");
        assert_eq!(table.get_mut(key(0)), None, "I14");
        assert_eq!(table.remove(key(0)), None, "I14");
        assert_eq!((table.values().count(), table.values_mut().count()), (1, 1));
        assert_eq!((table.remove(key(1)), table.taken()), (Some('b'), 0));
    }

    #[test]
    fn elements_keep_their_order_across_chunks() {
        let mut pages = Pages::new();
        assert_eq!((pages.len(), pages.get(0)), (0, None));
        (0..=CHUNK_LEN * 2).for_each(|value| pages.push(value));
        assert_eq!(pages.len(), CHUNK_LEN * 2 + 1);
        assert!((0..pages.len()).all(|index| pages.get(index) == Some(&index)));
        assert_eq!(pages.get_mut(pages.len()), None);
        assert!(pages.iter().copied().eq(0..=CHUNK_LEN * 2));
    }

    #[test]
    fn a_pooled_box_is_reused_empty_and_the_pool_is_bounded() {
        let mut spares = Pool::new();
        for value in 0..MAX_POOLED * 2 {
            spares.keep(Some(Box::new(value)));
        }
        assert_eq!(spares.0.len(), MAX_POOLED);
        assert_eq!(*spares.take(), 0);
    }

    #[test]
    fn consecutive_numbers_have_different_hashes() {
        let hasher = BuildHasherDefault::<UnkeyedHasher>::default();
        let count = |part: fn(u64) -> u64| {
            let parts: std::collections::HashSet<u64> =
                (0..4096_u64).map(|number| part(hasher.hash_one(number))).collect();
            parts.len()
        };
        // A table takes the place from the low bits, and compares the high ones.
        assert!(count(|hash| hash % 8192) > 3000);
        assert_eq!(count(|hash| hash >> 57), 128);
    }

    #[test]
    fn texts_have_different_hashes_wherever_they_differ() {
        let hash = |text: &str| BuildHasherDefault::<UnkeyedHasher>::default().hash_one(text);
        let text = "textDocument/didChange";
        let mut hashes = std::collections::HashSet::from([hash(text)]);
        for place in 0..text.len() {
            let mut other = text.to_owned();
            other.replace_range(place..=place, "_");
            hashes.extend([hash(&other), hash(&text[..place])]);
        }
        assert_eq!(hashes.len(), 1 + 2 * text.len());
    }

    #[test]
    fn slots_are_found_by_name_while_they_are_in_the_index() {
        let names: Vec<String> = (0..1000).map(|slot| format!("name {slot}")).collect();
        let name = |slot: u32| names.get(slot as usize);
        let mut index = HashIndex::default();
        let find = |index: &HashIndex, wanted: u32| {
            let wanted = name(wanted).unwrap();
            index.find(wanted, |slot| name(slot) == Some(wanted))
        };
        for slot in 0..1000 {
            assert_eq!(find(&index, slot), None);
            index.insert(index.hash(name(slot).unwrap()), slot, name);
        }
        assert!((0..1000).all(|slot| find(&index, slot) == Some(slot)));
        for slot in (0..1000).step_by(2) {
            index.remove(name(slot).unwrap(), slot);
        }
        assert!((0..1000).all(|slot| find(&index, slot) == (slot % 2 == 1).then_some(slot)));
        for slot in 0..1000 {
            index.remove(name(slot).unwrap(), slot);
        }
        assert!(index.is_empty(), "I3: a permit was not released in the index");
    }
}
