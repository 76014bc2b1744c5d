//! OLMo 2 and 3: blocks with a norm of their output only, a norm of whole rows of queries and keys, and in OLMo 3
//! sliding windows in three of four layers, which keep their rotation in long contexts.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, POST_NORMS, QK_NORMS};
use super::{Architecture, Hf, block, rope};
use crate::error::Result;
use crate::network::{Network, NormSpan};

const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-5, "rope_theta": 1e4}"#;
const WINDOWED: &str = r#"{"rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": 4096}"#;

pub(super) static OLMO2: Architecture = Architecture {
    gguf: &["olmo2"],
    powerinfer: false,
    hf: &[Hf::new("olmo2", DEFAULTS), Hf::new("olmo3", WINDOWED)],
    tensors: &[&MODEL, &ATTENTION, &QK_NORMS, &POST_NORMS, &FFN],
    describe,
};

/// Every fourth layer sees all positions, if any has a sliding window.
const PERIOD: usize = 4;

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let head_dim = block::head_dim(m)?;
    let full = rope::read(m, head_dim, block::HALVES, Some("full_attention"))?;
    let sliding = rope::sliding(m, head_dim, block::HALVES, full.theta)?;
    let mut network = block::with_rope(m, head_dim, full, block::activation_or_silu(m)?)?;
    block::norm_qk(&mut network, NormSpan::Row);
    block::norm_outputs_only(&mut network);
    let windowed = m.is_gguf() || m.kind() == "olmo3";
    let Some(window) = block::window(m)?.filter(|_| windowed) else {
        return Ok(network);
    };
    network.ropes.push(sliding);
    let slides = block::sliding_layers(m, network.n_layers(), PERIOD)?;
    block::slide(&mut network, Some(window), |l| slides[l]);
    for (attention, _) in network.attentions_mut().zip(slides).filter(|(_, s)| *s) {
        attention.rope = Some(1);
    }
    Ok(network)
}
