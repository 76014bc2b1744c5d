//! The naive forward pass with which everything faster is compared: one token at a time, every
//! weight dequantised to f32, plain loops, f64 accumulation, nothing shared with the engine's
//! kernels. It reads like the papers it implements and is as slow as that implies.
//!
//! Sources: RMSNorm (Zhang & Sennrich 2019), RoPE (Su et al. 2021), GQA (Ainslie et al. 2023),
//! gated FFNs (Shazeer 2020), activation predictors (Deja Vu, Liu et al. 2023; PowerInfer), short
//! convolutions (LFM2, Liquid AI 2025), gated delta nets (Yang et al. 2024), latent attention
//! (DeepSeek-V2, 2024).

mod attention;
mod ffn;
mod latent;
mod recurrent;
mod weights;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::error::{ModelError, Result};
use crate::network::{Block, Mixer, Network, Norm, NormKind};
use crate::source::TensorSource;
use crate::tensor::{LayerTensor as T, TensorId};
use weights::{Matrix, Weights, dot};

/// A model as the papers define it, with its own f32 KV cache.
pub struct Oracle {
    network: Network,
    weights: Weights,
    /// By kind of rotation: radians per position, `[rotary_dim / 2]`.
    frequencies: Vec<Vec<f32>>,
    past: Vec<Past>, // [n_layers]
    position: usize,
    predicted: bool,
    engine_precision: bool,
    active: Vec<u64>, // [n_layers]
    /// Squares of the inputs of matrices, if they are to be added up.
    squares: Option<RefCell<InputSums>>,
}

/// By matrix and number of an expert, 0 for what has no experts: how many inputs it had, and the sums of their squares,
/// `[columns]`.
pub type InputSums = BTreeMap<(TensorId, usize), (u64, Vec<f64>)>;

/// The past of one layer.
#[derive(Clone, Default)]
struct Past {
    keys: Vec<f32>,   // [position, n_kv_heads * head_dim], rotated
    values: Vec<f32>, // [position, n_kv_heads * head_dim]
    /// Inputs of a convolution, `[position, channels]`.
    convolved: Vec<f32>,
    /// What a delta net remembers, `[n_value_heads, key_dim, value_dim]`.
    memory: Vec<f32>,
}

impl Oracle {
    /// Reads every tensor of `source` and dequantises it to f32: four bytes of memory per weight.
    ///
    /// # Errors
    /// A tensor that the network needs is missing or cannot be read.
    pub fn new(source: &dyn TensorSource) -> Result<Self> {
        let network = source.network().clone();
        let context = network.context_length;
        let oracle = Self {
            weights: Weights::load(source)?,
            frequencies: Vec::new(),
            past: vec![Past::default(); network.n_layers()],
            position: 0,
            predicted: false,
            engine_precision: false,
            active: vec![0; network.n_layers()],
            squares: None,
            network,
        };
        Ok(oracle.with_context(context))
    }

    /// With room for this many positions instead of the trained context: some models rotate differently in long
    /// contexts.
    #[must_use]
    pub fn with_context(mut self, context: usize) -> Self {
        let ropes = self.network.ropes.iter();
        self.frequencies = ropes.map(|rope| rope.frequencies(context)).collect();
        self
    }

