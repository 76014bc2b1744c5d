//! The naive forward pass that everything faster is compared with: one token at a time, every
//! weight dequantised to f32, plain loops, f64 accumulation, nothing shared with the engine's
//! kernels. It reads like the papers it implements and is as slow as that implies.
//!
//! Sources: RMSNorm (Zhang & Sennrich 2019), RoPE (Su et al. 2021), GQA (Ainslie et al. 2023),
//! gated FFNs (Shazeer 2020), activation predictors (Deja Vu, Liu et al. 2023; PowerInfer).

mod weights;

use std::borrow::Cow;

use half::f16;

use crate::config::{ModelConfig, RopePairing};
use crate::error::{ModelError, Result};
use crate::tensor::TensorSource;
use weights::{Layer, Matrix, Predictor, Weights, dot};

/// A model as the papers write it down, with its own f32 KV cache.
pub struct Oracle {
    config: ModelConfig,
    weights: Weights,
    frequencies: Vec<f32>,  // [rotary_dim / 2], radians per position
    cache: Vec<KeysValues>, // [n_layers]
    position: usize,
    predicted: bool,
    engine_precision: bool,
    active: Vec<u64>, // [n_layers]
}

/// The past of one layer.
#[derive(Clone, Default)]
struct KeysValues {
    keys: Vec<f32>,   // [position, n_kv_heads * head_dim], rotated
    values: Vec<f32>, // [position, n_kv_heads * head_dim]
}

impl Oracle {
    /// Reads every tensor of `source` and dequantises it to f32: four bytes of memory per weight.
    ///
    /// # Errors
    /// A tensor the configuration calls for is missing or cannot be read.
    pub fn new(source: &dyn TensorSource) -> Result<Self> {
        let config = source.config().clone();
        Ok(Self {
            weights: Weights::load(source)?,
            frequencies: config.rope.frequencies(),
            cache: vec![KeysValues::default(); config.n_layers],
            position: 0,
            predicted: false,
            engine_precision: false,
            active: vec![0; config.n_layers],
            config,
        })
    }

    /// From now on computes only the neurons its layer's predictor names: those with
    /// `fc2 · relu(fc1 · x) >= predictor_threshold`, where `x` is the residual stream before the
    /// FFN's norm (PowerInfer's rule). The others count as 0.
    ///
    /// # Errors
    /// A layer without a predictor.
    pub fn with_predictors(mut self) -> Result<Self> {
        match self
            .weights
            .layers
            .iter()
            .position(|l| l.predictor.is_none())
        {
            Some(layer) => Err(ModelError::Parameter {
                field: "predictors".into(),
                problem: format!("layer {layer} of {} has none", self.config.name),
                remedy: "use the exact FFN, or a model that carries predictors".into(),
            }),
            None => {
                self.predicted = true;
                Ok(self)
            }
        }
    }

    /// From now on rounds what the engine keeps in fewer bits: keys and values to f16, and the input of
    /// every matrix that is stored in blocks to 8 bits (one scale per 32 elements). What then still
    /// differs from the engine is not its choice of precision.
    #[must_use]
    pub fn with_engine_precision(mut self) -> Self {
        self.engine_precision = true;
        self
    }

    /// Architecture and constants of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Forgets the sequence and the activity counts.
    pub fn reset(&mut self) {
        self.cache.fill(KeysValues::default());
        self.position = 0;
        self.active.fill(0);
    }

    /// Per layer, how many neurons had a gate activation above 0 over all tokens since the last
    /// [`reset`](Self::reset), `[n_layers]`; divide by `tokens * d_ff` for the density.
    pub fn ffn_activity(&self) -> &[u64] {
        &self.active
    }

