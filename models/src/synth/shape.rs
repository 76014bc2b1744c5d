//! The shapes that can be made.

use crate::error::{ModelError, Result};
use crate::network::{Activation, Network, Rope, RopePairing, Uniform};

/// Sizes of a model, after a published one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Name on the command line.
    pub name: &'static str,
    /// Activation of the sparse form.
    activation: Activation,
    /// Number of layers, unless the caller wants fewer.
    pub n_layers: usize,
    pub(super) d_model: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    pub(super) d_ff: usize,
    vocab_size: usize,
    context_length: usize,
    /// Rank of the predictors, unless the caller wants another. 256 for a width of 4096 makes groups of 32 columns, a
    /// block each, so that no format rounds what is planted; the predictors are then 2% of the file and name 99% of the
    /// active neurons.
    pub(super) rank: usize,
}

impl Shape {
    /// Every shape.
    pub const ALL: [Self; 3] = [
        // PowerInfer/TurboSparse-Mistral-Instruct's config.json.
        Self {
            name: "turbosparse-mistral-7b",
            activation: Activation::DoubleRelu,
            n_layers: 32,
            d_model: 4096,
            n_heads: 32,
            n_kv_heads: 8,
            head_dim: 128,
            d_ff: 14_336,
            vocab_size: 32_064,
            context_length: 4096,
            rank: 256,
        },
        // SparseLLM/ReluLLaMA-7B's config.json.
        Self {
            name: "llama2-7b-relu",
            activation: Activation::Relu,
            n_layers: 32,
            d_model: 4096,
            n_heads: 32,
            n_kv_heads: 32,
            head_dim: 128,
            d_ff: 11_008,
            vocab_size: 32_000,
            context_length: 4096,
            rank: 256,
        },
        // Small enough for tests; its head_dim is that of many small models.
        Self {
            name: "tiny-sparse",
            activation: Activation::DoubleRelu,
            n_layers: 4,
            d_model: 256,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 64,
            d_ff: 1024,
            vocab_size: 512,
            context_length: 2048,
            rank: 64,
        },
    ];

    /// The shape called `name`.
    ///
    /// # Errors
    /// There is none; the message lists the existing ones.
    pub fn named(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|s| s.name == name);
        found.ok_or_else(|| ModelError::Parameter {
            field: "shape".into(),
            problem: format!("there is no shape {name:?}"),
            remedy: format!("choose one of: {}", Self::ALL.map(|s| s.name).join(", ")),
        })
    }

    /// The network of the sparse form, or one with SiLU of the same size.
    pub(super) fn network(&self, sparse: bool, n_layers: usize, name: String) -> Network {
        let activation = match sparse {
            true => self.activation,
            false => Activation::Silu,
        };
        Uniform {
            name,
            n_layers,
            d_model: self.d_model,
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            d_ff: self.d_ff,
            vocab_size: self.vocab_size,
            context_length: self.context_length,
            rms_eps: 1e-5,
            rope: Rope::plain(10_000.0, self.head_dim, RopePairing::Interleaved),
            window: None,
            activation,
            qkv_bias: false,
            tied_head: false,
            predictor_threshold: 0.0,
        }
        .network()
    }
}
