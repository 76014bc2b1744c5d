//! Gemma 2: norms around both blocks, GELU, scaled embeddings, bounded scores and logits, and a sliding window in every
//! second layer.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, INNER_PRE_NORMS, MODEL_PLUS_ONE, POST_NORMS, plus_one};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::Network;

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true,
    "rope_theta": 1e4, "sliding_window": 4096, "query_pre_attn_scalar": 256, "head_dim": 256,
    "num_attention_heads": 8, "num_key_value_heads": 4, "attn_logit_softcapping": 50,
    "final_logit_softcapping": 30, "max_position_embeddings": 8192
}"#;

pub(super) static GEMMA2: Architecture = Architecture {
    gguf: &["gemma2"],
    powerinfer: false,
    hf: &[Hf::new("gemma2", DEFAULTS)],
    tensors: &[
        &MODEL_PLUS_ONE,
        &plus_one(INNER_PRE_NORMS),
        &ATTENTION,
        &plus_one(POST_NORMS),
        &FFN,
    ],
    describe,
};

/// Every second layer sees all positions.
const PERIOD: usize = 2;
/// Number of layers of the 27B model, whose queries are scaled by a head's share of the model's width.
const LAYERS_27B: usize = 46;
/// What llama.cpp assumes where a GGUF file does not say.
const GGUF_WINDOW: usize = 4096;

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let activation = block::gemma_activation(m)?;
    let mut network = block::network(m, block::HALVES, activation)?;
    block::norm_outputs_too(&mut network);
    network.embedding_scale = (network.d_model as f32).sqrt();
    network.head.softcap = softcap(m, "final_logit_softcapping", 30.0)?;
    let scores = softcap(m, "attn_logit_softcapping", 50.0)?;

    let n_layers = network.n_layers();
    let window = block::window(m)?.or(m.is_gguf().then_some(GGUF_WINDOW));
    let slides = block::fixed_sliding_layers(m, n_layers, PERIOD)?;
    block::slide(&mut network, window, |l| slides[l]);
    let scaled_by = match m.optional_positive("", "query_pre_attn_scalar")? {
        Some(scalar) => scalar,
        // GGUF has no key for it.
        None if n_layers == LAYERS_27B => block::share_of_width(&network),
        None => block::head_dim(m)? as f32,
    };
    for attention in network.attentions_mut() {
        attention.scale = 1.0 / scaled_by.sqrt();
        attention.softcap = scores;
    }
    Ok(network)
}

/// A bound of scores or logits; checkpoints have none if they say null.
fn softcap(m: &Metadata<'_>, key: &str, in_gguf: f32) -> Result<Option<f32>> {
    match m.is_gguf() && m.optional_f32(key, "")?.is_none() {
        true => Ok(Some(in_gguf)),
        false => m.nonzero(key, key),
    }
}
