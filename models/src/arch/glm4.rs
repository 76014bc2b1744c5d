//! GLM-4-0414: norms around both blocks, biases of Q, K and V, Gate and Up in one tensor, and half of each head
//! rotated, neighbours together.

use super::metadata::Metadata;
use super::names::{ATTENTION, FUSED_FFN, MODEL, Name, QKV_BIAS};
use super::rope::Rules;
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::Network;
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1.5625e-7, "rope_theta": 1e4, "partial_rotary_factor": 0.5, "head_dim": 128,
    "num_key_value_heads": 2, "attention_bias": true
}"#;

pub(super) static GLM4: Architecture = Architecture {
    gguf: &["glm4"],
    powerinfer: false,
    hf: &[Hf::new("glm4", DEFAULTS)],
    tensors: &[&MODEL, &NORMS, &ATTENTION, &QKV_BIAS, &FUSED_FFN],
    describe,
};

const NORMS: [Name; 4] = [
    Name::layer("attn_norm.weight", "input_layernorm.weight", &[T::AttnNorm]),
    Name::layer(
        "post_attention_norm.weight",
        "post_self_attn_layernorm.weight",
        &[T::AttnPostNorm],
    ),
    Name::layer(
        "ffn_norm.weight",
        "post_attention_layernorm.weight",
        &[T::FfnNorm],
    ),
    Name::layer(
        "post_ffw_norm.weight",
        "post_mlp_layernorm.weight",
        &[T::FfnPostNorm],
    ),
];

const ROPE: Rules = Rules {
    partial: true,
    ..block::NEIGHBOURS
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, ROPE, block::activation_or_silu(m)?)?;
    block::bias_qkv(&mut network, block::has_qkv_bias(m)?);
    block::norm_outputs_too(&mut network);
    Ok(network)
}
