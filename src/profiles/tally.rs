//! The default profile: counted in the background of ordinary runs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use forebay_models::bundle::{Bundle, ffn_identity};
use forebay_models::network::{Activation, Network};
use forebay_plans::residency::Sparsity;
use forebay_stages::frame::Observer;
use forebay_stages::live_mask::LiveMask;

use super::misses::MissPoint;
use super::profile::{COUNTED, Profile};

/// Tokens that are enough for a profile.
const ENOUGH: usize = 64;
/// Number of cache sizes.
const SIZES: usize = 20;

/// Counts how often each neuron is wanted. Each neuron is owned by one core, so counting needs no synchronisation.
#[derive(Debug)]
pub(crate) struct Tally {
    d_model: usize,
    /// By layer.
    activations: Vec<Activation>,
    hot: Vec<usize>,
    sparsity: Sparsity,
    tokens: AtomicUsize,
    /// `[n_layers][d_ff of the layer]`.
    counts: Vec<Vec<AtomicU32>>,
}

impl Tally {
    /// For a model in a mode.
    pub fn new(bundle: &Bundle, sparsity: Sparsity) -> Arc<Self> {
        let network: &Network = &bundle.meta.network;
        let layers = || network.layers.iter().map(|layer| &layer.ffn.body);
        let zeros = |n: usize| (0..n).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self {
            d_model: network.d_model,
            activations: layers().map(|ffn| ffn.activation).collect(),
            hot: layers().map(|ffn| ffn.hot).collect(),
            sparsity,
            tokens: AtomicUsize::new(0),
            counts: layers().map(|ffn| zeros(ffn.d_ff)).collect(),
        })
    }

    /// Bytes of the counts for a model.
    pub fn bytes(neurons: usize) -> u64 {
        (neurons * size_of::<AtomicU32>()) as u64
    }

    fn count(&self, layer: usize, neuron: usize) {
        let count = &self.counts[layer][neuron];
        // Only its owner writes.
        count.store(
            count.load(Ordering::Relaxed).saturating_add(1),
            Ordering::Relaxed,
        );
    }

    /// Adds the counts to the default profile that is saved with the packed model at `path`, if that still has the
    /// neurons `ffn`; one that was made explicitly stays. Only plans depend on it, so a failure to write it is ignored.
    pub fn keep(&self, path: &Path, ffn: u64) {
        let bundle = Bundle::open(path).ok();
        let Some(bundle) = bundle.filter(|bundle| ffn_identity(bundle) == ffn) else {
            return;
        };
        let before = Profile::load(&bundle);
        if before.as_ref().is_some_and(|p| p.policy != COUNTED) {
            return;
        }
        let mut tokens = self.tokens.load(Ordering::Relaxed);
        let mut counts: Vec<Vec<u32>> = self
            .counts
            .iter()
            .map(|layer| layer.iter().map(|c| c.load(Ordering::Relaxed)).collect())
            .collect();
        if let Some(before) = before.filter(|p| p.sparsity == self.sparsity) {
            tokens = tokens.saturating_add(before.tokens);
            let pairs = counts
                .iter_mut()
                .flatten()
                .zip(before.counts.iter().flatten());
            pairs.for_each(|(now, before)| *now = now.saturating_add(*before));
        }
        if tokens >= ENOUGH {
            let _ = counted(tokens, (counts, &self.hot), self.sparsity).save(&bundle);
        }
    }
}

/// A profile from counts alone: a cache is assumed to hold the neurons that are wanted most. The counts do not
/// show that consecutive tokens resemble each other, so real caches miss less.
fn counted(tokens: usize, (counts, hot): (Vec<Vec<u32>>, &[usize]), sparsity: Sparsity) -> Profile {
    let cold = || counts.iter().zip(hot).map(|(layer, &hot)| &layer[hot..]);
    let mut all: Vec<u32> = cold().flatten().copied().collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    let sum = |counts: &[u32]| counts.iter().map(|&c| u64::from(c)).sum::<u64>() as f64;
    let wants = sum(&all).max(1.0);
    let misses = (1..=SIZES).map(|i| {
        let cached = i as f64 / SIZES as f64;
        let left = sum(&all[all.len() * i / SIZES..]);
        MissPoint {
            cached,
            miss_rate: left / wants,
            per_token: left / tokens as f64,
            ..MissPoint::default()
        }
    });
    Profile {
        tokens,
        sparsity,
        wanted: cold()
            .map(|layer| sum(layer) / (tokens as f64 * layer.len().max(1) as f64))
            .collect(),
        overlap: 0.0,
        top_fifth_share: sum(&all[..all.len().div_ceil(5)]) / wants,
        policy: COUNTED.into(),
        misses: misses.collect(),
        counts,
        experts: None,
    }
}

impl Observer for Tally {
    fn residual(&self, layer: usize, _: usize, x: &[f32]) {
        if layer == 0 {
            self.tokens
                .fetch_add(x.len() / self.d_model, Ordering::Relaxed);
        }
    }

    fn named(&self, layer: usize, _: usize, first: usize, named: &[LiveMask]) {
        for i in named.iter().flat_map(LiveMask::iter) {
            self.count(layer, first + i);
        }
    }

    fn gates(&self, layer: usize, _: usize, (first, n): (usize, usize), gates: &[f32]) {
        if self.sparsity == Sparsity::Predicted || first < self.hot[layer] {
            return;
        }
        for (i, &gate) in gates.iter().enumerate() {
            if self.activations[layer].gate(gate) != 0.0 {
                self.count(layer, first + i % n);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_of_the_most_wanted_misses_the_rest() {
        // Ten tokens; of 20 neurons, one is wanted by all of them, one by half.
        let mut layer = vec![0; 20];
        (layer[3], layer[7]) = (10, 5);
        let p = counted(10, (vec![layer.clone()], &[0]), Sparsity::Exact);
        assert_eq!(p.wanted, [15.0 / 200.0]);
        assert!((p.misses[0].miss_rate - 5.0 / 15.0).abs() < 1e-9);
        assert!((p.misses[0].per_token - 0.5).abs() < 1e-9);
        assert_eq!(p.misses[1].miss_rate, 0.0);
        assert_eq!(p.top_fifth_share, 1.0);
        // Hot neurons are not cached.
        layer[..4].fill(0);
        let p = counted(10, (vec![layer], &[4]), Sparsity::Exact);
        assert_eq!(p.wanted, [5.0 / 160.0]);
        assert_eq!(p.misses[1].miss_rate, 0.0);
    }
}
