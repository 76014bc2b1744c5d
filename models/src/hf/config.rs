//! The configuration of a model from `config.json`, with the defaults of transformers.

use std::path::Path;

use super::fields::Fields;
use crate::config::{Activation, Arch, ModelConfig, RopeConfig, RopePairing, RopeScaling};
use crate::error::{ModelError, Result};
use crate::source::limits::{self, MAX_CONTEXT, MAX_DIMENSION};

/// Mistral's window where `sliding_window` is absent (not null), as in transformers.
const MISTRAL_WINDOW: usize = 4096;

/// What `model_type` stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Llama,
    SparseLlama,
    Mistral,
    Qwen2,
    Bamboo,
}

/// Reads the configuration out of the fields of `folder`'s `config.json`.
pub(super) fn read(folder: &Path, f: &Fields) -> Result<ModelConfig> {
    let kind = kind(f)?;
    refuse_unknown_arithmetic(f, kind)?;
    let d_model = f.size("hidden_size", MAX_DIMENSION)?;
    let n_heads = f.size("num_attention_heads", MAX_DIMENSION)?;
    let head_dim = match f.optional_size("head_dim", MAX_DIMENSION)? {
        Some(n) => n,
        None if d_model.is_multiple_of(n_heads) => d_model / n_heads,
        None => {
            let problem =
                format!("{n_heads} heads do not divide {d_model}, and head_dim is missing");
            return Err(ModelError::damaged(
                f.path(),
                "num_attention_heads",
                problem,
            ));
        }
    };
    let n_layers = f.size("num_hidden_layers", MAX_DIMENSION)?;
    let eps = f.optional_f32("rms_norm_eps")?.unwrap_or(1e-6);
    let config = ModelConfig {
        arch: match kind {
            Kind::Llama | Kind::SparseLlama | Kind::Mistral => Arch::Llama,
            Kind::Qwen2 => Arch::Qwen2,
            Kind::Bamboo => Arch::Bamboo,
        },
        name: name(folder),
        n_layers,
        d_model,
        n_heads,
        n_kv_heads: f
            .optional_size("num_key_value_heads", MAX_DIMENSION)?
            .unwrap_or(n_heads),
        head_dim,
        d_ff: f.size("intermediate_size", MAX_DIMENSION)?,
        vocab_size: f.size("vocab_size", MAX_DIMENSION)?,
        context_length: f.size("max_position_embeddings", MAX_CONTEXT)?,
        sliding_window: sliding_window(f, kind, n_layers)?,
        rms_eps: limits::positive(f.path(), "rms_norm_eps", eps)?,
        rope: rope(f, head_dim)?,
        activation: activation(f, kind)?,
        tied_head: f.optional_bool("tie_word_embeddings")?.unwrap_or(false),
        qkv_bias: kind == Kind::Qwen2,
        // The predictors of checkpoints are cut at a logit of 0.
        predictor_threshold: 0.0,
    };
    limits::check_config(f.path(), &config)?;
    Ok(config)
}

fn name(folder: &Path) -> String {
    // "." and ".." have no name of their own.
    let full = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf());
    full.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn kind(f: &Fields) -> Result<Kind> {
    let model_type = f
        .optional_str("model_type")?
        .ok_or_else(|| f.missing("model_type"))?;
    let classes = f.get("architectures").and_then(|v| v.as_array());
    let is_bamboo = classes.is_some_and(|a| a.iter().any(|c| c == "BambooForCausalLM"));
    match model_type {
        "bamboo" => Ok(Kind::Bamboo),
        "mistral" | "llama" if is_bamboo => Ok(Kind::Bamboo),
        "llama" => Ok(Kind::Llama),
        "sparsellama" => Ok(Kind::SparseLlama),
        "mistral" => Ok(Kind::Mistral),
        "qwen2" => Ok(Kind::Qwen2),
        other => Err(f.unsupported(
            "model_type",
            format!("{other:?}"),
            "llama, sparsellama, mistral, qwen2 and bamboo are",
        )),
    }
}

fn refuse_unknown_arithmetic(f: &Fields, kind: Kind) -> Result<()> {
    if f.get("quantization_config").is_some() {
        let remedy = "use the unquantised checkpoint, or a GGUF file of the quantised model";
        return Err(f.unsupported("quantization_config", "a quantised checkpoint", remedy));
    }
    if f.optional_bool("mlp_bias")?.unwrap_or(false) {
        return Err(f.unsupported("mlp_bias", "true", "FFNs have no biases here"));
    }
    // qwen2 has its biases always, whatever this field says.
    if kind != Kind::Qwen2 && f.optional_bool("attention_bias")?.unwrap_or(false) {
        let remedy =
            "it includes a bias of the output projection; biases of Q, K and V (qwen2) are";
        return Err(f.unsupported("attention_bias", "true", remedy));
    }
    if let Some(factor) = f.optional_f32("partial_rotary_factor")?
        && factor != 1.0
    {
        return Err(f.unsupported(
            "partial_rotary_factor",
            factor.to_string(),
            "heads are rotated whole",
        ));
    }
    Ok(())
}

