//! What is done with one operator.

use super::PARTS;

/// What is done with an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The device's share of its clusters, in parts of [`PARTS`].
    pub share: u8,
    /// Whether the share's weights stay in the device's memory. It makes no difference where memory is shared, or
    /// weights are streamed.
    pub resident: bool,
}

impl Choice {
    /// The share, from 0 to 1.
    pub fn part(self) -> f64 {
        f64::from(self.share) / f64::from(PARTS)
    }

    /// All possible ones.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let with = |share| [true, false].map(|resident| Self { share, resident });
        std::iter::once(Self::default()).chain((1..=PARTS).flat_map(with))
    }
}
