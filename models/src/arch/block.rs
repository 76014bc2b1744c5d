//! The block that most architectures have in common, read from metadata; architectures then change what they do
//! differently.

use serde_json::Value;

use super::experts;
use super::metadata::Metadata;
use super::neutral;
use super::rope::{self, Rules};
use crate::error::Result;
use crate::network::{
    Activation, Network, Norm, NormKind, NormSpan, QkNorm, Rope, RopePairing, Uniform,
};

/// A network of plain blocks, with the sizes and the rotation that the metadata name.
pub(super) fn network(m: &Metadata<'_>, rope: Rules, activation: Activation) -> Result<Network> {
    let head_dim = head_dim(m)?;
    let rope = rope::read(m, head_dim, rope, None)?;
    with_rope(m, head_dim, rope, activation)
}

/// The same with a given rotation.
pub(super) fn with_rope(
    m: &Metadata<'_>,
    head_dim: usize,
    rope: Rope,
    activation: Activation,
) -> Result<Network> {
    let eps = m.positive("attention.layer_norm_rms_epsilon", "rms_norm_eps")?;
    let d_ff = ffn_widths(m)?;
    with_eps(m, head_dim, rope, (activation, d_ff), eps)
}

/// A network of plain blocks with LayerNorms, whose epsilon is the field `eps` of `config.json`, with biases or
/// without.
pub(super) fn with_layer_norms(
    m: &Metadata<'_>,
    rope: Rules,
    activation: Activation,
    (eps, bias): (&str, bool),
) -> Result<Network> {
    let head_dim = head_dim(m)?;
    let rope = rope::read(m, head_dim, rope, None)?;
    let eps = m.positive("attention.layer_norm_epsilon", eps)?;
    let d_ff = ffn_widths(m)?;
    layer_normed(m, head_dim, rope, (activation, d_ff), (eps, bias))
}

/// The same with given rotation, widths of the FFNs and epsilon.
pub(super) fn layer_normed(
    m: &Metadata<'_>,
    head_dim: usize,
    rope: Rope,
    (activation, d_ff): (Activation, Vec<usize>), // [n_layers]
    (eps, bias): (f32, bool),
) -> Result<Network> {
    let mut network = with_eps(m, head_dim, rope, (activation, d_ff), eps)?;
    let kind = NormKind::Layer;
    network.output_norm = Norm { kind, eps, bias };
    for layer in &mut network.layers {
        layer.mixer.pre_norm = Some(network.output_norm);
        layer.ffn.pre_norm = Some(network.output_norm);
    }
    Ok(network)
}

/// A network of plain blocks with LayerNorms and learned positions, which are `offset` rows into their table.
pub(super) fn with_learned_positions(
    m: &Metadata<'_>,
    offset: usize,
    (activation, d_ff): (Activation, Vec<usize>), // [n_layers]
    eps: f32,
) -> Result<Network> {
    let head_dim = head_dim(m)?;
    let unused = Rope::plain(1.0, 2, RopePairing::HalfSplit);
    let mut network = layer_normed(m, head_dim, unused, (activation, d_ff), (eps, true))?;
    network.position_offset = Some(offset);
    network.ropes.clear();
    for attention in network.attentions_mut() {
        attention.rope = None;
    }
    Ok(network)
}

/// Widths of the FFNs, `[n_layers]`: as given, or else four times the model's.
pub(super) fn ffn_or_four_times(m: &Metadata<'_>) -> Result<Vec<usize>> {
    let n_layers = m.layers()?;
    let width = m.size("embedding_length", "hidden_size")?;
    let given = m.optional_sizes(D_FF.0, D_FF.1, n_layers)?;
    Ok(given.unwrap_or_else(|| vec![4 * width; n_layers]))
}

/// Widths of the FFNs, `[n_layers]`: as given, or else those of experts.
fn ffn_widths(m: &Metadata<'_>) -> Result<Vec<usize>> {
    let n_layers = m.layers()?;
    let given = m.optional_sizes(D_FF.0, D_FF.1, n_layers)?;
    match (given, experts::width(m)?) {
        (Some(given), _) => Ok(given),
        (None, Some(width)) => Ok(vec![width; n_layers]),
        (None, None) => Err(m.missing(D_FF.0, D_FF.1)),
    }
}

/// Key and field of the widths of FFNs.
const D_FF: (&str, &str) = ("feed_forward_length", "intermediate_size");

