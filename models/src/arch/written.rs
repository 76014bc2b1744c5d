//! Models that are written as GGUF: those of plain blocks, which llama.cpp calls llama.

use super::llama::TENSORS;
use super::names::{Format, Names};
use crate::gguf::Value;
use crate::network::{Activation, Network, Rope, RopePairing, Uniform};

/// Keys of a GGUF file with `network`, and the names of its tensors; `None` if it is not of plain blocks.
pub(crate) fn gguf_metadata(network: &Network) -> Option<(Vec<(String, Value)>, Names)> {
    let (a, ffn) = (network.attentions().next()?, network.ffn(0));
    let rope = network.ropes.first()?;
    let plain = Uniform {
        name: network.name.clone(),
        n_layers: network.n_layers(),
        d_model: network.d_model,
        n_heads: a.n_heads,
        n_kv_heads: a.n_kv_heads,
        head_dim: a.head_dim,
        d_ff: ffn.d_ff,
        vocab_size: network.vocab_size,
        context_length: network.context_length,
        rms_eps: network.output_norm.eps,
        rope: Rope::plain(rope.theta, rope.rotary_dim, RopePairing::Interleaved),
        window: None,
        activation: Activation::Silu,
        qkv_bias: false,
        tied_head: network.head.tied,
        predictor_threshold: network.predictor_threshold,
    };
    if plain.clone().network() != *network {
        return None;
    }
    let text = |key: &str, value: &str| (key.to_owned(), Value::Str(value.to_owned()));
    let mut keys = vec![
        text("general.architecture", "llama"),
        text("general.name", &network.name),
    ];
    let sizes = [
        ("block_count", plain.n_layers),
        ("context_length", plain.context_length),
        ("embedding_length", plain.d_model),
        ("feed_forward_length", plain.d_ff),
        ("attention.head_count", plain.n_heads),
        ("attention.head_count_kv", plain.n_kv_heads),
        ("attention.key_length", plain.head_dim),
        ("attention.value_length", plain.head_dim),
        ("rope.dimension_count", rope.rotary_dim),
        ("vocab_size", plain.vocab_size),
    ];
    keys.extend(sizes.map(|(key, n)| (format!("llama.{key}"), Value::U32(n as u32))));
    let floats = [
        ("attention.layer_norm_rms_epsilon", plain.rms_eps),
        ("rope.freq_base", rope.theta),
    ];
    keys.extend(floats.map(|(key, v)| (format!("llama.{key}"), Value::F32(v))));
    Some((keys, Names::new(TENSORS, Format::Gguf)))
}
