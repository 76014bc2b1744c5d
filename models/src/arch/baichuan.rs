//! Baichuan 7B: plain blocks whose checkpoints have Q, K and V as one tensor.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, Name, PRE_NORMS};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::Network;
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-6, "rope_theta": 1e4}"#;

pub(super) static BAICHUAN: Architecture = Architecture {
    gguf: &["baichuan"],
    powerinfer: false,
    hf: &[Hf::new("baichuan", DEFAULTS)],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &FUSED, &FFN],
    describe,
};

const FUSED: [Name; 1] = [Name::layer(
    "",
    "self_attn.W_pack.weight",
    &[T::Q, T::K, T::V],
)];

/// Number of layers of the 13B models, which have ALiBi in place of a rotation. Neither format says so.
const LAYERS_13B: usize = 40;
/// Tokens of the second version, whose own code divides each row of the head by its norm.
const VOCABULARY_2: usize = 125_696;

fn describe(m: &Metadata<'_>) -> Result<Network> {
    if m.layers()? == LAYERS_13B {
        let layers = ("block_count", "num_hidden_layers");
        let problem = format!("ALiBi, which models of {LAYERS_13B} layers have here,");
        return Err(m.unsupported(layers, problem, "the 7B models are"));
    }
    let network = block::network(m, block::PERMUTED, block::activation_or_silu(m)?)?;
    if !m.is_gguf() && network.vocab_size == VOCABULARY_2 {
        let problem = format!(
            "the head of version 2, of {VOCABULARY_2} tokens, whose rows are normalised when used,"
        );
        let remedy = "version 1 is, and GGUF files whose converter has normalised the rows are";
        return Err(m.unsupported(("", "vocab_size"), problem, remedy));
    }
    Ok(network)
}
