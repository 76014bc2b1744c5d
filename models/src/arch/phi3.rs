//! Phi-3, Phi-3.5-mini, Phi-4 and Phi-4-mini: plain blocks whose Q, K and V, and Gate and Up, are one tensor each, with
//! one set of rotary divisors for short contexts and one for long ones.

use super::metadata::Metadata;
use super::names::{FUSED_FFN, MODEL, Name, PRE_NORMS};
use super::rope::Rules;
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::Network;
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str =
    r#"{"rms_norm_eps": 1e-5, "rope_theta": 1e4, "original_max_position_embeddings": 4096}"#;

pub(super) static PHI3: Architecture = Architecture {
    gguf: &["phi3"],
    powerinfer: false,
    hf: &[Hf::new("phi3", DEFAULTS)],
    tensors: &[&MODEL, &PRE_NORMS, &FUSED_ATTENTION, &FUSED_FFN],
    describe,
};

const FUSED_ATTENTION: [Name; 2] = [
    Name::layer(
        "attn_qkv.weight",
        "self_attn.qkv_proj.weight",
        &[T::Q, T::K, T::V],
    ),
    Name::layer("attn_output.weight", "self_attn.o_proj.weight", &[T::O]),
];

const ROPE: Rules = Rules {
    long_short: true,
    partial: true,
    ..block::HALVES
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, ROPE, block::activation_or_silu(m)?)?;
    // As in transformers; llama.cpp ignores the key.
    let window = block::window(m)?;
    block::slide(&mut network, window, |_| true);
    Ok(network)
}
