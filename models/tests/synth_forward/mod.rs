//! The forward pass up to each FFN's activations, for many tokens at once and one row of weights at a time,
//! so that a few layers of a 7B shape fit into a test. Shares nothing with the library but
//! reading and dequantising.
#![allow(dead_code, reason = "each test uses a part")]

use forebay_models::block::dequantize;
use forebay_models::network::Activation;
use forebay_models::source::TensorSource;
use forebay_models::tensor::{LayerTensor, TensorId};

/// What a layer's neurons did.
pub struct Activity {
    /// Whether the gate was above 0, `[tokens][d_ff]`.
    pub active: Vec<Vec<bool>>,
    /// Whether the predictor named the neuron, `[tokens][d_ff]`.
    pub predicted: Vec<Vec<bool>>,
    /// Norm of the FFN's contribution against that of the residual stream, mean over tokens.
    pub ffn_share: f64,
}

/// Feeds `tokens` and returns every layer's activity.
pub fn observe(source: &dyn TensorSource, tokens: &[u32]) -> Vec<Activity> {
    let network = source.network();
    let embedding = Rows::new(source, TensorId::TokenEmbedding);
    let mut stream: Vec<Vec<f32>> = tokens.iter().map(|&t| embedding.row(t as usize)).collect();
    let layers = 0..network.n_layers();
    layers
        .map(|l| {
            let before = stream.clone();
            attention(source, l, &mut stream);
            ffn(source, l, &before, &mut stream)
        })
        .collect()
}

/// One matrix, row by row.
struct Rows<'a> {
    source: &'a dyn TensorSource,
    id: TensorId,
}

impl<'a> Rows<'a> {
    fn new(source: &'a dyn TensorSource, id: TensorId) -> Self {
        Self { source, id }
    }

    fn row(&self, row: usize) -> Vec<f32> {
        let meta = self.source.meta(self.id).expect("a tensor of the model");
        let mut bytes = vec![0; meta.row_bytes()];
        let read = self.source.read(self.id, row * bytes.len(), &mut bytes);
        read.expect("inside the tensor");
        let mut out = vec![0.0; meta.cols];
        dequantize(meta.block, &bytes, &mut out);
        out
    }

