//! GPT-2: learned positions, LayerNorms, biases of everything, and FFNs that are not gated, with GELU. Checkpoints
//! store matrices transposed, and Q, K and V as one.

use super::metadata::Metadata;
use super::names::{Form, Name};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::{Activation, Network};
use crate::tensor::{LayerTensor as T, TensorId};

const DEFAULTS: &str = r#"{
    "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257,
    "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "tie_word_embeddings": true
}"#;

pub(super) static GPT2: Architecture = Architecture {
    gguf: &["gpt2"],
    powerinfer: false,
    hf: &[Hf::new("gpt2", DEFAULTS).with_spellings(&[
        ("hidden_size", "n_embd"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("max_position_embeddings", "n_positions"),
        ("intermediate_size", "n_inner"),
        ("hidden_act", "activation_function"),
    ])],
    tensors: &[&MODEL, &BASE, &NORMS, &MATRICES, &BIASES, &REDUNDANT],
    describe,
};

const MODEL: [Name; 6] = [
    Name::layers("transformer.h."),
    Name::model(
        "token_embd.weight",
        "transformer.wte.weight",
        TensorId::TokenEmbedding,
    ),
    Name::model(
        "position_embd.weight",
        "transformer.wpe.weight",
        TensorId::PositionEmbedding,
    ),
    Name::model(
        "output_norm.weight",
        "transformer.ln_f.weight",
        TensorId::OutputNorm,
    ),
    Name::model(
        "output_norm.bias",
        "transformer.ln_f.bias",
        TensorId::OutputNormBias,
    ),
    Name::model("output.weight", "lm_head.weight", TensorId::OutputHead),
];

/// Names in checkpoints without a head, as OpenAI's are.
const BASE: [Name; 5] = [
    Name::layers("h."),
    Name::model("", "wte.weight", TensorId::TokenEmbedding),
    Name::model("", "wpe.weight", TensorId::PositionEmbedding),
    Name::model("", "ln_f.weight", TensorId::OutputNorm),
    Name::model("", "ln_f.bias", TensorId::OutputNormBias),
];

const NORMS: [Name; 4] = [
    Name::layer("attn_norm.weight", "ln_1.weight", &[T::AttnNorm]),
    Name::layer("attn_norm.bias", "ln_1.bias", &[T::AttnNormBias]),
    Name::layer("ffn_norm.weight", "ln_2.weight", &[T::FfnNorm]),
    Name::layer("ffn_norm.bias", "ln_2.bias", &[T::FfnNormBias]),
];

/// Transposed, Down has a row for each neuron.
const MATRICES: [Name; 5] = [
    Name::layer("attn_qkv.weight", "attn.c_attn.weight", &[T::Q, T::K, T::V])
        .in_form(Form::Columns),
    Name::layer("attn_output.weight", "attn.c_proj.weight", &[T::O]).in_form(Form::Columns),
    Name::layer("ffn_up.weight", "mlp.c_fc.weight", &[T::Gate]).in_form(Form::Columns),
    Name::layer("ffn_down.weight", "", &[T::Down]),
    Name::layer("", "mlp.c_proj.weight", &[T::DownT]),
];

const BIASES: [Name; 4] = [
    Name::layer(
        "attn_qkv.bias",
        "attn.c_attn.bias",
        &[T::QBias, T::KBias, T::VBias],
    ),
    Name::layer("attn_output.bias", "attn.c_proj.bias", &[T::OBias]),
    Name::layer("ffn_up.bias", "mlp.c_fc.bias", &[T::GateBias]),
    Name::layer("ffn_down.bias", "mlp.c_proj.bias", &[T::DownBias]),
];

/// Masks that old versions of transformers stored.
const REDUNDANT: [Name; 2] = [
    Name::layer("", "attn.bias", &[]),
    Name::layer("", "attn.masked_bias", &[]),
];

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let activation = block::activation(m)?.unwrap_or(Activation::GeluTanh);
    let eps = m.positive("attention.layer_norm_epsilon", "layer_norm_epsilon")?;
    let ffn = (activation, block::ffn_or_four_times(m)?);
    let mut network = block::with_learned_positions(m, 0, ffn, eps)?;
    for (field, supported) in [
        ("scale_attn_weights", true),
        ("scale_attn_by_inverse_layer_idx", false),
        ("add_cross_attention", false),
    ] {
        let value = m.fields().optional_bool(field)?;
        if !m.is_gguf() && value.is_some_and(|b| b != supported) {
            let remedy = "models of the plain architecture are";
            return Err(m.unsupported(("", field), (!supported).to_string(), remedy));
        }
    }
    block::bias_all(&mut network, true);
    block::no_gates(&mut network);
    Ok(network)
}
