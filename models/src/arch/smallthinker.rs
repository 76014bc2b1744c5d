//! SmallThinker: experts with ReLU, chosen by the residual stream before the layer. In the larger one, every fourth
//! layer sees all positions and does not encode them, and the others have a sliding window.

use serde_json::Value;

use super::metadata::Metadata;
use super::names::{ATTENTION, EXPERTS, MODEL, Name, PRE_NORMS};
use super::{Architecture, Hf, block, experts};
use crate::error::Result;
use crate::network::{Activation, Network, Router, Scores};
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "head_dim": 128, "moe_primary_router_apply_softmax": false,
    "sliding_window_size": 4096, "tie_word_embeddings": true
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

/// In GGUF files, the first of every so many layers sees all positions, if any has a sliding window.
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
    let (slides, rotates) = match m.is_gguf() {
        true => by_period(window.is_some(), n),
        false => layouts(m, n)?,
    };
    block::slide(&mut network, window, |l| slides[l]);
    for (attention, rotates) in network.attentions_mut().zip(rotates) {
        attention.rope = attention.rope.filter(|_| rotates);
    }
    Ok(network)
}

/// By layer, whether it has a sliding window and whether it rotates, as llama.cpp has it for GGUF files.
fn by_period(windowed: bool, n: usize) -> (Vec<bool>, Vec<bool>) {
    let slides: Vec<bool> = (0..n).map(|l| windowed && l % PERIOD != 0).collect();
    match windowed {
        true => (slides.clone(), slides),
        false => (slides, vec![true; n]),
    }
}

/// The same as fields of `config.json` say. What these do not say is what the model's own configuration assumes.
fn layouts(m: &Metadata<'_>, n: usize) -> Result<(Vec<bool>, Vec<bool>)> {
    const PATTERN: &str = "sliding_window_pattern";
    let slides = layout(m, "sliding_window_layout", n)?.unwrap_or_else(|| vec![false; n]);
    let rotates = layout(m, "rope_layout", n)?.unwrap_or_else(|| vec![true; n]);
    // A copy of the layout for other engines, which the configuration's class saves.
    let is_copy = |pattern: &Value| {
        let flags = pattern.as_array().into_iter().flatten();
        flags.map(|flag| flag == 1).eq(slides.iter().copied())
    };
    if !m.fields().get(PATTERN).is_none_or(is_copy) {
        let value = "another pattern than sliding_window_layout";
        let remedy =
            "the model's own code does not read it: give the layout, and remove the pattern";
        return Err(m.unsupported(("", PATTERN), value, remedy));
    }
    Ok((slides, rotates))
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
