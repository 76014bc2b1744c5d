//! LFM2, dense: some layers have attention with a norm of each head's query and key, the others a short convolution.

use super::metadata::Metadata;
use super::names::{self, MODEL, Name};
use super::{Architecture, Hf, block, rope};
use crate::error::Result;
use crate::network::{Activation, Mixer, Network, NormSpan, ShortConv, Uniform};
use crate::tensor::{LayerTensor as T, TensorId};

const DEFAULTS: &str = r#"{
    "norm_eps": 1e-5, "rope_theta": 1e6, "tie_word_embeddings": true, "conv_L_cache": 3,
    "num_key_value_heads": 8, "max_position_embeddings": 128000, "intermediate_size": 12288,
    "block_auto_adjust_ff_dim": true, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256
}"#;

pub(super) static LFM2: Architecture = Architecture {
    gguf: &["lfm2"],
    powerinfer: false,
    hf: &[Hf::new("lfm2", DEFAULTS)],
    tensors: &[&TABLES, &NORMS, &ATTENTION, &SHORT_CONV, &FFN],
    describe,
};

const FINAL_NORM: &str = "model.embedding_norm.weight";

/// The final norm in GGUF is named as if it were the embedding's; before that was known, it had its usual name.
const TABLES: [Name; 4] = [
    MODEL[0],
    Name::model("token_embd_norm.weight", FINAL_NORM, TensorId::OutputNorm),
    Name::model("output_norm.weight", "", TensorId::OutputNorm),
    MODEL[2],
];

const NORMS: [Name; 4] = [
    Name::layer("attn_norm.weight", "operator_norm.weight", &[T::AttnNorm]),
    Name::layer("ffn_norm.weight", "ffn_norm.weight", &[T::FfnNorm]),
    Name::layer(
        "attn_q_norm.weight",
        "self_attn.q_layernorm.weight",
        &[T::QNorm],
    ),
    Name::layer(
        "attn_k_norm.weight",
        "self_attn.k_layernorm.weight",
        &[T::KNorm],
    ),
];

const ATTENTION: [Name; 5] = [
    names::ATTENTION[0],
    names::ATTENTION[1],
    names::ATTENTION[2],
    Name::layer("attn_output.weight", "self_attn.out_proj.weight", &[T::O]),
    names::ATTENTION[4],
];

const SHORT_CONV: [Name; 3] = [
    Name::layer(
        "shortconv.in_proj.weight",
        "conv.in_proj.weight",
        &[T::ConvIn],
    ),
    Name::layer("shortconv.conv.weight", "conv.conv.weight", &[T::ConvTaps]),
    Name::layer("shortconv.out_proj.weight", "conv.out_proj.weight", &[T::O]).recurrent(),
];

const FFN: [Name; 3] = [
    Name::layer("ffn_gate.weight", "feed_forward.w1.weight", &[T::Gate]),
    Name::layer("ffn_up.weight", "feed_forward.w3.weight", &[T::Up]),
    Name::layer("ffn_down.weight", "feed_forward.w2.weight", &[T::Down]),
];

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let (n_layers, head_dim) = (m.layers()?, block::head_dim(m)?);
    let d_model = m.size("embedding_length", "hidden_size")?;
    let kv_heads = kv_heads(m, n_layers)?;
    let mut network = Uniform {
        name: m.name(),
        n_layers,
        d_model,
        n_heads: m.sizes("attention.head_count", "num_attention_heads", n_layers)?[0],
        n_kv_heads: 1,
        head_dim,
        d_ff: d_ff(m)?,
        vocab_size: m.vocab_size()?,
        context_length: m.context()?,
        rms_eps: m.positive("attention.layer_norm_rms_epsilon", "norm_eps")?,
        rope: rope::read(m, head_dim, block::HALVES, None)?,
        window: None,
        activation: Activation::Silu,
        qkv_bias: false,
        tied_head: m.tied_head()?,
        predictor_threshold: m.predictor_threshold()?,
    }
    .network();
    block::norm_qk(&mut network, NormSpan::Head);
    refuse_another_theta(m, network.ropes[0].theta)?;
    let conv = ShortConv {
        channels: d_model,
        kernel: m.size("shortconv.l_cache", "conv_L_cache")?,
    };
    for (layer, kv_heads) in network.layers.iter_mut().zip(kv_heads) {
        match (kv_heads, layer.mixer.body.attention_mut()) {
            (1.., Some(attention)) => attention.n_kv_heads = kv_heads,
            _ => layer.mixer.body = Mixer::ShortConv(conv),
        }
    }
    if !m.is_gguf() && m.fields().optional_bool("conv_bias")? == Some(true) {
        let remedy = "convolutions without biases are";
        return Err(m.unsupported(("", "conv_bias"), "true", remedy));
    }
    Ok(network)
}