    /// Products with all `xs`, `[tokens][cols]`: `[tokens][rows]`.
    fn times(&self, xs: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let rows = self.source.meta(self.id).expect("a tensor").rows;
        let mut out = vec![vec![0.0; rows]; xs.len()];
        for r in 0..rows {
            let row = self.row(r);
            for (out, x) in out.iter_mut().zip(xs) {
                out[r] = dot(&row, x);
            }
        }
        out
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    for (a, b) in a.chunks_exact(16).zip(b.chunks_exact(16)) {
        for i in 0..16 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum()
}

fn normalised(stream: &[Vec<f32>], eps: f32) -> Vec<Vec<f32>> {
    let norm = |x: &Vec<f32>| {
        let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
        x.iter().map(|v| v * scale).collect()
    };
    stream.iter().map(norm).collect()
}

fn attention(source: &dyn TensorSource, l: usize, stream: &mut [Vec<f32>]) {
    let (network, c) = (
        source.network(),
        source.network().attention(l).expect("attention"),
    );
    let h = normalised(stream, network.output_norm.eps);
    let times = |t| Rows::new(source, TensorId::Layer(l, t)).times(&h);
    let [mut q, mut k, v] = [LayerTensor::Q, LayerTensor::K, LayerTensor::V].map(times);
    let frequencies = network.ropes[0].frequencies(network.context_length);
    for rows in [&mut q, &mut k] {
        for (position, row) in rows.iter_mut().enumerate() {
            for head in row.chunks_exact_mut(c.head_dim) {
                for (pair, f) in head.chunks_exact_mut(2).zip(&frequencies) {
                    let (sin, cos) = (position as f32 * f).sin_cos();
                    (pair[0], pair[1]) =
                        (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
                }
            }
        }
    }
    let mut mixed = vec![vec![0.0f32; c.q_dim()]; stream.len()];
    for (t, mixed) in mixed.iter_mut().enumerate() {
        for (i, out) in mixed.chunks_exact_mut(c.head_dim).enumerate() {
            let kv = i / (c.n_heads / c.n_kv_heads) * c.head_dim;
            let query = &q[t][i * c.head_dim..][..c.head_dim];
            let score =
                |s: usize| dot(query, &k[s][kv..kv + c.head_dim]) / (c.head_dim as f32).sqrt();
            let scores: Vec<f32> = (0..=t).map(score).collect();
            let max = scores.iter().copied().fold(f32::MIN, f32::max);
            let sum: f32 = scores.iter().map(|s| (s - max).exp()).sum();
            for (s, score) in scores.iter().enumerate() {
                let p = (score - max).exp() / sum;
                for (o, x) in out.iter_mut().zip(&v[s][kv..]) {
                    *o += p * x;
                }
            }
        }
    }
    let update = Rows::new(source, TensorId::Layer(l, LayerTensor::O)).times(&mixed);
    add(stream, &update);
}

fn ffn(
    source: &dyn TensorSource,
    l: usize,
    before: &[Vec<f32>],
    stream: &mut [Vec<f32>],
) -> Activity {
    let (network, c) = (source.network(), source.network().ffn(l));
    let matrix = |t| Rows::new(source, TensorId::Layer(l, t));
    let seen = match c.predictor_before_layer {
        true => before,
        false => stream,
    };
    let mut hidden = matrix(LayerTensor::PredictorFc1).times(seen);
    hidden.iter_mut().flatten().for_each(|v| *v = v.max(0.0));
    let scores = matrix(LayerTensor::PredictorFc2).times(&hidden);
    let h = normalised(stream, network.output_norm.eps);
    let gate = matrix(LayerTensor::Gate).times(&h);
    let up = matrix(LayerTensor::Up).times(&h);
    let mut update = vec![vec![0.0; network.d_model]; stream.len()];
    let down = matrix(LayerTensor::DownT);
    for i in 0..c.d_ff {
        let column = down.row(i);
        for (t, update) in update.iter_mut().enumerate() {
            let up = match c.activation {
                Activation::DoubleRelu => up[t][i].max(0.0),
                _ => up[t][i],
            };
            let x = gate[t][i].max(0.0) * up;
            if x != 0.0 {
                update
                    .iter_mut()
                    .zip(&column)
                    .for_each(|(u, d)| *u += x * d);
            }
        }
    }
    let share = |(u, x): (&Vec<f32>, &Vec<f32>)| f64::from((dot(u, u) / dot(x, x)).sqrt());
    let ffn_share = update.iter().zip(&*stream).map(share).sum::<f64>() / stream.len() as f64;
    add(stream, &update);
    let above = |all: &[Vec<f32>], test: fn(f32) -> bool| {
        all.iter()
            .map(|row| row.iter().map(|&v| test(v)).collect())
            .collect()
    };
    Activity {
        active: above(&gate, |v| v > 0.0),
        predicted: above(&scores, |v| v >= 0.0),
        ffn_share,
    }
}

fn add(stream: &mut [Vec<f32>], update: &[Vec<f32>]) {
    for (x, u) in stream.iter_mut().zip(update) {
        x.iter_mut().zip(u).for_each(|(x, u)| *x += u);
    }
}

/// What a layer's activity amounts to, over the tokens after the first `skip`.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Mean share of active neurons.
    pub density: f64,
    /// The least and the most of any token.
    pub densities: (f64, f64),
    /// Share of the activations that the most active fifth of the neurons has.
    pub hottest_fifth: f64,
    /// Share of a token's active neurons that the token before had too.
    pub overlap: f64,
    /// Share of active neurons that the predictor names.
    pub recall: f64,
    /// Named neurons against active ones.
    pub over_prediction: f64,
    /// Share of active neurons that are missing in a cache of half of the neurons (least recently used
    /// out), mean over tokens.
    pub misses: f64,
    /// The same, 99th percentile.
    pub misses_p99: f64,
}

impl Summary {
    pub fn of(activity: &Activity, skip: usize) -> Self {
        let count = |row: &[bool]| row.iter().filter(|&&a| a).count() as f64;
        let both =
            |a: &[bool], b: &[bool]| a.iter().zip(b).filter(|(a, b)| **a && **b).count() as f64;
        let (active, predicted) = (&activity.active, &activity.predicted);
        let d_ff = active[0].len() as f64;
        let measured = skip..active.len();
        let n = measured.len() as f64;
        let sum = |f: &dyn Fn(usize) -> f64| measured.clone().map(f).sum::<f64>();
        let total = sum(&|t| count(&active[t]));
        let densities = measured.clone().map(|t| count(&active[t]) / d_ff);
        let mut by_neuron: Vec<f64> = (0..active[0].len())
            .map(|i| measured.clone().filter(|&t| active[t][i]).count() as f64)
            .collect();
        by_neuron.sort_by(|a, b| b.total_cmp(a));
        let mut misses = cache_misses(active)[skip..].to_vec();
        misses.sort_by(f64::total_cmp);
        Self {
            density: total / n / d_ff,
            densities: (
                densities.clone().fold(1.0, f64::min),
                densities.fold(0.0, f64::max),
            ),
            hottest_fifth: by_neuron[..by_neuron.len() / 5].iter().sum::<f64>() / total,
            overlap: sum(&|t| both(&active[t], &active[t - 1])) / total,
            recall: sum(&|t| both(&active[t], &predicted[t])) / total,
            over_prediction: sum(&|t| count(&predicted[t])) / total,
            misses: misses.iter().sum::<f64>() / n,
            misses_p99: misses[((n * 0.99) as usize).min(misses.len() - 1)],
        }
    }
}

/// Per token, the share of its active neurons that were not among the most recently used half.
fn cache_misses(active: &[Vec<bool>]) -> Vec<f64> {
    let mut recent: Vec<usize> = Vec::new(); // most recent first
    let capacity = active[0].len() / 2;
    let mut cached = vec![false; active[0].len()];
    let mut misses = Vec::new();
    for row in active {
        let now: Vec<usize> = (0..row.len()).filter(|&i| row[i]).collect();
        let missing = now.iter().filter(|&&i| !cached[i]).count();
        misses.push(missing as f64 / now.len().max(1) as f64);
        recent = now
            .iter()
            .copied()
            .chain(recent.into_iter().filter(|&i| !row[i]))
            .collect();
        recent.truncate(capacity);
        cached.fill(false);
        recent.iter().for_each(|&i| cached[i] = true);
    }
    misses
}
