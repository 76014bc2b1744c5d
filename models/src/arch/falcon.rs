//! Falcon: attention and FFN beside each other behind one LayerNorm, or each behind its own, few key/value heads, and
//! FFNs that are not gated, with GELU or ReLU.

use super::metadata::Metadata;
use super::names::{Form, Name};
use super::{Architecture, Hf, block, rope};
use crate::error::Result;
use crate::network::{Activation, Network};
use crate::tensor::{LayerTensor as T, TensorId};

const DEFAULTS: &str = r#"{
    "layer_norm_epsilon": 1e-5, "activation": "gelu", "tie_word_embeddings": true, "rope_theta": 1e4,
    "max_position_embeddings": 2048
}"#;

pub(super) static FALCON: Architecture = Architecture {
    gguf: &["falcon"],
    powerinfer: false,
    hf: &[Hf::new("falcon", DEFAULTS).with_spellings(&[
        ("intermediate_size", "ffn_hidden_size"),
        ("hidden_act", "activation"),
    ])],
    tensors: &[&MODEL, &NORMS, &MATRICES],
    describe,
};

const MODEL: [Name; 5] = [
    Name::layers("transformer.h."),
    Name::model(
        "token_embd.weight",
        "transformer.word_embeddings.weight",
        TensorId::TokenEmbedding,
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

/// GGUF's `attn_norm` is the FFN's if there are two.
const NORMS: [Name; 6] = [
    Name::layer("attn_norm.weight", "ln_mlp.weight", &[T::FfnNorm]),
    Name::layer("attn_norm.bias", "ln_mlp.bias", &[T::FfnNormBias]),
    Name::layer("attn_norm.weight", "input_layernorm.weight", &[T::AttnNorm]),
    Name::layer("attn_norm.bias", "input_layernorm.bias", &[T::AttnNormBias]),
    Name::layer("attn_norm_2.weight", "ln_attn.weight", &[T::AttnNorm]),
    Name::layer("attn_norm_2.bias", "ln_attn.bias", &[T::AttnNormBias]),
];

const MATRICES: [Name; 4] = [
    Name::layer(
        "attn_qkv.weight",
        "self_attention.query_key_value.weight",
        &[T::Q, T::K, T::V],
    )
    .in_form(Form::ByGroup),
    Name::layer("attn_output.weight", "self_attention.dense.weight", &[T::O]),
    Name::layer("ffn_up.weight", "mlp.dense_h_to_4h.weight", &[T::Gate]),
    Name::layer("ffn_down.weight", "mlp.dense_4h_to_h.weight", &[T::Down]),
];

fn describe(m: &Metadata<'_>) -> Result<Network> {
    // In GGUF, which has no key for it, as transformers computes it; llama.cpp takes GELU's other form.
    let activation = block::activation(m)?.unwrap_or(Activation::GeluErf);
    let head_dim = block::head_dim(m)?;
    let rope = rope::read(m, head_dim, block::HALVES, None)?;
    let eps = m.positive("attention.layer_norm_epsilon", "layer_norm_epsilon")?;
    let ffn = (activation, block::ffn_or_four_times(m)?);
    let mut network = block::layer_normed(m, head_dim, rope, ffn, (eps, true))?;
    block::no_gates(&mut network);
    let two_norms = match m.is_gguf() {
        true => m.has_tensor("blk.0.attn_norm_2.weight"),
        false => checkpoint(m, &mut network)?,
    };
    match two_norms {
        true => block::parallel_blocks_of_two_norms(&mut network),
        false => block::parallel_blocks(&mut network),
    }
    Ok(network)
}

/// What checkpoints say in their own way: the number of key/value heads, and whether blocks have a norm each.
fn checkpoint(m: &Metadata<'_>, network: &mut Network) -> Result<bool> {
    const PARALLEL: &str = "parallel_attn";
    let fields = m.fields();
    if fields.optional_bool(PARALLEL)? == Some(false) {
        let remedy = "attention and FFN beside each other are";
        return Err(m.unsupported(("", PARALLEL), "false", remedy));
    }
    let new = fields.optional_bool("new_decoder_architecture")? == Some(true);
    let one = fields.optional_bool("multi_query")? != Some(false);
    let kv_heads = m.optional_size("", "num_kv_heads")?;
    for a in network.attentions_mut() {
        a.n_kv_heads = match (new, one) {
            (true, _) => kv_heads.unwrap_or(a.n_heads),
            (false, true) => 1,
            (false, false) => a.n_heads,
        };
    }
    let norms = m.optional_size("", "num_ln_in_parallel_attn")?;
    Ok(new && norms.is_none_or(|n| n == 2))
}
