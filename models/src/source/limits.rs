//! Bounds on the numbers of a model, so that products of them cannot overflow and a hostile file cannot make the
//! engine loop or reserve without end.

use std::path::Path;

use crate::error::{ModelError, Result};

/// Largest head, row or column count accepted: an order of magnitude above any model.
pub(crate) const MAX_DIMENSION: u64 = 1 << 24;

/// Most layers: packed files number them with 16 bits, of which the highest number means none.
pub(crate) const MAX_LAYERS: u64 = u16::MAX as u64 - 1;

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
