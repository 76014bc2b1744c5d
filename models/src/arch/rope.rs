//! Rotations from metadata: GGUF's `rope.*` keys and factor tensors, `rope_parameters` of
//! transformers 5, and the earlier `rope_theta` beside `rope_scaling`.

use super::metadata::Metadata;
use crate::arch::fields::Fields;
use crate::error::Result;
use crate::limits::MAX_CONTEXT;
use crate::network::{NOT_ROTATED, Rope, RopePairing, RopeScaling, Temperature};

/// The share of a head that is rotated.
const PART: &str = "partial_rotary_factor";

/// How an architecture reads its rotation.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// Pairs in GGUF files.
    pub(super) pairing: RopePairing,
    /// Pairs in checkpoints.
    pub(super) checkpoints: RopePairing,
    /// Whether GGUF files may have divisors in `rope_freqs.weight`.
    pub(super) freqs: bool,
    /// Whether GGUF files may have divisors in `rope_factors_long.weight` and `rope_factors_short.weight`.
    pub(super) long_short: bool,
    /// Whether a part of a head may be rotated.
    pub(super) partial: bool,
    /// Whether the architecture reads a temperature from the same object.
    pub(super) temperature: bool,
    /// Whether checkpoints may have an `alpha`, which makes the base larger.
    pub(super) alpha: bool,
    /// Whether checkpoints may leave the slowest pairs of a head unrotated ("proportional").
    pub(super) proportional: bool,
}

impl Rules {
    pub(super) const fn new(pairing: RopePairing) -> Self {
        Self {
            pairing,
            checkpoints: RopePairing::HalfSplit,
            freqs: false,
            long_short: false,
            partial: false,
            temperature: false,
            alpha: false,
            proportional: false,
        }
    }
}

/// The rotation of all layers, or of those of one type if the checkpoint has one for each.
pub(super) fn read(
    m: &Metadata<'_>,
    head_dim: usize,
    rules: Rules,
    layer_type: Option<&str>,
) -> Result<Rope> {
    match m.is_gguf() {
        true => gguf(m, head_dim, rules),
        false => hf(m, head_dim, rules, layer_type),
    }
}

/// The rotation of layers with a sliding window, if they have their own: never changed for long contexts. `theta` is
/// the default.
pub(super) fn sliding(m: &Metadata<'_>, head_dim: usize, rules: Rules, theta: f32) -> Result<Rope> {
    const LAYER_TYPE: &str = "sliding_attention";
    let named = m.optional_positive("rope.freq_base_swa", "rope_local_base_freq")?;
    let parameters = m.fields().optional_object("rope_parameters")?;
    if parameters.is_some_and(|p| p.values().any(|(kind, _)| kind == LAYER_TYPE)) {
        return hf(m, head_dim, rules, Some(LAYER_TYPE));
    }
    let rotary_dim = match m.optional_size("rope.dimension_count_swa", "")? {
        Some(own) => Some(own),
        None => m.optional_size("rope.dimension_count", "")?,
    };
    let (pairing, rotary_dim) = match m.is_gguf() {
        true => (rules.pairing, rotary_dim.unwrap_or(head_dim)),
        false => (rules.checkpoints, head_dim),
    };
    Ok(Rope::plain(named.unwrap_or(theta), rotary_dim, pairing))
}

