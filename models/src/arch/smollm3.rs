//! SmolLM3: plain blocks, every fourth of which does not encode positions.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, PRE_NORMS};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::Network;

const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-6, "rope_theta": 2e6, "tie_word_embeddings": true}"#;

pub(super) static SMOLLM3: Architecture = Architecture {
    gguf: &["smollm3"],
    powerinfer: false,
    hf: &[Hf::new("smollm3", DEFAULTS)],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &FFN],
    describe,
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, block::PERMUTED, block::activation_or_silu(m)?)?;
    let rotates = rotating_layers(m, network.n_layers())?;
    for (attention, &rotates) in network.attentions_mut().zip(&rotates) {
        attention.rope = rotates.then_some(0);
    }
    block::switched_window(m, &mut network, |l| !rotates[l])?;
    Ok(network)
}

/// Which layers rotate: those for which `no_rope_layers`, despite its name, has a 1, or all but the last of every four.
/// GGUF has no key for it.
fn rotating_layers(m: &Metadata<'_>, n: usize) -> Result<Vec<bool>> {
    const LAYERS: &str = "no_rope_layers";
    let interval = m.optional_size("", "no_rope_layer_interval")?.unwrap_or(4);
    let listed = match m.is_gguf() {
        true => None,
        false => m.fields().optional_array(LAYERS)?,
    };
    let Some(listed) = listed else {
        return Ok((0..n).map(|l| (l + 1) % interval != 0).collect());
    };
    let flags: Option<Vec<bool>> = listed.iter().map(|v| v.as_u64().map(|v| v != 0)).collect();
    let flags = flags.filter(|flags| flags.len() == n);
    flags.ok_or_else(|| m.wrong("", LAYERS, format!("it is not {n} numbers, 0 or 1")))
}
