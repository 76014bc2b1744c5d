//! Making a profile: how often each neuron is wanted, and how many are missed by a cache of each size, from one
//! pass over a text.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_models::bundle::Bundle;
use forebay_models::network::Network;
use forebay_models::sampler::SamplerConfig;
use forebay_plans::residency::Sparsity;
use forebay_stages::cache::PolicyKind;
use forebay_stages::frame::Observer;
use forebay_stages::live_mask::LiveMask;
use parking_lot::Mutex;

use super::texts::{Make, feed, whole_texts};
use crate::engine::Engine;
use crate::error::Error;
use crate::profiles::{MissPoint, Profile, Wants, of_token};
use crate::request::Request;

/// Sizes of cache that are tried: this many equal steps up to all neurons.
const SIZES: usize = 20;

/// What tokens to run.
#[derive(Clone, Copy, Debug)]
pub enum ProfileText<'a> {
    /// These, in texts of `ctx` tokens, each from an empty context.
    Given {
        /// The tokens.
        tokens: &'a [u32],
        /// Tokens of a text.
        ctx: usize,
    },
    /// As many as the model itself writes, at temperature 1.
    Generated(usize),
}

/// Notes who wants which neuron.
#[derive(Debug)]
struct Watch {
    network: Network,
    predicted: bool,
    capacity: usize,
    /// Token that position 0 of the present text is.
    base: AtomicUsize,
    /// A bit per neuron, `[n_layers][capacity][widest d_ff / 64]`.
    wanted: Vec<Mutex<Vec<u64>>>,
}

impl Watch {
    fn new(network: &Network, predicted: bool, capacity: usize) -> Arc<Self> {
        let words = network.widest_ffn().div_ceil(64);
        Arc::new(Self {
            network: network.clone(),
            predicted,
            capacity,
            base: AtomicUsize::new(0),
            wanted: (0..network.n_layers())
                .map(|_| Mutex::new(vec![0; capacity * words]))
                .collect(),
        })
    }

    /// Marks neurons `first..` of a layer for the token at `position`.
    fn mark(&self, layer: usize, position: usize, neurons: impl Iterator<Item = usize>) {
        let token = self.base.load(Ordering::Acquire) + position;
        if token >= self.capacity {
            return;
        }
        let words = self.network.widest_ffn().div_ceil(64);
        let mut wanted = self.wanted[layer].lock();
        let row = &mut wanted[token * words..][..words];
        neurons.for_each(|i| row[i / 64] |= 1 << (i % 64));
    }
}

impl Observer for Watch {
    fn residual(&self, _: usize, _: usize, _: &[f32]) {}

    fn named(&self, layer: usize, position: usize, first: usize, named: &[LiveMask]) {
        for (t, mask) in named.iter().enumerate() {
            self.mark(layer, position + t, mask.iter().map(|i| first + i));
        }
    }

    fn gates(&self, layer: usize, position: usize, (first, n): (usize, usize), gates: &[f32]) {
        if self.predicted {
            return;
        }
        let activation = self.network.ffn(layer).activation;
        for (t, token) in gates.chunks_exact(n).enumerate() {
            let alive = (0..n).filter(|&i| activation.gate(token[i]) != 0.0);
            self.mark(layer, position + t, alive.map(|i| first + i));
        }
    }
}

/// Runs a text in the mode that the builder has and counts. `policy` decides which neurons the simulated caches keep.
/// `progress` is told the share of the work that is done.
///
/// # Errors
/// A mode in which all neurons are wanted, too little text, or what running the model can fail with.
pub fn profile(
    make: Make<'_>,
    text: ProfileText<'_>,
    policy: PolicyKind,
    progress: &mut dyn FnMut(f64),
) -> Result<Profile, Error> {
    let n = match text {
        ProfileText::Given { tokens, ctx } => whole_texts(tokens.len(), ctx)?,
        ProfileText::Generated(n) => n,
    };
    let (network, sparsity, bundle) = {
        let engine = make()?.build()?;
        let bundle = Bundle::open(engine.bundle_path())?;
        (engine.network().clone(), engine.plan().sparsity, bundle)
    };
    if sparsity == Sparsity::Dense {
        return Err(Error::NothingToProfile);
    }
    let watch = Watch::new(&network, sparsity == Sparsity::Predicted, n);
    let engine = make()?.observer(watch.clone()).build()?;
    match text {
        ProfileText::Given { tokens, ctx } => feed(&engine, tokens, ctx, |base| {
            watch.base.store(base, Ordering::Release);
            progress(base as f64 / n as f64 * 0.8);
        })?,
        ProfileText::Generated(n) => write(&engine, n, &mut |share| progress(share * 0.8))?,
    }
    drop(engine);
    let rows: Vec<Vec<u64>> = watch.wanted.iter().map(|l| l.lock().clone()).collect();
    let mut misses = Vec::with_capacity(SIZES);
    let wants = Wants {
        rows: &rows,
        d_ff: network.widest_ffn(),
        tokens: n,
        geometry: bundle.meta.ffns[0],
        whole_bundles: sparsity == Sparsity::Predicted,
    };
    for i in 1..=SIZES {
        misses.push(wants.simulate(i as f64 / SIZES as f64, policy));
        progress(0.8 + 0.2 * i as f64 / SIZES as f64);
    }
    Ok(statistics(
        &rows,
        (network.widest_ffn(), n),
        sparsity,
        (policy, misses),
    ))
}

