//! gpt-oss: experts with biases and a clamped activation, attention with biases and sinks, and a sliding window in
//! every other layer.

use super::metadata::Metadata;
use super::names::{ATTENTION, EXPERTS, MODEL, Name, O_BIAS, QKV_BIAS};
use super::{Architecture, Hf, block, experts};
use crate::error::Result;
use crate::network::{Activation, Network, Router, Scores};
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-5, "rope_theta": 1.5e5, "num_local_experts": 128, "num_experts_per_tok": 4,
    "sliding_window": 128, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
    "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": true, "hidden_act": "silu"
}"#;

pub(super) static GPT_OSS: Architecture = Architecture {
    gguf: &["gpt-oss"],
    powerinfer: false,
    hf: &[Hf::new("gpt_oss", DEFAULTS).with_spellings(&[("num_experts", "num_local_experts")])],
    tensors: &[
        &MODEL, &NORMS, &ATTENTION, &QKV_BIAS, &O_BIAS, &SINKS, &ROUTER, &EXPERTS, &BIASES,
    ],
    describe,
};

/// In GGUF, too, the norm of the FFN's input is named after what it follows.
const NORMS: [Name; 2] = [
    Name::layer("attn_norm.weight", "input_layernorm.weight", &[T::AttnNorm]),
    Name::layer(
        "post_attention_norm.weight",
        "post_attention_layernorm.weight",
        &[T::FfnNorm],
    ),
];

const SINKS: [Name; 1] = [Name::layer(
    "attn_sinks.weight",
    "self_attn.sinks",
    &[T::Sinks],
)];

const ROUTER: [Name; 2] = [
    Name::layer("ffn_gate_inp.weight", "mlp.router.weight", &[T::Router]),
    Name::layer("ffn_gate_inp.bias", "mlp.router.bias", &[T::RouterBias]),
];

const BIASES: [Name; 3] = [
    Name::layer("ffn_gate_exps.bias", "", &[T::ExpertGateBias]),
    Name::layer("ffn_up_exps.bias", "", &[T::ExpertUpBias]),
    Name::layer(
        "ffn_down_exps.bias",
        "mlp.experts.down_proj_bias",
        &[T::ExpertDownBias],
    ),
];

/// What GGUF files do not say.
const ALPHA: f32 = 1.702;
const LIMIT: f32 = 7.0;

fn describe(m: &Metadata<'_>) -> Result<Network> {
    if !m.is_gguf() {
        // Their experts are in a format of their own, whose blocks are not those of GGUF.
        let remedy = "use a GGUF file of the model";
        return Err(m.unsupported(("", "model_type"), "a checkpoint of gpt-oss", remedy));
    }
    let activation = Activation::ClampedSwiglu {
        alpha: ALPHA,
        limit: LIMIT,
    };
    let mut network = block::network(m, block::HALVES, activation)?;
    block::bias_qkv(&mut network, true);
    let window = block::window(m)?;
    block::slide(&mut network, window, |l| l % 2 == 0);
    for attention in network.attentions_mut() {
        (attention.out_bias, attention.sinks) = (true, true);
    }
    let router = Router {
        scores: Scores::SoftmaxOfChosen,
        bias: true,
        ..experts::SOFTMAX
    };
    experts::replace_ffns(m, &mut network, &router, |_| false)?;
    experts::bias(&mut network);
    Ok(network)
}
