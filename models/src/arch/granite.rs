//! Granite 3 and 4: plain blocks with four factors, dense or with experts.

use super::metadata::Metadata;
use super::names::{ATTENTION, EXPERTS, FFN, MODEL, Name, PRE_NORMS};
use super::rope::Rules;
use super::{Architecture, Form, Hf, block, experts};
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
    let mut network = describe(m)?;
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
    let mut network = block::network(m, ROPE, block::activation_or_silu(m)?)?;
    let factor = |gguf, hf| Ok(m.nonzero(gguf, hf)?.unwrap_or(1.0));
    network.embedding_scale = factor("embedding_scale", "embedding_multiplier")?;
    let residual_scale = factor("residual_scale", "residual_multiplier")?;
    let attention_scale = m.nonzero("attention.scale", "attention_multiplier")?;
    // Logits are divided by it.
    network.head.scale = 1.0 / factor("logit_scale", "logits_scaling")?;
    // In GGUF, this marks models without rotation.
    let rotates =
        !m.is_gguf() || m.fields().optional_bool("rope.scaling.finetuned")? != Some(false);
    for layer in &mut network.layers {
        layer.mixer.residual_scale = residual_scale;
        layer.ffn.residual_scale = residual_scale;
    }
    for attention in network.attentions_mut() {
        attention.scale = attention_scale.unwrap_or(attention.scale);
        attention.rope = attention.rope.filter(|_| rotates);
    }
    Ok(network)
}
