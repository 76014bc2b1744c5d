//! Seeded random numbers.

use forebay_models::random::split_mix;

/// A generator; the same seed gives the same numbers everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// A number below `n`; 0 where `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `items`, which are not empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// A range inside `len`, short ones more often.
    pub fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let longest = if self.one_in(4) { len } else { len.min(16) };
        let size = self.below(longest + 1);
        let start = self.below(len - size + 1);
        start..start + size
    }
}
