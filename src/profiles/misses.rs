//! What a cache of neurons misses: the real policy, run over recorded wants.

use forebay_models::bundle::FfnGeometry;
use forebay_stages::cache::{NeuronCache, PolicyKind};
use forebay_stages::neuron_store::JoinRule;
use serde::{Deserialize, Serialize};

/// Bytes of a buffer that neighbours are read into together.
const BUFFER: usize = 64 << 10;

/// Misses of a cache that has room for a part of all neurons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MissPoint {
    /// Part of all neurons that the cache holds.
    pub cached: f64,
    /// Part of the wanted neurons that are not in the warm cache, P_miss.
    pub miss_rate: f64,
    /// Neurons that a token misses.
    pub per_token: f64,
    /// Reads that fetch them: neighbours share one.
    #[serde(default)]
    pub reads: f64,
    /// Bytes of these reads.
    #[serde(default)]
    pub bytes: f64,
}

/// Which token wanted which neuron.
#[derive(Debug)]
pub(crate) struct Wants<'a> {
    /// One bit per neuron, `[n_layers][tokens][d_ff / 64]`.
    pub rows: &'a [Vec<u64>],
    /// Neurons of each layer that are computed for every token, and not cached: its first ones, `[n_layers]`.
    pub hot: &'a [usize],
    /// Neurons of a layer.
    pub d_ff: usize,
    /// Tokens.
    pub tokens: usize,
    /// How neurons lie in the file.
    pub geometry: FfnGeometry,
    /// Whether Gate is read as well, or only Up and Down.
    pub whole_bundles: bool,
}

impl Wants<'_> {
    /// One cache over all layers, for a part `cached` of all neurons that are not hot; the first half of the tokens
    /// warms it up.
    pub fn simulate(&self, cached: f64, policy: PolicyKind) -> MissPoint {
        let (neurons, words) = (self.rows.len() * self.d_ff, self.d_ff.div_ceil(64));
        let cold = neurons - self.hot.iter().sum::<usize>();
        let slots = ((cold as f64 * cached) as usize).max(1);
        let mut cache = NeuronCache::new(policy, neurons, slots);
        let rule = self.join_rule();
        let (mut wanted, mut missed, mut reads, mut bytes) = (0u64, 0u64, 0u64, 0u64);
        let mut missing = Vec::with_capacity(self.d_ff);
        for t in 0..self.tokens {
            let counts = u64::from(t >= self.tokens / 2);
            for (l, layer) in self.rows.iter().enumerate() {
                missing.clear();
                for i in of_token(&layer[t * words..][..words]) {
                    let neuron = l * self.d_ff + i;
                    let hit = cache.hold(neuron);
                    wanted += counts;
                    if hit.is_none() {
                        missing.push(i);
                    }
                    if let Some(slot) = hit.or_else(|| cache.admit(neuron)) {
                        cache.release(slot);
                    }
                }
                missed += counts * missing.len() as u64;
                // Clusters are read on their own.
                let (per, hot) = (self.geometry.neurons, self.hot[l]);
                let cluster_of = |i: &usize| (i - hot) / per;
                for cluster in missing.chunk_by(|a, b| cluster_of(a) == cluster_of(b)) {
                    let (r, b) = rule.reads(cluster.iter().map(|i| (i - hot) % per));
                    reads += counts * r;
                    bytes += counts * b;
                }
            }
            cache.end_token();
        }
        let per_token = |n: u64| n as f64 / (self.tokens - self.tokens / 2).max(1) as f64;
        MissPoint {
            cached,
            miss_rate: missed as f64 / wanted.max(1) as f64,
            per_token: per_token(missed),
            reads: per_token(reads),
            bytes: per_token(bytes),
        }
    }

    fn join_rule(&self) -> JoinRule {
        let g = &self.geometry;
        let start = if self.whole_bundles { 0 } else { g.up_offset() };
        JoinRule {
            stride: g.bundle_stride(),
            range: start..g.bundle_bytes(),
            buffer: BUFFER,
            joins: true,
        }
    }
}

/// Neurons that a token wants of a layer.
pub(crate) fn of_token(row: &[u64]) -> impl Iterator<Item = usize> {
    row.iter().enumerate().flat_map(|(w, &word)| {
        let mut word = word;
        std::iter::from_fn(move || {
            let bit = word.trailing_zeros() as usize;
            word &= word.wrapping_sub(1);
            (bit < 64).then_some(w * 64 + bit)
        })
    })
}

#[cfg(test)]
mod tests {
    use forebay_models::block::BlockType;
    use forebay_models::bundle::FfnLayout;

    use super::*;

    #[test]
    fn a_steady_set_is_missed_by_no_cache_that_holds_it() {
        // Two layers of 128 neurons; every token wants the first quarter.
        let rows = vec![[0xffff_ffffu64, 0].repeat(40); 2];
        let formats = (BlockType::Q4_0, Some(BlockType::Q4_0), BlockType::Q4_0);
        let wants = Wants {
            rows: &rows,
            hot: &[0, 0],
            d_ff: 128,
            tokens: 40,
            geometry: FfnGeometry::choose(FfnLayout::Neuron, formats, 4096, 128),
            whole_bundles: true,
        };
        let at = |cached| wants.simulate(cached, PolicyKind::Lru);
        assert_eq!(at(0.25).miss_rate, 0.0);
        assert_eq!(at(1.0).reads, 0.0);
        // A cycle longer than the cache defeats recency.
        let small = at(0.2);
        assert_eq!((small.miss_rate, small.per_token), (1.0, 64.0));
        // Bundles of 8 KiB, eight to a buffer.
        assert_eq!((small.reads, small.bytes), (8.0, 64.0 * 8192.0));
    }
}
