//! How a batch of tokens is divided into pieces for products with panels.

/// Elements that share a scale.
pub(super) const BLOCK: usize = 32;

/// Tokens that are interleaved block by block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// First token.
    pub(super) first: usize,
    /// Number of tokens: 16, 4 or 1.
    pub(super) width: usize,
}

impl Piece {
    /// One without tokens.
    pub(super) const NONE: Self = Self { first: 0, width: 0 };

    /// Whether token `t` is in it.
    pub(super) fn has(&self, t: usize) -> bool {
        (self.first..self.first + self.width).contains(&t)
    }
}

/// The pieces of a batch, the widest first. None is wider than `widest`, the instruction set's
/// [`super::simd::Simd::WIDEST`].
pub(super) fn pieces(n_tokens: usize, widest: usize) -> impl Iterator<Item = Piece> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let fits = |&width: &usize| width <= widest && first + width <= n_tokens;
        let width = [16, 4, 1].into_iter().find(fits)?;
        first += width;
        Some(Piece {
            first: first - width,
            width,
        })
    })
}

/// One piece: arrays by block, then by token. A token's numbers do not depend on its neighbours.
#[derive(Clone, Copy)]
pub(super) struct PanelTokens<'a, const T: usize> {
    pub(super) values: &'a [[[f32; BLOCK]; T]],
    pub(super) codes: &'a [[[i8; BLOCK]; T]],
    pub(super) scales: &'a [[f32; T]],
    /// `scale * sum(code)`
    pub(super) sums: &'a [[f32; T]],
    /// `-sum(code)`
    pub(super) counts: &'a [[i32; T]],
    /// The same for each half of a block.
    pub(super) half_sums: &'a [[[f32; 2]; T]],
    pub(super) half_counts: &'a [[[i32; 2]; T]],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_batch() {
        for (n, widest) in (0..70).flat_map(|n| [1, 4, 16].map(|w| (n, w))) {
            let mut next = 0;
            for piece in pieces(n, widest) {
                assert_eq!(piece.first, next);
                assert!([1, 4, 16].contains(&piece.width) && piece.width <= widest);
                next += piece.width;
            }
            assert_eq!(next, n);
        }
    }
}