fn with_eps(
    m: &Metadata<'_>,
    head_dim: usize,
    rope: Rope,
    (activation, d_ff): (Activation, Vec<usize>), // [n_layers]
    rms_eps: f32,
) -> Result<Network> {
    let n_layers = m.layers()?;
    let heads = m.sizes("attention.head_count", "num_attention_heads", n_layers)?;
    let kv_heads = m.optional_sizes("attention.head_count_kv", "num_key_value_heads", n_layers)?;
    let kv_heads = kv_heads.unwrap_or_else(|| heads.clone());
    let mut network = Uniform {
        name: m.name(),
        n_layers,
        d_model: m.size("embedding_length", "hidden_size")?,
        n_heads: heads[0],
        n_kv_heads: kv_heads[0],
        head_dim,
        d_ff: d_ff[0],
        vocab_size: m.vocab_size()?,
        context_length: m.context()?,
        rms_eps,
        rope,
        window: None,
        activation,
        qkv_bias: false,
        tied_head: m.tied_head()?,
        predictor_threshold: m.predictor_threshold()?,
    }
    .network();
    for (l, attention) in network.attentions_mut().enumerate() {
        attention.n_heads = heads[l];
        attention.n_kv_heads = kv_heads[l];
    }
    for (layer, d_ff) in network.layers.iter_mut().zip(d_ff) {
        layer.ffn.body.d_ff = d_ff;
    }
    Ok(network)
}

/// Width of a head: as given, or its share of the model's.
pub(super) fn head_dim(m: &Metadata<'_>) -> Result<usize> {
    const KEY: (&str, &str) = ("attention.key_length", "head_dim");
    const HEADS: (&str, &str) = ("attention.head_count", "num_attention_heads");
    let head_dim = match m.optional_size(KEY.0, KEY.1)? {
        Some(n) => n,
        None => {
            let d_model = m.size("embedding_length", "hidden_size")?;
            let n_heads = m.sizes(HEADS.0, HEADS.1, m.layers()?)?[0];
            if !d_model.is_multiple_of(n_heads) {
                let problem = format!(
                    "{n_heads} heads do not divide {d_model}, and the width of a head is missing"
                );
                return Err(m.wrong(HEADS.0, HEADS.1, problem));
            }
            d_model / n_heads
        }
    };
    let value = m.optional_size("attention.value_length", "")?;
    if let Some(v) = value.filter(|&v| v != head_dim) {
        let remedy = format!("it must equal the key's {head_dim}");
        return Err(m.unsupported(("attention.value_length", ""), v.to_string(), &remedy));
    }
    Ok(head_dim)
}

/// What each query head would have of the model's width.
pub(super) fn share_of_width(network: &Network) -> f32 {
    let heads = network.attentions().map(|a| a.n_heads).next();
    (network.d_model / heads.unwrap_or(1)) as f32
}

/// Key and field of the activation's name; GGUF's is our own.
pub(super) const ACTIVATION: (&str, &str) = ("hidden_act", "hidden_act");

/// The activation that the metadata name, or SiLU.
pub(super) fn activation_or_silu(m: &Metadata<'_>) -> Result<Activation> {
    Ok(activation(m)?.unwrap_or(Activation::Silu))
}

/// The activation that the metadata name, if any.
pub(super) fn activation(m: &Metadata<'_>) -> Result<Option<Activation>> {
    activation_in(m, ACTIVATION.1)
}

/// The activation of a Gemma, whose checkpoints have a field of their own for it, or GELU.
pub(super) fn gemma_activation(m: &Metadata<'_>) -> Result<Activation> {
    Ok(activation_in(m, "hidden_activation")?.unwrap_or(Activation::GeluTanh))
}

