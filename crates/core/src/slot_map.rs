//! The tables of the machine and the driver, on the library `slotmap`. A slot is used again under a new generation, so
//! that an old key finds nothing (I14).
//!
//! Our keys are the library's, with slots and generations that count from 0.

use slotmap::{DefaultKey, Key, KeyData};

use crate::failpoint::{self, Failpoint};
use crate::id::CallKey;

/// The library counts slots from 1. Its version of a slot goes up by one when a value comes and when it goes.
fn library_key(key: CallKey) -> DefaultKey {
    let version = (u64::from(key.generation) << 1) | 1;
    KeyData::from_ffi((version << 32) | (u64::from(key.slot) + 1)).into()
}

#[expect(clippy::cast_possible_truncation, reason = "a key is two halves of 32 bits")]
fn call_key(key: DefaultKey) -> CallKey {
    let both = key.data().as_ffi();
    CallKey { slot: (both as u32).wrapping_sub(1), generation: (both >> 33) as u32 }
}

/// A table that gives each value a key.
#[derive(Clone, Debug)]
pub(crate) struct SlotMap<T>(slotmap::SlotMap<DefaultKey, T>);

impl<T> SlotMap<T> {
    pub(crate) fn new() -> Self {
        Self(slotmap::SlotMap::new())
    }

    pub(crate) fn insert(&mut self, value: T) -> CallKey {
        call_key(self.0.insert(value))
    }

    pub(crate) fn get(&self, key: CallKey) -> Option<&T> {
        self.0.get(self.meant(key))
    }

    pub(crate) fn get_mut(&mut self, key: CallKey) -> Option<&mut T> {
        self.0.get_mut(self.meant(key))
    }

    pub(crate) fn remove(&mut self, key: CallKey) -> Option<T> {
        self.0.remove(self.meant(key))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// All values in the order of their slots.
    #[cfg(feature = "verify")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (CallKey, &T)> {
        self.0.iter().map(|(key, value)| (call_key(key), value))
    }

    /// The keys of all values, for loops that change the table.
    pub(crate) fn keys(&self) -> Vec<CallKey> {
        self.0.keys().map(call_key).collect()
    }

    fn meant(&self, key: CallKey) -> DefaultKey {
        if failpoint::active(Failpoint::NoGeneration) {
            let of_slot = self.0.keys().find(|known| call_key(*known).slot == key.slot);
            return of_slot.unwrap_or_else(|| library_key(key));
        }
        library_key(key)
    }
}

/// More values for the keys of a [`SlotMap`]. The driver keeps its own data of the machine's slots in it.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub(crate) struct SideTable<T>(slotmap::SecondaryMap<DefaultKey, T>);

#[cfg(feature = "tokio")]
impl<T> SideTable<T> {
    pub(crate) fn new() -> Self {
        Self(slotmap::SecondaryMap::new())
    }

    pub(crate) fn insert(&mut self, key: CallKey, value: T) {
        self.0.insert(library_key(key), value);
    }

    pub(crate) fn get(&self, key: CallKey) -> Option<&T> {
        self.0.get(library_key(key))
    }

    pub(crate) fn get_mut(&mut self, key: CallKey) -> Option<&mut T> {
        self.0.get_mut(library_key(key))
    }

    pub(crate) fn remove(&mut self, key: CallKey) -> Option<T> {
        self.0.remove(library_key(key))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.values()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut()
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.0.len()
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
}
