//! Qwen2 and Qwen2.5: plain blocks with biases of Q, K and V.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, POWERINFER, PRE_NORMS, QKV_BIAS};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::Network;

const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-6, "rope_theta": 1e4, "sliding_window": 4096}"#;

pub(super) static QWEN2: Architecture = Architecture {
    gguf: &["qwen2"],
    powerinfer: false,
    hf: &[Hf::new("qwen2", DEFAULTS)],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &QKV_BIAS, &FFN, &POWERINFER],
    describe,
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, block::HALVES, block::activation_or_silu(m)?)?;
    // There are biases whatever this field's value is.
    m.fields().optional_bool("attention_bias")?;
    block::bias_qkv(&mut network, true);
    let first = block::max_window_layers(m)?;
    block::switched_window(m, &mut network, |l| l as u64 >= first)?;
    Ok(network)
}
