//! Llama 2 and 3, Mistral, SmolLM2, TinyLlama and other models made of the plain block, with their ReLU variants.

use super::block::{self, ACTIVATION};
use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, Name, POWERINFER, PRE_NORMS, QKV_BIAS};
use super::rope::Rules;
use super::{Architecture, Hf};
use crate::error::Result;
use crate::network::{Activation, Network};

const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-6, "rope_theta": 1e4}"#;
const WINDOWED: &str = r#"{"rms_norm_eps": 1e-6, "rope_theta": 1e4, "sliding_window": 4096}"#;

pub(super) const TENSORS: &[&[Name]] =
    &[&MODEL, &PRE_NORMS, &ATTENTION, &QKV_BIAS, &FFN, &POWERINFER];

pub(super) static LLAMA: Architecture = Architecture {
    gguf: &["llama"],
    powerinfer: true,
    hf: &[
        Hf::new("llama", DEFAULTS),
        Hf::new("sparsellama", DEFAULTS),
        Hf::new("mistral", WINDOWED).inside(&["mistral3"]),
    ],
    tensors: TENSORS,
    describe,
};

const ROPE: Rules = Rules {
    freqs: true,
    ..block::PERMUTED
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let activation = match block::activation(m)? {
        // PowerInfer's files do not name their activation; it is ReLU.
        None if m.is_powerinfer() => Activation::Relu,
        Some(Activation::Silu) if m.is_powerinfer() => {
            return Err(m.unsupported(ACTIVATION, "\"silu\"", "PowerInfer's files have relu"));
        }
        None if m.kind() == "sparsellama" => return Err(m.missing(ACTIVATION.0, ACTIVATION.1)),
        None => Activation::Silu,
        Some(named) => named,
    };
    let mut network = block::network(m, ROPE, activation)?;
    // llama.cpp takes the biases as they come.
    let qkv_bias = m.has_tensor("blk.0.attn_q.bias");
    block::bias_qkv(&mut network, qkv_bias);
    // transformers reads a sliding window only for Mistral; in a llama checkpoint it has no effect.
    let window = block::window(m)?.filter(|_| m.is_gguf() || m.kind() == "mistral");
    block::slide(&mut network, window, |_| true);
    Ok(network)
}
