//! Hashes of values, which distinguish a million states without keeping them.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A set of hashes.
pub(super) type Numbers = HashSet<u64, BuildHasherDefault<IdentityHasher>>;

/// A hash of a value. Among a million values, two have the same hash about once in ten million searches.
pub(super) fn number_of(value: &impl Hash) -> u64 {
    let mut hasher = Folded(SEED);
    value.hash(&mut hasher);
    hasher.finish()
}

const SEED: u64 = 0x243f_6a88_85a3_08d3;
/// Odd, and half of its bits are set.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Folds each word into the state with one long multiplication. A search spends most of its time on hashing. Its
/// values are not chosen by an attacker, so the hash need not resist attacks.
struct Folded(u64);

impl Folded {
    fn fold(&mut self, word: u64) {
        let [low, high] = halves(u128::from(self.0 ^ word) * u128::from(FACTOR));
        // The rotation prevents a word and its neighbour from being exchanged.
        self.0 = (low ^ high).rotate_left(23).wrapping_add(SEED);
    }
}

const fn halves(product: u128) -> [u64; 2] {
    #[expect(clippy::cast_possible_truncation, reason = "the two halves are what is wanted")]
    [product as u64, (product >> 64) as u64]
}

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        let mut last = Self(self.0);
        last.fold(SEED);
        last.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            for (place, byte) in word.iter_mut().zip(chunk) {
                *place = *byte;
            }
            self.fold(u64::from_le_bytes(word));
        }
        self.fold(bytes.len() as u64);
    }

    fn write_u8(&mut self, value: u8) {
        self.fold(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.fold(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.fold(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.fold(value as u64);
    }
}

/// For values that are already hashes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_values_have_different_hashes() {
        let mut numbers = Numbers::default();
        let (mut count, mut bits) = (0, 0);
        for first in 0..60_u64 {
            for second in 0..60_u32 {
                for third in 0..60_u8 {
                    let number = number_of(&(first, second, third));
                    bits += (number ^ number_of(&(first, second, third ^ 1))).count_ones();
                    numbers.insert(number);
                    count += 1;
                }
            }
        }
        assert_eq!(numbers.len(), count, "two of so few share a number");
        let share = f64::from(bits) / (f64::from(u32::try_from(count).unwrap()) * 64.0);
        assert!((0.45..0.55).contains(&share), "one bit changes {share} of all");
        assert_ne!(number_of(&[1_u8, 0]), number_of(&[1_u8]));
    }
}