fn gguf(m: &Metadata<'_>, head_dim: usize, rules: Rules) -> Result<Rope> {
    let theta = m
        .optional_positive("rope.freq_base", "")?
        .unwrap_or(10_000.0);
    let rotary_dim = m.optional_size("rope.dimension_count", "")?;
    let mut rope = Rope::plain(theta, rotary_dim.unwrap_or(head_dim), rules.pairing);
    let half = rope.rotary_dim / 2;
    if rules.long_short
        && let Some(long) = m.factors("rope_factors_long.weight", half)?
    {
        let short = m.factors("rope_factors_short.weight", half)?;
        let original_context = gguf_original_context(m)?;
        rope.magnitude = m
            .optional_positive("rope.scaling.attn_factor", "")?
            .unwrap_or(1.0);
        rope.scaling = RopeScaling::LongShort {
            short: short.ok_or_else(|| m.missing("rope_factors_short.weight", ""))?,
            long,
            original_context,
        };
        return Ok(rope);
    }
    match m.optional_str("rope.scaling.type", "")? {
        None | Some("none" | "linear" | "yarn") => {}
        Some(other) => {
            let remedy = "none, linear, yarn and factors in a tensor are: use the model without a context extension";
            return Err(m.unsupported(("rope.scaling.type", ""), format!("{other:?}"), remedy));
        }
    }
    let kind = m.optional_str("rope.scaling.type", "")?;
    let factor = match kind {
        Some("none") => None,
        _ => gguf_factor(m)?,
    };
    if kind == Some("yarn") {
        return gguf_yarn(m, rope, factor.unwrap_or(1.0));
    }
    if rules.freqs
        && let Some(mut factors) = m.factors("rope_freqs.weight", half)?
    {
        factors.iter_mut().for_each(|f| *f *= factor.unwrap_or(1.0));
        rope.scaling = RopeScaling::Factors(factors);
        return Ok(rope);
    }
    if let Some(factor) = factor {
        rope.scaling = RopeScaling::Linear { factor };
    }
    Ok(rope)
}

/// The divisor of all frequencies, if it is not 1. A factor without a type means linear; a factor of 0 means none.
fn gguf_factor(m: &Metadata<'_>) -> Result<Option<f32>> {
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        if let Some(factor) = m.nonzero(key, "")? {
            return Ok((factor != 1.0).then_some(factor));
        }
    }
    Ok(None)
}

fn gguf_original_context(m: &Metadata<'_>) -> Result<usize> {
    let original = m.optional_context("rope.scaling.original_context_length", "")?;
    original.map_or_else(|| m.context(), Ok)
}

/// As llama.cpp computes it: the magnitude of the paper, divided by that for `yarn_log_multiplier`.
fn gguf_yarn(m: &Metadata<'_>, mut rope: Rope, factor: f32) -> Result<Rope> {
    let beta = |key, default| Ok(m.optional_positive(key, "")?.unwrap_or(default));
    rope.scaling = RopeScaling::Yarn {
        factor,
        original_context: gguf_original_context(m)? as f32,
        beta_fast: beta("rope.scaling.yarn_beta_fast", 32.0)?,
        beta_slow: beta("rope.scaling.yarn_beta_slow", 1.0)?,
    };
    let multiplier = m.nonzero("rope.scaling.yarn_log_multiplier", "")?;
    let extra = m.optional_positive("rope.scaling.attn_factor", "")?;
    let magnitude = yarn_magnitude(factor, 1.0) / yarn_magnitude(factor, multiplier.unwrap_or(0.0));
    rope.magnitude = (magnitude * f64::from(extra.unwrap_or(1.0))) as f32;
    Ok(rope)
}

/// How queries grow with the position, in the object of the rotation.
const TEMPERATURE: &str = "llama_4_scaling_beta";

/// The temperature of queries, if there is one.
pub(super) fn temperature(m: &Metadata<'_>) -> Result<Option<Temperature>> {
    let (beta, original_context) = match m.is_gguf() {
        true => (
            m.nonzero("attention.temperature_scale", "")?,
            gguf_original_context(m)?,
        ),
        false => {
            let Some(p) = m.fields().optional_object("rope_parameters")? else {
                return Ok(None);
            };
            let beta = p.optional_f32(TEMPERATURE)?.filter(|&beta| beta != 0.0);
            (beta, hf_original_context(m, &p)?)
        }
    };
    Ok(beta.map(|beta| Temperature {
        beta,
        original_context,
    }))
}

/// What YaRN multiplies scores by where it does that instead of all by cosines and sines (DeepSeek). GGUF files have a
/// tenth of the strength then, and no other: their cosines and sines stay as they are.
pub(super) fn score_factor(m: &Metadata<'_>, rope: &mut Rope) -> Result<f32> {
    const STRENGTH: &str = "mscale_all_dim";
    let RopeScaling::Yarn { factor, .. } = rope.scaling else {
        return Ok(1.0);
    };
    let strength = match m.is_gguf() {
        true => m
            .nonzero("rope.scaling.yarn_log_multiplier", "")?
            .map(|tenth| 10.0 * tenth),
        false => {
            let parameters = m.fields().optional_object("rope_parameters")?;
            let parameters = match parameters {
                None => m.fields().optional_object("rope_scaling")?,
                some => some,
            };
            let strength = parameters.map_or(Ok(None), |p| p.optional_f32(STRENGTH))?;
            strength.filter(|&strength| strength != 0.0)
        }
    };
    let Some(strength) = strength else {
        return Ok(1.0);
    };
    if m.is_gguf() {
        let extra = m.optional_positive("rope.scaling.attn_factor", "")?;
        rope.magnitude = extra.unwrap_or(1.0);
    }
    Ok(yarn_magnitude(factor, strength).powi(2) as f32)
}

