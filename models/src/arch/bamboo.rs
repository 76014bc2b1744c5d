//! Bamboo and TurboSparse-Mistral: plain blocks with dReLU, and predictors inside the checkpoint.

use super::block::{self, ACTIVATION};
use super::metadata::Metadata;
use super::names::{ATTENTION, FFN, MODEL, POWERINFER, PRE_NORMS, QKV_BIAS};
use super::{Architecture, Hf};
use crate::error::Result;
use crate::network::{Activation, Network};

const CLASS: &str = "BambooForCausalLM";
const DEFAULTS: &str = r#"{"rms_norm_eps": 1e-6, "rope_theta": 1e4}"#;

pub(super) static BAMBOO: Architecture = Architecture {
    gguf: &["bamboo"],
    powerinfer: true,
    hf: &[
        Hf::new("bamboo", DEFAULTS),
        Hf::new("mistral", DEFAULTS).with_class(CLASS),
        Hf::new("llama", DEFAULTS).with_class(CLASS),
    ],
    tensors: &[&MODEL, &PRE_NORMS, &ATTENTION, &QKV_BIAS, &FFN, &POWERINFER],
    describe,
};

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
    Ok(network)
}
