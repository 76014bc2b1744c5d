//! Memory of the KV cache that weights have until positions are written there.

/// The budget's item of keys and values.
pub(crate) const KV_CACHE: &str = "kv_cache";

/// A KV cache grows in so many parts; each time, weights give way.
const PARTS: usize = 8;

/// How much of a KV cache is lent to weights, and when they give it back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lent {
    /// Positions of a part.
    part: usize,
    /// Bytes that weights have given back once the first parts are in use, `[parts]`; rises to all that is lent.
    returned: Vec<u64>,
}

impl Lent {
    /// At most `most` bytes of a cache of `context` positions, of which `written` tells how many bytes are committed
    /// while at most so many positions have been used.
    pub fn new(context: usize, most: u64, written: impl Fn(usize) -> u64) -> Self {
        let part = context.div_ceil(PARTS);
        let parts = context.div_ceil(part.max(1));
        let whole = written(context);
        let lent = (whole - written(part)).min(most);
        let kept = whole - lent;
        let returned = (1..=parts).map(|n| written((n * part).min(context)).saturating_sub(kept));
        Self {
            part,
            returned: returned.collect(),
        }
    }

    /// Bytes that are lent at the start.
    pub fn bytes(&self) -> u64 {
        self.returned.last().copied().unwrap_or(0)
    }

    /// Bytes that weights must have given back before so many positions are used.
    pub fn returned(&self, positions: usize) -> u64 {
        let parts = positions.div_ceil(self.part.max(1));
        let part = parts.clamp(1, self.returned.len().max(1)) - 1;
        self.returned.get(part).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten bytes per position, in blocks of 64.
    fn written(positions: usize) -> u64 {
        positions.next_multiple_of(64) as u64 * 10
    }

    #[test]
    fn what_is_lent_comes_back_part_by_part_before_it_is_used() {
        let lent = Lent::new(2048, u64::MAX, written);
        assert_eq!(lent.bytes(), 17_920);
        for (positions, returned) in [(0, 0), (256, 0), (257, 2560), (512, 2560), (513, 5120)] {
            assert_eq!(lent.returned(positions), returned, "{positions}");
        }
        assert_eq!((lent.returned(2048), lent.returned(9999)), (17_920, 17_920));
        for positions in 0..=2048 {
            let kept = written(2048) - lent.bytes() + lent.returned(positions);
            assert!(kept >= written(positions));
        }
    }

    #[test]
    fn less_can_be_lent_and_comes_back_last() {
        let lent = Lent::new(2048, 6000, written);
        assert_eq!((lent.bytes(), lent.returned(1024)), (6000, 0));
        assert_eq!(lent.returned(1537), 3440);
        for positions in 0..=2048 {
            assert!(20_480 - 6000 + lent.returned(positions) >= written(positions));
        }
    }

    #[test]
    fn small_contexts_and_none_lend_little_or_nothing() {
        for context in 1..200 {
            let lent = Lent::new(context, u64::MAX, written);
            for positions in 0..=context {
                let kept = written(context) - lent.bytes() + lent.returned(positions);
                assert!(kept >= written(positions) && lent.returned(context) == lent.bytes());
            }
        }
        let none = Lent::default();
        assert_eq!((none.bytes(), none.returned(77)), (0, 0));
    }
}
