//! StableLM: LayerNorms, part of each head rotated, biases of Q, K and V in some (StableLM 2 1.6B), and in others (12B)
//! blocks beside each other and LayerNorms of each head's query and key.

use super::metadata::Metadata;
use super::names::{
    ATTENTION, FFN, MODEL, MODEL_NORM_BIAS, Name, PRE_NORM_BIASES, PRE_NORMS, QKV_BIAS,
};
use super::rope::Rules;
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::{Network, NormSpan};
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str =
    r#"{"layer_norm_eps": 1e-5, "rope_theta": 1e4, "partial_rotary_factor": 0.25}"#;

pub(super) static STABLELM: Architecture = Architecture {
    gguf: &["stablelm"],
    powerinfer: false,
    hf: &[Hf::new("stablelm", DEFAULTS)],
    tensors: &[
        &MODEL,
        &MODEL_NORM_BIAS,
        &PRE_NORMS,
        &PRE_NORM_BIASES,
        &ATTENTION,
        &QKV_BIAS,
        &QK_NORMS,
        &FFN,
    ],
    describe,
};

/// Checkpoints have a tensor for each head.
const QK_NORMS: [Name; 2] = [
    Name::layer(
        "attn_q_norm.weight",
        "self_attn.q_layernorm.norms.*.weight",
        &[T::QNorm],
    ),
    Name::layer(
        "attn_k_norm.weight",
        "self_attn.k_layernorm.norms.*.weight",
        &[T::KNorm],
    ),
];

const ROPE: Rules = Rules {
    partial: true,
    ..block::HALVES
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let activation = block::activation_or_silu(m)?;
    let mut network = block::with_layer_norms(m, ROPE, activation, ("layer_norm_eps", true))?;
    let bias = match m.is_gguf() {
        true => block::has_qkv_bias(m)?,
        false => m.fields().optional_bool("use_qkv_bias")? == Some(true),
    };
    block::bias_qkv(&mut network, bias);
    const PARALLEL: &str = "use_parallel_residual";
    let parallel = m.fields().optional_bool(PARALLEL)?;
    let (parallel, qk_norms) = match m.is_gguf() {
        // The key says true of every model made before there was a field. As in llama.cpp, the FFN's norm tells.
        true => (
            !m.has_tensor("blk.0.ffn_norm.weight"),
            m.has_tensor("blk.0.attn_q_norm.weight"),
        ),
        false => (
            parallel == Some(true),
            m.fields().optional_bool("qk_layernorm")? == Some(true),
        ),
    };
    if parallel {
        block::parallel_blocks(&mut network);
    }
    if qk_norms {
        block::norm_qk(&mut network, NormSpan::OwnHead);
    }
    Ok(network)
}
