//! Maps whose keys are numbers we count up ourselves.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by numbers of our own counting. No peer chooses them, so they need no keyed hash, which would be a good part
/// of what a small request costs.
pub(crate) type Numbered<T> = HashMap<u64, T, BuildHasherDefault<Spread>>;

/// Spreads numbers that follow one another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte) ^ self.0);
        }
    }

    /// Odd, so that no two numbers fall together; its high bits depend on all of the number.
    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
