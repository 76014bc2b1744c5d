//! Memory that weights have until it is needed: that of the KV cache until positions are written there, and that of a
//! step's buffers until a prompt's batch fills them.

use forebay_stages::kernels::kv::BLOCK;

/// The budget's item of keys and values.
pub(crate) const KV_CACHE: &str = "kv_cache";
/// That of a step's buffers.
pub(crate) const SCRATCH: &str = "scratch";

/// What is lent grows in so many parts; each time, weights give way.
pub(crate) const PARTS: usize = 8;

/// How much of one item is lent to weights, and when they give it back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loan {
    /// Positions, or tokens of a step, of a part.
    part: usize,
    /// Bytes that weights still have when the first parts are in use, `[parts]`; falls to 0.
    bytes: Vec<u64>,
}

impl Loan {
    /// At most `most` bytes of an item for `units` positions or tokens, `part` at a time; `written` tells how many
    /// bytes are committed while at most so many of them have been used.
    pub fn new((units, part): (usize, usize), most: u64, written: impl Fn(usize) -> u64) -> Self {
        let part = part.clamp(1, units.max(1));
        let whole = written(units);
        // Where not all can be lent, the first ones have their memory from the start.
        let kept = whole - (whole - written(part)).min(most);
        let loan = |n: usize| whole - kept.max(written((n * part).min(units)));
        Self {
            part,
            bytes: (1..=units.div_ceil(part)).map(loan).collect(),
        }
    }

    /// Bytes that weights have at the start.
    pub fn first(&self) -> u64 {
        self.left(1)
    }

    /// Bytes that they still have when so many parts are in use.
    fn left(&self, parts: usize) -> u64 {
        let last = self.bytes.len().max(1);
        let left = self.bytes.get(parts.clamp(1, last) - 1);
        left.copied().unwrap_or(0)
    }

    /// How many parts so many positions or tokens use; the first one is never lent. Where nothing is lent there is only
    /// one.
    fn parts(&self, units: usize) -> usize {
        match self.first() {
            0 => 1,
            _ => units.div_ceil(self.part).max(1),
        }
    }

    /// How many positions or tokens may be used then.
    fn room(&self, parts: usize) -> usize {
        match self.first() {
            0 => usize::MAX,
            _ => parts.saturating_mul(self.part),
        }
    }
}

/// How many parts of each item are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InUse {
    pub kv: usize,
    pub scratch: usize,
}

impl InUse {
    /// As at the start.
    pub const FIRST: Self = Self { kv: 1, scratch: 1 };
    /// Nothing is lent any more.
    pub const ALL: Self = Self {
        kv: usize::MAX,
        scratch: usize::MAX,
    };
}

/// What is lent to weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lent {
    /// Of the KV cache, by position.
    pub kv: Loan,
    /// Of a step's buffers, by token.
    pub scratch: Loan,
}

impl Lent {
    /// Bytes at the start.
    pub fn bytes(&self) -> u64 {
        self.left(InUse::FIRST)
    }

    /// Bytes that weights still have when so much is in use.
    pub fn left(&self, used: InUse) -> u64 {
        self.items(used).iter().map(|(_, bytes)| bytes).sum()
    }

    /// The same, with the items to which they belong.
    pub fn items(&self, used: InUse) -> [(&'static str, u64); 2] {
        let (kv, scratch) = (self.kv.left(used.kv), self.scratch.left(used.scratch));
        [(KV_CACHE, kv), (SCRATCH, scratch)]
    }

    /// What steps of so many tokens use when there are so many positions.
    pub fn in_use(&self, positions: usize, tokens: usize) -> InUse {
        InUse {
            kv: self.kv.parts(positions),
            scratch: self.scratch.parts(tokens),
        }
    }

    /// Blocks of the KV cache that may be in memory then.
    pub fn kv_blocks(&self, used: InUse) -> usize {
        match self.kv.room(used.kv) {
            usize::MAX => usize::MAX,
            positions => positions.div_ceil(BLOCK),
        }
    }

    /// Most tokens of a step then.
    pub fn max_tokens(&self, used: InUse) -> usize {
        self.scratch.room(used.scratch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten bytes per position, in blocks of 64.
    fn written(positions: usize) -> u64 {
        positions.next_multiple_of(64) as u64 * 10
    }

    fn lent(context: usize, most: u64) -> Lent {
        Lent {
            kv: Loan::new((context, context.div_ceil(PARTS)), most, written),
            scratch: Loan::default(),
        }
    }

    fn left(lent: &Lent, positions: usize) -> u64 {
        lent.left(lent.in_use(positions, 1))
    }

    /// Whatever is in use has its memory.
    fn check(lent: &Lent, context: usize) {
        for positions in 0..=context {
            let used = lent.in_use(positions, 1);
            let has = written(context) - lent.left(used);
            assert!(has >= written(positions), "{positions} of {context}");
            let blocks = lent.kv_blocks(used);
            assert!(blocks.saturating_mul(64) >= positions);
            assert!(blocks == usize::MAX || has >= written((blocks * 64).min(context)));
        }
        assert_eq!(left(lent, context), 0);
        assert_eq!(lent.left(InUse::ALL), 0);
    }

    #[test]
    fn what_is_lent_comes_back_part_by_part_before_it_is_used() {
        let lent = lent(2048, u64::MAX);
        let loans = [(0, 17_920), (256, 17_920), (257, 15_360), (513, 12_800)];
        for (positions, loan) in loans {
            assert_eq!(left(&lent, positions), loan, "{positions}");
        }
        check(&lent, 2048);
    }

    #[test]
    fn less_can_be_lent_and_comes_back_last() {
        let lent = lent(2048, 6000);
        assert_eq!(left(&lent, 1024), 6000);
        assert_eq!(left(&lent, 1537), 2560);
        check(&lent, 2048);
    }

    #[test]
    fn small_contexts_and_none_lend_little_or_nothing() {
        for context in 1..200 {
            check(&lent(context, u64::MAX), context);
        }
        let none = Lent::default();
        let used = none.in_use(77, 77);
        assert_eq!((used, none.left(used)), (InUse::FIRST, 0));
        assert_eq!(none.kv_blocks(used), usize::MAX);
        assert_eq!(none.max_tokens(used), usize::MAX);
    }

    /// Buffers of batches of 100 tokens, of which 13 and more come one part after the other, and 5 bytes never.
    #[test]
    fn buffers_come_back_as_far_as_a_step_needs_them() {
        let bytes = |tokens: usize| 5 + 7 * tokens as u64;
        let lent = Lent {
            kv: Loan::default(),
            scratch: Loan::new((100, 13), u64::MAX, bytes),
        };
        assert_eq!(lent.bytes(), 7 * 87);
        for tokens in 1..=100 {
            let used = lent.in_use(4000, tokens);
            assert_eq!(used.kv, 1);
            assert!(lent.max_tokens(used) >= tokens);
            let has = bytes(100) - lent.left(used);
            assert!(has >= bytes(lent.max_tokens(used).min(100)));
        }
        assert_eq!(lent.left(lent.in_use(1, 100)), 0);
    }
}
