//! What is read of a model's experts if their Gates come first: P_activated inside an expert.
//!
//! ```text
//! reads and bytes per use = P_miss · (Gates + Σ over the uses of a stay in the cache, pairs that are still missing)
//! ```
//!
//! A cluster that is admitted stays for 1 / P_miss uses. The first brings the pairs of its live neurons, each later one
//! those that no earlier one brought. Live neurons are taken to lie anywhere, each with the same chance: then a run of
//! dead ones has length L with probability q^L p, and runs that are worth another read are left out. Some neurons are
//! alive more often than others, so that a later use finds more than by chance.

use forebay_models::bundle::{ALIGN, FfnGeometry};

use crate::expert_cache::READ_GAP;

/// Uses of a stay that are looked at: beyond them, hardly anything is missing.
const MOST_USES: f64 = 64.0;
/// Part of a use's live neurons that an earlier use of the expert had, beyond chance. Of consecutive tokens it is about
/// half (TurboSparse-Mistral), but they seldom use the same expert. The shape of TurboSparse-Mixtral with 30 and 60% of
/// its experts in memory reads 84 and 48 MB per token and layer then; 85 and 53 are expected.
const REPEATED: f64 = 0.4;

/// Reads and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reads {
    /// Number of reads.
    pub reads: f64,
    /// Bytes of all of them.
    pub bytes: f64,
}

impl Reads {
    /// So many times as many.
    #[must_use]
    pub fn times(self, n: f64) -> Self {
        Self {
            reads: self.reads * n,
            bytes: self.bytes * n,
        }
    }
}

/// Reads of a used cluster: of its Gates, and of pairs of Up and Down.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PartReads {
    /// Of Gates.
    pub gates: Reads,
    /// Of pairs.
    pub pairs: Reads,
}

impl PartReads {
    /// So many times as many.
    #[must_use]
    pub fn times(self, n: f64) -> Self {
        Self {
            gates: self.gates.times(n),
            pairs: self.pairs.times(n),
        }
    }

    /// All of them.
    pub fn sum(&self) -> Reads {
        Reads {
            reads: self.gates.reads + self.pairs.reads,
            bytes: self.gates.bytes + self.pairs.bytes,
        }
    }

    /// Per use of a cluster stored as `g` whose neurons are `alive` with this probability, if a part `missed` of the
    /// uses does not find it in the cache.
    pub fn of(g: &FfnGeometry, alive: f64, missed: f64) -> Self {
        Self::repeating(g, (alive, REPEATED), missed)
    }

    /// The same if this part of a use's live neurons was alive in the use before.
    fn repeating(g: &FfnGeometry, (alive, repeated): (f64, f64), missed: f64) -> Self {
        if missed <= 0.0 {
            return Self::default();
        }
        let gates = Reads {
            reads: 1.0,
            bytes: g.gates_bytes(g.neurons) as f64,
        };
        let (mut pairs, mut absent, mut new) = (Reads::default(), 1.0, alive);
        let mut left = (1.0 / missed).min(MOST_USES);
        while left > 0.0 {
            let (use_of, part) = of_pairs(g, new * absent);
            let weight = left.min(1.0);
            pairs.reads += weight * use_of.reads;
            pairs.bytes += weight * use_of.bytes;
            // What was wanted was absent; what lies between may have been there.
            absent *= (1.0 - part - new * (1.0 - absent)).max(0.0);
            new = alive * (1.0 - repeated);
            left -= 1.0;
        }
        Self {
            gates: gates.times(missed),
            pairs: pairs.times(missed),
        }
    }
}

/// Reads of the pairs of a cluster's neurons, each of which is wanted with probability `p`; and the part of all pairs
/// that they bring.
fn of_pairs(g: &FfnGeometry, p: f64) -> (Reads, f64) {
    let (n, pair, q) = (g.neurons, g.pair_stride(), 1.0 - p);
    // The shortest run that is left out: the pages at its ends are read.
    let run = (READ_GAP + ALIGN) / pair + 1;
    let (mut reads, mut neurons) = (0.0, 0.0);
    for i in 0..n {
        // A read begins with it if it is wanted, and none of those before it that are near.
        reads += p * q.powi(i.min(run) as i32);
        let between = (0..run.min(i)).map(|dead| p * p * q.powi(dead as i32) * dead as f64);
        neurons += p + between.sum::<f64>();
    }
    let bytes = neurons * pair as f64 + reads * ALIGN as f64;
    (Reads { reads, bytes }, neurons / n as f64)
}