fn activation(f: &Fields, kind: Kind) -> Result<Activation> {
    const NAME: &str = "hidden_act";
    match (kind, f.optional_str(NAME)?) {
        (Kind::Bamboo, None | Some("relu")) => Ok(Activation::DoubleRelu),
        (Kind::SparseLlama, None) => Err(f.missing(NAME)),
        (Kind::Bamboo, Some(other)) => {
            Err(f.unsupported(NAME, format!("{other:?}"), "bamboo has relu"))
        }
        (_, None | Some("silu" | "swish")) => Ok(Activation::Silu),
        (_, Some("relu")) => Ok(Activation::Relu),
        (_, Some("fatrelu")) => {
            const PARAM: &str = "hidden_act_param";
            match f.optional_f32(PARAM)? {
                Some(threshold) if threshold >= 0.0 => Ok(Activation::FatRelu { threshold }),
                Some(_) => Err(ModelError::damaged(
                    f.path(),
                    PARAM,
                    "fatrelu's threshold is negative",
                )),
                None => Err(f.missing(PARAM)),
            }
        }
        (_, Some(other)) => {
            Err(f.unsupported(NAME, format!("{other:?}"), "silu, relu and fatrelu are"))
        }
    }
}

fn sliding_window(f: &Fields, kind: Kind, n_layers: usize) -> Result<Option<usize>> {
    const NAME: &str = "sliding_window";
    let window = f.optional_size(NAME, u64::from(u32::MAX))?;
    match kind {
        Kind::Llama | Kind::SparseLlama => Ok(None),
        Kind::Mistral if !f.is_present(NAME) => Ok(Some(MISTRAL_WINDOW)),
        Kind::Mistral | Kind::Bamboo => Ok(window),
        Kind::Qwen2 if !f.optional_bool("use_sliding_window")?.unwrap_or(false) => Ok(None),
        Kind::Qwen2 => {
            let sliding_layers = qwen2_sliding_layers(f, n_layers)?;
            if sliding_layers == 0 {
                Ok(None)
            } else if sliding_layers == n_layers {
                Ok(Some(window.unwrap_or(MISTRAL_WINDOW)))
            } else {
                let problem = format!("a window in {sliding_layers} of {n_layers} layers");
                Err(f.unsupported(
                    "use_sliding_window",
                    problem,
                    "one window for all layers is, or none",
                ))
            }
        }
    }
}

/// How many layers have a window: `layer_types`, or those from `max_window_layers` on.
fn qwen2_sliding_layers(f: &Fields, n_layers: usize) -> Result<usize> {
    if let Some(types) = f.get("layer_types").and_then(|v| v.as_array()) {
        return Ok(types.iter().filter(|t| *t == "sliding_attention").count());
    }
    let full = f.optional_u64("max_window_layers")?.unwrap_or(28);
    Ok(n_layers.saturating_sub(usize::try_from(full).unwrap_or(usize::MAX)))
}

/// `rope_parameters` (transformers 5) holds theta and scaling together; before, `rope_theta` and
/// `rope_scaling` stood apart.
fn rope(f: &Fields, head_dim: usize) -> Result<RopeConfig> {
    let together = f.optional_object("rope_parameters")?;
    let scaling = match &together {
        Some(p) => rope_scaling(p)?,
        None => f
            .optional_object("rope_scaling")?
            .as_ref()
            .map_or(Ok(RopeScaling::None), rope_scaling)?,
    };
    let inner = match &together {
        Some(p) => p.optional_f32("rope_theta")?,
        None => None,
    };
    let theta = match inner {
        Some(theta) => theta,
        None => f.optional_f32("rope_theta")?.unwrap_or(10_000.0),
    };
    Ok(RopeConfig {
        theta: limits::positive(f.path(), "rope_theta", theta)?,
        rotary_dim: head_dim,
        pairing: RopePairing::HalfSplit,
        scaling,
    })
}

fn rope_scaling(p: &Fields) -> Result<RopeScaling> {
    if p.values().any(|(_, v)| v.is_object()) {
        return Err(p.unsupported(
            "*",
            "a rotary embedding per layer type",
            "one for all layers is",
        ));
    }
    if let Some(factor) = p.optional_f32("partial_rotary_factor")?
        && factor != 1.0
    {
        return Err(p.unsupported(
            "partial_rotary_factor",
            factor.to_string(),
            "heads are rotated whole",
        ));
    }
    let field = if p.get("rope_type").is_some() {
        "rope_type"
    } else {
        "type"
    };
    match p.optional_str(field)? {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear {
            factor: p.positive("factor")?,
        }),
        Some("llama3") => {
            let (low, high) = (
                p.positive("low_freq_factor")?,
                p.positive("high_freq_factor")?,
            );
            if high <= low {
                let problem = format!("{high} is not above low_freq_factor {low}");
                return Err(ModelError::damaged(
                    p.path(),
                    "rope scaling high_freq_factor",
                    problem,
                ));
            }
            Ok(RopeScaling::Llama3 {
                factor: p.positive("factor")?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_context: p.positive("original_max_position_embeddings")?,
            })
        }
        Some(other) => Err(p.unsupported(
            field,
            format!("rotary scaling {other:?}"),
            "default, linear and llama3 are",
        )),
    }
}
