//! Arcee (AFM): plain blocks whose FFNs are not gated and square what ReLU leaves.

use super::metadata::Metadata;
use super::names::{ATTENTION, MODEL, PLAIN_FFN, PRE_NORMS};
use super::rope::Rules;
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::{Activation, Network};

const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-5, "rope_theta": 1e4}"#;

pub(super) static ARCEE: Architecture = Architecture {
    gguf: &["arcee"],
    powerinfer: false,
    hf: &[Hf::new("arcee", DEFAULTS)],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &PLAIN_FFN],
    describe,
};

const ROPE: Rules = Rules {
    freqs: true,
    ..block::PERMUTED
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let activation = block::activation(m)?.unwrap_or(Activation::ReluSquared);
    let mut network = block::network(m, ROPE, activation)?;
    block::no_gates(&mut network);
    Ok(network)
}
