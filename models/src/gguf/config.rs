//! The configuration of a model from GGUF metadata, with llama.cpp's keys and defaults and
//! PowerInfer's additions.

use super::container::Gguf;
use super::keys::{Keys, describe, number};
use super::names::ROPE_FREQS;
use super::value::Value;
use crate::block::{BlockType, dequantize};
use crate::config::{Activation, Arch, ModelConfig, RopeConfig, RopePairing, RopeScaling};
use crate::error::{ModelError, Result};
use crate::source::limits::{self, MAX_CONTEXT, MAX_DIMENSION};
use crate::source::split_file;

/// Keys that change the arithmetic, with the values that leave it as it is.
const NEUTRAL: [(&str, &[f64]); 14] = [
    ("expert_count", &[0.0]),
    ("attention.causal", &[1.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.scale", &[0.0]),
    ("attention.sliding_window_pattern", &[]),
    ("attention.temperature_scale", &[0.0]),
    ("rope.scaling.alpha", &[0.0]),
    ("rope.scaling.attn_factor", &[1.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("use_parallel_residual", &[0.0]),
    ("nextn_predict_layers", &[0.0]),
];

/// Reads the configuration.
///
/// # Errors
/// A missing or wrong key, or one that asks for what this engine does not do.
pub(super) fn read(gguf: &Gguf) -> Result<ModelConfig> {
    let (metadata, path) = (gguf.metadata(), gguf.path());
    if let Some(parts) = metadata.u64("split.count").filter(|&n| n > 1) {
        return Err(split_file(path, &parts.to_string()));
    }
    if gguf.tensors().is_empty() {
        return Err(ModelError::Format {
            path: path.into(),
            field: "tensor count".into(),
            problem: "the file holds a vocabulary but no weights".into(),
            remedy: "give the file of the model itself".into(),
        });
    }
    let (arch, prefix) = architecture(gguf)?;
    let keys = Keys {
        metadata,
        path,
        prefix,
    };
    refuse_unknown_arithmetic(&keys)?;

    let d_model = keys.size("embedding_length", MAX_DIMENSION)?;
    let n_heads = keys.size("attention.head_count", MAX_DIMENSION)?;
    let head_dim = head_dim(&keys, d_model, n_heads)?;
    let rms_eps = keys
        .optional_f32("attention.layer_norm_rms_epsilon")?
        .ok_or_else(|| {
            let key = keys.key("attention.layer_norm_rms_epsilon");
            ModelError::damaged(path, key, "the metadata key is missing")
        })?;
    let config = ModelConfig {
        arch,
        name: name(gguf),
        n_layers: keys.size("block_count", MAX_DIMENSION)?,
        d_model,
        n_heads,
        n_kv_heads: keys
            .optional_size("attention.head_count_kv", MAX_DIMENSION)?
            .unwrap_or(n_heads),
        head_dim,
        d_ff: keys.size("feed_forward_length", MAX_DIMENSION)?,
        vocab_size: vocab_size(gguf)?,
        context_length: keys.size("context_length", MAX_CONTEXT)?,
        sliding_window: sliding_window(&keys)?,
        rms_eps: limits::positive(path, &keys.key("attention.layer_norm_rms_epsilon"), rms_eps)?,
        rope: rope(gguf, &keys, arch, head_dim)?,
        activation: activation(gguf, &keys, arch)?,
        tied_head: !has(gguf, "output.weight"),
        // llama.cpp requires the biases for qwen2 and takes them as they come for llama.
        qkv_bias: arch == Arch::Qwen2 || has(gguf, "blk.0.attn_q.bias"),
        predictor_threshold: predictor_threshold(&keys)?,
    };
    limits::check_config(path, &config)?;
    Ok(config)
}

fn has(gguf: &Gguf, tensor: &str) -> bool {
    gguf.tensors().iter().any(|t| t.name == tensor)
}

fn architecture(gguf: &Gguf) -> Result<(Arch, &str)> {
    const KEY: &str = "general.architecture";
    let Some(prefix) = gguf.metadata().str(KEY) else {
        return Err(ModelError::damaged(
            gguf.path(),
            KEY,
            "the metadata key is missing",
        ));
    };
    let arch = match prefix {
        "llama" => Arch::Llama,
        "qwen2" if !gguf.is_powerinfer() => Arch::Qwen2,
        "bamboo" => Arch::Bamboo,
        other => {
            let kind = if gguf.is_powerinfer() {
                "PowerInfer "
            } else {
                ""
            };
            return Err(ModelError::unsupported(
                gguf.path(),
                KEY,
                format!("{kind}architecture {other:?}"),
                "llama (Llama, Mistral, SmolLM2, TinyLlama), qwen2 and bamboo are",
            ));
        }
    };
    Ok((arch, prefix))
}

fn refuse_unknown_arithmetic(keys: &Keys<'_>) -> Result<()> {
    for (suffix, neutral) in NEUTRAL {
        if let Some(value) = keys.get(suffix)
            && !number(value).is_some_and(|n| neutral.contains(&n))
        {
            let remedy = if suffix == "expert_count" {
                "mixture-of-experts models cannot be run yet: use a dense model"
            } else {
                "use a model of a plain llama, qwen2 or bamboo architecture"
            };
            return Err(keys.unsupported(suffix, &describe(value), remedy));
        }
    }
    Ok(())
}

fn name(gguf: &Gguf) -> String {
    let stem = || {
        gguf.path()
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    gguf.metadata()
        .str("general.name")
        .map_or_else(stem, str::to_owned)
}

fn head_dim(keys: &Keys<'_>, d_model: usize, n_heads: usize) -> Result<usize> {
    let key = keys.optional_size("attention.key_length", MAX_DIMENSION)?;
    let value = keys.optional_size("attention.value_length", MAX_DIMENSION)?;
    if key.is_none() && !d_model.is_multiple_of(n_heads) {
        return Err(ModelError::damaged(
            keys.path,
            keys.key("attention.head_count"),
            format!("{n_heads} heads do not divide {d_model}, and attention.key_length is missing"),
        ));
    }
    let head_dim = key.unwrap_or(d_model / n_heads);
    if let Some(v) = value.filter(|&v| v != head_dim) {
        let remedy = format!("it must equal the key's {head_dim}");
        return Err(keys.unsupported("attention.value_length", &v.to_string(), &remedy));
    }
    Ok(head_dim)
}

/// The rows of the embedding; the vocabulary must not have more tokens than that.
fn vocab_size(gguf: &Gguf) -> Result<usize> {
    const NAME: &str = "token_embd.weight";
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let embedding = gguf.tensors().iter().find(|t| t.name == NAME);
    let rows = embedding
        .and_then(|t| t.matrix())
        .map(|(_, rows)| rows as u64);
    let Some(rows) = rows else {
        return Err(ModelError::damaged(
            gguf.path(),
            NAME,
            "the tensor is missing or not a matrix",
        ));
    };
    let rows = limits::size(gguf.path(), NAME, rows, MAX_DIMENSION)?;
    match gguf.metadata().strings(TOKENS) {
        Some(tokens) if tokens.len() > rows => Err(ModelError::damaged(
            gguf.path(),
            TOKENS,
            format!("{} tokens, but {NAME} has only {rows} rows", tokens.len()),
        )),
        _ => Ok(rows),
    }
}

/// 0 means no window, as in llama.cpp.
fn sliding_window(keys: &Keys<'_>) -> Result<Option<usize>> {
    const SUFFIX: &str = "attention.sliding_window";
    if keys.get(SUFFIX).and_then(number) == Some(0.0) {
        return Ok(None);
    }
    keys.optional_size(SUFFIX, u64::from(u32::MAX))
}

fn rope(gguf: &Gguf, keys: &Keys<'_>, arch: Arch, head_dim: usize) -> Result<RopeConfig> {
    let theta = keys.optional_f32("rope.freq_base")?.unwrap_or(10_000.0);
    let rotary_dim = keys
        .optional_size("rope.dimension_count", MAX_DIMENSION)?
        .unwrap_or(head_dim);
    Ok(RopeConfig {
        theta: limits::positive(keys.path, &keys.key("rope.freq_base"), theta)?,
        rotary_dim,
        // llama.cpp's LLAMA_ROPE_TYPE_NORM for llama; PowerInfer builds bamboo with the same
        // graph. Their converters permute the rows of Q and K accordingly.
        pairing: match arch {
            Arch::Llama | Arch::Bamboo => RopePairing::Interleaved,
            Arch::Qwen2 => RopePairing::HalfSplit,
        },
        scaling: rope_scaling(gguf, keys, arch, rotary_dim)?,
    })
}

fn rope_scaling(
    gguf: &Gguf,
    keys: &Keys<'_>,
    arch: Arch,
    rotary_dim: usize,
) -> Result<RopeScaling> {
    let linear = linear_factor(keys)?;
    // llama.cpp reads these factors for llama alone; elsewhere the tensor is an unknown one.
    if arch == Arch::Llama
        && let Some(mut factors) = rope_freqs(gguf, rotary_dim)?
    {
        factors.iter_mut().for_each(|f| *f *= linear.unwrap_or(1.0));
        return Ok(RopeScaling::Factors(factors));
    }
    Ok(linear.map_or(RopeScaling::None, |factor| RopeScaling::Linear { factor }))
}

/// The divisor of all frequencies, if it is not 1. A factor without a type means linear; a factor
/// of 0 means none.
fn linear_factor(keys: &Keys<'_>) -> Result<Option<f32>> {
    match keys.optional_str("rope.scaling.type")? {
        Some("none") => return Ok(None),
        None | Some("linear") => {}
        Some(other) => {
            let remedy =
                "none, linear and rope_freqs.weight are: use the model without a context extension";
            return Err(keys.unsupported("rope.scaling.type", &format!("{other:?}"), remedy));
        }
    }
    for suffix in ["rope.scaling.factor", "rope.scale_linear"] {
        if let Some(factor) = keys.optional_f32(suffix)?
            && factor != 0.0
        {
            let factor = limits::positive(keys.path, &keys.key(suffix), factor)?;
            return Ok((factor != 1.0).then_some(factor));
        }
    }
    Ok(None)
}

fn rope_freqs(gguf: &Gguf, rotary_dim: usize) -> Result<Option<Vec<f32>>> {
    let Some(tensor) = gguf.tensors().iter().find(|t| t.name == ROPE_FREQS) else {
        return Ok(None);
    };
    let plain = matches!(
        tensor.block,
        BlockType::F32 | BlockType::F16 | BlockType::BF16
    );
    // Before reading, so that what is reserved is bounded by the head's size.
    if tensor.matrix() != Some((rotary_dim / 2, 1)) || !plain {
        let problem = format!(
            "{:?} elements of {}, expected {} of F32, F16 or BF16",
            tensor.dims,
            tensor.block,
            rotary_dim / 2
        );
        return Err(ModelError::damaged(gguf.path(), ROPE_FREQS, problem));
    }
    let mut bytes = vec![0; tensor.bytes as usize];
    gguf.read(tensor, 0, &mut bytes)?;
    let mut factors = vec![0.0; rotary_dim / 2];
    dequantize(tensor.block, &bytes, &mut factors);
    Ok(Some(factors))
}

/// PowerInfer's files do not name their activation: it is ReLU, and dReLU for bamboo. Other files
/// may name theirs under `{arch}.hidden_act`; without it llama.cpp's SiLU is meant.
fn activation(gguf: &Gguf, keys: &Keys<'_>, arch: Arch) -> Result<Activation> {
    const SUFFIX: &str = "hidden_act";
    let named = keys.optional_str(SUFFIX)?;
    match (arch, named) {
        (Arch::Bamboo, None | Some("relu" | "drelu")) => Ok(Activation::DoubleRelu),
        (Arch::Llama | Arch::Qwen2, None) if gguf.is_powerinfer() => Ok(Activation::Relu),
        (Arch::Llama | Arch::Qwen2, None) => Ok(Activation::Silu),
        (Arch::Llama | Arch::Qwen2, Some("silu" | "swish")) if !gguf.is_powerinfer() => {
            Ok(Activation::Silu)
        }
        (Arch::Llama | Arch::Qwen2, Some("relu")) => Ok(Activation::Relu),
        (Arch::Llama | Arch::Qwen2, Some("fatrelu")) => {
            let threshold = keys.optional_f32("hidden_act_param")?.filter(|&t| t >= 0.0);
            let Some(threshold) = threshold else {
                let problem = "fatrelu needs a threshold that is not negative";
                return Err(ModelError::damaged(
                    keys.path,
                    keys.key("hidden_act_param"),
                    problem,
                ));
            };
            Ok(Activation::FatRelu { threshold })
        }
        (_, Some(other)) => {
            let remedy = "silu, relu and fatrelu are (relu and fatrelu in PowerInfer's files, drelu for bamboo)";
            Err(keys.unsupported(SUFFIX, &format!("{other:?}"), remedy))
        }
    }
}

fn predictor_threshold(keys: &Keys<'_>) -> Result<f32> {
    const KEY: &str = "powerinfer.sparse_threshold";
    match keys.metadata.get(KEY) {
        None => Ok(0.0),
        Some(&Value::F32(v)) if v.is_finite() => Ok(v),
        Some(other) => {
            let problem = format!("{} where a finite f32 is expected", describe(other));
            Err(ModelError::damaged(keys.path, KEY, problem))
        }
    }
}
