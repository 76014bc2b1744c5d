//! Llama 2 and 3, Mistral, SmolLM2, TinyLlama and other models made of the plain block, with their ReLU variants, and
//! Mixtral, with experts.

use super::block::{self, ACTIVATION};
use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MIXTRAL_EXPERTS, MODEL, Name, POWERINFER, PRE_NORMS, QKV_BIAS};
use super::rope::Rules;
use super::{Architecture, Hf, experts};
use crate::error::Result;
use crate::network::{Activation, Network};

const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-6, "rope_theta": 1e4}"#;
const MIXTRAL: &str = r#"{
    "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2,
    "num_key_value_heads": 8
}"#;
const WINDOWED: &str = r#"{"rms_norm_eps": 1e-6, "rope_theta": 1e4, "sliding_window": 4096}"#;

pub(super) const TENSORS: &[&[Name]] = &[
    &MODEL,
    &PRE_NORMS,
    &ATTENTION,
    &QKV_BIAS,
    &FFN,
    &MIXTRAL_EXPERTS,
    &POWERINFER,
];

pub(super) static LLAMA: Architecture = Architecture {
    gguf: &["llama"],
    powerinfer: true,
    hf: &[
        Hf::new("llama", DEFAULTS),
        Hf::new("sparsellama", DEFAULTS),
        Hf::new("mistral", WINDOWED).inside(&["mistral3"]),
        Hf::new("mixtral", MIXTRAL).with_spellings(&[("num_experts", "num_local_experts")]),
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
    let windowed = m.is_gguf() || matches!(m.kind(), "mistral" | "mixtral");
    let window = block::window(m)?.filter(|_| windowed);
    block::slide(&mut network, window, |_| true);
    if experts::count(m)? > 0 {
        let router = &experts::NORMALISED_SOFTMAX;
        experts::replace_ffns(m, &mut network, router, |_| false)?;
    }
    Ok(network)
}