    /// Appends `token` to the sequence and returns the logits of its successor, `[vocab_size]`.
    ///
    /// # Panics
    /// `token` is not below `vocab_size`.
    pub fn forward(&mut self, token: u32) -> Vec<f32> {
        let mut x = self.weights.embedding.row(token as usize).to_vec(); // [d_model]
        for l in 0..self.config.n_layers {
            let h = rms_norm(&x, &self.weights.layers[l].attn_norm, self.config.rms_eps);
            add(&mut x, &self.attention(l, &h));
            let h = rms_norm(&x, &self.weights.layers[l].ffn_norm, self.config.rms_eps);
            let update = self.ffn(l, &x, &h);
            add(&mut x, &update);
        }
        self.position += 1;
        let h = rms_norm(&x, &self.weights.output_norm, self.config.rms_eps);
        let head = self.weights.head.as_ref();
        let head = head.unwrap_or(&self.weights.embedding);
        head.times(&self.input(head, &h))
    }

    /// Feeds `prompt` and then `n` times the most probable next token (the lowest id among
    /// equals), without regard to end-of-text tokens; returns the `n` new ids. The last of them is
    /// not fed.
    ///
    /// # Panics
    /// `prompt` is empty and `n` is not 0, or an id is not below `vocab_size`.
    pub fn greedy(&mut self, prompt: &[u32], n: usize) -> Vec<u32> {
        let mut logits = Vec::new();
        for &token in prompt {
            logits = self.forward(token);
        }
        let mut ids = Vec::with_capacity(n);
        while ids.len() < n {
            if let Some(&last) = ids.last() {
                logits = self.forward(last);
            }
            ids.push(argmax(&logits));
        }
        ids
    }

    /// Causal grouped-query attention of the new token over the sequence, `h`: `[d_model]`.
    fn attention(&mut self, l: usize, h: &[f32]) -> Vec<f32> {
        let (config, layer) = (&self.config, &self.weights.layers[l]);
        let mut q = self.project(&layer.q, layer.q_bias.as_deref(), h); // [n_heads * head_dim]
        let mut k = self.project(&layer.k, layer.k_bias.as_deref(), h); // [n_kv_heads * head_dim]
        let mut v = self.project(&layer.v, layer.v_bias.as_deref(), h); // [n_kv_heads * head_dim]
        for head in q.chunks_exact_mut(config.head_dim) {
            self.rotate(head);
        }
        for head in k.chunks_exact_mut(config.head_dim) {
            self.rotate(head);
        }
        if self.engine_precision {
            for x in k.iter_mut().chain(&mut v) {
                *x = f16::from_f32(*x).to_f32();
            }
        }
        let past = &mut self.cache[l];
        past.keys.extend_from_slice(&k);
        past.values.extend_from_slice(&v);

        let window = config.sliding_window.unwrap_or(usize::MAX);
        let visible = (self.position + 1).saturating_sub(window)..self.position + 1;
        let scale = 1.0 / (config.head_dim as f64).sqrt();
        let queries_per_kv = config.n_heads / config.n_kv_heads;
        let mut mixed = Vec::with_capacity(config.q_dim()); // [n_heads * head_dim]
        for (i, query) in q.chunks_exact(config.head_dim).enumerate() {
            let column = i / queries_per_kv * config.head_dim;
            let head = |row: usize| {
                let start = row * config.kv_dim() + column;
                start..start + config.head_dim
            };
            let scores = visible
                .clone()
                .map(|t| dot(query, &past.keys[head(t)]) * scale)
                .collect();
            let mut sum = vec![0.0f64; config.head_dim];
            for (t, p) in visible.clone().zip(softmax(scores)) {
                for (s, &value) in sum.iter_mut().zip(&past.values[head(t)]) {
                    *s += p * f64::from(value);
                }
            }
            mixed.extend(sum.iter().map(|&s| s as f32));
        }
        layer.o.times(&self.input(&layer.o, &mixed))
    }

    fn project(&self, matrix: &Matrix, bias: Option<&[f32]>, h: &[f32]) -> Vec<f32> {
        let mut out = matrix.times(&self.input(matrix, h));
        if let Some(bias) = bias {
            add(&mut out, bias);
        }
        out
    }

