//! StableLM 3B and StableLM 2 1.6B: plain blocks with LayerNorms, part of each head rotated, and biases of Q, K and V
//! in some.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, MODEL_NORM_BIAS, PRE_NORM_BIASES, PRE_NORMS, QKV_BIAS};
use super::rope::Rules;
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::Network;

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
        &FFN,
    ],
    describe,
};

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
    Ok(network)
}
