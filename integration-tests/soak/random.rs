//! Pseudorandom numbers, the same for the same seed (splitmix64). No secret depends on them.

use std::time::Duration;

pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) const fn half(&mut self) -> bool {
        self.below(2) == 0
    }

    /// A duration up to this many milliseconds, in microseconds.
    pub(crate) const fn up_to(&mut self, milliseconds: u64) -> Duration {
        Duration::from_micros(self.below(milliseconds * 1000 + 1))
    }
}
