//! The only source of randomness in a run: everything follows from its seed.

/// Pseudorandom numbers, the same for each seed (`SplitMix64`).
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A separate source for one part of a run, so that its draws do not affect those of other parts.
    pub(super) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub(super) const fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }

    /// The same for lengths.
    pub(super) fn length(&mut self, least: usize, most: usize) -> usize {
        let span = most.saturating_sub(least) as u64 + 1;
        least + usize::try_from(self.below(span)).unwrap_or(0)
    }

    /// True in this percentage of cases.
    pub(super) const fn percent(&mut self, times: u64) -> bool {
        self.below(100) < times
    }

    /// One of these.
    pub(super) fn pick<T: Copy>(&mut self, first: T, rest: &[T]) -> T {
        let at = self.length(0, rest.len());
        at.checked_sub(1).and_then(|at| rest.get(at)).copied().unwrap_or(first)
    }
}
