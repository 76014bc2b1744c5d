//! Bounds on the numbers of a configuration, so that products of them cannot overflow and a
//! hostile file cannot make the engine loop or reserve without end.

use std::path::Path;

use crate::config::{ModelConfig, RopeScaling};
use crate::error::{ModelError, Result};

/// Largest layer, head, row or column count accepted: an order of magnitude above any model.
pub(crate) const MAX_DIMENSION: u64 = 1 << 24;

/// Longest context accepted, in tokens.
pub(crate) const MAX_CONTEXT: u64 = 1 << 31;

/// `value` as a size between 1 and `max`.
pub(crate) fn size(path: &Path, field: &str, value: u64, max: u64) -> Result<usize> {
    if value == 0 || value > max {
        return Err(ModelError::damaged(
            path,
            field,
            format!("{value} is not between 1 and {max}"),
        ));
    }
    Ok(value as usize)
}

/// `value` if it is finite and above 0.
pub(crate) fn positive(path: &Path, field: &str, value: f32) -> Result<f32> {
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    Err(ModelError::damaged(
        path,
        field,
        format!("{value} is not a positive number"),
    ))
}

/// Relations between fields that both formats share.
pub(crate) fn check_config(path: &Path, config: &ModelConfig) -> Result<()> {
    let wrong = |field: &str, problem: String| Err(ModelError::damaged(path, field, problem));
    if !config.n_heads.is_multiple_of(config.n_kv_heads) {
        return wrong(
            "attention heads",
            format!(
                "{} query heads cannot share {} key/value heads evenly",
                config.n_heads, config.n_kv_heads
            ),
        );
    }
    let rotary = config.rope.rotary_dim;
    if !rotary.is_multiple_of(2) || rotary > config.head_dim {
        return wrong(
            "rotary dimension",
            format!(
                "{rotary} is not an even number up to the head's {}",
                config.head_dim
            ),
        );
    }
    if let RopeScaling::Factors(f) = &config.rope.scaling {
        if f.len() != rotary / 2 {
            return wrong(
                "rope_freqs.weight",
                format!("{} factors for {} frequencies", f.len(), rotary / 2),
            );
        }
        for &v in f {
            positive(path, "rope_freqs.weight", v)?;
        }
    }
    Ok(())
}