#[cfg(test)]
mod tests {
    use forebay_models::block::BlockType;
    use forebay_models::bundle::FfnLayout;

    use super::*;

    fn geometry(d_model: usize, d_ff: usize) -> FfnGeometry {
        let q4 = BlockType::Q4_0;
        FfnGeometry::choose_for_experts(FfnLayout::GateFirst, (q4, Some(q4), q4), d_model, d_ff)
    }

    /// The pairs that are read per use of clusters of random neurons that stay for so many uses, with the stage's rule.
    fn simulated(g: &FfnGeometry, p: f64, uses: usize) -> Reads {
        const STAYS: usize = 200;
        let mut state = 7_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as f64 / (1_u64 << 31) as f64
        };
        let mut sum = Reads::default();
        for _ in 0..STAYS {
            let mut held = vec![false; g.neurons];
            for _ in 0..uses {
                let wanted: Vec<bool> = held.iter().map(|held| next() < p && !held).collect();
                let mut ranges: Vec<(usize, usize)> = Vec::new();
                for i in (0..g.neurons).filter(|&i| wanted[i]) {
                    let start = i * g.pair_stride() / ALIGN * ALIGN;
                    let end = ((i + 1) * g.pair_stride()).next_multiple_of(ALIGN);
                    match ranges.last_mut() {
                        Some((_, last)) if start <= *last + READ_GAP => *last = end,
                        _ => ranges.push((start, end)),
                    }
                }
                for (start, end) in ranges {
                    sum.reads += 1.0;
                    sum.bytes += (end - start) as f64;
                    let whole = start.div_ceil(g.pair_stride())..end / g.pair_stride();
                    held[whole].fill(true);
                }
            }
        }
        sum.times(1.0 / (STAYS * uses) as f64)
    }

    #[test]
    fn reads_of_pairs_are_those_of_random_neurons() {
        let g = geometry(4096, 14336);
        for p in [0.01, 0.03, 0.06, 0.1, 0.2, 0.4] {
            for uses in [1, 2, 4, 10] {
                let expected = simulated(&g, p, uses);
                let found = PartReads::repeating(&g, (p, 0.0), 1.0 / uses as f64).pairs;
                let off = |a: f64, b: f64| a / b - 1.0;
                let (reads, bytes) = (
                    off(found.reads, expected.reads),
                    off(found.bytes, expected.bytes),
                );
                // What is missing after some uses lies together, so that there are fewer reads than are expected.
                let most = if p <= 0.1 { 0.35 } else { 1.2 };
                assert!(
                    (-0.05..most).contains(&reads) && bytes.abs() < 0.25,
                    "{p}, {uses} uses: {found:?}, not {expected:?}"
                );
            }
        }
    }

    /// moe.md's arithmetic for TurboSparse-Mixtral and SmallThinker-21B.
    #[test]
    fn large_pairs_with_few_alive_are_worth_it_and_small_ones_are_not() {
        let bytes = |g: &FfnGeometry, alive, missed| {
            let parts = PartReads::of(g, alive, missed);
            let whole = g.cluster_bytes(g.neurons) as f64 * missed;
            (parts.gates.bytes + parts.pairs.bytes) / whole
        };
        let (mixtral, smallthinker) = (geometry(4096, 14336), geometry(2560, 768));
        let cold = bytes(&mixtral, 0.1, 1.0);
        assert!((0.45..0.6).contains(&cold), "{cold}");
        assert!(bytes(&smallthinker, 0.4, 1.0) > 0.98);
        // What stays for many uses comes in the end, and some of it more than once.
        let mut last = cold;
        for missed in [0.7, 0.5, 0.3, 0.1] {
            let part = bytes(&mixtral, 0.1, missed);
            assert!(part > last && part < 1.3, "{missed}: {part}");
            last = part;
        }
        assert_eq!(PartReads::of(&mixtral, 0.1, 0.0), PartReads::default());
    }
}