    /// From now on computes only the neurons that the layer's predictor names: those with `fc2 ·
    /// relu(fc1 · x) >= predictor_threshold`, where `x` is the residual stream before the FFN's
    /// norm (PowerInfer's rule), or before the layer. The others count as 0.
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
                problem: format!("layer {layer} of {} has none", self.network.name),
                remedy: "use the exact FFN, or a model that carries predictors".into(),
            }),
            None => {
                self.predicted = true;
                Ok(self)
            }
        }
    }

    /// From now on uses at most `most` experts for a token.
    #[must_use]
    pub fn with_experts(mut self, most: usize) -> Self {
        let layers = self.network.layers.iter_mut();
        let experts = layers.filter_map(|layer| layer.ffn.body.experts.as_mut());
        experts.for_each(|experts| experts.used = experts.used.min(most));
        self
    }

    /// From now on rounds what the engine stores in fewer bits: keys and values to f16, and the input of every matrix
    /// that is stored in blocks to 8 bits (one scale per 32 elements). Remaining differences from the engine are then
    /// not due to its choice of precision.
    #[must_use]
    pub fn with_engine_precision(mut self) -> Self {
        self.engine_precision = true;
        self
    }

    /// From now on adds up the squares of what every matrix is multiplied by.
    #[must_use]
    pub fn with_input_sums(mut self) -> Self {
        self.squares = Some(RefCell::default());
        self
    }

    /// What [`Self::with_input_sums`] added up.
    pub fn into_input_sums(self) -> InputSums {
        self.squares.map(RefCell::into_inner).unwrap_or_default()
    }

    /// What the model computes.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Forgets the sequence and the activity counts.
    pub fn reset(&mut self) {
        self.past.fill(Past::default());
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
        scale(&mut x, self.network.embedding_scale);
        if let Some(offset) = self.network.position_offset {
            let table = self.weights.vector(TensorId::PositionEmbedding);
            let mut rows = table
                .expect("it was read with the network")
                .chunks_exact(x.len());
            let row = rows.nth(self.position + offset);
            add(&mut x, row.expect("a position within the context"));
        }
        let inputs = self.token_inputs(token, &x);
        for l in 0..self.network.n_layers() {
            let block = self.network.layers[l].mixer.clone();
            let mut h = self.input_of(&block, (l, T::AttnNorm, T::AttnNormBias), &x);
            let before = x.clone();
            let y = self.mix(l, &block.body, &h);
            self.add_output(&block, (l, T::AttnPostNorm), y, &mut x);
            let parallel = self.network.layers[l].parallel;
            let block = self.network.layers[l].ffn.clone();
            let from = if parallel { &before } else { &x };
            if !parallel || block.pre_norm.is_some() {
                h = self.input_of(&block, (l, T::FfnNorm, T::FfnNormBias), from);
            }
            let y = self.ffn(l, [&before, from, &h]);
            self.add_output(&block, (l, T::FfnPostNorm), y, &mut x);
            if let Some(block) = self.network.layers[l].input.clone() {
                let y = self.mix_input(l, &inputs, &x);
                self.add_output(&block, (l, T::InputPostNorm), y, &mut x);
            }
            if let Some(factor) = self.weights.vector(TensorId::Layer(l, T::LayerScale)) {
                scale(&mut x, factor[0]);
            }
        }
        self.position += 1;
        let bias = Some(TensorId::OutputNormBias);
        let h = self.norm(self.network.output_norm, TensorId::OutputNorm, bias, &x);
        let head = self.weights.head.as_ref();
        let head = head.unwrap_or(&self.weights.embedding);
        let mut logits = head.times(&self.input(head, &h));
        if let Some(bias) = self.weights.vector(TensorId::OutputHeadBias) {
            add(&mut logits, bias);
        }
        scale(&mut logits, self.network.head.scale);
        if let Some(cap) = self.network.head.softcap {
            logits.iter_mut().for_each(|v| *v = cap * (*v / cap).tanh());
        }
        logits
    }

    /// The token's inputs of all layers, `[n_layers * width]`, from its scaled embedding `e`, `[d_model]`.
    fn token_inputs(&self, token: u32, e: &[f32]) -> Vec<f32> {
        let (Some(kind), Some(weights)) = (self.network.token_inputs, &self.weights.inputs) else {
            return Vec::new();
        };
        let projection = &weights.projection;
        let mut projected = projection.times(&self.input(projection, e));
        scale(&mut projected, kind.projection_scale);
        let gain = self.weights.gain(TensorId::InputsNorm);
        let layers = projected.chunks_exact(kind.width);
        let mut inputs: Vec<f32> = layers.flat_map(|p| rms_norm(p, gain, kind.eps)).collect();
        let mut row = weights.table.row(token as usize).to_vec();
        scale(&mut row, kind.table_scale);
        add(&mut inputs, &row);
        scale(&mut inputs, kind.scale);
        inputs
    }

    /// `projection · (act(gate · x) * input)` of layer `l`, `[d_model]`.
    fn mix_input(&self, l: usize, inputs: &[f32], x: &[f32]) -> Vec<f32> {
        let width = self.network.input_width();
        let block = self.network.layers[l].input.as_ref();
        let (Some(block), Some(mixer)) = (block, &self.weights.layers[l].input) else {
            return vec![0.0; x.len()];
        };
        let mut gated = mixer.gate.times(&self.input(&mixer.gate, x)); // [width]
        for (gate, input) in gated.iter_mut().zip(&inputs[l * width..]) {
            *gate = block.body.activation.gate(*gate) * input;
        }
        let projection = &mixer.projection;
        projection.times(&self.input(projection, &gated))
    }

    /// A block's input from the residual stream `x`, `[d_model]`; its norm has this weight and bias in layer `l`.
    fn input_of<B>(
        &self,
        block: &Block<B>,
        (l, weight, bias): (usize, T, T),
        x: &[f32],
    ) -> Vec<f32> {
        let id = |t| TensorId::Layer(l, t);
        match block.pre_norm {
            Some(norm) => self.norm(norm, id(weight), Some(id(bias)), x),
            None => x.to_vec(),
        }
    }

    /// A norm of `x`, `[d_model]`, with this weight and bias.
    fn norm(&self, norm: Norm, weight: TensorId, bias: Option<TensorId>, x: &[f32]) -> Vec<f32> {
        let weight = self.weights.gain(weight);
        let mut normed = norm_of(norm.kind, x, weight, norm.eps);
        if let Some(bias) = bias.and_then(|id| self.weights.vector(id)) {
            add(&mut normed, bias);
        }
        normed
    }

    /// Adds a block's output `y` to the residual stream `x`, both `[d_model]`.
    fn add_output<B>(
        &self,
        block: &Block<B>,
        (l, norm): (usize, T),
        mut y: Vec<f32>,
        x: &mut [f32],
    ) {
        if let Some(n) = block.post_norm {
            y = self.norm(n, TensorId::Layer(l, norm), None, &y);
        }
        scale(&mut y, block.residual_scale);
        add(x, &y);
    }

    /// Feeds `prompt` and then `n` times the most probable next token (the lowest id among equals),
    /// regardless of end-of-text tokens; returns the `n` new ids. The last of them is not fed.
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

    /// What the new token takes from the sequence, `h`: `[d_model]`.
    fn mix(&mut self, l: usize, mixer: &Mixer, h: &[f32]) -> Vec<f32> {
        let mixed = match mixer {
            Mixer::Attention(a) => match &a.latent {
                Some(latent) => self.latent_attention(l, (a, latent), h),
                None => self.attention(l, a, h),
            },
            Mixer::ShortConv(conv) => self.short_conv(l, conv, h),
            Mixer::DeltaNet(net) => self.delta_net(l, net, h),
        };
        self.times(&self.weights.layers[l].o, (l, Some(T::OBias)), &mixed)
    }

    /// One of the matrices of the mixer's input times `h`, and its bias, if it has one.
    fn project(&self, (l, matrix): (usize, usize), bias: Option<T>, h: &[f32]) -> Vec<f32> {
        self.times(&self.weights.layers[l].inputs[matrix], (l, bias), h)
    }

    /// A matrix of layer `l` times `h`, and its bias, if it has one.
    fn times(&self, matrix: &Matrix, (l, bias): (usize, Option<T>), h: &[f32]) -> Vec<f32> {
        let mut out = matrix.times(&self.input(matrix, h));
        let bias = bias.and_then(|t| self.weights.vector(TensorId::Layer(l, t)));
        if let Some(bias) = bias {
            add(&mut out, bias);
        }
        out
    }

    /// The input by which `matrix` is multiplied in place of `x`.
    fn input<'a>(&self, matrix: &Matrix, x: &'a [f32]) -> Cow<'a, [f32]> {
        self.input_of_expert(matrix, 0, x)
    }

    /// The same of a matrix in which every expert has its part.
    fn input_of_expert<'a>(&self, matrix: &Matrix, expert: usize, x: &'a [f32]) -> Cow<'a, [f32]> {
        if let Some(squares) = &self.squares {
            let mut squares = squares.borrow_mut();
            let empty = || (0, vec![0.0; x.len()]);
            let (count, sums) = squares.entry((matrix.id, expert)).or_insert_with(empty);
            *count += 1;
            for (sum, &v) in sums.iter_mut().zip(x) {
                *sum += f64::from(v) * f64::from(v);
            }
        }
        match self.engine_precision && matrix.in_blocks {
            true => Cow::Owned(eight_bits(x)),
            false => Cow::Borrowed(x),
        }
    }
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

