//! OPT: learned positions, LayerNorms, biases of everything, and FFNs that are not gated, with ReLU. llama.cpp does not
//! know it, so there are only checkpoints.

use super::metadata::Metadata;
use super::names::{ATTENTION, Name, QKV_BIAS};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::{Activation, Network};
use crate::tensor::{LayerTensor as T, TensorId};

const DEFAULTS: &str = r#"{"tie_word_embeddings": true}"#;

pub(super) static OPT: Architecture = Architecture {
    gguf: &[],
    powerinfer: false,
    hf: &[Hf::new("opt", DEFAULTS).with_spellings(&[
        ("intermediate_size", "ffn_dim"),
        ("hidden_act", "activation_function"),
    ])],
    tensors: &[&MODEL, &LAYER, &QKV_BIAS],
    describe,
};

/// The layers of a base model, without a head, are outside `model`.
const MODEL: [Name; 11] = [
    Name::layers("model.decoder.layers."),
    Name::layers("decoder.layers."),
    Name::model(
        "",
        "model.decoder.embed_tokens.weight",
        TensorId::TokenEmbedding,
    ),
    Name::model("", "decoder.embed_tokens.weight", TensorId::TokenEmbedding),
    Name::model(
        "",
        "model.decoder.embed_positions.weight",
        TensorId::PositionEmbedding,
    ),
    Name::model(
        "",
        "decoder.embed_positions.weight",
        TensorId::PositionEmbedding,
    ),
    Name::model(
        "",
        "model.decoder.final_layer_norm.weight",
        TensorId::OutputNorm,
    ),
    Name::model("", "decoder.final_layer_norm.weight", TensorId::OutputNorm),
    Name::model(
        "",
        "model.decoder.final_layer_norm.bias",
        TensorId::OutputNormBias,
    ),
    Name::model(
        "",
        "decoder.final_layer_norm.bias",
        TensorId::OutputNormBias,
    ),
    Name::model("", "lm_head.weight", TensorId::OutputHead),
];

const LAYER: [Name; 13] = [
    Name::layer("", "self_attn_layer_norm.weight", &[T::AttnNorm]),
    Name::layer("", "self_attn_layer_norm.bias", &[T::AttnNormBias]),
    ATTENTION[0],
    ATTENTION[1],
    ATTENTION[2],
    Name::layer("", "self_attn.out_proj.weight", &[T::O]),
    Name::layer("", "self_attn.out_proj.bias", &[T::OBias]),
    Name::layer("", "final_layer_norm.weight", &[T::FfnNorm]),
    Name::layer("", "final_layer_norm.bias", &[T::FfnNormBias]),
    Name::layer("", "fc1.weight", &[T::Gate]),
    Name::layer("", "fc1.bias", &[T::GateBias]),
    Name::layer("", "fc2.weight", &[T::Down]),
    Name::layer("", "fc2.bias", &[T::DownBias]),
];

/// Rows of the table before that of the first position.
const OFFSET: usize = 2;
/// Of all norms; there is no field for it.
const EPS: f32 = 1e-5;

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let activation = block::activation(m)?.unwrap_or(Activation::Relu);
    let d_ff = m.sizes("", "intermediate_size", m.layers()?)?;
    let mut network = block::with_learned_positions(m, OFFSET, (activation, d_ff), EPS)?;
    refuse_variants(m, network.d_model)?;
    let bias = m.fields().optional_bool("enable_bias")? != Some(false);
    block::bias_all(&mut network, bias);
    block::no_gates(&mut network);
    Ok(network)
}

/// What only OPT-350m has, and some models made from others.
fn refuse_variants(m: &Metadata<'_>, d_model: usize) -> Result<()> {
    const EMBEDDING: &str = "word_embed_proj_dim";
    if let Some(width) = m.optional_size("", EMBEDDING)?.filter(|&n| n != d_model) {
        let remedy = format!("embeddings as wide as the model, which has {d_model}, are");
        return Err(m.unsupported(("", EMBEDDING), width.to_string(), &remedy));
    }
    for (field, supported) in [
        ("do_layer_norm_before", true),
        ("layer_norm_elementwise_affine", true),
        ("_remove_final_layer_norm", false),
    ] {
        if m.fields()
            .optional_bool(field)?
            .is_some_and(|b| b != supported)
        {
            let remedy = "norms with weights before both blocks and before the head are";
            return Err(m.unsupported(("", field), (!supported).to_string(), remedy));
        }
    }
    Ok(())
}
