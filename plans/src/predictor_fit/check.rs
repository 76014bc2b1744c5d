//! Checks of the input, so that the fit itself can rely on it.

use super::{FitError, FitOptions, LayerSamples, LayerWeights};

/// Rejects dimensions that do not agree, numbers that are not finite and options out of range.
pub(super) fn check(
    weights: &LayerWeights<'_>,
    samples: &LayerSamples,
    options: &FitOptions,
) -> Result<(), FitError> {
    let (d, d_ff) = (samples.d_model, samples.d_ff);
    let positive = |option, value: usize| in_range(option, value as f64, value > 0, "at least 1");
    positive("d_model", d)?;
    positive("d_ff", d_ff)?;
    in_range("rank", options.rank as f64, options.rank >= 2, "at least 2")?;
    let recall = options.target_recall;
    let proper = recall > 0.0 && recall <= 1.0;
    in_range("target_recall", recall, proper, "above 0 and at most 1")?;
    let holdout = options.holdout;
    let proper = holdout > 0.0 && holdout < 0.5;
    in_range("holdout", holdout, proper, "above 0 and below 0.5")?;
    let cut = weights.cut;
    let proper = cut.is_finite() && cut >= 0.0;
    in_range("cut", cut.into(), proper, "0 or a positive threshold")?;
    let eps = weights.rms_eps;
    let proper = eps.is_finite() && eps >= 0.0;
    in_range(
        "rms_eps",
        eps.into(),
        proper,
        "0 or a small positive number",
    )?;

    let n = samples.inputs.len() / d;
    let dimensions = format!("d_model {d}, d_ff {d_ff} and {n} samples");
    let shape = |buffer, len: usize, expected: Option<usize>| match expected == Some(len) {
        true => Ok(()),
        false => Err(FitError::Shape {
            buffer,
            len,
            expected: expected.unwrap_or(usize::MAX),
            dimensions: dimensions.clone(),
        }),
    };
    shape("gate", weights.gate.len(), d.checked_mul(d_ff))?;
    shape("norm", weights.norm.len(), Some(d))?;
    shape("inputs", samples.inputs.len(), n.checked_mul(d))?;
    if !samples.ffn_inputs.is_empty() {
        shape("ffn_inputs", samples.ffn_inputs.len(), n.checked_mul(d))?;
    }
    let words = n.checked_mul(d_ff.div_ceil(64));
    shape("live", samples.live.len(), words)?;
    finite("gate", weights.gate)?;
    finite("norm", weights.norm)?;
    finite("inputs", &samples.inputs)?;
    finite("ffn_inputs", &samples.ffn_inputs)
}

fn in_range(
    option: &'static str,
    value: f64,
    proper: bool,
    range: &'static str,
) -> Result<(), FitError> {
    match proper {
        true => Ok(()),
        false => Err(FitError::Option {
            option,
            value,
            range,
        }),
    }
}

fn finite(buffer: &'static str, values: &[f32]) -> Result<(), FitError> {
    match values.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(at) => Err(FitError::NotFinite {
            buffer,
            at,
            value: values[at],
        }),
    }
}
