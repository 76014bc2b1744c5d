//! StarCoder 2: LayerNorms, biases of everything, FFNs that are not gated, with GELU, and a sliding window.

use super::metadata::Metadata;
use super::names::{
    ATTENTION, MODEL, MODEL_NORM_BIAS, Name, O_BIAS, PRE_NORM_BIASES, PRE_NORMS, QKV_BIAS,
};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::{Activation, Network};
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str = r#"{
    "norm_epsilon": 1e-5, "hidden_act": "gelu_pytorch_tanh", "rope_theta": 1e4, "use_bias": true,
    "tie_word_embeddings": true
}"#;

pub(super) static STARCODER2: Architecture = Architecture {
    gguf: &["starcoder2"],
    powerinfer: false,
    hf: &[Hf::new("starcoder2", DEFAULTS)],
    tensors: &[
        &MODEL,
        &MODEL_NORM_BIAS,
        &PRE_NORMS,
        &PRE_NORM_BIASES,
        &ATTENTION,
        &QKV_BIAS,
        &O_BIAS,
        &FFN,
    ],
    describe,
};

const FFN: [Name; 4] = [
    Name::layer("ffn_up.weight", "mlp.c_fc.weight", &[T::Gate]),
    Name::layer("ffn_up.bias", "mlp.c_fc.bias", &[T::GateBias]),
    Name::layer("ffn_down.weight", "mlp.c_proj.weight", &[T::Down]),
    Name::layer("ffn_down.bias", "mlp.c_proj.bias", &[T::DownBias]),
];

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let activation = block::activation(m)?.unwrap_or(Activation::GeluTanh);
    let norm = ("norm_epsilon", true);
    let mut network = block::with_layer_norms(m, block::HALVES, activation, norm)?;
    let bias = match m.is_gguf() {
        true => block::has_qkv_bias(m)?,
        false => m.fields().optional_bool("use_bias")? == Some(true),
    };
    block::bias_all(&mut network, bias);
    block::no_gates(&mut network);
    // As in transformers; llama.cpp knows no window here.
    let window = block::window(m)?;
    block::slide(&mut network, window, |_| true);
    Ok(network)
}
