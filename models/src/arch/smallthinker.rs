//! SmallThinker: experts with ReLU, chosen by the residual stream before the layer. In the larger one, every fourth
//! layer sees all positions and does not encode them, and the others have a sliding window.

use super::metadata::Metadata;
use super::names::{ATTENTION, EXPERTS, MODEL, Name, PRE_NORMS};
use super::{Architecture, Hf, block, experts};
use crate::error::Result;
use crate::network::{Activation, Network, Router, Scores};
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1.5e6, "head_dim": 128, "moe_primary_router_apply_softmax": false
}"#;

pub(super) static SMALLTHINKER: Architecture = Architecture {
    gguf: &["smallthinker"],
    powerinfer: false,
    hf: &[Hf::new("smallthinker", DEFAULTS).with_spellings(&[
        ("num_experts", "moe_num_primary_experts"),
        ("num_experts_per_tok", "moe_num_active_primary_experts"),
        ("moe_intermediate_size", "moe_ffn_hidden_size"),
        ("sliding_window", "sliding_window_size"),
    ])],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &ROUTER, &EXPERTS],
    describe,
};

const ROUTER: [Name; 4] = [
    Name::layer(
        "ffn_gate_inp.weight",
        "block_sparse_moe.primary_router.weight",
        &[T::Router],
    ),
    Name::layer(
        "",
        "block_sparse_moe.experts.*.gate.weight",
        &[T::ExpertGate],
    ),
    Name::layer("", "block_sparse_moe.experts.*.up.weight", &[T::ExpertUp]),
    Name::layer(
        "",
        "block_sparse_moe.experts.*.down.weight",
        &[T::ExpertDown],
    ),
];

/// The first of every so many layers sees all positions, if any has a sliding window.
const PERIOD: usize = 4;

fn describe(m: &Metadata<'_>) -> Result<Network> {
    const SOFTMAX: &str = "moe_primary_router_apply_softmax";
    let mut network = block::network(m, block::HALVES, Activation::Relu)?;
    let softmax = !m.is_gguf() && m.fields().optional_bool(SOFTMAX)? == Some(true);
    let router = Router {
        before_layer: true,
        scores: match softmax {
            true => Scores::Softmax,
            false => Scores::Sigmoid,
        },
        ..experts::NORMALISED_SOFTMAX
    };
    // Weights are always divided by their sum and never scaled: neither the model's own code nor llama.cpp reads fields
    // about that, which published files have.
    let router = match m.is_gguf() {
        true => Router {
            normalised: true,
            scale: 1.0,
            ..experts::router(m, router)?
        },
        false => router,
    };
    experts::replace_ffns(m, &mut network, &router, |_| false)?;
    let (window, n) = (block::window(m)?, network.n_layers());
    let slides = match layout(m, "sliding_window_layout", n)? {
        Some(slides) => slides,
        None => (0..n)
            .map(|l| window.is_some() && l % PERIOD != 0)
            .collect(),
    };
    let rotates = match (layout(m, "rope_layout", n)?, window) {
        (Some(rotates), _) => rotates,
        (None, Some(_)) => slides.clone(),
        (None, None) => vec![true; n],
    };
    block::slide(&mut network, window, |l| slides[l]);
    for (attention, rotates) in network.attentions_mut().zip(rotates) {
        attention.rope = attention.rope.filter(|_| rotates);
    }
    Ok(network)
}

/// By layer, whether it is of a kind, as a field of `config.json` says with 1.
fn layout(m: &Metadata<'_>, field: &str, n: usize) -> Result<Option<Vec<bool>>> {
    let Some(flags) = m.fields().optional_array(field)? else {
        return Ok(None);
    };
    let flags: Option<Vec<bool>> = flags.iter().map(|f| Some(f.as_u64()? == 1)).collect();
    let flags = flags.filter(|flags| flags.len() == n);
    let wrong = || {
        m.wrong(
            "",
            field,
            format!("it is not {n} numbers, one for each layer"),
        )
    };
    flags.ok_or_else(wrong).map(Some)
}
