//! Qwen3.5, dense or with experts: every fourth layer has attention with a norm of each head's query and key, a quarter
//! of it rotated, and output gates; the others have a gated delta net.

use serde_json::Value;

use super::metadata::Metadata;
use super::names::{
    ATTENTION, EXPERTS, FFN, MODEL_PLUS_ONE, Name, QK_NORMS, ROUTER, SHARED_EXPERT, plus_one,
};
use super::rope::Rules;
use super::{Architecture, Form, Hf, block, experts};
use crate::error::Result;
use crate::network::{Activation, DeltaNet, KeySharing, Mixer, Network, NormSpan};
use crate::tensor::{LayerTensor as T, Stored};

const DEFAULTS: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "partial_rotary_factor": 0.25, "head_dim": 256,
    "num_attention_heads": 16, "num_key_value_heads": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "max_position_embeddings": 32768, "vocab_size": 248320
}"#;

pub(super) static QWEN35: Architecture = Architecture {
    gguf: &["qwen35"],
    powerinfer: false,
    hf: &[Hf::new("qwen3_5_text", DEFAULTS).inside(&["qwen3_5"])],
    tensors: &[
        &MODEL_PLUS_ONE,
        &plus_one(NORMS),
        &Q_K_V_O,
        &plus_one(QK_NORMS),
        &DELTA_NET,
        &FFN,
    ],
    describe,
};

const WITH_EXPERTS: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "partial_rotary_factor": 0.25, "head_dim": 256,
    "num_attention_heads": 16, "num_key_value_heads": 2, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "max_position_embeddings": 32768, "vocab_size": 248320,
    "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512
}"#;

pub(super) static QWEN35MOE: Architecture = Architecture {
    gguf: &["qwen35moe"],
    powerinfer: false,
    hf: &[Hf::new("qwen3_5_moe_text", WITH_EXPERTS).inside(&["qwen3_5_moe"])],
    tensors: &[
        &MODEL_PLUS_ONE,
        &plus_one(NORMS),
        &Q_K_V_O,
        &plus_one(QK_NORMS),
        &DELTA_NET,
        &ROUTER,
        &EXPERTS,
        &EXPERTS_IN_ONE,
        &SHARED_EXPERT,
    ],
    describe: describe_moe,
};

/// Checkpoints have all experts of a layer in two tensors.
const EXPERTS_IN_ONE: [Name; 2] = [
    Name::layer(
        "",
        "mlp.experts.gate_up_proj",
        &[T::ExpertGate, T::ExpertUp],
    )
    .in_form(Form::ByGroup),
    Name::layer("", "mlp.experts.down_proj", &[T::ExpertDown]),
];

fn describe_moe(m: &Metadata<'_>) -> Result<Network> {
    let mut network = describe(m)?;
    let router = &experts::NORMALISED_SOFTMAX;
    experts::replace_ffns(m, &mut network, router, |_| false)?;
    experts::share(&mut network, experts::shared_width(m)?, true);
    Ok(network)
}

/// In GGUF, too, the norm of the FFN's input is named after what it follows.
pub(super) const NORMS: [Name; 2] = [
    Name::layer("attn_norm.weight", "input_layernorm.weight", &[T::AttnNorm]),
    Name::layer(
        "post_attention_norm.weight",
        "post_attention_layernorm.weight",
        &[T::FfnNorm],
    ),
];

pub(super) const Q_K_V_O: [Name; 4] = [ATTENTION[0], ATTENTION[1], ATTENTION[2], ATTENTION[3]];

pub(super) const DELTA_NET: [Name; 9] = [
    // In GGUF files perhaps also in layers with attention.
    Name::layer(
        "attn_qkv.weight",
        "linear_attn.in_proj_qkv.weight",
        &[T::Q, T::K, T::V],
    )
    .recurrent(),
    Name::layer(
        "attn_gate.weight",
        "linear_attn.in_proj_z.weight",
        &[T::OutputGate],
    ),
    Name::layer(
        "ssm_alpha.weight",
        "linear_attn.in_proj_a.weight",
        &[T::Alpha],
    ),
    Name::layer(
        "ssm_beta.weight",
        "linear_attn.in_proj_b.weight",
        &[T::Beta],
    ),
    Name::layer(
        "ssm_conv1d.weight",
        "linear_attn.conv1d.weight",
        &[T::ConvTaps],
    ),
    Name::layer("ssm_dt.bias", "linear_attn.dt_bias", &[T::DecayBias]),
    Name::layer("ssm_a", "linear_attn.A_log", &[T::DecayRate]).stored(Stored::LogOfMinus),
    // The only norm that is stored as it is used.
    Name::layer("ssm_norm.weight", "linear_attn.norm.weight", &[T::HeadNorm]),
    Name::layer("ssm_out.weight", "linear_attn.out_proj.weight", &[T::O]).recurrent(),
];

const ROPE: Rules = Rules {
    partial: true,
    ..block::HALVES
};

/// Every fourth layer has attention.
const PERIOD: usize = 4;

fn describe(m: &Metadata<'_>) -> Result<Network> {
    describe_sharing(m, KeySharing::Tiled)
}