fn yarn_magnitude(factor: f32, scale: f32) -> f64 {
    match factor > 1.0 {
        true => 0.1 * f64::from(scale) * f64::from(factor).ln() + 1.0,
        false => 1.0,
    }
}

fn hf(m: &Metadata<'_>, head_dim: usize, rules: Rules, layer_type: Option<&str>) -> Result<Rope> {
    let parameters = m.fields().optional_object("rope_parameters")?;
    let by_type = |p: &Fields| p.values().any(|(_, v)| v.is_object());
    let together = match (parameters, layer_type) {
        (Some(p), None) if by_type(&p) => {
            let remedy = "one for all layers is";
            return Err(p.unsupported("*", "a rotary embedding per layer type", remedy));
        }
        (Some(p), Some(kind)) if by_type(&p) => {
            Some(p.optional_object(kind)?.ok_or_else(|| p.missing(kind))?)
        }
        (p, _) => p,
    };
    let theta = match &together {
        Some(p) => p.optional_positive("rope_theta")?,
        None => None,
    };
    // Always read: files of transformers 4 have it beside the others.
    let beside = m.optional_positive("", "rope_theta")?;
    let theta = theta.or(beside).unwrap_or(10_000.0);
    let scaling = match together {
        Some(p) => Some(p),
        None => m.fields().optional_object("rope_scaling")?,
    };
    if let Some(p) = scaling.as_ref().filter(|_| !rules.temperature)
        && let Some(beta) = p.optional_f32(TEMPERATURE)?.filter(|&beta| beta != 0.0)
    {
        let remedy = "use a model whose architecture does not have it";
        return Err(p.unsupported(TEMPERATURE, beta.to_string(), remedy));
    }
    if let Some(p) = scaling.as_ref().filter(|_| rules.proportional)
        && p.optional_str("rope_type")? == Some("proportional")
    {
        let rope = Rope::plain(theta, head_dim, rules.checkpoints);
        return hf_proportional(rope, p);
    }
    let rotary_dim = hf_rotary_dim(m, head_dim, rules, scaling.as_ref())?;
    let rope = Rope::plain(theta, rotary_dim, rules.checkpoints);
    scaling.map_or(Ok(rope.clone()), |p| hf_scaled(m, rope, rules, &p))
}

/// The frequencies are those of the whole head, but only the first pairs, the fastest, are rotated.
fn hf_proportional(mut rope: Rope, p: &Fields) -> Result<Rope> {
    let factor = p.optional_positive("factor")?.unwrap_or(1.0);
    let part = p.optional_positive(PART)?.unwrap_or(1.0);
    let rotated = (f64::from(part) * rope.rotary_dim as f64 / 2.0) as usize;
    let divisor = |i| if i < rotated { factor } else { NOT_ROTATED };
    rope.scaling = RopeScaling::Factors((0..rope.rotary_dim / 2).map(divisor).collect());
    Ok(rope)
}

/// Elements of a head that are rotated.
fn hf_rotary_dim(
    m: &Metadata<'_>,
    head_dim: usize,
    rules: Rules,
    p: Option<&Fields>,
) -> Result<usize> {
    let inside = p.map_or(Ok(None), |p| p.optional_positive(PART))?;
    if rules.partial {
        let part = inside.or(m.optional_positive("", PART)?);
        return Ok((head_dim as f64 * f64::from(part.unwrap_or(1.0))) as usize);
    }
    match (inside, p) {
        (Some(part), Some(p)) if part != 1.0 => {
            let remedy = "heads are rotated whole here";
            Err(p.unsupported(PART, part.to_string(), remedy))
        }
        _ => Ok(head_dim),
    }
}