fn sigmoid(x: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(x)).exp())
}

fn add(x: &mut [f32], update: &[f32]) {
    for (x, u) in x.iter_mut().zip(update) {
        *x += u;
    }
}

/// `x * factor`; 1 changes nothing.
fn scale(x: &mut [f32], factor: f32) {
    x.iter_mut().for_each(|v| *v *= factor);
}

/// A norm of `x` without its bias.
fn norm_of(kind: NormKind, x: &[f32], gain: &[f32], eps: f32) -> Vec<f32> {
    match kind {
        NormKind::Rms => rms_norm(x, gain, eps),
        NormKind::Layer => {
            let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / x.len() as f64;
            let centred: Vec<f32> = x.iter().map(|&v| (f64::from(v) - mean) as f32).collect();
            rms_norm(&centred, gain, eps)
        }
    }
}

/// `x / sqrt(mean(x²) + eps) * gain`.
fn rms_norm(x: &[f32], gain: &[f32], eps: f32) -> Vec<f32> {
    let mean_square = dot(x, x) / x.len() as f64;
    let scale = 1.0 / (mean_square + f64::from(eps)).sqrt();
    let scaled = x.iter().map(|&v| (f64::from(v) * scale) as f32);
    scaled.zip(gain).map(|(v, g)| v * g).collect()
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
