//! Which heads of a layer a core computes.

use std::ops::Range;

use forebay_models::network::{Attention, NormSpan};

/// Core `rank`'s contiguous part of `n` heads or channels.
pub(crate) fn part_of(n: usize, rank: usize, threads: usize) -> Range<usize> {
    rank * n / threads..(rank + 1) * n / threads
}

/// A core's heads in one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Query heads: contiguous shares, so that shares end between key/value heads if the numbers allow.
    pub q_heads: Range<usize>,
    /// Key/value heads that these read.
    pub kv_heads: Range<usize>,
    /// Query heads of one key/value head.
    pub group: usize,
}

impl Share {
    /// The share of core `rank` of `threads`.
    pub fn new(attention: &Attention, rank: usize, threads: usize) -> Self {
        let group = attention.n_heads / attention.n_kv_heads;
        let q = part_of(attention.n_heads, rank, threads);
        let kv = match q.is_empty() {
            true => 0..0,
            false => q.start / group..q.end.div_ceil(group),
        };
        Self {
            q_heads: q,
            kv_heads: kv,
            group,
        }
    }

    /// Columns of the layer's queries, keys and values that the core needs, `0..in_dim` of a token.
    pub fn inputs(&self, a: &Attention) -> [Range<usize>; 3] {
        let by_row = a.qk_norm.is_some_and(|norm| norm.span == NormSpan::Row);
        if by_row || a.latent.is_some() || a.output_gate {
            return [0..a.in_dim(), 0..0, 0..0];
        }
        let of_heads = |first: usize, heads: &Range<usize>| {
            first + heads.start * a.head_dim..first + heads.end * a.head_dim
        };
        let kv = |first: usize, rows: usize| match rows {
            0 => 0..0,
            _ => of_heads(first, &self.kv_heads),
        };
        [
            of_heads(0, &self.q_heads),
            kv(a.q_rows(), a.k_rows()),
            kv(a.q_rows() + a.k_rows(), a.v_rows()),
        ]
    }

    /// This core's query heads that read key/value head `kv`.
    pub fn readers(&self, kv: usize) -> Range<usize> {
        let (first, end) = (kv * self.group, (kv + 1) * self.group);
        first.max(self.q_heads.start)..end.min(self.q_heads.end)
    }
}

#[cfg(test)]
mod tests {
    use forebay_models::network::KvOrigin;

    use super::*;

    #[test]
    fn every_head_has_one_owner_and_its_keys() {
        for (n_heads, n_kv_heads) in [(9, 3), (14, 2), (12, 2), (32, 8), (4, 4), (6, 1)] {
            let attention = Attention {
                n_heads,
                n_kv_heads,
                head_dim: 4,
                kv: KvOrigin::Own,
                latent: None,
                qkv_bias: false,
                out_bias: false,
                output_gate: false,
                qk_norm: None,
                v_norm: None,
                rope: None,
                window: None,
                scale: 1.0,
                softcap: None,
                temperature: None,
                sinks: false,
            };
            for threads in 1..=n_heads + 2 {
                let mut next = 0;
                for rank in 0..threads {
                    let share = Share::new(&attention, rank, threads);
                    assert_eq!(share.q_heads.start, next);
                    let read = share.kv_heads.clone().flat_map(|kv| share.readers(kv));
                    assert_eq!(
                        read.collect::<Vec<_>>(),
                        share.q_heads.clone().collect::<Vec<_>>()
                    );
                    assert!(
                        share
                            .kv_heads
                            .clone()
                            .all(|kv| !share.readers(kv).is_empty())
                    );
                    next = share.q_heads.end;
                }
                assert_eq!(next, n_heads);
            }
        }
    }
}