fn activation_in(m: &Metadata<'_>, field: &str) -> Result<Option<Activation>> {
    const THRESHOLD: &str = "hidden_act_param";
    match m.optional_str(ACTIVATION.0, field)? {
        None => Ok(None),
        Some("silu" | "swish") => Ok(Some(Activation::Silu)),
        Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Ok(Some(Activation::GeluTanh)),
        Some("gelu") => Ok(Some(Activation::GeluErf)),
        Some("relu") => Ok(Some(Activation::Relu)),
        Some("relu2") => Ok(Some(Activation::ReluSquared)),
        Some("drelu") => Ok(Some(Activation::DoubleRelu)),
        Some("fatrelu") => match m.optional_f32(THRESHOLD, THRESHOLD)? {
            Some(threshold) if threshold >= 0.0 => Ok(Some(Activation::FatRelu { threshold })),
            Some(_) => Err(m.wrong(THRESHOLD, THRESHOLD, "the threshold is negative")),
            None => Err(m.missing(THRESHOLD, THRESHOLD)),
        },
        Some(other) => {
            let remedy = "silu, gelu, gelu_pytorch_tanh, relu, relu2, drelu and fatrelu are";
            Err(m.unsupported((ACTIVATION.0, field), format!("{other:?}"), remedy))
        }
    }
}

/// The sliding window, if there is one; 0 means none, as in llama.cpp.
pub(super) fn window(m: &Metadata<'_>) -> Result<Option<usize>> {
    const KEY: (&str, &str) = ("attention.sliding_window", "sliding_window");
    match m.nonzero(KEY.0, KEY.1)? {
        None => Ok(None),
        Some(_) => m.optional_context(KEY.0, KEY.1),
    }
}

/// Gives the layers that `slides` names the sliding window `window`.
pub(super) fn slide(network: &mut Network, window: Option<usize>, slides: impl Fn(usize) -> bool) {
    for (l, attention) in network.attentions_mut().enumerate() {
        attention.window = window.filter(|_| slides(l));
    }
}

/// Only the layers with a sliding window encode positions.
pub(super) fn rotate_sliding_only(network: &mut Network) {
    for attention in network.attentions_mut() {
        attention.rope = attention.rope.filter(|_| attention.window.is_some());
    }
}

/// The field that switches sliding windows on.
pub(super) const USE_WINDOW: &str = "use_sliding_window";
/// A layer with a window, in `layer_types`.
const SLIDING: &str = "sliding_attention";

/// Whether a checkpoint has a sliding window, and switches it on.
pub(super) fn is_window_used(m: &Metadata<'_>) -> Result<bool> {
    let has_window = window(m)?.is_some();
    let is_on = m.fields().optional_bool(USE_WINDOW)? == Some(true);
    Ok(!m.is_gguf() && has_window && is_on)
}

/// Sliding windows as transformers switches them on for many models: `use_sliding_window`, and then the layers that
/// `layer_types` names, or `otherwise`. GGUF files have one for all layers.
pub(super) fn switched_window(
    m: &Metadata<'_>,
    network: &mut Network,
    otherwise: impl Fn(usize) -> bool,
) -> Result<()> {
    let n = network.n_layers();
    let window = window(m)?;
    if m.is_gguf() {
        slide(network, window, |_| true);
        return Ok(());
    }
    let types = m.layer_types(n)?;
    let named = types.iter().flatten().any(|&kind| kind == SLIDING);
    if !is_window_used(m)? {
        // With the one, some kernels of transformers have a window; with the other, others do not.
        if named && window.is_some() {
            let value = format!("{SLIDING:?} without {USE_WINDOW}");
            let remedy = "give both or neither";
            return Err(m.unsupported(("", "layer_types"), value, remedy));
        }
    } else {
        let slides = |l: usize| match &types {
            Some(types) => types[l] == SLIDING,
            None => otherwise(l),
        };
        slide(network, window, slides);
    }
    Ok(())
}

/// Which layers have a sliding window if only some do: those that `layer_types` names, or all but the last of every
/// `period`, for which the metadata may give another number or, in GGUF, a list.
pub(super) fn sliding_layers(m: &Metadata<'_>, n: usize, period: usize) -> Result<Vec<bool>> {
    const KEY: (&str, &str) = ("attention.sliding_window_pattern", "sliding_window_pattern");
    if let Some(types) = m.layer_types(n)? {
        // transformers keeps the period beside the types, and does not read it.
        m.fields().get(KEY.1);
        return Ok(types.iter().map(|&t| t == SLIDING).collect());
    }
    if m.is_gguf()
        && let Some(Value::Array(all)) = m.fields().get(KEY.0)
    {
        let flags: Option<Vec<bool>> = all.iter().map(Value::as_bool).collect();
        let flags = flags.filter(|flags| flags.len() == n);
        return flags.ok_or_else(|| m.wrong(KEY.0, "", format!("it is not {n} booleans")));
    }
    let period = m.optional_size(KEY.0, KEY.1)?.unwrap_or(period);
    Ok((0..n).map(|l| (l + 1) % period != 0).collect())
}

