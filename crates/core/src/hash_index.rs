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
