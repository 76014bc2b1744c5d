//! Nemotron 3 and 4, Minitron: LayerNorms with biases, part of each head rotated, and FFNs that are not gated and
//! square what ReLU leaves.

use super::metadata::Metadata;
use super::names::{
    ATTENTION, MODEL_NORM_BIAS, MODEL_PLUS_ONE, PLAIN_FFN, PRE_NORM_BIASES, PRE_NORMS, plus_one,
};
use super::rope::Rules;
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::{Activation, Network};

const DEFAULTS: &str = r#"{"norm_eps": 1e-5, "rope_theta": 1e4, "partial_rotary_factor": 0.5}"#;

pub(super) static NEMOTRON: Architecture = Architecture {
    gguf: &["nemotron"],
    powerinfer: false,
    hf: &[Hf::new("nemotron", DEFAULTS)],
    tensors: &[
        &MODEL_PLUS_ONE,
        &MODEL_NORM_BIAS,
        &plus_one(PRE_NORMS),
        &PRE_NORM_BIASES,
        &ATTENTION,
        &PLAIN_FFN,
    ],
    describe,
};

const ROPE: Rules = Rules {
    partial: true,
    ..block::HALVES
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let activation = block::activation(m)?.unwrap_or(Activation::ReluSquared);
    let mut network = block::with_layer_norms(m, ROPE, activation, ("norm_eps", true))?;
    block::no_gates(&mut network);
    Ok(network)
}
