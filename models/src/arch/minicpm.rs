//! MiniCPM 1 to 4, dense: plain blocks with three factors.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, PRE_NORMS};
use super::rope::Rules;
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::Network;

/// Of the models' own configuration.
const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": true, "scale_emb": 1, "scale_depth": 1,
    "dim_model_base": 1
}"#;
/// Of the class that transformers has for MiniCPM 4.
const OF_TRANSFORMERS: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": true, "scale_emb": 12, "scale_depth": 1.4,
    "dim_model_base": 256, "num_key_value_heads": 2
}"#;

pub(super) static MINICPM: Architecture = Architecture {
    gguf: &["minicpm"],
    powerinfer: false,
    hf: &[
        // Some files of versions 1 and 4 have no type.
        Hf::new("minicpm", DEFAULTS).with_untyped("MiniCPMForCausalLM"),
        Hf::new("minicpm4", OF_TRANSFORMERS),
    ],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &FFN],
    describe,
};

const ROPE: Rules = Rules {
    long_short: true,
    ..block::PERMUTED
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, ROPE, block::activation_or_silu(m)?)?;
    let (d_model, n_layers) = (network.d_model as f32, network.n_layers() as f32);
    let factors = match m.is_gguf() {
        true => [
            m.nonzero("embedding_scale", "")?,
            m.nonzero("residual_scale", "")?,
            m.nonzero("logit_scale", "")?,
        ],
        false => [
            Some(m.positive("", "scale_emb")?),
            Some(m.positive("", "scale_depth")? / n_layers.sqrt()),
            Some(d_model / m.positive("", "dim_model_base")?),
        ],
    };
    let [embedding, residual, logits] = factors;
    // Files from before the keys existed are of the 2B model.
    network.embedding_scale = embedding.unwrap_or(12.0);
    let residual_scale = residual.unwrap_or(1.4 / n_layers.sqrt());
    // Logits are divided by it.
    network.head.scale = 1.0 / logits.unwrap_or(d_model / 256.0);
    for layer in &mut network.layers {
        layer.mixer.residual_scale = residual_scale;
        layer.ffn.residual_scale = residual_scale;
    }
    Ok(network)
}
