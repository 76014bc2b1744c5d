//! Qwen3 with experts: plain blocks with a norm of each head's query and key.

use super::metadata::Metadata;
use super::names::{ATTENTION, EXPERTS, FFN, MODEL, PRE_NORMS, QK_NORMS, ROUTER};
use super::{Architecture, Hf, block, experts};
use crate::error::Result;
use crate::network::{Network, NormSpan};

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "sliding_window": 4096, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": false
}"#;

pub(super) static QWEN3MOE: Architecture = Architecture {
    gguf: &["qwen3moe"],
    powerinfer: false,
    hf: &[Hf::new("qwen3_moe", DEFAULTS).with_alternatives(&[("num_experts", "num_local_experts")])],
    tensors: &[
        &MODEL, &PRE_NORMS, &ATTENTION, &QK_NORMS, &ROUTER, &EXPERTS, &FFN,
    ],
    describe,
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, block::HALVES, block::activation_or_silu(m)?)?;
    block::norm_qk(&mut network, NormSpan::Head);
    block::switched_window(m, &mut network, |_| true)?;
    refuse_full_layers(m, &network)?;
    let dense = experts::dense_layers(m, network.n_layers())?;
    let router = experts::router(m, experts::NORMALISED_SOFTMAX)?;
    experts::replace_ffns(m, &mut network, &router, |l| dense[l])?;
    Ok(network)
}

/// transformers gives all layers the window, whatever `layer_types` says.
fn refuse_full_layers(m: &Metadata<'_>, network: &Network) -> Result<()> {
    let has_full = network.attentions().any(|a| a.window.is_none());
    match has_full && block::is_window_used(m)? {
        true => {
            let value = "\"full_attention\" with use_sliding_window";
            let remedy = "all layers have the window here: say so, or remove the field";
            Err(m.unsupported(("", "layer_types"), value, remedy))
        }
        false => Ok(()),
    }
}
