//! Command R, Aya and their successors of Cohere 2: attention and FFN beside each other behind one LayerNorm, and
//! scaled logits. Command R+ has LayerNorms of each head's query and key. In Cohere 2, three of four layers have a
//! sliding window, and only those encode positions.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, QK_NORMS, SHARED_PRE_NORM};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::{Network, NormSpan};

/// Without a base: the versions of transformers assume different ones.
const DEFAULTS: &str = r#"{
    "layer_norm_eps": 1e-5, "logit_scale": 0.0625, "tie_word_embeddings": true
}"#;
const WINDOWED: &str = r#"{
    "layer_norm_eps": 1e-5, "rope_theta": 1e4, "logit_scale": 0.0625, "tie_word_embeddings": true,
    "sliding_window": 4096
}"#;

pub(super) static COMMAND_R: Architecture = Architecture {
    gguf: &["command-r"],
    powerinfer: false,
    hf: &[Hf::new("cohere", DEFAULTS)],
    tensors: &[&MODEL, &SHARED_PRE_NORM, &ATTENTION, &QK_NORMS, &FFN],
    describe: plain,
};

pub(super) static COHERE2: Architecture = Architecture {
    gguf: &["cohere2"],
    powerinfer: false,
    hf: &[Hf::new("cohere2", WINDOWED)],
    tensors: &[&MODEL, &SHARED_PRE_NORM, &ATTENTION, &FFN],
    describe: windowed,
};

/// Every fourth layer of Cohere 2 sees all positions.
const PERIOD: usize = 4;

fn plain(m: &Metadata<'_>) -> Result<Network> {
    let (activation, norm) = (block::activation_or_silu(m)?, ("layer_norm_eps", false));
    let mut network = block::with_layer_norms(m, block::NEIGHBOURS, activation, norm)?;
    block::parallel_blocks(&mut network);
    // Logits are multiplied by it.
    network.head.scale = m.nonzero("logit_scale", "logit_scale")?.unwrap_or(1.0);
    let qk_norms = match m.is_gguf() {
        true => m.has_tensor("blk.0.attn_q_norm.weight"),
        false => m.fields().optional_bool("use_qk_norm")? == Some(true),
    };
    if qk_norms {
        block::norm_qk(&mut network, NormSpan::OwnHead);
    }
    Ok(network)
}

fn windowed(m: &Metadata<'_>) -> Result<Network> {
    let mut network = plain(m)?;
    let window = block::window(m)?;
    let slides = block::sliding_layers(m, network.n_layers(), PERIOD)?;
    block::slide(&mut network, window, |l| slides[l]);
    block::rotate_sliding_only(&mut network);
    Ok(network)
}