    /// What `matrix` is multiplied with where `x` is meant.
    fn input<'a>(&self, matrix: &Matrix, x: &'a [f32]) -> Cow<'a, [f32]> {
        match self.engine_precision && matrix.in_blocks {
            true => Cow::Owned(eight_bits(x)),
            false => Cow::Borrowed(x),
        }
    }

    /// Rotates one head of Q or K, `[head_dim]`, to the current position.
    fn rotate(&self, head: &mut [f32]) {
        let half = self.config.rope.rotary_dim / 2;
        for (i, &frequency) in self.frequencies.iter().enumerate() {
            let (a, b) = match self.config.rope.pairing {
                RopePairing::Interleaved => (2 * i, 2 * i + 1),
                RopePairing::HalfSplit => (i, i + half),
            };
            let (sin, cos) = (self.position as f64 * f64::from(frequency)).sin_cos();
            let (x, y) = (f64::from(head[a]), f64::from(head[b]));
            head[a] = (x * cos - y * sin) as f32;
            head[b] = (x * sin + y * cos) as f32;
        }
    }

    /// The gated FFN, neuron by neuron. `x`: the residual stream, which the predictor reads;
    /// `h`: the same after the norm, both `[d_model]`.
    fn ffn(&mut self, l: usize, x: &[f32], h: &[f32]) -> Vec<f32> {
        let activation = self.config.activation;
        let Layer {
            gate,
            up,
            down,
            predictor,
            ..
        } = &self.weights.layers[l];
        let predictor = predictor.as_ref().filter(|_| self.predicted);
        let scores = predictor.map(|p| predictor_scores(p, x)); // [d_ff]
        let (gate_input, up_input) = (self.input(gate, h), self.input(up, h));
        let mut neurons = vec![0.0; self.config.d_ff];
        for (i, neuron) in neurons.iter_mut().enumerate() {
            let skipped = |s: &Vec<f32>| s[i] < self.config.predictor_threshold;
            if scores.as_ref().is_some_and(skipped) {
                continue;
            }
            let g = activation.gate(dot(gate.row(i), &gate_input) as f32);
            let u = activation.up(dot(up.row(i), &up_input) as f32);
            self.active[l] += u64::from(g > 0.0);
            *neuron = g * u;
        }
        down.times(&self.input(down, &neurons))
    }
}

/// `fc2 · relu(fc1 · x)`, `[d_ff]`.
fn predictor_scores(predictor: &Predictor, x: &[f32]) -> Vec<f32> {
    let mut hidden = predictor.fc1.times(x); // [rank]
    for v in &mut hidden {
        *v = v.max(0.0);
    }
    predictor.fc2.times(&hidden)
}

/// `x` as 8-bit codes with a scale per 32 elements can hold it: `round(x * 127 / max)`, ties to even.
fn eight_bits(x: &[f32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for block in x.chunks(32) {
        let max = block.iter().fold(0.0f32, |max, v| max.max(v.abs()));
        let (scale, inverse) = match max > 0.0 {
            true => (max / 127.0, 127.0 / max),
            false => (0.0, 0.0),
        };
        out.extend(
            block
                .iter()
                .map(|v| (v * inverse).round_ties_even() * scale),
        );
    }
    out
}

fn add(x: &mut [f32], update: &[f32]) {
    for (x, u) in x.iter_mut().zip(update) {
        *x += u;
    }
}

/// `x / sqrt(mean(x²) + eps) * gain`.
fn rms_norm(x: &[f32], gain: &[f32], eps: f32) -> Vec<f32> {
    let mean_square = dot(x, x) / x.len() as f64;
    let scale = 1.0 / (mean_square + f64::from(eps)).sqrt();
    let scaled = x.iter().map(|&v| (f64::from(v) * scale) as f32);
    scaled.zip(gain).map(|(v, g)| v * g).collect()
}

/// Probabilities of `scores`; the maximum is taken out first so that no exponential overflows.
fn softmax(mut scores: Vec<f64>) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for s in &mut scores {
        *s = (*s - max).exp();
        sum += *s;
    }
    for s in &mut scores {
        *s /= sum;
    }
    scores
}

/// Index of the largest logit, the lowest among equals.
fn argmax(logits: &[f32]) -> u32 {
    assert!(!logits.is_empty(), "greedy decoding needs a prompt");
    let mut best = 0;
    for (i, &v) in logits.iter().enumerate() {
        if v > logits[best] {
            best = i;
        }
    }
    best as u32
}
