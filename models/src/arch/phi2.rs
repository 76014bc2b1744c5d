//! Phi-1, Phi-1.5 and Phi-2: attention and FFN beside each other behind one LayerNorm, part of each head rotated,
//! biases of everything, also of the head, and FFNs that are not gated, with GELU.

use super::metadata::Metadata;
use super::names::{ATTENTION, Name, PRE_NORM_BIASES, QKV_BIAS, SHARED_PRE_NORM};
use super::rope::Rules;
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::{Activation, Network};
use crate::tensor::{LayerTensor as T, TensorId};

const DEFAULTS: &str = r#"{
    "layer_norm_eps": 1e-5, "hidden_act": "gelu_new", "rope_theta": 1e4, "partial_rotary_factor": 0.5
}"#;

pub(super) static PHI2: Architecture = Architecture {
    gguf: &["phi2"],
    powerinfer: false,
    hf: &[Hf::new("phi", DEFAULTS)],
    tensors: &[&MODEL, &SHARED_PRE_NORM, &LAYER, &QKV_BIAS],
    describe,
};

const MODEL: [Name; 5] = [
    Name::model(
        "token_embd.weight",
        "model.embed_tokens.weight",
        TensorId::TokenEmbedding,
    ),
    Name::model(
        "output_norm.weight",
        "model.final_layernorm.weight",
        TensorId::OutputNorm,
    ),
    Name::model(
        "output_norm.bias",
        "model.final_layernorm.bias",
        TensorId::OutputNormBias,
    ),
    Name::model("output.weight", "lm_head.weight", TensorId::OutputHead),
    Name::model("output.bias", "lm_head.bias", TensorId::OutputHeadBias),
];

const LAYER: [Name; 11] = [
    PRE_NORM_BIASES[0],
    ATTENTION[0],
    ATTENTION[1],
    ATTENTION[2],
    Name::layer("attn_qkv.weight", "", &[T::Q, T::K, T::V]),
    Name::layer("attn_output.weight", "self_attn.dense.weight", &[T::O]),
    Name::layer("attn_output.bias", "self_attn.dense.bias", &[T::OBias]),
    Name::layer("ffn_up.weight", "mlp.fc1.weight", &[T::Gate]),
    Name::layer("ffn_up.bias", "mlp.fc1.bias", &[T::GateBias]),
    Name::layer("ffn_down.weight", "mlp.fc2.weight", &[T::Down]),
    Name::layer("ffn_down.bias", "mlp.fc2.bias", &[T::DownBias]),
];

const ROPE: Rules = Rules {
    partial: true,
    ..block::HALVES
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let activation = block::activation(m)?.unwrap_or(Activation::GeluTanh);
    let mut network = block::with_layer_norms(m, ROPE, activation, ("layer_norm_eps", true))?;
    block::bias_all(&mut network, true);
    network.head.bias = true;
    block::no_gates(&mut network);
    block::parallel_blocks(&mut network);
    Ok(network)
}
