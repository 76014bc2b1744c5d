//! Gemma 3, text: norms around both blocks and of queries and keys, GELU, scaled embeddings, and sliding windows in
//! five of six layers, which have their own rotation.

use super::metadata::Metadata;
use super::names::{
    ATTENTION, FFN, INNER_PRE_NORMS, MODEL_PLUS_ONE, POST_NORMS, QK_NORMS, plus_one,
};
use super::{Architecture, Hf, block, rope};
use crate::error::Result;
use crate::network::{Network, NormSpan};

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true,
    "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": 4096,
    "query_pre_attn_scalar": 256, "head_dim": 256, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 262208, "max_position_embeddings": 131072
}"#;

pub(super) static GEMMA3: Architecture = Architecture {
    gguf: &["gemma3"],
    powerinfer: false,
    hf: &[Hf::new("gemma3_text", DEFAULTS).inside(&["gemma3"])],
    tensors: &[
        &MODEL_PLUS_ONE,
        &plus_one(INNER_PRE_NORMS),
        &ATTENTION,
        &plus_one(QK_NORMS),
        &plus_one(POST_NORMS),
        &FFN,
    ],
    describe,
};

/// Every sixth layer sees all positions.
const PERIOD: usize = 6;
/// Base of the rotation in layers with a window.
const SLIDING_THETA: f32 = 10_000.0;
/// Number of layers of the 27B model, whose queries are scaled by a head's share of the model's
/// width.
const LAYERS_27B: usize = 62;

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let head_dim = block::head_dim(m)?;
    let full = rope::read(m, head_dim, block::HALVES, Some("full_attention"))?;
    let sliding = rope::sliding(m, head_dim, block::HALVES, SLIDING_THETA)?;
    let activation = block::gemma_activation(m)?;
    let mut network = block::with_rope(m, head_dim, full, activation)?;
    network.ropes.push(sliding);
    network.embedding_scale = (network.d_model as f32).sqrt();
    network.head.softcap = m.nonzero("final_logit_softcapping", "final_logit_softcapping")?;
    block::norm_qk(&mut network, NormSpan::Head);

    let n_layers = network.n_layers();
    let window = block::window(m)?;
    let slides = block::sliding_layers(m, n_layers, PERIOD)?;
    let scaled_by = match m.optional_positive("", "query_pre_attn_scalar")? {
        Some(scalar) => scalar,
        // GGUF has no key for it.
        None if n_layers == LAYERS_27B => block::share_of_width(&network),
        None => head_dim as f32,
    };
    block::slide(&mut network, window, |l| slides[l]);
    block::norm_outputs_too(&mut network);
    for attention in network.attentions_mut() {
        attention.scale = 1.0 / scaled_by.sqrt();
        if attention.window.is_some() {
            attention.rope = Some(1);
        }
    }
    Ok(network)
}
