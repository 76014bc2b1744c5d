//! Which neurons of a cluster are alive.

use forebay_models::bundle::MAX_NEURONS;

/// One bit per neuron of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveMask {
    words: [u64; MAX_NEURONS / 64],
}

impl LiveMask {
    /// No neuron.
    pub const NONE: Self = Self {
        words: [0; MAX_NEURONS / 64],
    };

    /// Only neuron `i`.
    pub fn only(i: usize) -> Self {
        let mut mask = Self::NONE;
        mask.set(i);
        mask
    }

    /// The first `n` neurons.
    pub fn first(n: usize) -> Self {
        let mut mask = Self::default();
        for (i, word) in mask.words.iter_mut().enumerate() {
            let bits = n.saturating_sub(i * 64).min(64);
            *word = if bits == 64 {
                u64::MAX
            } else {
                (1 << bits) - 1
            };
        }
        mask
    }

    /// The neurons whose value passes, without a branch per value: branches would be hard to predict.
    pub fn of<T: Copy>(values: &[T], passes: impl Fn(T) -> bool) -> Self {
        let mut mask = Self::NONE;
        for (word, values) in mask.words.iter_mut().zip(values.chunks(64)) {
            for (i, &value) in values.iter().enumerate() {
                *word |= u64::from(passes(value)) << i;
            }
        }
        mask
    }

    /// Sets the values of neurons that are not marked to 0.
    pub fn clear_others(&self, values: &mut [f32]) {
        for (word, values) in self.words.iter().zip(values.chunks_mut(64)) {
            for (i, value) in values.iter_mut().enumerate() {
                let keep = 0u32.wrapping_sub((word >> i & 1) as u32);
                *value = f32::from_bits(value.to_bits() & keep);
            }
        }
    }

    /// Also marks those that `other` marks.
    pub fn join(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(other.words) {
            *word |= other;
        }
    }

    /// Removes the marks from those that `other` marks.
    pub fn remove(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(other.words) {
            *word &= !other;
        }
    }

    /// Marks neuron `i`.
    pub fn set(&mut self, i: usize) {
        self.words[i / 64] |= 1 << (i % 64);
    }

    /// Removes the mark from neuron `i`.
    pub fn clear(&mut self, i: usize) {
        self.words[i / 64] &= !(1 << (i % 64));
    }

    /// Whether neuron `i` is marked.
    pub fn has(&self, i: usize) -> bool {
        self.words[i / 64] >> (i % 64) & 1 == 1
    }

    /// Number of marked neurons.
    pub fn count(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Whether none is marked.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&w| w == 0)
    }

    /// Marked neurons in index order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.words
            .into_iter()
            .enumerate()
            .flat_map(|(i, mut word)| {
                std::iter::from_fn(move || {
                    let bit = word.trailing_zeros() as usize;
                    word &= word.wrapping_sub(1);
                    (bit < 64).then_some(i * 64 + bit)
                })
            })
    }

    /// Runs of consecutive marked neurons as `(first, length)`, in index order.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize)> {
        let mask = *self;
        let mut at = 0;
        std::iter::from_fn(move || {
            while at < MAX_NEURONS && !mask.has(at) {
                at += 1;
            }
            let first = at;
            while at < MAX_NEURONS && mask.has(at) {
                at += 1;
            }
            (at > first).then_some((first, at - first))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_iter_agree_with_set_bits() {
        let mut mask = LiveMask::default();
        let chosen = [0, 1, 2, 63, 64, 65, 200, 511];
        chosen.iter().for_each(|&i| mask.set(i));
        assert_eq!(mask.iter().collect::<Vec<_>>(), chosen);
        assert_eq!(
            mask.runs().collect::<Vec<_>>(),
            [(0, 3), (63, 3), (200, 1), (511, 1)]
        );
        assert_eq!(mask.count(), chosen.len());
    }

    #[test]
    fn values_choose_and_are_chosen() {
        let mut values: Vec<f32> = (0..200).map(|i| (i % 3) as f32 - 1.0).collect();
        values[77] = f32::NAN;
        let mask = LiveMask::of(&values, |v: f32| v >= 1.0 || v.is_nan());
        let passing = (0..200).filter(|&i| i % 3 == 2 || i == 77);
        assert_eq!(mask.iter().collect::<Vec<_>>(), passing.collect::<Vec<_>>());
        mask.clear_others(&mut values);
        for (i, v) in values.iter().enumerate() {
            assert_eq!(*v != 0.0, mask.has(i), "{i}");
        }
        let mut both = LiveMask::only(500);
        both.join(&mask);
        assert_eq!(both.count(), mask.count() + 1);
    }

    #[test]
    fn first_marks_exactly_n() {
        for n in [0, 1, 63, 64, 65, 256, 512] {
            let mask = LiveMask::first(n);
            assert_eq!(mask.count(), n);
            assert_eq!(mask.runs().next(), (n > 0).then_some((0, n)));
            assert_eq!(mask.is_empty(), n == 0);
        }
    }
}
