//! How a batch of tokens is cut into pieces for products with panels.

/// Elements that share a scale.
pub(super) const BLOCK: usize = 32;
/// Most tokens of a piece: as many sums as leave room for a block of weights in 32 registers.
pub(super) const WIDEST: usize = 16;

/// Tokens that lie block by block side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// First token.
    pub(super) first: usize,
    /// Tokens: a power of two, at most [`WIDEST`].
    pub(super) width: usize,
}

/// The pieces of a batch, the widest first.
pub(super) fn pieces(n_tokens: usize) -> impl Iterator<Item = Piece> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let width = (n_tokens - first)
            .checked_ilog2()
            .map(|log| WIDEST.min(1 << log))?;
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
        for n in 0..70 {
            let mut next = 0;
            for piece in pieces(n) {
                assert_eq!(piece.first, next);
                assert!(piece.width.is_power_of_two() && piece.width <= WIDEST);
                next += piece.width;
            }
            assert_eq!(next, n);
        }
    }
}