fn hf_scaled(m: &Metadata<'_>, mut rope: Rope, rules: Rules, p: &Fields) -> Result<Rope> {
    let field = match p.get("rope_type") {
        Some(_) => "rope_type",
        None => "type",
    };
    match p.optional_str(field)? {
        None | Some("default") => {}
        Some("linear") => {
            rope.scaling = RopeScaling::Linear {
                factor: p.positive("factor")?,
            };
        }
        Some("llama3") => {
            let (low, high) = (
                p.positive("low_freq_factor")?,
                p.positive("high_freq_factor")?,
            );
            if high <= low {
                let problem = format!("{high} is not above low_freq_factor {low}");
                return Err(p.wrong("high_freq_factor", problem));
            }
            rope.scaling = RopeScaling::Llama3 {
                factor: p.positive("factor")?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_context: p.positive("original_max_position_embeddings")?,
            };
        }
        Some("yarn") => return hf_yarn(m, rope, p),
        Some("dynamic") if rules.alpha => rope.theta = ntk_theta(&rope, p.positive("alpha")?),
        // Changes only what is beyond the context for which the model was trained.
        Some("dynamic") if p.get("alpha").is_none() => {}
        Some("longrope" | "su") => return hf_long_short(m, rope, p),
        Some(other) => {
            let value = format!("rotary scaling {other:?}");
            let remedy = "default, linear, llama3, yarn and longrope are";
            return Err(p.unsupported(field, value, remedy));
        }
    }
    Ok(rope)
}

/// The base with which slow frequencies become `alpha` times as slow (NTK-aware scaling).
fn ntk_theta(rope: &Rope, alpha: f32) -> f32 {
    let dim = rope.rotary_dim as f64;
    (f64::from(rope.theta) * f64::from(alpha).powf(dim / (dim - 2.0))) as f32
}

fn hf_original_context(m: &Metadata<'_>, p: &Fields) -> Result<usize> {
    const FIELD: &str = "original_max_position_embeddings";
    let original = p.optional_size(FIELD, MAX_CONTEXT)?;
    let beside = m.optional_context("", FIELD)?;
    original.or(beside).map_or_else(|| m.context(), Ok)
}

fn hf_yarn(m: &Metadata<'_>, mut rope: Rope, p: &Fields) -> Result<Rope> {
    if p.optional_bool("truncate")? == Some(false) {
        let remedy = "a ramp between whole pairs is";
        return Err(p.unsupported("truncate", "false", remedy));
    }
    let original = hf_original_context(m, p)?;
    let factor = match p.optional_positive("factor")? {
        Some(factor) => factor,
        None => m.context()? as f32 / original as f32,
    };
    rope.scaling = RopeScaling::Yarn {
        factor,
        original_context: original as f32,
        beta_fast: p.optional_positive("beta_fast")?.unwrap_or(32.0),
        beta_slow: p.optional_positive("beta_slow")?.unwrap_or(1.0),
    };
    let nonzero = |name| Ok(p.optional_f32(name)?.filter(|&v| v != 0.0));
    let scales = (nonzero("mscale")?, nonzero("mscale_all_dim")?);
    rope.magnitude = match (p.optional_positive("attention_factor")?, scales) {
        (Some(magnitude), _) => magnitude,
        (None, (Some(mscale), Some(all))) => {
            (yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all)) as f32
        }
        (None, _) => yarn_magnitude(factor, 1.0) as f32,
    };
    Ok(rope)
}

fn hf_long_short(m: &Metadata<'_>, mut rope: Rope, p: &Fields) -> Result<Rope> {
    let original_context = hf_original_context(m, p)?;
    let factors = |name| p.optional_f32s(name)?.ok_or_else(|| p.missing(name));
    rope.scaling = RopeScaling::LongShort {
        short: factors("short_factor")?,
        long: factors("long_factor")?,
        original_context,
    };
    let original = original_context as f64;
    let factor = match p.optional_positive("factor")? {
        Some(factor) => f64::from(factor),
        None => m.context()? as f64 / original,
    };
    rope.magnitude = match p.optional_positive("attention_factor")? {
        Some(magnitude) => magnitude,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + factor.ln() / original.ln()).sqrt() as f32,
    };
    Ok(rope)
}
