//! How sparse a model is, and how regularly: what a neuron cache depends on.

use forebay_plans::predictor_fit::LayerSamples;
use forebay_stages::cache::{NeuronCache, PolicyKind};
use serde::Serialize;

/// Activity of a model's neurons over a text.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Activity {
    /// Part of the neurons alive for a token.
    pub density: f64,
    /// Part of all activations that belongs to the most active fifth of a layer's neurons.
    pub top_fifth_share: f64,
    /// Part of a token's live neurons that were alive for the previous token.
    pub overlap: f64,
    /// Part of the live neurons that a warm cache of half of the layer's neurons misses, with PowerInfer-2's policy.
    pub miss_rate_at_half: f64,
    /// Part of the live neurons that the predictors name; absent if there are none.
    pub recall: Option<f64>,
}

impl Activity {
    /// Activity of one layer over consecutive tokens.
    pub fn of(samples: &LayerSamples) -> Self {
        let (d_ff, words) = (samples.d_ff, samples.d_ff.div_ceil(64));
        let tokens = samples.live.len() / words;
        let mut counts = vec![0u64; d_ff];
        let mut cache = NeuronCache::new(PolicyKind::TwoQueue, d_ff, d_ff.div_ceil(2));
        let (mut alive, mut again, mut followed) = (0u64, 0u64, 0u64);
        let (mut late, mut missed) = (0u64, 0u64);
        for (t, token) in samples.live.chunks_exact(words).enumerate() {
            let warm = t >= tokens / 2;
            for i in (0..d_ff).filter(|i| token[i / 64] >> (i % 64) & 1 == 1) {
                counts[i] += 1;
                alive += 1;
                let hit = cache.hold(i);
                late += u64::from(warm);
                missed += u64::from(warm && hit.is_none());
                if let Some(slot) = hit.or_else(|| cache.admit(i)) {
                    cache.release(slot);
                }
            }
            cache.end_token();
            if t > 0 {
                let before = &samples.live[(t - 1) * words..t * words];
                let both = before.iter().zip(token).map(|(a, b)| (a & b).count_ones());
                again += u64::from(both.sum::<u32>());
                followed += u64::from(token.iter().map(|w| w.count_ones()).sum::<u32>());
            }
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let top: u64 = counts[..d_ff.div_ceil(5)].iter().sum();
        let part = |a: u64, b: u64| a as f64 / b.max(1) as f64;
        Self {
            density: part(alive, (tokens * d_ff) as u64),
            top_fifth_share: part(top, alive),
            overlap: part(again, followed),
            miss_rate_at_half: part(missed, late),
            recall: None,
        }
    }

    /// The same with the predictors' recall.
    pub(super) fn with_recall(self, recall: Option<f64>) -> Self {
        Self { recall, ..self }
    }

    /// The mean over layers.
    pub fn mean(layers: &[Self]) -> Self {
        let of =
            |f: fn(&Self) -> f64| layers.iter().map(f).sum::<f64>() / layers.len().max(1) as f64;
        Self {
            density: of(|a| a.density),
            top_fifth_share: of(|a| a.top_fifth_share),
            overlap: of(|a| a.overlap),
            miss_rate_at_half: of(|a| a.miss_rate_at_half),
            recall: layers
                .iter()
                .map(|a| a.recall)
                .sum::<Option<f64>>()
                .filter(|_| !layers.is_empty())
                .map(|sum| sum / layers.len() as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(live: Vec<u64>) -> LayerSamples {
        LayerSamples {
            d_model: 1,
            d_ff: 10,
            inputs: vec![0.0; live.len()],
            ffn_inputs: Vec::new(),
            live,
        }
    }

    #[test]
    fn a_steady_set_overlaps_wholly_and_is_never_missed() {
        let a = Activity::of(&samples(vec![0b11; 8]));
        assert!((a.density - 0.2).abs() < 1e-12);
        assert!((a.top_fifth_share - 1.0).abs() < 1e-12);
        assert!((a.overlap - 1.0).abs() < 1e-12);
        assert!(a.miss_rate_at_half.abs() < 1e-12);
    }

    #[test]
    fn a_cycle_longer_than_the_cache_is_always_missed() {
        let a = Activity::of(&samples((0..40).map(|t| 1 << (t % 10)).collect()));
        assert!((a.density - 0.1).abs() < 1e-12);
        assert!((a.top_fifth_share - 0.2).abs() < 1e-12);
        assert!(a.overlap.abs() < 1e-12);
        assert!(a.miss_rate_at_half > 0.4, "{a:?}");
    }
}
