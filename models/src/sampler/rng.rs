//! The random numbers of a sampler.

use crate::random::split_mix;

/// A seeded stream of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Uniform in [0, 1), a multiple of 2⁻⁵³.
    pub(super) fn next_unit(&mut self) -> f64 {
        (split_mix(&mut self.0) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_below_one() {
        let mut random = Random::new(0);
        let units: Vec<f64> = (0..10_000).map(|_| random.next_unit()).collect();
        assert!(units.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = units.iter().sum::<f64>() / units.len() as f64;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
    }
}