/// The mixers of a model; in GGUF files, value heads read key heads like this.
pub(super) fn describe_sharing(m: &Metadata<'_>, in_gguf: KeySharing) -> Result<Network> {
    const GATE: &str = "attn_output_gate";
    const KIND: &str = "output_gate_type";
    let activation = block::activation_or_silu(m)?;
    if activation != Activation::Silu {
        let value = format!("{activation:?}");
        return Err(m.unsupported(block::ACTIVATION, value, "silu is"));
    }
    let mut network = block::network(m, ROPE, activation)?;
    if !m.is_gguf() && m.fields().optional_bool(GATE)? == Some(false) {
        return Err(m.unsupported(("", GATE), "false", "attention with output gates is"));
    }
    if !m.is_gguf()
        && let Some(kind) = m.fields().optional_str(KIND)?
        && !matches!(kind, "silu" | "swish")
    {
        return Err(m.unsupported(("", KIND), kind, "swish is"));
    }
    // Which part of a head is rotated by which coordinate of an image: for text, all are the same.
    let _ = m.fields().get("rope.dimension_sections");
    block::norm_qk(&mut network, NormSpan::Head);
    for attention in network.attentions_mut() {
        attention.output_gate = true;
    }
    let sharing = match m.is_gguf() {
        true => in_gguf,
        false => KeySharing::Grouped,
    };
    let net = delta_net(m, sharing, network.output_norm.eps)?;
    let recurrent = recurrent_layers(m, network.n_layers())?;
    for (layer, _) in network.layers.iter_mut().zip(recurrent).filter(|(_, r)| *r) {
        layer.mixer.body = Mixer::DeltaNet(net);
    }
    Ok(network)
}

fn delta_net(m: &Metadata<'_>, sharing: KeySharing, eps: f32) -> Result<DeltaNet> {
    const INNER: (&str, &str) = ("ssm.inner_size", "");
    let n_value_heads = m.size("ssm.time_step_rank", "linear_num_value_heads")?;
    let value_dim = match m.is_gguf() {
        false => m.size("", "linear_value_head_dim")?,
        true => {
            let all = m.size(INNER.0, INNER.1)?;
            if !all.is_multiple_of(n_value_heads) {
                let problem = format!("{n_value_heads} heads do not divide {all}");
                return Err(m.wrong(INNER.0, INNER.1, problem));
            }
            all / n_value_heads
        }
    };
    Ok(DeltaNet {
        n_key_heads: m.size("ssm.group_count", "linear_num_key_heads")?,
        n_value_heads,
        key_dim: m.size("ssm.state_size", "linear_key_head_dim")?,
        value_dim,
        kernel: m.size("ssm.conv_kernel", "linear_conv_kernel_dim")?,
        sharing,
        eps,
    })
}

/// Which of `n` layers have a delta net.
fn recurrent_layers(m: &Metadata<'_>, n: usize) -> Result<Vec<bool>> {
    const FLAGS: &str = "attention.recurrent_layers";
    const INTERVAL: &str = "full_attention_interval";
    let period = m.optional_size(INTERVAL, INTERVAL)?.unwrap_or(PERIOD);
    if let Some(types) = m.layer_types_of(n, &["full_attention", "linear_attention"])? {
        return Ok(types.iter().map(|&t| t == "linear_attention").collect());
    }
    if m.is_gguf()
        && let Some(flags) = m.fields().optional_array(FLAGS)?
    {
        let flags: Option<Vec<bool>> = flags.iter().take(n).map(Value::as_bool).collect();
        let flags = flags.filter(|flags| flags.len() == n);
        return flags.ok_or_else(|| m.wrong(FLAGS, "", format!("it is not {n} booleans")));
    }
    Ok((0..n).map(|l| (l + 1) % period != 0).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The description of a checkpoint with these fields beside the usual ones.
    fn described(more: Value) -> Result<Network> {
        let config = json!({
            "model_type": "qwen3_5_text", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 5,
            "intermediate_size": 64,
        });
        super::super::described(config, more)
    }

    #[test]
    fn every_fourth_layer_attends_unless_others_are_named() {
        let attends = |more| {
            let network = described(more).expect("a good description");
            (0..5)
                .filter(|&l| network.attention(l).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(attends(json!({})), [3]);
        assert_eq!(attends(json!({"full_attention_interval": 2})), [1, 3]);
        let mut types = vec!["linear_attention"; 5];
        types[2] = "full_attention";
        assert_eq!(attends(json!({"layer_types": types})), [2]);
    }

    #[test]
    fn a_quarter_of_a_head_rotates() {
        let rotary_dim = |more| described(more).expect("a good description").ropes[0].rotary_dim;
        assert_eq!(rotary_dim(json!({})), 64);
        let half = json!({"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e7}});
        assert_eq!(rotary_dim(half), 128);
    }

    #[test]
    fn what_would_change_the_result_is_refused() {
        for (more, field) in [
            (json!({"attn_output_gate": false}), "attn_output_gate"),
            (json!({"output_gate_type": "sigmoid"}), "output_gate_type"),
            (json!({"hidden_act": "gelu_pytorch_tanh"}), "hidden_act"),
            (json!({"attention_bias": true}), "attention_bias"),
            (json!({"num_experts": 8}), "num_experts"),
            (json!({"linear_num_key_heads": 5}), "delta_net heads"),
        ] {
            let message = described(more).expect_err(field).to_string();
            assert!(message.contains(field), "{message}");
        }
    }
}
