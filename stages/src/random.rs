//! Random numbers of tests.

use forebay_models::random::split_mix;

/// A seeded stream.
pub(crate) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// In -2..2.
    pub fn numbers(&mut self, n: usize) -> Vec<f32> {
        let number = |_| (self.next() >> 40) as f32 / (1 << 22) as f32 - 2.0;
        (0..n).map(number).collect()
    }
}
