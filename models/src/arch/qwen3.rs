//! Qwen3, dense: plain blocks with a norm of each head's query and key.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, PRE_NORMS, QK_NORMS};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::{Network, NormSpan};

const DEFAULTS: &str =
    r#"{"rms_norm_eps": 1e-6, "rope_theta": 1e4, "head_dim": 128, "sliding_window": 4096}"#;

pub(super) static QWEN3: Architecture = Architecture {
    gguf: &["qwen3"],
    powerinfer: false,
    hf: &[Hf::new("qwen3", DEFAULTS)],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &QK_NORMS, &FFN],
    describe,
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, block::HALVES, block::activation_or_silu(m)?)?;
    block::norm_qk(&mut network, NormSpan::Head);
    let first = block::max_window_layers(m)?;
    block::switched_window(m, &mut network, |l| l as u64 >= first)?;
    Ok(network)
}
