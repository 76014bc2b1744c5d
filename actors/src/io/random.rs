//! Drawing from a seed.

use forebay_models::random::split_mix;

/// A seeded stream of random numbers.
#[derive(Debug, Clone)]
pub struct SplitMix(
    /// The state: at first, the seed.
    pub u64,
);

impl SplitMix {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// A number below `bound` (0 for a bound of 0), by the high half of a product.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_below_their_bound() {
        let mut random = SplitMix(1_234_567);
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert_eq!(random.below(0), 0);
    }
}
