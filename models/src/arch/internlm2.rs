//! InternLM 2 and 2.5: plain blocks whose checkpoints have names of their own, and Q, K and V as one tensor by
//! key/value head.

use super::metadata::Metadata;
use super::names::{Form, Name};
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::Network;
use crate::tensor::{LayerTensor as T, TensorId};

const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-6, "rope_theta": 1e4}"#;

pub(super) static INTERNLM2: Architecture = Architecture {
    gguf: &["internlm2"],
    powerinfer: false,
    hf: &[Hf::new("internlm2", DEFAULTS)],
    tensors: &[&MODEL, &LAYER, &SPLIT],
    describe,
};

const MODEL: [Name; 3] = [
    Name::model(
        "token_embd.weight",
        "model.tok_embeddings.weight",
        TensorId::TokenEmbedding,
    ),
    Name::model(
        "output_norm.weight",
        "model.norm.weight",
        TensorId::OutputNorm,
    ),
    Name::model("output.weight", "output.weight", TensorId::OutputHead),
];

const LAYER: [Name; 7] = [
    Name::layer("attn_norm.weight", "attention_norm.weight", &[T::AttnNorm]),
    Name::layer("", "attention.wqkv.weight", &[T::Q, T::K, T::V]).in_form(Form::ByGroup),
    Name::layer("attn_output.weight", "attention.wo.weight", &[T::O]),
    Name::layer("ffn_norm.weight", "ffn_norm.weight", &[T::FfnNorm]),
    Name::layer("ffn_gate.weight", "feed_forward.w1.weight", &[T::Gate]),
    Name::layer("ffn_up.weight", "feed_forward.w3.weight", &[T::Up]),
    Name::layer("ffn_down.weight", "feed_forward.w2.weight", &[T::Down]),
];

/// As converters to GGUF write them.
const SPLIT: [Name; 4] = [
    Name::layer("attn_q.weight", "", &[T::Q]),
    Name::layer("attn_k.weight", "", &[T::K]),
    Name::layer("attn_v.weight", "", &[T::V]),
    Name::layer("attn_qkv.weight", "", &[T::Q, T::K, T::V]),
];

fn describe(m: &Metadata<'_>) -> Result<Network> {
    block::network(m, block::PERMUTED, block::activation_or_silu(m)?)
}
