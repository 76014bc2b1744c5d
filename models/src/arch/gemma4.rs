//! Gemma 4, text, dense: as Gemma 3, but layers that see everything have heads and a rotation of their own, values are
//! normalised and may be the keys, the last layers attend over earlier ones' keys and values, and in the small models
//! every layer has an input of its own from each token.

use super::metadata::Metadata;
use super::names::{
    ATTENTION, FFN, INNER_PRE_NORMS, INPUT_MIXER, LAYER_SCALE, MODEL, POST_NORMS, QK_NORMS,
    TOKEN_INPUTS,
};
use super::rope::Rules;
use super::{Architecture, Hf, block, rope};
use crate::error::Result;
use crate::network::{
    Activation, Block, InputMixer, KvOrigin, Network, Norm, NormSpan, TokenInputs,
};

/// What both kinds of checkpoints assume, and one kind.
macro_rules! defaults {
    ($own:literal) => {
        concat!(
            r#"{
                "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh",
                "head_dim": 256, "global_head_dim": 512, "num_attention_heads": 8,
                "num_key_value_heads": 4, "vocab_size": 262144, "tie_word_embeddings": true,
                "rope_parameters": {
                    "sliding_attention": {"rope_theta": 1e4},
                    "full_attention": {
                        "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6
                    }
                },"#,
            $own,
            "}"
        )
    };
}

const DEFAULTS: &str = defaults!(
    r#""sliding_window": 512, "max_position_embeddings": 131072,
    "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144"#
);

