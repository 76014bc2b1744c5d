//! EXAONE 4: blocks with a norm of their output only and a norm of each head's query and key. If three of four layers
//! have a sliding window (32B), only those encode positions.

use serde_json::Value;

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, POST_NORMS, QK_NORMS};
use super::rope::Rules;
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::{Network, NormSpan};

const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-5, "rope_theta": 1e4, "sliding_window": 4096}"#;

pub(super) static EXAONE4: Architecture = Architecture {
    gguf: &["exaone4"],
    powerinfer: false,
    hf: &[Hf::new("exaone4", DEFAULTS)],
    tensors: &[&MODEL, &ATTENTION, &QK_NORMS, &POST_NORMS, &FFN],
    describe,
};

const ROPE: Rules = Rules {
    freqs: true,
    ..block::HALVES
};

const PATTERN: &str = "sliding_window_pattern";
/// Every fourth layer sees all positions, if any has a sliding window.
const PERIOD: usize = 4;

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, ROPE, block::activation_or_silu(m)?)?;
    block::norm_qk(&mut network, NormSpan::Head);
    block::norm_outputs_only(&mut network);
    let Some(window) = block::window(m)? else {
        // transformers saves a pattern of 0 then, and layers that are all full.
        m.fields().get(PATTERN);
        m.layer_types(network.n_layers())?;
        return Ok(network);
    };
    let slides = sliding_layers(m, network.n_layers())?;
    block::slide(&mut network, Some(window), |l| slides[l]);
    block::rotate_sliding_only(&mut network);
    Ok(network)
}

/// Which layers have a sliding window, if any: checkpoints may say it in letters, L for those that do and G for others.
fn sliding_layers(m: &Metadata<'_>, n: usize) -> Result<Vec<bool>> {
    let letters = match m.is_gguf() {
        true => None,
        false => m.fields().get(PATTERN).and_then(Value::as_str),
    };
    let Some(letters) = letters.map(str::as_bytes) else {
        return block::sliding_layers(m, n, PERIOD);
    };
    if let Some(types) = m.layer_types(n)? {
        return Ok(types.iter().map(|&t| t == "sliding_attention").collect());
    }
    if letters.is_empty() || letters.iter().any(|letter| !b"LG".contains(letter)) {
        return Err(m.wrong("", PATTERN, "its letters are not L and G"));
    }
    Ok((0..n).map(|l| letters[l % letters.len()] == b'L').collect())
}
