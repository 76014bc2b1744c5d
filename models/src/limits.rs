//! Bounds on the numbers of a model, so that products of them cannot overflow and a hostile file cannot make the engine
//! loop or allocate without limit.

use std::path::Path;

use crate::error::{ModelError, Result};
use crate::files::read_at_most;

/// Largest accepted count of heads, rows or columns: an order of magnitude above any model.
pub(crate) const MAX_DIMENSION: u64 = 1 << 24;

/// Maximum number of layers: packed files number them with 16 bits, and the highest number means
/// none.
pub(crate) const MAX_LAYERS: u64 = u16::MAX as u64 - 1;

/// Longest accepted context, in tokens.
pub(crate) const MAX_CONTEXT: u64 = 1 << 31;

/// Most tokens of a vocabulary; the largest known have 262,144.
pub(crate) const MAX_TOKENS: usize = 1 << 20;

/// Most merges; the largest known have 514,906.
pub(crate) const MAX_MERGES: usize = 1 << 20;

/// Longest JSON side file: settings have some KiB. Objects of JSON may take a hundred times as much memory.
pub(crate) const MAX_SIDE_FILE: u64 = 2 << 20;

/// Longest index of a checkpoint: those of mixtures of experts name every expert's matrices, and have up to 10 MiB.
pub(crate) const MAX_INDEX: u64 = 32 << 20;

/// Reads a file of at most `most` bytes; `what` it is, for the message.
pub(crate) fn read_file(path: &Path, what: &str, most: u64) -> Result<Vec<u8>> {
    let read = read_at_most(path, most);
    let read = read.map_err(|e| ModelError::io(path, format!("read {what}"), e))?;
    read.map_err(|bytes| ModelError::Format {
        path: path.into(),
        field: "(whole file)".into(),
        problem: format!(
            "its {bytes} bytes exceed the {most} accepted, far more than known models need"
        ),
        remedy: format!("check that it is {what}, or download it again"),
    })
}

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
