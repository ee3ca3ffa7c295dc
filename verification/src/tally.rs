//! How often each invariant was judged. A check counts only if the subject of the invariant exists.

use std::cell::Cell;
use std::fmt;
use std::ops::AddAssign;

use super::coverage::INVARIANTS;

const NUMBERS: usize = INVARIANTS.len();

thread_local! {
    static JUDGED: [Cell<u64>; NUMBERS] = const { [const { Cell::new(0) }; NUMBERS] };
}

/// How often each invariant was judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally([u64; NUMBERS]);

impl Tally {
    /// The judgements of this thread since the last call.
    #[must_use]
    pub fn taken() -> Self {
        JUDGED.with(|judged| Self(std::array::from_fn(|place| judged.get(place).map_or(0, Cell::take))))
    }

    /// The invariants that were judged, each with its count.
    pub fn judged(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let numbers = INVARIANTS.iter().map(|invariant| invariant.number);
        numbers.zip(self.0).filter(|(_, judged)| *judged > 0)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        for (mine, others) in self.0.iter_mut().zip(other.0) {
            *mine += others;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.judged().try_for_each(|(number, judged)| write!(f, "{number}: {judged} "))
    }
}

/// Counts one judgement.
#[inline]
pub(super) fn count(invariant: &str) {
    JUDGED.with(|judged| {
        if let Some(place) = place(invariant).and_then(|place| judged.get(place)) {
            place.set(place.get() + 1);
        }
    });
}

/// The index of an invariant, computed from its number without a search.
#[inline]
fn place(invariant: &str) -> Option<usize> {
    let digit = |byte: u8| usize::from(byte.wrapping_sub(b'0'));
    match *invariant.as_bytes() {
        [b'I', ones] => digit(ones).checked_sub(1),
        [b'I', tens, ones] => (10 * digit(tens) + digit(ones)).checked_sub(1),
        [b'L', ones] => Some(digit(ones) + 14),
        [b'B', ones] => Some(digit(ones) + 18),
        [b'B', tens, ones] => Some(10 * digit(tens) + digit(ones) + 18),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_invariant_has_its_own_counter() {
        let _ = Tally::taken();
        for (nth, invariant) in INVARIANTS.iter().enumerate() {
            assert_eq!(place(invariant.number), Some(nth), "{}", invariant.number);
            count(invariant.number);
            assert_eq!(Tally::taken().judged().collect::<Vec<_>>(), [(invariant.number, 1)]);
        }
    }
}
