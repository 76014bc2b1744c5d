//! Qwen1.5 and Qwen2 with experts: blocks with biases of Q, K and V, and one expert that every token uses, behind a
//! gate.

use super::metadata::Metadata;
use super::names::{ATTENTION, EXPERTS, FFN, MODEL, PRE_NORMS, QKV_BIAS, ROUTER, SHARED_EXPERT};
use super::{Architecture, Hf, block, experts};
use crate::error::Result;
use crate::network::Network;

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "sliding_window": 4096, "num_experts": 60,
    "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632
}"#;

pub(super) static QWEN2MOE: Architecture = Architecture {
    gguf: &["qwen2moe"],
    powerinfer: false,
    hf: &[Hf::new("qwen2_moe", DEFAULTS)],
    tensors: &[
        &MODEL,
        &PRE_NORMS,
        &ATTENTION,
        &QKV_BIAS,
        &ROUTER,
        &EXPERTS,
        &SHARED_EXPERT,
        &FFN,
    ],
    describe,
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, block::HALVES, block::activation_or_silu(m)?)?;
    let bias = m.is_gguf() || m.fields().optional_bool("qkv_bias")?.unwrap_or(true);
    block::bias_qkv(&mut network, bias);
    refuse_unnamed_windows(m, network.n_layers())?;
    block::switched_window(m, &mut network, |_| true)?;
    let dense = experts::dense_layers(m, network.n_layers())?;
    let router = experts::router(m, experts::SOFTMAX)?;
    let d_ff = network.ffn(0).d_ff;
    experts::replace_ffns(m, &mut network, &router, |l| dense[l])?;
    let mut shared = experts::shared_width(m)?;
    if m.is_gguf() {
        // The first files name neither width. Then a token's experts are together as wide as the FFN, and so is what
        // every token uses.
        if experts::width(m)?.is_none() {
            experts::divide(&mut network, d_ff);
        }
        shared = if shared == 0 { d_ff } else { shared };
    }
    experts::share(&mut network, shared, true);
    Ok(network)
}

/// Unless `layer_types` names them, transformers 4 gives all layers the window, and 5 every second one of the first.
fn refuse_unnamed_windows(m: &Metadata<'_>, n: usize) -> Result<()> {
    match block::is_window_used(m)? && m.layer_types(n)?.is_none() {
        true => {
            let remedy = "name the layers that have the window in layer_types";
            Err(m.unsupported(("", block::USE_WINDOW), "true without layer_types", remedy))
        }
        false => Ok(()),
    }
}
