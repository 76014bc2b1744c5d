//! DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash: latent attention, first layers without experts, experts that every
//! token uses, and routers that may choose groups of experts first.

use super::metadata::Metadata;
use super::names::{CHOICE, EXPERTS, FFN, MODEL, Name, PRE_NORMS, ROUTER, SHARED_EXPERTS};
use super::rope::{self, Rules};
use super::{Architecture, Form, Hf, block, experts};
use crate::error::Result;
use crate::network::{KvOrigin, Latent, Network, RopePairing, Router, Scores};
use crate::tensor::LayerTensor as T;

const V2: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2,
    "moe_intermediate_size": 1407, "first_k_dense_replace": 0, "routed_scaling_factor": 1.0,
    "norm_topk_prob": false, "scoring_func": "softmax", "topk_method": "greedy", "vocab_size": 102400
}"#;
const V3: &str = r#"{
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    "routed_scaling_factor": 2.5, "norm_topk_prob": true, "n_group": 8, "topk_group": 4, "vocab_size": 129280
}"#;
const GLM_LITE: &str = r#"{
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "kv_lora_rank": 512, "q_lora_rank": 768, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 192, "v_head_dim": 256, "n_routed_experts": 64, "num_experts_per_tok": 4,
    "n_shared_experts": 1, "moe_intermediate_size": 1536, "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.8, "norm_topk_prob": true, "n_group": 1, "topk_group": 1, "vocab_size": 154880
}"#;
const SPELLINGS: &[(&str, &str)] = &[("num_experts", "n_routed_experts")];

pub(super) static DEEPSEEK2: Architecture = Architecture {
    gguf: &["deepseek2"],
    powerinfer: false,
    hf: &[
        Hf::new("deepseek_v2", V2).with_spellings(SPELLINGS),
        Hf::new("deepseek_v3", V3).with_spellings(SPELLINGS),
        Hf::new("kimi_k2", V3).with_spellings(SPELLINGS),
        Hf::new("glm4_moe_lite", GLM_LITE).with_spellings(SPELLINGS),
    ],
    tensors: &[
        &MODEL,
        &PRE_NORMS,
        &LATENT_ATTENTION,
        &FFN,
        &ROUTER,
        &CHOICE,
        &EXPERTS,
        &SHARED_EXPERTS,
    ],
    describe,
};

const LATENT_ATTENTION: [Name; 10] = [
    Name::layer("attn_q.weight", "self_attn.q_proj.weight", &[T::Q]),
    Name::layer("attn_q_b.weight", "self_attn.q_b_proj.weight", &[T::Q]),
    Name::layer("attn_q_a.weight", "self_attn.q_a_proj.weight", &[T::QDown]),
    Name::layer(
        "attn_q_a_norm.weight",
        "self_attn.q_a_layernorm.weight",
        &[T::QNorm],
    ),
    Name::layer(
        "attn_kv_a_mqa.weight",
        "self_attn.kv_a_proj_with_mqa.weight",
        &[T::K],
    ),
    Name::layer(
        "attn_kv_a_norm.weight",
        "self_attn.kv_a_layernorm.weight",
        &[T::KNorm],
    ),
    Name::layer("attn_k_b.weight", "", &[T::KUp]),
    Name::layer("attn_v_b.weight", "", &[T::VUp]),
    // In GGUF files of older converters, too.
    Name::layer(
        "attn_kv_b.weight",
        "self_attn.kv_b_proj.weight",
        &[T::KUp, T::VUp],
    )
    .in_both(Form::UpsByHead),
    Name::layer("attn_output.weight", "self_attn.o_proj.weight", &[T::O]),
];

/// transformers' epsilon of the norms between two matrices, whatever the file says.
const INNER_EPS: f32 = 1e-6;

fn describe(m: &Metadata<'_>) -> Result<Network> {
    let rank = m.size("attention.kv_lora_rank", "kv_lora_rank")?;
    let rotary_dim = m.size("rope.dimension_count", "qk_rope_head_dim")?;
    let mut rope = rope::read(m, rotary_dim, rules(m)?, None)?;
    let score_factor = rope::score_factor(m, &mut rope)?;
    let activation = block::activation_or_silu(m)?;
    let mut network = block::with_rope(m, rank + rotary_dim, rope, activation)?;
    let (plain_dim, value_dim) = widths(m, rotary_dim)?;
    let latent = Latent {
        rank,
        plain_dim,
        value_dim,
        query_rank: query_rank(m)?,
        eps: match m.is_gguf() {
            true => network.output_norm.eps,
            false => INNER_EPS,
        },
    };
    for attention in network.attentions_mut() {
        attention.n_kv_heads = 1;
        attention.kv = KvOrigin::KeysAlone;
        attention.latent = Some(latent);
        attention.scale = score_factor / ((plain_dim + rotary_dim) as f32).sqrt();
    }
    let dense = m.some_layers(("leading_dense_block_count", "first_k_dense_replace"))?;
    let router = router(m, dense)?;
    experts::replace_ffns(m, &mut network, &router, |l| l < dense)?;
    experts::share_as_many(m, &mut network)?;
    Ok(network)
}

