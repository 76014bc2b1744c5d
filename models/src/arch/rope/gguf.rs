//! Rotations of GGUF files: `rope.*` keys and factor tensors.

use super::{Metadata, Rules, yarn_magnitude};
use crate::error::Result;
use crate::network::{Rope, RopeScaling};

/// The rotation of all layers, or of those without a sliding window.
pub(super) fn rotation(m: &Metadata<'_>, head_dim: usize, rules: Rules) -> Result<Rope> {
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
        refuse_factor_beside_tensors(m)?;
        let original_context = original_context(m)?;
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
        _ => factor(m)?,
    };
    if kind == Some("yarn") {
        return yarn(m, rope, factor.unwrap_or(1.0));
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

/// llama.cpp divides by a factor on top of the tensors; no converter writes both.
fn refuse_factor_beside_tensors(m: &Metadata<'_>) -> Result<()> {
    const FACTOR: (&str, &str) = ("rope.scaling.factor", "");
    let scales = m.optional_str("rope.scaling.type", "")? != Some("none");
    match factor(m)?.filter(|_| scales) {
        None => Ok(()),
        Some(factor) => {
            let value = format!("{factor} beside rope_factors_long.weight");
            Err(m.unsupported(FACTOR, value, "1 is: convert the model again"))
        }
    }
}

/// The divisor of all frequencies, if it is not 1. A factor without a type means linear; a factor of 0 means none.
fn factor(m: &Metadata<'_>) -> Result<Option<f32>> {
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        if let Some(factor) = m.nonzero(key, "")? {
            return Ok((factor != 1.0).then_some(factor));
        }
    }
    Ok(None)
}

pub(super) fn original_context(m: &Metadata<'_>) -> Result<usize> {
    let original = m.optional_context("rope.scaling.original_context_length", "")?;
    original.map_or_else(|| m.context(), Ok)
}

/// As llama.cpp computes it: the magnitude of the paper, divided by that for `yarn_log_multiplier`.
fn yarn(m: &Metadata<'_>, mut rope: Rope, factor: f32) -> Result<Rope> {
    let beta = |key, default| Ok(m.optional_positive(key, "")?.unwrap_or(default));
    rope.scaling = RopeScaling::Yarn {
        factor,
        original_context: original_context(m)? as f32,
        beta_fast: beta("rope.scaling.yarn_beta_fast", 32.0)?,
        beta_slow: beta("rope.scaling.yarn_beta_slow", 1.0)?,
    };
    let multiplier = m.nonzero("rope.scaling.yarn_log_multiplier", "")?;
    let extra = m.optional_positive("rope.scaling.attn_factor", "")?;
    let magnitude = yarn_magnitude(factor, 1.0) / yarn_magnitude(factor, multiplier.unwrap_or(0.0));
    rope.magnitude = (magnitude * f64::from(extra.unwrap_or(1.0))) as f32;
    Ok(rope)
}

/// The rotation of layers with a sliding window, which has the base `theta`.
pub(super) fn sliding(m: &Metadata<'_>, head_dim: usize, rules: Rules, theta: f32) -> Result<Rope> {
    let rotary_dim = match m.optional_size("rope.dimension_count_swa", "")? {
        Some(own) => Some(own),
        None => m.optional_size("rope.dimension_count", "")?,
    };
    Ok(Rope::plain(
        theta,
        rotary_dim.unwrap_or(head_dim),
        rules.pairing,
    ))
}

/// What YaRN multiplies scores by. Files have a tenth of the strength: their cosines and sines stay as they are.
pub(super) fn score_factor(m: &Metadata<'_>, rope: &mut Rope) -> Result<f32> {
    const EXTRA: (&str, &str) = ("rope.scaling.attn_factor", "");
    if let Some(extra) = m.optional_positive(EXTRA.0, "")?.filter(|&v| v != 1.0) {
        return Err(m.unsupported(EXTRA, extra.to_string(), "1 is: convert the model again"));
    }
    let tenth = m.nonzero("rope.scaling.yarn_log_multiplier", "")?;
    match (&rope.scaling, tenth) {
        // llama.cpp changes the scores whatever the type is.
        (RopeScaling::Linear { factor }, _) => {
            let value = format!("a linear factor of {factor}");
            let remedy = "yarn is: use the model without a context extension";
            Err(m.unsupported(("rope.scaling.factor", ""), value, remedy))
        }
        (&RopeScaling::Yarn { factor, .. }, Some(tenth)) => {
            rope.magnitude = 1.0;
            Ok(yarn_magnitude(factor, 10.0 * tenth).powi(2) as f32)
        }
        _ => Ok(1.0),
    }
}
