//! GLM-4.5: experts behind a router with sigmoids and biases for the choice, one expert that every token uses, first
//! layers without experts, and half of each head rotated.

use super::metadata::Metadata;
use super::names::{
    ATTENTION, CHOICE, EXPERTS, FFN, MODEL, Name, QK_NORMS, QKV_BIAS, ROUTER, SHARED_EXPERTS,
};
use super::rope::Rules;
use super::{Architecture, Hf, block, experts};
use crate::error::Result;
use crate::network::{Network, NormSpan, Router, Scores};
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "partial_rotary_factor": 0.5, "head_dim": 128,
    "num_key_value_heads": 8, "attention_bias": false, "n_routed_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.0, "norm_topk_prob": true, "n_group": 1, "topk_group": 1,
    "use_qk_norm": false
}"#;

pub(super) static GLM4MOE: Architecture = Architecture {
    gguf: &["glm4moe"],
    powerinfer: false,
    hf: &[Hf::new("glm4_moe", DEFAULTS).with_spellings(&[("num_experts", "n_routed_experts")])],
    tensors: &[
        &MODEL,
        &NORMS,
        &ATTENTION,
        &QKV_BIAS,
        &QK_NORMS,
        &FFN,
        &ROUTER,
        &CHOICE,
        &EXPERTS,
        &SHARED_EXPERTS,
    ],
    describe,
};

/// In GGUF, too, the norm of the FFN's input is named after what it follows.
const NORMS: [Name; 2] = [
    Name::layer("attn_norm.weight", "input_layernorm.weight", &[T::AttnNorm]),
    Name::layer(
        "post_attention_norm.weight",
        "post_attention_layernorm.weight",
        &[T::FfnNorm],
    ),
];

const ROPE: Rules = Rules {
    partial: true,
    ..block::HALVES
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, ROPE, block::activation_or_silu(m)?)?;
    block::bias_qkv(&mut network, block::has_qkv_bias(m)?);
    let normed = match m.is_gguf() {
        true => m.has_tensor("blk.0.attn_q_norm.weight"),
        false => m.fields().optional_bool("use_qk_norm")? == Some(true),
    };
    if normed {
        block::norm_qk(&mut network, NormSpan::Head);
    }
    let router = Router {
        scores: Scores::Sigmoid,
        selection_bias: true,
        ..experts::NORMALISED_SOFTMAX
    };
    let router = experts::router_of_groups(m, router)?;
    let dense = m.some_layers(("leading_dense_block_count", "first_k_dense_replace"))?;
    experts::replace_ffns(m, &mut network, &router, |l| l < dense)?;
    experts::share_as_many(m, &mut network)?;
    Ok(network)
}