/// The first of these architectures in checkpoints, which transformers has code of its own for.
fn is_v2(m: &Metadata<'_>) -> bool {
    !m.is_gguf() && m.kind() == "deepseek_v2"
}

/// Neighbours rotate together, unless a checkpoint of a later model says otherwise.
fn rules(m: &Metadata<'_>) -> Result<Rules> {
    const FIELD: &str = "rope_interleave";
    let halves = !m.is_gguf() && m.fields().optional_bool(FIELD)? == Some(false);
    if halves && is_v2(m) {
        return Err(m.unsupported(("", FIELD), "false", "neighbours rotate together here"));
    }
    Ok(match halves {
        true => Rules {
            checkpoints: RopePairing::HalfSplit,
            ..block::NEIGHBOURS
        },
        false => block::NEIGHBOURS,
    })
}

/// Elements of the part of a head's query that is not rotated, and of a head's value. In GGUF files of older converters
/// the keys and values are those of heads.
fn widths(m: &Metadata<'_>, rotary_dim: usize) -> Result<(usize, usize)> {
    const KEY: &str = "attention.key_length";
    if !m.is_gguf() {
        return Ok((m.size("", "qk_nope_head_dim")?, m.size("", "v_head_dim")?));
    }
    let key = match m.optional_size("attention.key_length_mla", "")? {
        Some(own) => own,
        None => m.size(KEY, "")?,
    };
    let value = match m.optional_size("attention.value_length_mla", "")? {
        Some(own) => own,
        None => m.size("attention.value_length", "")?,
    };
    let plain = key.checked_sub(rotary_dim).filter(|&n| n > 0);
    let problem = || format!("{rotary_dim} of a head's {key} elements cannot be rotated");
    Ok((plain.ok_or_else(|| m.wrong(KEY, "", problem()))?, value))
}

/// Width of compressed queries. Files may have a width for queries that are not compressed.
fn query_rank(m: &Metadata<'_>) -> Result<Option<usize>> {
    match m.is_gguf() {
        true if !m.has_tensor("blk.0.attn_q_a.weight") => Ok(None),
        true => m.size("attention.q_lora_rank", "").map(Some),
        false => m.optional_size("", "q_lora_rank"),
    }
}

/// V2 has a softmax and takes a group for its best expert; later models have biases for the choice, and take it for its
/// best two.
fn router(m: &Metadata<'_>, dense: usize) -> Result<Router> {
    const FREQUENCY: &str = "moe_layer_freq";
    let biased = match m.is_gguf() {
        true => m.has_tensor(&format!("blk.{dense}.exp_probs_b.bias")),
        false => !is_v2(m),
    };
    if let Some(n) = m.optional_size("", FREQUENCY)?.filter(|&n| n != 1) {
        let remedy = "experts in every layer after the first dense ones are";
        return Err(m.unsupported(("", FREQUENCY), n.to_string(), remedy));
    }
    let is_greedy = is_greedy(m)?;
    let assumed = Router {
        scores: match biased {
            true => Scores::Sigmoid,
            false => Scores::Softmax,
        },
        selection_bias: biased,
        ..experts::SOFTMAX
    };
    let mut router = experts::router_of_groups(m, assumed)?;
    if is_v2(m) && router.normalised {
        let remedy = "the weights of this architecture are not divided by their sum";
        return Err(m.unsupported(("", "norm_topk_prob"), "true", remedy));
    }
    router.groups = router.groups.filter(|_| m.is_gguf() || !is_greedy);
    if let (Scores::Softmax, Some(groups)) = (router.scores, &mut router.groups) {
        groups.counted = 1;
    }
    Ok(router)
}

