//! Ministral 3, and the models that GGUF files call mistral3 (Mistral Small 3.1 and later): plain blocks with YaRN and
//! queries that grow with the position.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, PRE_NORMS};
use super::rope::{self, Rules};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::Network;

const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-5, "rope_theta": 1e4}"#;

pub(super) static MISTRAL3: Architecture = Architecture {
    gguf: &["mistral3"],
    powerinfer: false,
    hf: &[Hf::new("ministral3", DEFAULTS).inside(&["mistral3"])],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &FFN],
    describe,
};

const ROPE: Rules = Rules {
    temperature: true,
    required: true,
    ..block::PERMUTED
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, ROPE, block::activation_or_silu(m)?)?;
    let temperature = rope::temperature(m)?;
    for attention in network.attentions_mut() {
        attention.temperature = temperature;
    }
    let window = block::window(m)?;
    block::slide(&mut network, window, |_| true);
    Ok(network)
}
