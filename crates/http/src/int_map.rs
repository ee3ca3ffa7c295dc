//! Maps whose keys are consecutive numbers that this crate assigns.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys this crate assigns. No peer chooses them, so they need no keyed hash, which would be a large part
/// of the cost of a small request.
pub(crate) type IntMap<T> = HashMap<u64, T, BuildHasherDefault<IntHasher>>;

/// Spreads consecutive numbers over the hash space.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IntHasher(u64);

impl Hasher for IntHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte) ^ self.0);
        }
    }

    /// The factor is odd, so different numbers have different hashes. The high bits depend on all bits of the number.
    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
