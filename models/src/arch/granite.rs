//! Granite 3 and 4: plain blocks with four factors, dense or with experts.

use super::metadata::Metadata;
use super::names::{ATTENTION, EXPERTS, FFN, MODEL, Name, PRE_NORMS};
use super::rope::Rules;
use super::{Architecture, Form, Hf, block, experts, neutral};
use crate::error::Result;
use crate::network::{Network, Router, Scores};
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "embedding_multiplier": 1,
    "attention_multiplier": 1, "residual_multiplier": 1, "logits_scaling": 1
}"#;

pub(super) static GRANITE: Architecture = Architecture {
    gguf: &["granite"],
    powerinfer: false,
    hf: &[Hf::new("granite", DEFAULTS)],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &FFN],
    describe,
};

const WITH_EXPERTS: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "embedding_multiplier": 1, "attention_multiplier": 1,
    "residual_multiplier": 1, "logits_scaling": 1, "num_local_experts": 8, "num_experts_per_tok": 2
}"#;

pub(super) static GRANITE_MOE: Architecture = Architecture {
    gguf: &["granitemoe"],
    powerinfer: false,
    hf: &[
        Hf::new("granitemoe", WITH_EXPERTS).with_spellings(&[("num_experts", "num_local_experts")])
    ],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &EXPERTS_IN_ONE, &EXPERTS],
    describe: describe_moe,
};

/// Checkpoints have Gate and Up in one tensor, and those of all experts.
const EXPERTS_IN_ONE: [Name; 3] = [
    Name::layer(
        "ffn_gate_inp.weight",
        "block_sparse_moe.router.layer.weight",
        &[T::Router],
    ),
    Name::layer(
        "",
        "block_sparse_moe.input_linear.weight",
        &[T::ExpertGate, T::ExpertUp],
    )
    .in_form(Form::ByGroup),
    Name::layer(
        "",
        "block_sparse_moe.output_linear.weight",
        &[T::ExpertDown],
    ),
];

fn describe_moe(m: &Metadata<'_>) -> Result<Network> {
    // Only the dense models of llama.cpp may be without rotation.
    let mut network = scaled(m)?;
    let router = Router {
        scores: Scores::SoftmaxOfChosen,
        ..experts::SOFTMAX
    };
    experts::replace_ffns(m, &mut network, &router, |_| false)?;
    Ok(network)
}

const ROPE: Rules = Rules {
    freqs: true,
    ..block::PERMUTED
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = scaled(m)?;
    // In GGUF, this marks models without rotation.
    if m.is_gguf() && m.fields().optional_bool("rope.scaling.finetuned")? == Some(false) {
        for attention in network.attentions_mut() {
            attention.rope = None;
        }
    }
    Ok(network)
}

/// Plain blocks with the four factors.
fn scaled(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, ROPE, block::activation_or_silu(m)?)?;
    network.embedding_scale = factor(m, "embedding_scale", "embedding_multiplier")?.unwrap_or(1.0);
    let residual_scale = factor(m, "residual_scale", "residual_multiplier")?.unwrap_or(1.0);
    let attention_scale = factor(m, "attention.scale", "attention_multiplier")?;
    // Logits are divided by it.
    let divisor = factor(m, "logit_scale", "logits_scaling")?;
    network.head.scale = 1.0 / divisor.unwrap_or(1.0);
    for layer in &mut network.layers {
        layer.mixer.residual_scale = residual_scale;
        layer.ffn.residual_scale = residual_scale;
    }
    for attention in network.attentions_mut() {
        attention.scale = attention_scale.unwrap_or(attention.scale);
    }
    Ok(network)
}

/// A factor; llama.cpp takes 0 for none, and transformers multiplies by it.
fn factor(m: &Metadata<'_>, gguf: &str, hf: &str) -> Result<Option<f32>> {
    let factor = m.nonzero(gguf, hf)?;
    if factor.is_none() && !m.is_gguf() {
        let value = m.fields().get(hf).map_or("null".into(), neutral::describe);
        return Err(m.unsupported(("", hf), value, "a factor above 0 is"));
    }
    Ok(factor)
}