/// Another name of the base, which transformers 4 takes before `rope_theta`, and 5 does not read.
fn refuse_another_theta(m: &Metadata<'_>, theta: f32) -> Result<()> {
    const OTHER: &str = "theta";
    match m.optional_positive("", OTHER)?.filter(|&v| v != theta) {
        None => Ok(()),
        Some(other) => {
            let remedy = format!("rope_theta is {theta}, given or assumed: give both the same");
            Err(m.unsupported(("", OTHER), other.to_string(), &remedy))
        }
    }
}

/// Key/value heads of each of `n` layers; 0 where there is no attention.
fn kv_heads(m: &Metadata<'_>, n: usize) -> Result<Vec<usize>> {
    const INDICES: &str = "full_attn_idxs";
    if m.is_gguf() {
        return m.sizes_of_some("attention.head_count_kv", "", n);
    }
    let kv_heads = m.size("", "num_key_value_heads")?;
    let attends: Vec<bool> = match m.layer_types_of(n, &["full_attention", "conv"])? {
        Some(types) => types.iter().map(|&kind| kind != "conv").collect(),
        None => match m.fields().optional_array(INDICES)? {
            Some(layers) => (0..n).map(|l| layers.iter().any(|v| *v == l)).collect(),
            None => vec![true; n],
        },
    };
    let of = |attends: bool| if attends { kv_heads } else { 0 };
    Ok(attends.into_iter().map(of).collect())
}

/// Neurons of a layer. Checkpoints have the size from which it is computed.
fn d_ff(m: &Metadata<'_>) -> Result<usize> {
    if m.is_gguf() {
        return m.size("feed_forward_length", "");
    }
    let given = m.size("", "intermediate_size")?;
    let given = m.optional_size("", "block_ff_dim")?.unwrap_or(given);
    if m.fields().optional_bool("block_auto_adjust_ff_dim")? != Some(true) {
        return Ok(given);
    }
    let part = 2 * given / 3;
    let scaled = match m.optional_positive("", "block_ffn_dim_multiplier")? {
        Some(factor) => (f64::from(factor) * part as f64) as usize,
        None => return Ok(part),
    };
    let whole = scaled.checked_next_multiple_of(m.size("", "block_multiple_of")?);
    Ok(whole.unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The description of a checkpoint with these fields beside the usual ones.
    fn described(more: Value) -> Result<Network> {
        let config = json!({
            "model_type": "lfm2", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "block_multiple_of": 16,
        });
        super::super::described(config, more)
    }

    #[test]
    fn layers_are_named_or_numbered() {
        let recurrent = |more| {
            let network = described(more).expect("a good description");
            let layers = network.layers.iter().map(|l| l.mixer.body.is_recurrent());
            layers.collect::<Vec<_>>()
        };
        assert_eq!(recurrent(json!({})), [false, false, false]);
        assert_eq!(
            recurrent(json!({"full_attn_idxs": [1]})),
            [true, false, true]
        );
        let types =
            json!({"layer_types": ["conv", "conv", "full_attention"], "full_attn_idxs": [0]});
        assert_eq!(recurrent(types), [true, true, false]);
    }

    #[test]
    fn the_width_of_ffns_is_computed() {
        let d_ff = |more| described(more).expect("a good description").ffn(0).d_ff;
        // Two thirds, times 1.5, to a multiple of 16.
        let factor = json!({"intermediate_size": 90, "block_ffn_dim_multiplier": 1.5});
        assert_eq!(d_ff(factor), 96);
        let older = json!({"intermediate_size": 7, "block_ff_dim": 100});
        assert_eq!(d_ff(older), 80);
        let plain = json!({"intermediate_size": 90, "block_auto_adjust_ff_dim": false});
        assert_eq!(d_ff(plain), 90);
    }

    #[test]
    fn what_would_change_the_result_is_refused() {
        for (more, field) in [
            (json!({"conv_bias": true}), "conv_bias"),
            (
                json!({"layer_types": ["conv", "sliding_attention", "conv"]}),
                "layer_types",
            ),
            (json!({"sliding_window": 8}), "sliding_window"),
            (
                json!({"full_attn_idxs": [], "conv_L_cache": 1}),
                "convolution kernel",
            ),
        ] {
            let message = described(more).expect_err(field).to_string();
            assert!(message.contains(field), "{message}");
        }
    }
}
