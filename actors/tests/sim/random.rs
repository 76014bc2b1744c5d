//! Drawing from a seed.

use forebay_actors::io::random::SplitMix;

/// Random numbers of one simulation; a fork is independent of what is drawn from the other.
#[derive(Clone, Debug)]
pub struct Random(SplitMix);

impl Random {
    pub fn new(seed: u64) -> Self {
        let mut mix = SplitMix(seed);
        mix.number();
        Self(mix)
    }

    /// An independent stream.
    pub fn fork(&mut self) -> Self {
        Self(SplitMix(self.0.number()))
    }

    pub fn number(&mut self) -> u64 {
        self.0.number()
    }

    /// A number of `range`, both ends included.
    pub fn within(&mut self, range: std::ops::RangeInclusive<usize>) -> usize {
        let (start, end) = range.into_inner();
        start + self.0.below((end - start + 1) as u64) as usize
    }

    /// True in `percent` of a hundred draws.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.0.below(100) < percent
    }

    /// One of `choices`.
    pub fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.within(0..=choices.len() - 1)].clone()
    }
}
