//! Finds the places of a table by name, and does not store the names a second time.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

use hashbrown::HashTable;

/// Positions by the hash of their name. A name is read from the place where it is stored already. Where the peer chooses
/// the names, the hash is the standard library's, with a random key for each index.
#[derive(Clone, Debug, Default)]
pub(crate) struct HashIndex<S = RandomState> {
    hasher: S,
    table: HashTable<u32>,
}

/// The positions of numbers that this side chooses, one after another. A peer adds none. By what it answers it can
/// only choose which of the open calls remain, so the hash has no key.
pub(crate) type NumberIndex = HashIndex<BuildHasherDefault<NumberHasher>>;

/// The hash of one number: a product whose high bits, which depend on all bits of the number, are folded into its low
/// ones. Consecutive numbers differ in both.
#[derive(Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
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

    /// Removes a place.
    pub(crate) fn remove(&mut self, name: &impl Hash, slot: u32) {
        if let Ok(found) = self.table.find_entry(self.hasher.hash_one(name), |known| *known == slot) {
            found.remove();
        }
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
    fn consecutive_numbers_have_different_hashes() {
        let hasher = BuildHasherDefault::<NumberHasher>::default();
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
