//! OLMo 2 and 3: blocks with a norm of their output only, a norm of whole rows of queries and keys, and in OLMo 3
//! sliding windows in three of four layers, which keep their rotation in long contexts.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, POST_NORMS, QK_NORMS};
use super::{Architecture, Hf, block, rope};
use crate::error::Result;
use crate::network::{Network, NormSpan, Rope};

const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-5, "rope_theta": 1e4}"#;
/// Without a base: the versions of transformers assume different ones.
const WINDOWED: &str = r#"{"rms_norm_eps": 1e-5, "sliding_window": 4096}"#;

pub(super) static OLMO2: Architecture = Architecture {
    gguf: &["olmo2"],
    powerinfer: false,
    hf: &[Hf::new("olmo2", DEFAULTS), Hf::new("olmo3", WINDOWED)],
    tensors: &[&MODEL, &ATTENTION, &QK_NORMS, &POST_NORMS, &FFN],
    describe,
};

/// Base of the rotation in layers with a window.
const SLIDING_THETA: f32 = 500_000.0;
/// Every fourth layer sees all positions, if any has a sliding window.
const PERIOD: usize = 4;

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let head_dim = block::head_dim(m)?;
    let windowed = m.is_gguf() || m.kind() == "olmo3";
    let layer_type = windowed.then_some("full_attention");
    let full = rope::read(m, head_dim, block::HALVES, layer_type)?;
    let sliding = sliding(m, head_dim, full.theta)?;
    let mut network = block::with_rope(m, head_dim, full, block::activation_or_silu(m)?)?;
    block::norm_qk(&mut network, NormSpan::Row);
    block::norm_outputs_only(&mut network);
    let Some(window) = block::window(m)?.filter(|_| windowed) else {
        return Ok(network);
    };
    network.ropes.push(sliding);
    let slides = block::fixed_sliding_layers(m, network.n_layers(), PERIOD)?;
    block::slide(&mut network, Some(window), |l| slides[l]);
    for (attention, _) in network.attentions_mut().zip(slides).filter(|(_, s)| *s) {
        attention.rope = Some(1);
    }
    Ok(network)
}

/// The rotation of layers with a window. Without one in a checkpoint, transformers 4 gives it the base of the others,
/// which is `theta`, and 5 always the same.
fn sliding(m: &Metadata<'_>, head_dim: usize, theta: f32) -> Result<Rope> {
    const THETA: (&str, &str) = ("", "rope_theta");
    if m.is_gguf() || m.kind() != "olmo3" {
        return rope::sliding(m, head_dim, block::HALVES, theta);
    }
    let is_named = m.fields().get("rope_parameters").is_some();
    if !is_named && theta != SLIDING_THETA {
        let remedy = "with windows, 500000 is: give rope_parameters for both types of layers";
        return Err(m.unsupported(THETA, theta.to_string(), remedy));
    }
    rope::sliding(m, head_dim, block::HALVES, SLIDING_THETA)
}
