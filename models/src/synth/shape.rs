//! The shapes that can be made.

use super::experts;
use super::planting::{Planting, Routing};
use crate::block::BlockType;
use crate::error::{ModelError, Result};
use crate::network::{Activation, Network, Rope, RopePairing, Uniform};

/// Sizes of a model, after a published one.
#[derive(Clone, Copy, Debug)]
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
    /// Share of neurons that are active in the sparse form, unless the caller wants another.
    pub(super) density: f64,
    /// Format of the experts in place of that of all matrices.
    pub(super) expert_format: Option<BlockType>,
    /// How unequally its experts are used.
    routing: Routing,
    /// What is different from the plainest network. `d_ff` is the width of an expert, if it makes some.
    change: Option<fn(&mut Network)>,
}

/// A shape of plain blocks.
const PLAIN: Shape = Shape {
    name: "",
    activation: Activation::Silu,
    n_layers: 0,
    d_model: 0,
    n_heads: 0,
    n_kv_heads: 0,
    head_dim: 128,
    d_ff: 0,
    vocab_size: 0,
    context_length: 4096,
    rank: 64,
    density: 0.1,
    expert_format: None,
    routing: Routing::USUAL,
    change: None,
};

impl Shape {
    /// Every shape.
    pub const ALL: [Self; 11] = [
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
            ..PLAIN
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
            ..PLAIN
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
            ..PLAIN
        },
        // Qwen/Qwen3-30B-A3B's config.json.
        Self {
            name: "qwen3-30b-a3b",
            n_layers: 48,
            d_model: 2048,
            n_heads: 32,
            n_kv_heads: 4,
            d_ff: 768,
            vocab_size: 151_936,
            context_length: 40_960,
            rank: 128,
            change: Some(experts::qwen3_30b),
            ..PLAIN
        },
        // openai/gpt-oss-20b's config.json.
        Self {
            name: "gpt-oss-20b",
            activation: experts::GPT_OSS,
            n_layers: 24,
            d_model: 2880,
            n_heads: 64,
            n_kv_heads: 8,
            head_dim: 64,
            d_ff: 2880,
            vocab_size: 201_088,
            context_length: 131_072,
            expert_format: Some(BlockType::MXFP4),
            routing: Routing::GPT_OSS,
            change: Some(experts::gpt_oss_20b),
            ..PLAIN
        },
        // PowerInfer/SmallThinker-4BA0.6B-Instruct's config.json.
        Self {
            name: "smallthinker-4b",
            activation: Activation::Relu,
            n_layers: 32,
            d_model: 1536,
            n_heads: 12,
            n_kv_heads: 2,
            d_ff: 768,
            vocab_size: 151_936,
            context_length: 32_768,
            density: 0.4,
            change: Some(experts::smallthinker_4b),
            ..PLAIN
        },
        // PowerInfer/SmallThinker-21BA3B-Instruct's config.json.
        Self {
            name: "smallthinker-21b",
            activation: Activation::Relu,
            n_layers: 52,
            d_model: 2560,
            n_heads: 28,
            n_kv_heads: 4,
            d_ff: 768,
            vocab_size: 151_936,
            context_length: 16_384,
            density: 0.4,
            change: Some(experts::smallthinker_21b),
            ..PLAIN
        },
        // allenai/OLMoE-1B-7B-0924's config.json.
        Self {
            name: "olmoe-1b-7b",
            n_layers: 16,
            d_model: 2048,
            n_heads: 16,
            n_kv_heads: 16,
            d_ff: 1024,
            vocab_size: 50_304,
            rank: 128,
            change: Some(experts::olmoe),
            ..PLAIN
        },
        // PowerInfer/TurboSparse-Mixtral's config.json.
        Self {
            name: "mixtral-8x7b",
            activation: Activation::DoubleRelu,
            n_layers: 32,
            d_model: 4096,
            n_heads: 32,
            n_kv_heads: 8,
            d_ff: 14_336,
            vocab_size: 32_000,
            context_length: 32_768,
            rank: 256,
            routing: Routing::MIXTRAL,
            change: Some(experts::mixtral_8x7b),
            ..PLAIN
        },
        // The same with fewer and smaller ones, but clusters as large, of which a token wants little.
        Self {
            name: "tiny-sparse-experts",
            activation: Activation::DoubleRelu,
            n_layers: 2,
            d_model: 512,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 64,
            d_ff: 512,
            vocab_size: 512,
            context_length: 2048,
            density: 0.04,
            change: Some(experts::mixtral_8x7b),
            ..PLAIN
        },
        // Small enough for tests.
        Self {
            name: "tiny-experts",
            n_layers: 4,
            d_model: 256,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 64,
            d_ff: 96,
            vocab_size: 512,
            context_length: 2048,
            change: Some(experts::tiny),
            ..PLAIN
        },
    ];

    /// Whether it has experts: then there is one form of it.
    pub fn has_experts(&self) -> bool {
        self.change.is_some()
    }

    /// What is planted, unless the caller wants something else.
    pub(super) fn planting(&self) -> Planting {
        let usual = match self.has_experts() {
            true => Planting::of_experts(self.routing),
            false => Planting::default(),
        };
        Planting {
            density: self.density,
            ..usual
        }
    }

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
        let activation = match sparse || self.has_experts() {
            true => self.activation,
            false => Activation::Silu,
        };
        let mut network = Uniform {
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
        .network();
        if let Some(change) = self.change {
            change(&mut network);
        }
        network
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::{SynthOptions, SynthSource};
    use super::*;
    use crate::export::write_gguf;
    use crate::source::GgufSource;
    use crate::source::TensorSource;
    use crate::tensor::{LayerTensor as T, TensorId};

    /// Mixtral's blocks, narrow.
    #[test]
    fn the_shape_of_mixtral_is_a_llama_in_gguf() {
        let shape = Shape {
            d_model: 256,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 64,
            d_ff: 96,
            vocab_size: 512,
            rank: 64,
            ..Shape::named("mixtral-8x7b").unwrap()
        };
        let made = SynthSource::new(&SynthOptions {
            layers: Some(2),
            ..SynthOptions::new(shape)
        })
        .unwrap();
        let folder = TempDir::new().unwrap();
        let out = folder.path().join("mixtral.gguf");
        write_gguf(&made, &out, &mut |_| ()).unwrap();
        let read = GgufSource::open(&out).unwrap();
        assert_eq!(read.network(), made.network());
        assert_eq!(read.network().ffn(1).activation, Activation::DoubleRelu);
        assert!(read.network().is_sparse());
        for t in [T::Q, T::Router, T::ExpertGate, T::ExpertUp, T::ExpertDown] {
            let id = TensorId::Layer(1, t);
            let whole = |source: &dyn TensorSource| {
                let mut bytes = vec![0; source.meta(id).unwrap().bytes()];
                source.read(id, 0, &mut bytes).unwrap();
                bytes
            };
            assert_eq!(whole(&read), whole(&made), "{id:?}");
        }
        // Names that other readers know.
        let bytes = std::fs::read(&out).unwrap();
        let names = |name: &[u8]| bytes.windows(name.len()).any(|w| w == name);
        assert!(names(b"blk.1.ffn_gate_exps.weight") && names(b"llama.expert_used_count"));
    }
}
