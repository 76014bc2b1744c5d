//! Seed-OSS: plain blocks with biases of Q, K and V.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, Name, PRE_NORMS, QKV_BIAS};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::Network;
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "head_dim": 128, "num_key_value_heads": 8,
    "attention_bias": true
}"#;

pub(super) static SEED_OSS: Architecture = Architecture {
    gguf: &["seed_oss"],
    powerinfer: false,
    hf: &[Hf::new("seed_oss", DEFAULTS)],
    tensors: &[&MODEL, &NORMS, &ATTENTION, &QKV_BIAS, &FFN],
    describe,
};

/// In GGUF, too, the norm of the FFN's input is named after what it follows.
const NORMS: [Name; 2] = [
    PRE_NORMS[0],
    Name::layer(
        "post_attention_norm.weight",
        "post_attention_layernorm.weight",
        &[T::FfnNorm],
    ),
];

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, block::HALVES, block::activation_or_silu(m)?)?;
    block::bias_qkv(&mut network, block::has_qkv_bias(m)?);
    Ok(network)
}
