//! Models that are written as GGUF: those of plain blocks, which llama.cpp calls llama, and some with experts.

use super::names::{Format, Names};
use super::{ARCHITECTURES, Architecture};
use crate::gguf::Value;
use crate::network::{Activation, Attention, Experts, Network, NormSpan, RopePairing, Scores};

/// Keys of a GGUF file with `network`, and the names of its tensors; `None` if no architecture that is written has such
/// blocks. The caller compares what is read again with what was written: not all that networks can say has a key here.
pub(crate) fn gguf_metadata(network: &Network) -> Option<(Vec<(String, Value)>, Names)> {
    let (a, rope) = (network.attentions().next()?, network.ropes.first()?);
    let (ffn, experts) = (network.ffn(0), network.experts(0));
    // Without experts, other engines are to time the same kernels: llama with SiLU.
    let is_plain = (0..network.n_layers()).all(|l| network.ffn(l).activation == Activation::Silu);
    let architecture = architecture(a, experts, rope.pairing, is_plain)?;
    let arch = architecture.gguf[0];
    let text = |key: &str, value: &str| (key.to_owned(), Value::Str(value.to_owned()));
    let mut keys = vec![
        text("general.architecture", arch),
        text("general.name", &network.name),
    ];
    let d_ff = experts.map_or(ffn.d_ff, |e| e.d_ff);
    let mut sizes = vec![
        ("block_count", network.n_layers()),
        ("context_length", network.context_length),
        ("embedding_length", network.d_model),
        ("feed_forward_length", d_ff),
        ("attention.head_count", a.n_heads),
        ("attention.head_count_kv", a.n_kv_heads),
        ("attention.key_length", a.head_dim),
        ("attention.value_length", a.head_dim),
        ("rope.dimension_count", rope.rotary_dim),
        ("vocab_size", network.vocab_size),
    ];
    if let Some(e) = experts {
        sizes.push(("expert_count", e.count));
        sizes.push(("expert_used_count", e.used));
        sizes.push(("expert_feed_forward_length", e.d_ff));
        let gating = match e.router.scores {
            Scores::Softmax => 1,
            Scores::Sigmoid => 2,
            Scores::SoftmaxOfChosen => 3,
        };
        sizes.push(("expert_gating_func", gating));
    }
    if arch == "llama" && ffn.activation == Activation::DoubleRelu {
        // Our own key: llama.cpp takes as long with SiLU.
        keys.push(text(&format!("{arch}.hidden_act"), "drelu"));
    }
    if let Some(window) = network.attentions().find_map(|a| a.window) {
        sizes.push(("attention.sliding_window", window));
    }
    keys.extend(
        sizes
            .iter()
            .map(|(key, n)| (format!("{arch}.{key}"), Value::U32(*n as u32))),
    );
    let floats = [
        ("attention.layer_norm_rms_epsilon", network.output_norm.eps),
        ("rope.freq_base", rope.theta),
    ];
    keys.extend(floats.map(|(key, v)| (format!("{arch}.{key}"), Value::F32(v))));
    Some((keys, Names::new(architecture.tensors, Format::Gguf)))
}

/// The architecture whose blocks are like these.
fn architecture(
    a: &Attention,
    experts: Option<&Experts>,
    pairing: RopePairing,
    is_plain: bool,
) -> Option<&'static Architecture> {
    let span = a.qk_norm.map(|norm| norm.span);
    let name = match (experts, span, pairing) {
        (None, None, RopePairing::Interleaved) if is_plain => "llama",
        (Some(e), None, _) if e.router.before_layer => "smallthinker",
        (Some(_), None, _) if a.sinks => "gpt-oss",
        (Some(_), Some(NormSpan::Head), _) => "qwen3moe",
        (Some(_), Some(NormSpan::Row), _) => "olmoe",
        (Some(_), None, RopePairing::Interleaved) => "llama",
        _ => return None,
    };
    ARCHITECTURES
        .iter()
        .copied()
        .find(|a| a.gguf.contains(&name))
}