/// Of the 12B model, whose checkpoints read pictures and sound without encoders.
const UNIFIED_DEFAULTS: &str =
    defaults!(r#""sliding_window": 1024, "max_position_embeddings": 262144"#);

pub(super) static GEMMA4: Architecture = Architecture {
    gguf: &["gemma4"],
    powerinfer: false,
    hf: &[
        Hf::new("gemma4_text", DEFAULTS).inside(&["gemma4"]),
        Hf::new("gemma4_unified_text", UNIFIED_DEFAULTS).inside(&["gemma4_unified"]),
    ],
    tensors: &[
        &MODEL,
        &TOKEN_INPUTS,
        &INNER_PRE_NORMS,
        &ATTENTION,
        &QK_NORMS,
        &POST_NORMS,
        &FFN,
        &INPUT_MIXER,
        &LAYER_SCALE,
    ],
    describe,
};

/// Every sixth layer sees all positions.
const PERIOD: usize = 6;
/// Base of the rotation in layers with a window.
const SLIDING_THETA: f32 = 10_000.0;
/// How full layers rotate.
const ROPE: Rules = Rules {
    freqs: true,
    proportional: true,
    required: true,
    ..block::HALVES
};
/// Elements of a head in layers with a window.
const WIDTH: (&str, &str) = ("attention.key_length_swa", "head_dim");
/// How many of the last layers have no keys and values of their own.
const SHARED: (&str, &str) = ("attention.shared_kv_layers", "num_kv_shared_layers");

fn describe(m: &Metadata<'_>) -> Result<Network> {
    refuse_looking_ahead(m)?;
    let n = m.layers()?;
    let slides = slides(m, n)?;
    let (widths, kv_heads) = heads(m, &slides)?;
    let width = |sliding: bool| {
        let of_kind = slides.iter().position(|&s| s == sliding);
        widths[of_kind.unwrap_or(0)]
    };
    if let Some(l) = (0..n).find(|&l| widths[l] != width(slides[l])) {
        let value = format!("{} for layer {l}", widths[l]);
        return Err(m.unsupported(WIDTH, value, "one width for all layers of a kind is"));
    }
    const FREQS: &str = "rope_freqs.weight";
    if m.is_gguf() && !m.has_tensor(FREQS) {
        return Err(m.missing(FREQS, ""));
    }
    let full = rope::read(m, width(false), ROPE, Some("full_attention"))?;
    let sliding = rope::sliding(m, width(true), block::HALVES, SLIDING_THETA)?;
    let activation = block::gemma_activation(m)?;
    let mut network = block::with_rope(m, width(true), full, activation)?;
    network.ropes.push(sliding);
    network.embedding_scale = (network.d_model as f32).sqrt();
    network.head.softcap = m.nonzero("final_logit_softcapping", "final_logit_softcapping")?;
    block::norm_qk(&mut network, NormSpan::Head);
    block::norm_outputs_too(&mut network);
    let window = block::window(m)?;
    block::slide(&mut network, window, |l| slides[l]);

    let eps = network.output_norm.eps;
    for (l, a) in network.attentions_mut().enumerate() {
        (a.head_dim, a.n_kv_heads) = (widths[l], kv_heads[l]);
        a.rope = Some(usize::from(slides[l]));
        a.scale = 1.0;
        a.v_norm = Some(eps);
    }
    for (l, layer) in network.layers.iter_mut().enumerate() {
        layer.scaled = !m.is_gguf() || m.has_tensor(&format!("blk.{l}.layer_output_scale.weight"));
    }
    share_keys(m, &mut network, &slides)?;
    mix_inputs(m, &mut network, activation)?;
    Ok(network)
}

/// Where the layers' values come from, and the keys of those without their own, whose FFNs may be wider.
fn share_keys(m: &Metadata<'_>, network: &mut Network, slides: &[bool]) -> Result<()> {
    let own = slides.len().saturating_sub(m.some_layers(SHARED)?);
    let keys_alone = m.fields().optional_bool("attention_k_eq_v")? == Some(true);
    let widened = m.fields().optional_bool("use_double_wide_mlp")? == Some(true);
    let mut kv = Vec::with_capacity(slides.len());
    for (l, layer) in network.layers.iter_mut().enumerate() {
        if l < own {
            let has_v = match m.is_gguf() {
                true => m.has_tensor(&format!("blk.{l}.attn_v.weight")),
                false => slides[l] || !keys_alone,
            };
            kv.push(match has_v {
                true => KvOrigin::Own,
                false => KvOrigin::KeysAlone,
            });
            continue;
        }
        let Some(origin) = (0..own).rev().find(|&o| slides[o] == slides[l]) else {
            let problem = format!("layer {l} finds no layer of its kind");
            return Err(m.wrong(SHARED.0, SHARED.1, problem));
        };
        kv.push(KvOrigin::Layer(origin));
        if widened {
            layer.ffn.body.d_ff *= 2;
        }
    }
    for (attention, kv) in network.attentions_mut().zip(kv) {
        attention.kv = kv;
    }
    Ok(())
}

/// What the layers get of each token, if the model has that.
fn mix_inputs(m: &Metadata<'_>, network: &mut Network, activation: Activation) -> Result<()> {
    const WIDTH: (&str, &str) = (
        "embedding_length_per_layer_input",
        "hidden_size_per_layer_input",
    );
    const VOCABULARY: &str = "vocab_size_per_layer_input";
    if m.nonzero(WIDTH.0, WIDTH.1)?.is_none() {
        return Ok(());
    }
    let width = m.size(WIDTH.0, WIDTH.1)?;
    let rows = m.optional_size("", VOCABULARY)?;
    if let Some(rows) = rows.filter(|&rows| rows != network.vocab_size) {
        let remedy = format!("a row for each of the {} tokens is", network.vocab_size);
        return Err(m.unsupported(("", VOCABULARY), rows.to_string(), &remedy));
    }
    let eps = network.output_norm.eps;
    network.token_inputs = Some(TokenInputs {
        width,
        table_scale: (width as f32).sqrt(),
        projection_scale: 1.0 / (network.d_model as f32).sqrt(),
        eps,
        scale: std::f32::consts::FRAC_1_SQRT_2,
    });
    for layer in &mut network.layers {
        layer.input = Some(Block {
            pre_norm: None,
            body: InputMixer { activation },
            post_norm: Some(Norm::rms(eps)),
            residual_scale: 1.0,
        });
    }
    Ok(())
}

/// Only pictures may look ahead, which are not read here.
fn refuse_looking_ahead(m: &Metadata<'_>) -> Result<()> {
    const FIELD: &str = "use_bidirectional_attention";
    match m.fields().get(FIELD) {
        Some(all) if all == "all" || all == true => {
            let remedy = "tokens that see only earlier ones are";
            Err(m.unsupported(("", FIELD), all.to_string(), remedy))
        }
        _ => Ok(()),
    }
}

/// Which layers have a sliding window; transformers has the last one see everything, whatever the file says.
fn slides(m: &Metadata<'_>, n: usize) -> Result<Vec<bool>> {
    let mut slides = block::fixed_sliding_layers(m, n, PERIOD)?;
    if let Some(last) = slides.last_mut().filter(|_| !m.is_gguf()) {
        *last = false;
    }
    Ok(slides)
}

/// Elements of a head and key/value heads, by layer.
fn heads(m: &Metadata<'_>, slides: &[bool]) -> Result<(Vec<usize>, Vec<usize>)> {
    const FULL_WIDTH: (&str, &str) = ("attention.key_length", "global_head_dim");
    const KV_HEADS: (&str, &str) = ("attention.head_count_kv", "num_key_value_heads");
    const FULL_KV_HEADS: &str = "num_global_key_value_heads";
    let n = slides.len();
    let by_kind = |sliding: usize, full: usize| -> Vec<usize> {
        let of_layer = |&slides: &bool| if slides { sliding } else { full };
        slides.iter().map(of_layer).collect()
    };
    let mut kv_heads = m.sizes(KV_HEADS.0, KV_HEADS.1, n)?;
    let width = m.size(WIDTH.0, WIDTH.1)?;
    if !m.is_gguf() && m.fields().get("per_layer_config").is_some() {
        let widths = m.overridden("head_dim", vec![width; n])?;
        return Ok((widths, m.overridden(KV_HEADS.1, kv_heads)?));
    }
    let full = m.size(FULL_WIDTH.0, FULL_WIDTH.1)?;
    for (key, width) in [
        ("attention.value_length_swa", width),
        ("attention.value_length", full),
    ] {
        if let Some(v) = m.optional_size(key, "")?.filter(|&v| v != width) {
            let remedy = format!("it must equal the key's {width}");
            return Err(m.unsupported((key, ""), v.to_string(), &remedy));
        }
    }
    let widths = by_kind(width, full);
    if m.fields().optional_bool("attention_k_eq_v")? == Some(true)
        && let Some(full) = m.optional_size("", FULL_KV_HEADS)?
    {
        kv_heads = by_kind(kv_heads[0], full);
    }
    Ok((widths, kv_heads))
}
