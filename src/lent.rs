//! Memory of the KV cache that weights have until positions are written there.

use forebay_stages::kernels::kv::BLOCK;

/// The budget's item of keys and values.
pub(crate) const KV_CACHE: &str = "kv_cache";

/// A KV cache grows in so many parts; each time, weights give way.
const PARTS: usize = 8;

/// How much of a KV cache is lent to weights, and when they give it back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lent {
    /// Positions of a part.
    part: usize,
    /// Bytes that weights still have when the first parts are in use, `[parts]`; falls to 0.
    loans: Vec<u64>,
}

impl Lent {
    /// At most `most` bytes of a cache of `context` positions, of which `written` tells how many bytes are committed
    /// while at most so many positions have been used.
    pub fn new(context: usize, most: u64, written: impl Fn(usize) -> u64) -> Self {
        let part = context.div_ceil(PARTS);
        let whole = written(context);
        // Where not all can be lent, the first positions have their memory from the start.
        let kept = whole - (whole - written(part)).min(most);
        let loan = |n: usize| whole - kept.max(written((n * part).min(context)));
        Self {
            part,
            loans: (1..=context.div_ceil(part.max(1))).map(loan).collect(),
        }
    }

    /// How many parts so many positions use; the first one is never lent. Where nothing is lent there is only one.
    pub fn parts(&self, positions: usize) -> usize {
        match self.bytes() {
            0 => 1,
            _ => positions.div_ceil(self.part).max(1),
        }
    }

    /// Bytes that weights have at the start.
    pub fn bytes(&self) -> u64 {
        self.loan(1)
    }

    /// Bytes that they still have when so many parts are in use.
    pub fn loan(&self, parts: usize) -> u64 {
        let last = self.loans.len().max(1);
        self.loans
            .get(parts.clamp(1, last) - 1)
            .copied()
            .unwrap_or(0)
    }

    /// Blocks of the KV cache that may be in memory then.
    pub fn kv_blocks(&self, parts: usize) -> usize {
        match self.bytes() {
            0 => usize::MAX,
            _ => parts.saturating_mul(self.part).div_ceil(BLOCK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten bytes per position, in blocks of 64.
    fn written(positions: usize) -> u64 {
        positions.next_multiple_of(64) as u64 * 10
    }

    /// Whatever is in use has its memory.
    fn check(lent: &Lent, context: usize) {
        for positions in 0..=context {
            let parts = lent.parts(positions);
            let has = written(context) - lent.loan(parts);
            assert!(has >= written(positions), "{positions} of {context}");
            let blocks = lent.kv_blocks(parts);
            assert!(blocks.saturating_mul(64) >= positions);
            assert!(blocks == usize::MAX || has >= written((blocks * 64).min(context)));
        }
        assert_eq!(lent.loan(lent.parts(context)), 0);
        assert_eq!(lent.loan(usize::MAX), 0);
    }

    #[test]
    fn what_is_lent_comes_back_part_by_part_before_it_is_used() {
        let lent = Lent::new(2048, u64::MAX, written);
        let loans = [(0, 17_920), (256, 17_920), (257, 15_360), (513, 12_800)];
        for (positions, loan) in loans {
            assert_eq!(lent.loan(lent.parts(positions)), loan, "{positions}");
        }
        check(&lent, 2048);
    }

    #[test]
    fn less_can_be_lent_and_comes_back_last() {
        let lent = Lent::new(2048, 6000, written);
        assert_eq!(lent.loan(lent.parts(1024)), 6000);
        assert_eq!(lent.loan(lent.parts(1537)), 2560);
        check(&lent, 2048);
    }

    #[test]
    fn small_contexts_and_none_lend_little_or_nothing() {
        for context in 1..200 {
            check(&Lent::new(context, u64::MAX, written), context);
        }
        let none = Lent::default();
        assert_eq!((none.bytes(), none.loan(7)), (0, 0));
        assert_eq!((none.parts(1), none.parts(77)), (1, 1));
        assert_eq!(none.kv_blocks(none.parts(77)), usize::MAX);
    }
}
