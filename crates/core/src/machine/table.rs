//! A table whose entries are used again under a new generation, so that an old key finds nothing (I14).

use crate::chunked_vec::ChunkedVec;
use crate::failpoint::{self, Failpoint};
use crate::id::CallKey;

#[derive(Clone, Debug)]
pub(super) struct Table<T> {
    entries: ChunkedVec<Entry<T>>,
    free: Option<u32>,
    occupied: usize,
}

#[derive(Clone, Debug)]
enum Entry<T> {
    Free { generation: u32, next: Option<u32> },
    Occupied { generation: u32, value: T },
}

impl<T> Table<T> {
    pub(super) const fn new() -> Self {
        Self { entries: ChunkedVec::new(), free: None, occupied: 0 }
    }

    pub(super) fn insert(&mut self, value: T) -> CallKey {
        self.occupied += 1;
        if let Some(slot) = self.free {
            if let Some(entry) = self.entries.get_mut(slot as usize) {
                if let Entry::Free { generation, next } = *entry {
                    self.free = next;
                    *entry = Entry::Occupied { generation, value };
                    return CallKey { slot, generation };
                }
            }
        }
        // The limits of a session keep the table far below this.
        let slot = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        self.entries.push(Entry::Occupied { generation: 0, value });
        CallKey { slot, generation: 0 }
    }

    pub(super) fn get(&self, key: CallKey) -> Option<&T> {
        match self.entries.get(key.slot as usize)? {
            Entry::Occupied { generation, value } if is_meant(*generation, key) => Some(value),
            Entry::Occupied { .. } | Entry::Free { .. } => None,
        }
    }

    pub(super) fn get_mut(&mut self, key: CallKey) -> Option<&mut T> {
        match self.entries.get_mut(key.slot as usize)? {
            Entry::Occupied { generation, value } if is_meant(*generation, key) => Some(value),
            Entry::Occupied { .. } | Entry::Free { .. } => None,
        }
    }

    /// The value of an entry, and its key.
    pub(super) fn at(&self, slot: u32) -> Option<(CallKey, &T)> {
        match self.entries.get(slot as usize)? {
            Entry::Occupied { generation, value } => Some((CallKey { slot, generation: *generation }, value)),
            Entry::Free { .. } => None,
        }
    }

    pub(super) fn remove(&mut self, key: CallKey) -> Option<T> {
        self.get(key)?;
        let generation = key.generation.wrapping_add(1);
        let entry = self.entries.get_mut(key.slot as usize)?;
        match std::mem::replace(entry, Entry::Free { generation, next: self.free }) {
            Entry::Occupied { value, .. } => {
                self.free = Some(key.slot);
                self.occupied -= 1;
                Some(value)
            }
            Entry::Free { .. } => None,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.occupied
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (CallKey, &T)> {
        (0u32..).zip(self.entries.iter()).filter_map(|(slot, entry)| match entry {
            Entry::Occupied { generation, value } => Some((CallKey { slot, generation: *generation }, value)),
            Entry::Free { .. } => None,
        })
    }

    /// The keys of all values, for loops that change the table.
    pub(super) fn keys(&self) -> Vec<CallKey> {
        self.iter().map(|(key, _)| key).collect()
    }
}

fn is_meant(generation: u32, key: CallKey) -> bool {
    generation == key.generation || failpoint::active(Failpoint::NoGeneration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_finds_nothing_after_its_slot_is_reused() {
        let mut table = Table::new();
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
}
