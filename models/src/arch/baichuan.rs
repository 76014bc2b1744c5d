//! Baichuan 7B: plain blocks whose checkpoints have Q, K and V as one tensor. Version 2 normalises the rows of its head
//! in its own code: it is supported where they are stored so.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, Name, PRE_NORMS};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::Network;
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-6, "rope_theta": 1e4}"#;

pub(super) static BAICHUAN: Architecture = Architecture {
    gguf: &["baichuan"],
    powerinfer: false,
    hf: &[Hf::new("baichuan", DEFAULTS)],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &FUSED, &FFN],
    describe,
};

const FUSED: [Name; 1] = [Name::layer(
    "",
    "self_attn.W_pack.weight",
    &[T::Q, T::K, T::V],
)];

/// Layers and width of the 13B models, which have ALiBi in place of a rotation. Neither format says so.
const LAYERS_13B: usize = 40;
const WIDTH_13B: usize = 5120;

/// Version 2 has so many tokens, or more where some were added.
const VOCABULARY_2: usize = 125_696;
/// A field that only version 2 has.
const FIELD_2: &str = "z_loss_weight";
/// How to get rows as version 2 uses them. No converter to GGUF does it.
const NORMALISE: &str = "normalise lm_head.weight of the checkpoint as the README of Baichuan 2 shows \
    (torch.nn.functional.normalize), and save it or convert it to GGUF again";

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let layers = ("block_count", "num_hidden_layers");
    let width = ("embedding_length", "hidden_size");
    let sizes = [
        (layers, m.layers()?, LAYERS_13B, "layers"),
        (width, m.size(width.0, width.1)?, WIDTH_13B, "columns"),
    ];
    for (field, size, of_13b, what) in sizes {
        if size == of_13b {
            let problem = format!("ALiBi, which models of {size} {what} have here,");
            return Err(m.unsupported(field, problem, "the 7B models are"));
        }
    }
    let network = block::network(m, block::PERMUTED, block::activation_or_silu(m)?)?;
    // The code of version 2 divides each row of the head by its norm (NormHead), which changes nothing of rows that
    // have been divided.
    if network.vocab_size >= VOCABULARY_2 || m.fields().get(FIELD_2).is_some() {
        m.require_unit_head(NORMALISE);
    }
    Ok(network)
}
