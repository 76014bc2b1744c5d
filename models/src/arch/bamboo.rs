//! Bamboo, TurboSparse-Mistral and TurboSparse-Mixtral: plain blocks with dReLU, and predictors inside the checkpoint.
//! Those of experts are not used.

use super::block::{self, ACTIVATION};
use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MIXTRAL_EXPERTS, MODEL, Name, POWERINFER, PRE_NORMS, QKV_BIAS};
use super::{Architecture, Hf, experts};
use crate::error::Result;
use crate::network::{Activation, Network};

const CLASS: &str = "BambooForCausalLM";
const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-6, "rope_theta": 1e4}"#;
const WITH_EXPERTS: &str = r#"{
    "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2,
    "num_key_value_heads": 8
}"#;

pub(super) static BAMBOO: Architecture = Architecture {
    gguf: &["bamboo"],
    powerinfer: true,
    hf: &[
        Hf::new("bamboo", DEFAULTS),
        Hf::new("mistral", DEFAULTS).with_class(CLASS),
        Hf::new("llama", DEFAULTS).with_class(CLASS),
        Hf::new("turbosparsemixtral", WITH_EXPERTS)
            .with_spellings(&[("num_experts", "num_local_experts")]),
    ],
    tensors: &[
        &MODEL,
        &PRE_NORMS,
        &ATTENTION,
        &QKV_BIAS,
        &FFN,
        &POWERINFER,
        &MIXTRAL_EXPERTS,
        &PREDICTORS_OF_EXPERTS,
    ],
    describe,
};

const PREDICTORS_OF_EXPERTS: [Name; 2] = [
    Name::layer("", "block_sparse_moe.experts.*.predictor.fc1.weight", &[]),
    Name::layer("", "block_sparse_moe.experts.*.predictor.fc2.weight", &[]),
];

fn describe(m: &Metadata<'_>) -> Result<Network> {
    // GGUF files may name drelu, which is what every file of this architecture means.
    match m.optional_str(ACTIVATION.0, ACTIVATION.1)? {
        None | Some("relu" | "drelu") => {}
        Some(other) => return Err(m.unsupported(ACTIVATION, format!("{other:?}"), "it has relu")),
    }
    // PowerInfer builds it with llama's graph, which rotates neighbours.
    let mut network = block::network(m, block::PERMUTED, Activation::DoubleRelu)?;
    let qkv_bias = m.has_tensor("blk.0.attn_q.bias");
    block::bias_qkv(&mut network, qkv_bias);
    let window = block::window(m)?;
    block::slide(&mut network, window, |_| true);
    if experts::count(m)? > 0 {
        let router = &experts::NORMALISED_SOFTMAX;
        experts::replace_ffns(m, &mut network, router, |_| false)?;
    }
    Ok(network)
}
