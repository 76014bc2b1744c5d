//! Metadata that change the arithmetic, and the values with which they do not. An entry of these lists that the
//! architecture did not read is an error, never ignored.

use serde_json::Value;

/// One key.
pub(super) struct Neutral {
    pub(super) name: &'static str,
    /// Values that change nothing; booleans are 0 and 1, and null is always neutral.
    values: &'static [f64],
    pub(super) remedy: &'static str,
}

const PLAIN: &str = "use a model whose architecture does not have it";
const EXPERTS: &str = "with experts this architecture cannot be run: use a dense model";

const fn key(name: &'static str, values: &'static [f64]) -> Neutral {
    Neutral {
        name,
        values,
        remedy: PLAIN,
    }
}

const fn remedied(name: &'static str, values: &'static [f64], remedy: &'static str) -> Neutral {
    Neutral {
        name,
        values,
        remedy,
    }
}

/// GGUF keys, without the architecture's prefix.
pub(super) static GGUF: [Neutral; 31] = [
    remedied("expert_count", &[0.0], EXPERTS),
    key("expert_group_count", &[0.0, 1.0]),
    key("attention.causal", &[1.0]),
    key("attention.clamp_kqv", &[0.0]),
    key("attention.max_alibi_bias", &[0.0]),
    key("attention.scale", &[0.0]),
    key("attention.key_length_swa", &[]),
    key("attention.value_length_swa", &[]),
    key("attention.shared_kv_layers", &[0.0]),
    key("attention.recurrent_layers", &[0.0]),
    key("attention.sliding_window", &[0.0]),
    key("attention.sliding_window_pattern", &[]),
    key("attention.temperature_scale", &[0.0]),
    key("attn_logit_softcapping", &[0.0]),
    key("final_logit_softcapping", &[0.0]),
    key("rope.dimension_count_swa", &[]),
    key("rope.dimension_sections", &[0.0]),
    key("rope.freq_base_swa", &[]),
    key("rope.scaling.alpha", &[0.0]),
    key("rope.scaling.attn_factor", &[1.0]),
    key("embedding_scale", &[0.0, 1.0]),
    key("residual_scale", &[0.0, 1.0]),
    key("logit_scale", &[0.0, 1.0]),
    key("use_parallel_residual", &[0.0]),
    key("embedding_length_per_layer_input", &[0.0]),
    key("full_attention_interval", &[1.0]),
    key("ssm.conv_kernel", &[0.0]),
    key("ssm.inner_size", &[0.0]),
    key("ssm.state_size", &[0.0]),
    key("shortconv.l_cache", &[0.0]),
    key("wkv.head_size", &[0.0]),
];

/// Fields of `config.json`.
pub(super) static HF: [Neutral; 48] = [
    remedied(
        "attention_bias",
        &[0.0],
        "it includes a bias of the output projection; biases of Q, K and V alone are",
    ),
    remedied("mlp_bias", &[0.0], "FFNs have no biases here"),
    remedied(
        "partial_rotary_factor",
        &[1.0],
        "heads are rotated whole here",
    ),
    remedied("num_local_experts", &[0.0], EXPERTS),
    remedied("num_experts", &[0.0], EXPERTS),
    remedied("n_routed_experts", &[0.0], EXPERTS),
    remedied("enable_moe_block", &[0.0], EXPERTS),
    key("use_bias", &[0.0]),
    key("bias", &[0.0]),
    key("qkv_bias", &[0.0]),
    key("use_qkv_bias", &[0.0]),
    key("attention_out_bias", &[0.0]),
    key("lm_head_bias", &[0.0]),
    key("rotary_pct", &[1.0]),
    key("rope_pct", &[1.0]),
    key("sliding_window", &[]),
    key("use_sliding_window", &[0.0]),
    key("sliding_window_pattern", &[]),
    key("layer_types", &[]),
    key("no_rope_layers", &[1.0]),
    key("attention_chunk_size", &[]),
    key("attn_temperature_tuning", &[0.0]),
    key("attn_logit_softcapping", &[]),
    key("final_logit_softcapping", &[]),
    key("query_pre_attn_scalar", &[]),
    key("attention_multiplier", &[]),
    key("embedding_multiplier", &[1.0]),
    key("residual_multiplier", &[1.0]),
    key("logits_scaling", &[1.0]),
    key("logit_scale", &[1.0]),
    key("scale_emb", &[1.0]),
    key("scale_depth", &[]),
    key("dim_model_base", &[]),
    key("sparse_config", &[]),
    key("use_qk_norm", &[0.0]),
    key("use_cla", &[0.0]),
    key("qk_layernorm", &[0.0]),
    key("use_bidirectional_attention", &[0.0]),
    key("use_parallel_residual", &[0.0]),
    key("parallel_attn", &[0.0]),
    key("alibi", &[0.0]),
    key("num_kv_shared_layers", &[0.0]),
    key("hidden_size_per_layer_input", &[0.0]),
    key("per_layer_config", &[]),
    key("rope_local_base_freq", &[]),
    key("clip_qkv", &[]),
    key("is_causal", &[1.0]),
    key("moe_enable_early_router", &[1.0]),
];

impl Neutral {
    pub(super) fn allows(&self, value: &Value) -> bool {
        let number = match value {
            Value::Null => return true,
            Value::Array(all) => return all.iter().all(|v| self.allows(v)),
            // Values of `layer_types`.
            Value::String(kind) => return kind == "full_attention",
            Value::Object(fields) => return fields.is_empty(),
            Value::Bool(b) => Some(f64::from(u8::from(*b))),
            Value::Number(n) => n.as_f64(),
        };
        number.is_some_and(|n| self.values.contains(&n))
    }
}

/// A value as text, for a message.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Array(all) => format!("an array of {}", all.len()),
        Value::Object(_) => "an object".into(),
        Value::String(s) => format!("{:?}", s.chars().take(60).collect::<String>()),
        // GGUF has 32-bit numbers, which are shown as such.
        Value::Number(n) => match n.as_f64() {
            Some(f) if n.is_f64() => (f as f32).to_string(),
            _ => n.to_string(),
        },
        other => other.to_string(),
    }
}
