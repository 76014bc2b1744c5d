//! Rotations of checkpoints: `rope_parameters` of transformers 5, and the earlier `rope_theta` beside `rope_scaling`.

mod parameters;

use super::{Metadata, Rules, yarn_magnitude};
use crate::arch::fields::Fields;
use crate::error::Result;
use crate::network::{NOT_ROTATED, Rope, RopeScaling, Temperature};
use parameters::{
    ORIGINAL, PARAMETERS, THETA, original_context, parameters, refuse_original_beside, scaling_type,
};

/// The share of a head that is rotated.
const PART: &str = "partial_rotary_factor";
/// What helps where no base is assumed.
const ADD_THETA: &str = "add the base with which the model was trained: the versions of transformers assume different \
    ones without it";
/// How queries grow with the position.
const TEMPERATURE: &str = "llama_4_scaling_beta";

/// The rotation of all layers, or of those of one type if the checkpoint has one for each.
pub(super) fn rotation(
    m: &Metadata<'_>,
    head_dim: usize,
    rules: Rules,
    layer_type: Option<&str>,
) -> Result<Rope> {
    let p = parameters(m, layer_type)?;
    if rules.required && p.is_none() {
        return Err(m.missing("", PARAMETERS));
    }
    // Always read: files of transformers 4 have it beside the others.
    let beside = m.optional_positive("", THETA)?;
    read(m, head_dim, rules, p.as_ref(), beside)
}

/// The rotation of layers with a sliding window, whose base is `theta` unless their own parameters have one.
pub(super) fn sliding(m: &Metadata<'_>, head_dim: usize, rules: Rules, theta: f32) -> Result<Rope> {
    let by_type = m.fields().optional_object(PARAMETERS)?;
    let own = by_type.map_or(Ok(None), |p| p.optional_object("sliding_attention"))?;
    match own {
        Some(p) => read(m, head_dim, rules, Some(&p), Some(theta)),
        None => Ok(Rope::plain(theta, head_dim, rules.checkpoints)),
    }
}

/// The rotation that `p` describes; `theta` is what its base is otherwise.
fn read(
    m: &Metadata<'_>,
    head_dim: usize,
    rules: Rules,
    p: Option<&Fields>,
    theta: Option<f32>,
) -> Result<Rope> {
    let inside = p.map_or(Ok(None), |p| p.optional_positive(THETA))?;
    let theta = inside
        .or(theta)
        .ok_or_else(|| m.fields().incomplete(THETA, ADD_THETA))?;
    if let Some(p) = p.filter(|_| !rules.temperature)
        && let Some(beta) = p.optional_f32(TEMPERATURE)?.filter(|&beta| beta != 0.0)
    {
        let remedy = "use a model whose architecture does not have it";
        return Err(p.unsupported(TEMPERATURE, beta.to_string(), remedy));
    }
    if let Some(p) = p.filter(|_| rules.proportional)
        && p.optional_str("rope_type")? == Some("proportional")
    {
        let rope = Rope::plain(theta, head_dim, rules.checkpoints);
        return proportional(rope, p);
    }
    let rotary_dim = rotary_dim(m, head_dim, rules, p)?;
    let rope = Rope::plain(theta, rotary_dim, rules.checkpoints);
    p.map_or(Ok(rope.clone()), |p| scaled(m, rope, rules, p))
}

/// The temperature of queries, if there is one.
pub(super) fn temperature(m: &Metadata<'_>) -> Result<Option<Temperature>> {
    let Some(p) = parameters(m, None)? else {
        return Ok(None);
    };
    let original_context = original_context(m, &p)?;
    let beta = p.optional_f32(TEMPERATURE)?.filter(|&beta| beta != 0.0);
    Ok(beta.map(|beta| Temperature {
        beta,
        original_context,
    }))
}

/// What YaRN multiplies scores by. transformers does the same with every type that has a factor.
pub(super) fn score_factor(m: &Metadata<'_>, rope: &Rope) -> Result<f32> {
    const STRENGTH: &str = "mscale_all_dim";
    let Some(p) = parameters(m, None)? else {
        return Ok(1.0);
    };
    let strength = p
        .optional_f32(STRENGTH)?
        .filter(|&strength| strength != 0.0);
    let Some(strength) = strength else {
        return Ok(1.0);
    };
    let (_, kind) = scaling_type(&p)?;
    match (&rope.scaling, kind) {
        (&RopeScaling::Yarn { factor, .. }, _) => {
            Ok(yarn_magnitude(factor, strength).powi(2) as f32)
        }
        (_, None | Some("default")) => Ok(1.0),
        _ if p.optional_f32("factor")?.is_none_or(|factor| factor <= 1.0) => Ok(1.0),
        (_, Some(kind)) => {
            let value = format!("{strength} with the type {kind:?}");
            Err(p.unsupported(STRENGTH, value, "a strength is with the type yarn"))
        }
    }
}

/// The frequencies are those of the whole head, but only the first pairs, the fastest, are rotated.
fn proportional(mut rope: Rope, p: &Fields) -> Result<Rope> {
    let factor = p.optional_positive("factor")?.unwrap_or(1.0);
    let part = p.optional_positive(PART)?.unwrap_or(1.0);
    let rotated = (f64::from(part) * rope.rotary_dim as f64 / 2.0) as usize;
    let divisor = |i| if i < rotated { factor } else { NOT_ROTATED };
    rope.scaling = RopeScaling::Factors((0..rope.rotary_dim / 2).map(divisor).collect());
    Ok(rope)
}

/// Elements of a head that are rotated.
fn rotary_dim(
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

fn scaled(m: &Metadata<'_>, mut rope: Rope, rules: Rules, p: &Fields) -> Result<Rope> {
    let (field, kind) = scaling_type(p)?;
    match kind {
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
            if p.get(ORIGINAL).is_none() {
                return Err(p.missing(ORIGINAL));
            }
            rope.scaling = RopeScaling::Llama3 {
                factor: p.positive("factor")?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_context: original_context(m, p)? as f32,
            };
        }
        // transformers takes it for longrope where the architecture has such factors.
        Some("yarn") if p.get("short_factor").is_some() => {
            let remedy = "longrope is the type of such factors";
            return Err(p.unsupported(field, "\"yarn\" with short_factor", remedy));
        }
        Some("yarn") => return yarn(m, rope, p),
        Some("dynamic") if rules.alpha => rope.theta = ntk_theta(&rope, p.positive("alpha")?),
        // Changes only what is beyond the context for which the model was trained.
        Some("dynamic") if p.get("alpha").is_none() => {}
        Some("longrope" | "su") => return long_short(m, rope, p),
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

fn yarn(m: &Metadata<'_>, mut rope: Rope, p: &Fields) -> Result<Rope> {
    if p.optional_bool("truncate")? == Some(false) {
        let remedy = "a ramp between whole pairs is";
        return Err(p.unsupported("truncate", "false", remedy));
    }
    refuse_original_beside(m, p)?;
    let original = original_context(m, p)?;
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

fn long_short(m: &Metadata<'_>, mut rope: Rope, p: &Fields) -> Result<Rope> {
    let original_context = original_context(m, p)?;
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