/// Whether a checkpoint's experts are chosen without regard to groups. transformers reads the field for V2 only.
fn is_greedy(m: &Metadata<'_>) -> Result<bool> {
    const FIELD: &str = "topk_method";
    let known: &[&str] = match is_v2(m) {
        true => &["greedy", "group_limited_greedy"],
        false => &["noaux_tc"],
    };
    let method = m.optional_str("", FIELD)?;
    match method.filter(|method| !m.is_gguf() && !known.contains(method)) {
        None => Ok(method == Some("greedy")),
        Some(other) => {
            let remedy = format!("this architecture has {}", known.join(" or "));
            Err(m.unsupported(("", FIELD), format!("{other:?}"), &remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The description of a checkpoint of DeepSeek-V2-Lite's sizes with these fields beside the usual ones.
    fn described(more: Value) -> Result<Network> {
        let config = json!({
            "model_type": "deepseek_v2", "vocab_size": 64, "hidden_size": 2048, "num_hidden_layers": 3,
            "intermediate_size": 10944, "num_attention_heads": 16, "num_key_value_heads": 16,
            "num_experts_per_tok": 6, "max_position_embeddings": 163_840, "q_lora_rank": null,
            "first_k_dense_replace": 1, "n_group": 8, "topk_group": 3,
        });
        super::super::described(config, more)
    }

    fn router_of(more: Value) -> Router {
        let network = described(more).expect("a good description");
        assert!(network.experts(0).is_none());
        network.experts(1).expect("experts").router.clone()
    }

    #[test]
    fn the_cache_has_a_latent_and_a_rotated_key() {
        let network = described(json!({})).expect("a good description");
        let a = network.attention(0).expect("attention");
        assert_eq!((a.n_kv_heads, a.kv_dim(), a.value_dim()), (1, 576, 512));
        assert_eq!((a.q_rows(), a.out_dim()), (16 * 192, 16 * 128));
        let rank = |a: &crate::network::Attention| a.latent.and_then(|latent| latent.query_rank);
        assert_eq!(rank(a), None);
        let compressed = described(json!({"q_lora_rank": 1536})).expect("a good description");
        assert_eq!(compressed.attentions().find_map(rank), Some(1536));
    }

    #[test]
    fn groups_are_chosen_as_the_model_chooses_them() {
        assert_eq!(router_of(json!({})).groups, None);
        let of_best = router_of(json!({"topk_method": "group_limited_greedy"}));
        let groups = of_best.groups.expect("groups");
        assert_eq!((groups.count, groups.used, groups.counted), (8, 3, 1));
        assert_eq!(
            (of_best.scores, of_best.selection_bias),
            (Scores::Softmax, false)
        );
        let later = router_of(json!({"model_type": "deepseek_v3", "topk_method": "noaux_tc"}));
        assert_eq!(later.groups.expect("groups").counted, 2);
        assert_eq!(
            (later.scores, later.selection_bias),
            (Scores::Sigmoid, true)
        );
    }

    #[test]
    fn a_long_context_changes_the_scores() {
        let scale = |more| {
            let network = described(more).expect("a good description");
            let a = network.attention(0).expect("attention");
            (a.scale * 192f32.sqrt(), network.ropes[0].magnitude)
        };
        let yarn = |mscale: f32, all: f32| {
            let original = 4096;
            json!({"rope_scaling": {
                "type": "yarn", "factor": 40, "original_max_position_embeddings": original,
                "mscale": mscale, "mscale_all_dim": all,
            }})
        };
        let close = |(a, b): (f32, f32), (c, d): (f32, f32)| {
            assert!((a - c).abs() < 1e-5 && (b - d).abs() < 1e-5, "{a} {b}");
        };
        let strength = |mscale: f32| 1.0 + 0.1 * mscale * 40f32.ln();
        close(scale(json!({})), (1.0, 1.0));
        close(scale(yarn(0.707, 0.707)), (strength(0.707).powi(2), 1.0));
        let both = (strength(0.5).powi(2), strength(1.0) / strength(0.5));
        close(scale(yarn(1.0, 0.5)), both);
    }

    #[test]
    fn what_would_change_the_result_is_read_or_refused() {
        let later = |more: Value| {
            let mut all = json!({"model_type": "deepseek_v3", "n_group": 1, "topk_group": 1});
            let fields = all.as_object_mut().expect("an object");
            fields.extend(more.as_object().expect("an object").clone());
            all
        };
        let halves = later(json!({"rope_interleave": false, "norm_topk_prob": false}));
        let halves = described(halves).expect("a good description");
        assert_eq!(halves.ropes[0].pairing, RopePairing::HalfSplit);
        let rope = |kind: &str, factor: f32| json!({"rope_scaling": {"type": kind, "factor": factor, "mscale_all_dim": 1}});
        for unchanged in [rope("linear", 1.0), rope("default", 4.0)] {
            described(unchanged).expect("a strength that changes nothing");
        }
        for (more, field) in [
            (json!({"rope_interleave": false}), "rope_interleave"),
            (json!({"norm_topk_prob": true}), "norm_topk_prob"),
            (json!({"topk_method": "noaux_tc"}), "topk_method"),
            (json!({"scoring_func": "sigmoid"}), "scoring_func"),
            (later(json!({"scoring_func": "softmax"})), "scoring_func"),
            (later(json!({"topk_method": "greedy"})), "topk_method"),
            (rope("linear", 4.0), "rope_scaling.mscale_all_dim"),
            (rope("dynamic", 4.0), "rope_scaling.mscale_all_dim"),
            (json!({"moe_layer_freq": 2}), "moe_layer_freq"),
            (json!({"attention_bias": true}), "attention_bias"),
            (json!({"qk_rope_head_dim": 63}), "rotary dimension"),
            (json!({"scoring_func": "tanh"}), "scoring_func"),
            (json!({"v_head_dim": 1 << 24}), "attention.latent"),
        ] {
            let message = described(more).expect_err(field).to_string();
            assert!(message.contains(field), "{message}");
        }
    }
}
