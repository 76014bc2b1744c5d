//! Profiles: how often each neuron is wanted, and how many are missed by a cache of each size, from one pass over
//! a text.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_actors::decode::Observer;
use forebay_models::bundle::{Bundle, ffn_identity, write_whole};
use forebay_models::config::{Activation, ModelConfig};
use forebay_models::error::ModelError;
use forebay_models::sampler::SamplerConfig;
use forebay_stages::cache::PolicyKind;
use forebay_stages::live_mask::LiveMask;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::misses::{MissPoint, Wants, of_token};
use super::texts::{Make, feed, whole_texts};
use crate::engine::Engine;
use crate::error::Error;
use crate::request::{Prompt, Request};

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

/// Statistics of a model's neurons over a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Tokens that were run.
    pub tokens: usize,
    /// The rule by which neurons were wanted: `predicted` (those that are named), `exact` or `threshold` (those that
    /// are alive).
    pub sparsity: String,
    /// Part of each layer's neurons that a token wants, P_activated, `[n_layers]`.
    pub wanted: Vec<f64>,
    /// Part of a token's neurons that the token before wanted, too.
    pub overlap: f64,
    /// Part of all wants that falls on the most wanted fifth of each layer's neurons.
    pub top_fifth_share: f64,
    /// The policy that the misses are of.
    pub policy: String,
    /// Misses by size of the cache, ascending.
    pub misses: Vec<MissPoint>,
    /// How often each neuron was wanted, `[n_layers][d_ff]`.
    pub counts: Vec<Vec<u32>>,
}

/// Name of the profile of the packed model at `path`.
fn profile_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".profile");
    PathBuf::from(name)
}

/// What is in the file: the profile, and the neurons that it is of.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    /// [`ffn_identity`] of the model.
    ffn: u64,
    profile: Profile,
}

impl Stored {
    fn read(path: &Path) -> std::io::Result<Self> {
        let stored: Self = serde_json::from_slice(&std::fs::read(path)?)?;
        match stored.profile.is_sound() {
            true => Ok(stored),
            false => Err(std::io::Error::other("its figures contradict each other")),
        }
    }
}

impl Profile {
    /// Whether shares are shares and sizes ascend: plans are computed from them, and believed.
    fn is_sound(&self) -> bool {
        let share = |v: f64| (0.0..=1.0).contains(&v);
        let amount = |v: f64| v >= 0.0 && v.is_finite();
        let point = |p: &MissPoint| {
            let amounts = [p.per_token, p.reads, p.bytes];
            share(p.cached) && share(p.miss_rate) && amounts.into_iter().all(amount)
        };
        self.wanted.len() == self.counts.len()
            && self.wanted.iter().copied().all(amount)
            && share(self.overlap)
            && share(self.top_fifth_share)
            && self.misses.iter().all(point)
            && self.misses.is_sorted_by(|a, b| a.cached < b.cached)
    }

    /// Keeps the profile beside the packed model, as `NAME.fbay.profile`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, bundle: &Bundle) -> Result<PathBuf, Error> {
        let path = profile_path(bundle.path());
        let stored = Stored {
            ffn: ffn_identity(bundle),
            profile: self.clone(),
        };
        let bytes = serde_json::to_vec(&stored).map_err(std::io::Error::other);
        bytes
            .and_then(|bytes| write_whole(&path, &bytes))
            .map_err(|e| {
                let action = "write the profile beside the packed model (check free space and permissions, or put \
                              the model into another folder)";
                ModelError::io(&path, action, e)
            })?;
        Ok(path)
    }

    /// The profile that is kept beside the packed model; `None` where there is none, or one of other neurons, or a
    /// damaged one.
    pub fn load(bundle: &Bundle) -> Option<Self> {
        let stored = Stored::read(&profile_path(bundle.path())).ok()?;
        let c = &bundle.meta.config;
        let fits = stored.ffn == ffn_identity(bundle)
            && stored.profile.counts.len() == c.n_layers
            && stored.profile.counts.iter().all(|l| l.len() == c.d_ff);
        fits.then_some(stored.profile)
    }

    /// Reads a profile that was kept, of whatever model.
    ///
    /// # Errors
    /// There is no such file, or it is no profile.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let stored = Stored::read(path).map_err(|e| {
            Error::Request(format!(
                "{}: not a profile ({e}); make one with `forebay profile MODEL -f TEXT`, which keeps it beside the \
                 packed model",
                path.display()
            ))
        })?;
        Ok(stored.profile)
    }

    /// Whether it was made in the background of ordinary runs, by counting alone.
    pub fn is_default(&self) -> bool {
        self.policy == super::tally::COUNTED
    }

    /// P_miss of a cache that holds a part of all neurons, between the sizes that were tried.
    pub fn miss_rate(&self, cached: f64) -> f64 {
        let (mut below, mut at) = ((0.0, 1.0), (1.0, 0.0));
        for point in &self.misses {
            if point.cached <= cached {
                below = (point.cached, point.miss_rate);
            } else {
                at = (point.cached, point.miss_rate);
                break;
            }
        }
        let width = at.0 - below.0;
        if width <= 0.0 {
            return below.1;
        }
        below.1 + (at.1 - below.1) * ((cached - below.0) / width).clamp(0.0, 1.0)
    }
}