/// The same for models that transformers gives `period` whatever `sliding_window_pattern` says.
pub(super) fn fixed_sliding_layers(m: &Metadata<'_>, n: usize, period: usize) -> Result<Vec<bool>> {
    const FIELD: &str = "sliding_window_pattern";
    let slides = sliding_layers(m, n, period)?;
    let ruled = (0..n).map(|l| (l + 1) % period != 0);
    if m.is_gguf() || m.layer_types(n)?.is_some() || ruled.eq(slides.iter().copied()) {
        return Ok(slides);
    }
    let pattern = m
        .fields()
        .get(FIELD)
        .map_or("null".into(), neutral::describe);
    let remedy = format!("{period} is: name the layers in layer_types");
    Err(m.unsupported(("", FIELD), pattern, &remedy))
}

/// First layer with a window, for models that have them from one layer on.
pub(super) fn max_window_layers(m: &Metadata<'_>) -> Result<u64> {
    let first = m.fields().optional_u64("max_window_layers")?;
    Ok(first.unwrap_or(28))
}

/// A norm of queries and keys in all layers, of the kind of the other norms.
pub(super) fn norm_qk(network: &mut Network, span: NormSpan) {
    let Norm { kind, eps, .. } = network.output_norm;
    for attention in network.attentions_mut() {
        attention.qk_norm = Some(QkNorm {
            kind,
            span,
            eps,
            after_rope: false,
        });
    }
}

/// Norms of the blocks' outputs instead of their inputs.
pub(super) fn norm_outputs_only(network: &mut Network) {
    for layer in &mut network.layers {
        layer.mixer.post_norm = layer.mixer.pre_norm.take();
        layer.ffn.post_norm = layer.ffn.pre_norm.take();
    }
}

/// Norms of the blocks' outputs as well as of their inputs.
pub(super) fn norm_outputs_too(network: &mut Network) {
    for layer in &mut network.layers {
        layer.mixer.post_norm = layer.mixer.pre_norm;
        layer.ffn.post_norm = layer.ffn.pre_norm;
    }
}

/// Both blocks of a layer beside each other, with one norm.
pub(super) fn parallel_blocks(network: &mut Network) {
    for layer in &mut network.layers {
        layer.ffn.pre_norm = None;
        layer.parallel = true;
    }
}

/// Both blocks of a layer beside each other, each with its own norm.
pub(super) fn parallel_blocks_of_two_norms(network: &mut Network) {
    for layer in &mut network.layers {
        layer.parallel = true;
    }
}

/// FFNs without a gate: Down follows the activation.
pub(super) fn no_gates(network: &mut Network) {
    for layer in &mut network.layers {
        layer.ffn.body.gated = false;
    }
}

/// Whether Q, K and V have biases: checkpoints have a field for it, GGUF files just have them.
pub(super) fn has_qkv_bias(m: &Metadata<'_>) -> Result<bool> {
    match m.is_gguf() {
        true => Ok(m.has_tensor("blk.0.attn_q.bias") || m.has_tensor("blk.0.attn_qkv.bias")),
        false => Ok(m.fields().optional_bool("attention_bias")? == Some(true)),
    }
}

/// Gives Q, K and V of all layers biases, or none.
pub(super) fn bias_qkv(network: &mut Network, bias: bool) {
    for attention in network.attentions_mut() {
        attention.qkv_bias = bias;
    }
}

/// Gives all projections of all layers biases, or none.
pub(super) fn bias_all(network: &mut Network, bias: bool) {
    bias_qkv(network, bias);
    for attention in network.attentions_mut() {
        attention.out_bias = bias;
    }
    for layer in &mut network.layers {
        layer.ffn.body.bias = bias;
    }
}

/// Rows of Q and K as most converters to GGUF write them: permuted, so that neighbours rotate together.
pub(super) const PERMUTED: Rules = Rules::new(RopePairing::Interleaved);

/// Rows of Q and K as in most checkpoints, also in GGUF.
pub(super) const HALVES: Rules = Rules::new(RopePairing::HalfSplit);

/// Rows of Q and K in the same order in checkpoints and in GGUF, and neighbours rotate together.
pub(super) const NEIGHBOURS: Rules = Rules {
    checkpoints: RopePairing::Interleaved,
    ..PERMUTED
};
