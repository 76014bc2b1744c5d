//! The architecture of a model as plain data: everything the forward pass needs to know.

use serde::{Deserialize, Serialize};

/// Family of the model; decides tensor names and defaults, never the arithmetic by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// Llama 2/3, Mistral, SmolLM2, TinyLlama and their ReLU variants.
    Llama,
    /// Qwen2 and Qwen2.5: llama with Q, K and V biases.
    Qwen2,
    /// Bamboo / TurboSparse-Mistral: llama with dReLU.
    Bamboo,
}

/// How the FFN combines gate and up: `h = act(gate) * up` unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x * sigmoid(x)` (SwiGLU models; dense).
    Silu,
    /// `max(x, 0)` (ReluLLaMA).
    Relu,
    /// `x` where `x > threshold`, else 0 (ProSparse).
    FatRelu {
        /// The cut, in units of the gate's output.
        threshold: f32,
    },
    /// dReLU: `relu(gate) * relu(up)` (Bamboo, TurboSparse).
    DoubleRelu,
}

impl Activation {
    /// The gate's activation of one value.
    pub fn gate(self, x: f32) -> f32 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::Relu | Self::DoubleRelu => x.max(0.0),
            Self::FatRelu { threshold } => {
                if x > threshold {
                    x
                } else {
                    0.0
                }
            }
        }
    }

    /// The up projection's activation of one value (identity except for dReLU).
    pub fn up(self, x: f32) -> f32 {
        match self {
            Self::DoubleRelu => x.max(0.0),
            _ => x,
        }
    }

    /// Whether a neuron whose gate is exactly 0 may be skipped without changing the result.
    pub fn is_sparse(self) -> bool {
        !matches!(self, Self::Silu)
    }
}

/// Which elements of a head RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopePairing {
    /// `(x[2i], x[2i+1])`: llama weights in GGUF, whose Q and K rows were permuted for it.
    Interleaved,
    /// `(x[i], x[i + rotary_dim/2])`: Hugging Face weights, and qwen2 in GGUF ("neox").
    HalfSplit,
}

/// Change of the rotary frequencies for long contexts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// Frequencies as trained.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// Divisor of every frequency.
        factor: f32,
    },
    /// Llama 3.1's wavelength-dependent rule.
    Llama3 {
        /// Divisor for long wavelengths.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are divided by `factor`.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context length of the original training, in tokens.
        original_context: f32,
    },
    /// One divisor per frequency, `[rotary_dim / 2]` (GGUF's `rope_freqs.weight`).
    Factors(Vec<f32>),
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeConfig {
    /// Base of the frequencies: `theta^(-2i/rotary_dim)`.
    pub theta: f32,
    /// Number of leading elements of a head that are rotated (even, at most `head_dim`).
    pub rotary_dim: usize,
    /// Which elements form a pair.
    pub pairing: RopePairing,
    /// Long-context change of the frequencies.
    pub scaling: RopeScaling,
}

impl RopeConfig {
    /// Angular frequency per pair in radians per position, `[rotary_dim / 2]`, scaling applied.
    pub fn frequencies(&self) -> Vec<f32> {
        let half = self.rotary_dim / 2;
        (0..half)
            .map(|i| {
                let exponent = (2 * i) as f64 / self.rotary_dim as f64;
                let base = 1.0 / f64::from(self.theta).powf(exponent);
                self.scaled(i, base) as f32
            })
            .collect()
    }

    fn scaled(&self, i: usize, base: f64) -> f64 {
        match &self.scaling {
            RopeScaling::None => base,
            RopeScaling::Linear { factor } => base / f64::from(*factor),
            RopeScaling::Factors(f) => base / f.get(i).map_or(1.0, |&v| f64::from(v)),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                let (factor, low, high, ctx) = (
                    f64::from(*factor),
                    f64::from(*low_freq_factor),
                    f64::from(*high_freq_factor),
                    f64::from(*original_context),
                );
                let wavelength = 2.0 * std::f64::consts::PI / base;
                if wavelength < ctx / high {
                    base
                } else if wavelength > ctx / low {
                    base / factor
                } else {
                    let smooth = (ctx / wavelength - low) / (high - low);
                    (1.0 - smooth) * base / factor + smooth * base
                }
            }
        }
    }
}

/// Shape and constants of a decoder-only transformer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Family.
    pub arch: Arch,
    /// Human-readable name from the file, or its stem.
    pub name: String,
    /// Number of transformer layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads (GQA); divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head; `n_heads * head_dim` may differ from `d_model`.
    pub head_dim: usize,
    /// FFN neurons per layer.
    pub d_ff: usize,
    /// Rows of the output head and of the embedding.
    pub vocab_size: usize,
    /// Context length the model was trained for, in tokens.
    pub context_length: usize,
    /// Sliding attention window in tokens (Mistral v0.1), if the model has one.
    pub sliding_window: Option<usize>,
    /// Epsilon of RMSNorm.
    pub rms_eps: f32,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// FFN activation.
    pub activation: Activation,
    /// Whether the output head is the embedding matrix.
    pub tied_head: bool,
    /// Whether Q, K and V carry biases.
    pub qkv_bias: bool,
    /// PowerInfer's `sparse_threshold`: a neuron is skipped when its predictor scores below.
    pub predictor_threshold: f32,
}

impl ModelConfig {
    /// Rows of Q: `n_heads * head_dim`.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Rows of K and of V: `n_kv_heads * head_dim`.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}
