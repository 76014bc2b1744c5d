//! OLMoE: plain blocks with experts and a norm of whole rows of queries and keys.

use super::metadata::Metadata;
use super::names::{ATTENTION, EXPERTS, MODEL, PRE_NORMS, QK_NORMS, ROUTER};
use super::{Architecture, Hf, block, experts};
use crate::error::Result;
use crate::network::{Network, NormSpan};

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "num_experts": 64, "num_experts_per_tok": 8,
    "norm_topk_prob": false
}"#;

pub(super) static OLMOE: Architecture = Architecture {
    gguf: &["olmoe"],
    powerinfer: false,
    hf: &[Hf::new("olmoe", DEFAULTS)],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &QK_NORMS, &ROUTER, &EXPERTS],
    describe,
};

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = block::network(m, block::HALVES, block::activation_or_silu(m)?)?;
    block::norm_qk(&mut network, NormSpan::Row);
    let router = experts::router(m, experts::SOFTMAX)?;
    experts::replace_ffns(m, &mut network, &router, |_| false)?;
    Ok(network)
}
