//! Tables of the driver, in addition to those of the machine.

use crate::chunked_vec::ChunkedVec;
use crate::id::CallKey;

/// The driver's data for the machine's slots, by the machine's keys. An old key finds nothing (I14).
#[derive(Debug)]
pub(crate) struct SideTable<T> {
    entries: ChunkedVec<Option<(u32, T)>>,
}

impl<T> SideTable<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: ChunkedVec::new() }
    }

    pub(crate) fn insert(&mut self, key: CallKey, value: T) {
        let index = key.slot as usize;
        while index >= self.entries.len() {
            self.entries.push(None);
        }
        if let Some(index) = self.entries.get_mut(index) {
            *index = Some((key.generation, value));
        }
    }

    pub(crate) fn get(&self, key: CallKey) -> Option<&T> {
        match self.entries.get(key.slot as usize)? {
            Some((generation, value)) if *generation == key.generation => Some(value),
            Some(_) | None => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: CallKey) -> Option<&mut T> {
        match self.entries.get_mut(key.slot as usize)? {
            Some((generation, value)) if *generation == key.generation => Some(value),
            Some(_) | None => None,
        }
    }

    pub(crate) fn remove(&mut self, key: CallKey) -> Option<T> {
        self.get(key)?;
        self.entries.get_mut(key.slot as usize)?.take().map(|(_, value)| value)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().flatten().map(|(_, value)| value)
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        (0..self.entries.len()).filter(|index| matches!(self.entries.get(*index), Some(Some(_)))).count()
    }
}

/// A place in [`Slots`], and how often the place was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlotKey {
    index: u32,
    generation: u32,
}

/// Data that lives longer than the machine's slots: the handle of a call may read it long after the machine has
/// forgotten the call.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: ChunkedVec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: ChunkedVec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, value: T) -> SlotKey {
        if let Some(index) = self.free.pop() {
            if let Some((generation, content)) = self.entries.get_mut(index as usize) {
                *content = Some(value);
                return SlotKey { index, generation: *generation };
            }
        }
        // The limit on calls and the handles that a program keeps bound it.
        let index = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        self.entries.push((0, Some(value)));
        SlotKey { index, generation: 0 }
    }

    pub(crate) fn get(&self, slot_key: SlotKey) -> Option<&T> {
        let (generation, content) = self.entries.get(slot_key.index as usize)?;
        content.as_ref().filter(|_| *generation == slot_key.generation)
    }

    pub(crate) fn get_mut(&mut self, slot_key: SlotKey) -> Option<&mut T> {
        let (generation, content) = self.entries.get_mut(slot_key.index as usize)?;
        content.as_mut().filter(|_| *generation == slot_key.generation)
    }

    pub(crate) fn remove(&mut self, slot_key: SlotKey) -> Option<T> {
        self.get(slot_key)?;
        let (generation, content) = self.entries.get_mut(slot_key.index as usize)?;
        *generation = generation.wrapping_add(1);
        self.free.push(slot_key.index);
        content.take()
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_slot_key_finds_nothing_after_its_slot_is_reused() {
        let mut slots = Slots::new();
        let old = slots.insert('a');
        assert_eq!(slots.remove(old), Some('a'));
        let new = slots.insert('b');
        assert_eq!(old.index, new.index);
        assert_eq!((slots.get(old), slots.get(new)), (None, Some(&'b')), "I14");
        assert_eq!(slots.remove(old), None);
    }

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
