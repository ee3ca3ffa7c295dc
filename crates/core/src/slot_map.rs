//! Tables by slot, for the machine and the driver. A slot is used again under a new generation, so that an old key finds
//! nothing (I14). They grow by one page at a time: a full page does not move.

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
}