/// Has the model write `n` tokens, its prompt among them.
fn write(engine: &Engine, n: usize, progress: &mut dyn FnMut(f64)) -> Result<(), Error> {
    let bos = engine.tokenizer().bos().unwrap_or(1);
    let mut sampler = SamplerConfig::default();
    (sampler.temperature, sampler.seed) = (1.0, 1);
    let request = Request::tokens([bos]).max_tokens(n).ignore_eog(true);
    let stream = engine.session().generate(request.sampler(sampler))?;
    for (i, item) in stream.blocking().enumerate() {
        item?;
        progress(i as f64 / n as f64);
    }
    Ok(())
}

fn statistics(
    rows: &[Vec<u64>],
    (d_ff, n): (usize, usize),
    sparsity: Sparsity,
    (policy, misses): (PolicyKind, Vec<MissPoint>),
) -> Profile {
    let words = d_ff.div_ceil(64);
    let mut counts = vec![vec![0u32; d_ff]; rows.len()];
    let (mut again, mut followed) = (0u64, 0u64);
    for (layer, counts) in rows.iter().zip(&mut counts) {
        for t in 0..n {
            let row = &layer[t * words..][..words];
            of_token(row).for_each(|i| counts[i] += 1);
            if t > 0 {
                let before = &layer[(t - 1) * words..][..words];
                let both = before.iter().zip(row).map(|(a, b)| (a & b).count_ones());
                again += u64::from(both.sum::<u32>());
                followed += u64::from(row.iter().map(|w| w.count_ones()).sum::<u32>());
            }
        }
    }
    let sum = |counts: &[u32]| counts.iter().map(|&c| u64::from(c)).sum::<u64>();
    let all: u64 = counts.iter().map(|c| sum(c)).sum();
    let top: u64 = counts
        .iter()
        .map(|layer| {
            let mut sorted = layer.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            sum(&sorted[..d_ff.div_ceil(5)])
        })
        .sum();
    let part = |a: u64, b: u64| a as f64 / b.max(1) as f64;
    Profile {
        tokens: n,
        sparsity,
        wanted: counts
            .iter()
            .map(|c| part(sum(c), (n * d_ff) as u64))
            .collect(),
        overlap: part(again, followed),
        top_fifth_share: part(top, all),
        policy: policy.to_string(),
        misses,
        counts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers of 128 neurons; `wants` says who wants what.
    fn rows(layers: usize, n: usize, wants: impl Fn(usize, usize, usize) -> bool) -> Vec<Vec<u64>> {
        let mut rows = vec![vec![0u64; n * 2]; layers];
        for (l, layer) in rows.iter_mut().enumerate() {
            for t in 0..n {
                for i in (0..128).filter(|&i| wants(l, t, i)) {
                    layer[t * 2 + i / 64] |= 1 << (i % 64);
                }
            }
        }
        rows
    }

    #[test]
    fn statistics_are_counted_by_layer() {
        // Layer 0 wants the same eighth, layer 1 a quarter that alternates.
        let rows = rows(2, 10, |l, t, i| match l {
            0 => i < 16,
            _ => (i / 32) % 2 == t % 2 && i < 64,
        });
        let p = statistics(
            &rows,
            (128, 10),
            Sparsity::Exact,
            (PolicyKind::Lru, Vec::new()),
        );
        assert_eq!(p.wanted, [0.125, 0.25]);
        assert_eq!(p.counts[0][0], 10);
        assert_eq!(
            (p.counts[1][0], p.counts[1][40], p.counts[1][127]),
            (5, 5, 0)
        );
        // Of 48 wants per token those 16 of layer 0 come again.
        assert!((p.overlap - 16.0 / 48.0).abs() < 1e-9);
    }
}
