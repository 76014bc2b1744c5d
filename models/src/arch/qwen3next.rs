//! Qwen3-Next: Qwen3.5's mixers with experts in most layers, and the matrices of a delta net in two tensors, key head
//! by key head.

use super::metadata::Metadata;
use super::names::{EXPERTS, FFN, MODEL_PLUS_ONE, Name, QK_NORMS, ROUTER, SHARED_EXPERT, plus_one};
use super::qwen35::{self, DELTA_NET, NORMS, Q_K_V_O};
use super::{Architecture, Hf, experts};
use crate::error::Result;
use crate::network::{KeySharing, Network};
use crate::tensor::LayerTensor as T;

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "partial_rotary_factor": 0.25, "head_dim": 256,
    "num_attention_heads": 16, "num_key_value_heads": 2, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "max_position_embeddings": 32768, "vocab_size": 151936,
    "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "norm_topk_prob": true
}"#;

pub(super) static QWEN3NEXT: Architecture = Architecture {
    gguf: &["qwen3next"],
    powerinfer: false,
    hf: &[Hf::new("qwen3_next", DEFAULTS)],
    tensors: &[
        &MODEL_PLUS_ONE,
        &plus_one(NORMS),
        &Q_K_V_O,
        &plus_one(QK_NORMS),
        &BY_KEY_HEAD,
        &DELTA_NET,
        &ROUTER,
        &EXPERTS,
        &SHARED_EXPERT,
        &FFN,
    ],
    describe,
};

/// For each key head, its rows of each matrix. Only the first converters to GGUF left the larger tensor so.
const BY_KEY_HEAD: [Name; 2] = [
    Name::layer(
        "ssm_in.weight",
        "linear_attn.in_proj_qkvz.weight",
        &[T::Q, T::K, T::V, T::OutputGate],
    )
    .recurrent()
    .grouped(),
    Name::layer(
        "ssm_ba.weight",
        "linear_attn.in_proj_ba.weight",
        &[T::Beta, T::Alpha],
    )
    .grouped(),
];

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = qwen35::describe_sharing(m, KeySharing::Grouped)?;
    let router = experts::router(m, experts::NORMALISED_SOFTMAX)?;
    let dense = experts::dense_layers(m, network.n_layers())?;
    experts::replace_ffns(m, &mut network, &router, |l| dense[l])?;
    experts::share(&mut network, experts::shared_width(m)?, true);
    Ok(network)
}
