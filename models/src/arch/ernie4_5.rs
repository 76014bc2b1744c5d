//! ERNIE 4.5, dense: plain blocks whose checkpoints, too, rotate neighbours.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, PRE_NORMS};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::Network;

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-5, "rope_theta": 5e5, "head_dim": 128, "num_key_value_heads": 2,
    "tie_word_embeddings": true
}"#;

pub(super) static ERNIE4_5: Architecture = Architecture {
    gguf: &["ernie4_5"],
    powerinfer: false,
    hf: &[Hf::new("ernie4_5", DEFAULTS)],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &FFN],
    describe,
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    block::network(m, block::NEIGHBOURS, block::activation_or_silu(m)?)
}
