//! Hunyuan, dense: plain blocks with a norm of each head's query and key after the rotation.

use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, Name, PRE_NORMS};
use super::rope::Rules;
use super::{Architecture, Hf, block};
use crate::error::Result;
use crate::network::{Network, NormSpan, QkNorm};
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-5, "rope_theta": 1e4}"#;

pub(super) static HUNYUAN: Architecture = Architecture {
    gguf: &["hunyuan-dense"],
    powerinfer: false,
    hf: &[Hf::new("hunyuan_v1_dense", DEFAULTS)],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &QK_NORMS, &FFN],
    describe,
};

const QK_NORMS: [Name; 2] = [
    Name::layer(
        "attn_q_norm.weight",
        "self_attn.query_layernorm.weight",
        &[T::QNorm],
    ),
    Name::layer(
        "attn_k_norm.weight",
        "self_attn.key_layernorm.weight",
        &[T::KNorm],
    ),
];

const ROPE: Rules = Rules {
    alpha: true,
    ..block::HALVES
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    const QK_NORM: &str = "use_qk_norm";
    let mut network = block::network(m, ROPE, block::activation_or_silu(m)?)?;
    if m.fields().optional_bool(QK_NORM)? == Some(false) {
        let remedy = "models with a norm of queries and keys are";
        return Err(m.unsupported(("", QK_NORM), "false", remedy));
    }
    block::norm_qk(&mut network, NormSpan::Head);
    for attention in network.attentions_mut() {
        let norm = &mut attention.qk_norm;
        *norm = norm.map(|norm| QkNorm {
            after_rope: true,
            ..norm
        });
    }
    Ok(network)
}