/// Notes who wants which neuron.
#[derive(Debug)]
struct Watch {
    d_ff: usize,
    activation: Activation,
    predicted: bool,
    capacity: usize,
    /// Token that position 0 of the present text is.
    base: AtomicUsize,
    /// A bit per neuron, `[n_layers][capacity][d_ff / 64]`.
    wanted: Vec<Mutex<Vec<u64>>>,
}

impl Watch {
    fn new(config: &ModelConfig, predicted: bool, capacity: usize) -> Arc<Self> {
        let words = config.d_ff.div_ceil(64);
        Arc::new(Self {
            d_ff: config.d_ff,
            activation: config.activation,
            predicted,
            capacity,
            base: AtomicUsize::new(0),
            wanted: (0..config.n_layers)
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
        let words = self.d_ff.div_ceil(64);
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
        for (t, token) in gates.chunks_exact(n).enumerate() {
            let alive = (0..n).filter(|&i| self.activation.gate(token[i]) != 0.0);
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
    let (config, sparsity, bundle) = {
        let engine = make()?.build()?;
        let sparsity = engine.plan()["sparsity"].as_str().unwrap_or_default();
        let bundle = Bundle::open(Path::new(engine.bundle_path()))?;
        (engine.config().clone(), sparsity.to_string(), bundle)
    };
    if sparsity == "dense" {
        return Err(Error::Request(
            "a model of which all neurons are computed has nothing to profile; choose --sparsity threshold, \
             or a ReLU model"
                .into(),
        ));
    }
    let watch = Watch::new(&config, sparsity == "predicted", n);
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
        d_ff: config.d_ff,
        tokens: n,
        geometry: bundle.meta.layers[0].ffn,
        whole_bundles: sparsity == "predicted",
    };
    for i in 1..=SIZES {
        misses.push(wants.simulate(i as f64 / SIZES as f64, policy));
        progress(0.8 + 0.2 * i as f64 / SIZES as f64);
    }
    Ok(statistics(
        &rows,
        (config.d_ff, n),
        sparsity,
        (policy, misses),
    ))
}

/// Has the model write `n` tokens, its prompt among them.
fn write(engine: &Engine, n: usize, progress: &mut dyn FnMut(f64)) -> Result<(), Error> {
    let bos = engine.tokenizer().bos().unwrap_or(1);
    let mut request = Request::text("").max_tokens(n);
    request.prompt = Prompt::Tokens(vec![bos]);
    request.ignore_eog = true;
    request.sampler = SamplerConfig {
        temperature: 1.0,
        seed: 1,
        ..SamplerConfig::default()
    };
    for (i, item) in engine.session().generate(request)?.enumerate() {
        item?;
        progress(i as f64 / n as f64);
    }
    Ok(())
}

fn statistics(
    rows: &[Vec<u64>],
    (d_ff, n): (usize, usize),
    sparsity: String,
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
            "exact".into(),
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

    #[test]
    fn between_the_sizes_that_were_tried_a_line_is_drawn() {
        let point = |cached, miss_rate| MissPoint {
            cached,
            miss_rate,
            ..MissPoint::default()
        };
        let profile = Profile {
            misses: vec![point(0.5, 0.4), point(1.0, 0.0)],
            ..statistics(&[], (128, 1), String::new(), (PolicyKind::Lru, Vec::new()))
        };
        for (cached, miss) in [(0.0, 1.0), (0.25, 0.7), (0.5, 0.4), (0.75, 0.2), (1.0, 0.0)] {
            assert!((profile.miss_rate(cached) - miss).abs() < 1e-9, "{cached}");
        }
    }
}
