//! Attention as its shader is given it.

use std::f32::consts::LOG2_E;

use forebay_kernels::kv::BLOCK;

use crate::attention::AttentionWork;
use crate::fault::DeviceFault;
use crate::shaders::ATTENTION_ROWS;

use super::given::{Given, Vector};
use super::tokens::is_in_range;

/// Positions that the shader can name.
const MOST_POSITIONS: usize = 1 << 31;

/// Appends the sequence's blocks, queries, sinks and the numbers of a job, and returns where these are, in vectors.
///
/// # Errors
/// One of them is out of range.
pub(super) fn write(work: &AttentionWork, given: &mut Given<'_>) -> Result<usize, DeviceFault> {
    let end = work.position.saturating_add(work.n_tokens);
    if end > MOST_POSITIONS {
        let problem = format!("{end} positions are too many for the device");
        return Err(DeviceFault::BadJob(problem));
    }
    // As the CPU rounds them.
    let factor = work.scale * LOG2_E;
    let sinks: Vec<f32> = work.sinks.iter().map(|sink| sink * LOG2_E).collect();
    let mut numbers = work.queries.iter().chain(&sinks).chain([&factor]);
    if !numbers.all(|&number| is_in_range(number)) {
        return Err(DeviceFault::OutOfRange);
    }
    let blocks_at = given.numbers(&work.blocks[..end.div_ceil(BLOCK)]);
    let queries_at = given.numbers(bytemuck::cast_slice(&work.queries)) / 4;
    // Never 0, since blocks come first.
    let sinks_at = match sinks.is_empty() {
        true => 0,
        false => given.numbers(bytemuck::cast_slice(&sinks)),
    };
    let kv = &work.kv;
    let numbers: [Vector; 3] = [
        [work.heads, work.group, work.first, work.position],
        [
            work.window.min(MOST_POSITIONS),
            kv.head_dim,
            kv.value_dim,
            kv.blocks,
        ],
        [factor.to_bits() as usize, blocks_at, queries_at, sinks_at],
    ]
    .map(|vector| vector.map(|number| number as u32));
    Ok(given.vectors(&numbers))
}

/// The workgroups of a job.
pub(super) fn groups(work: &AttentionWork) -> [usize; 3] {
    let heads = (0..work.kv.heads).map(|kv| work.readers(kv).len());
    let rows = work.n_tokens * heads.max().unwrap_or(0);
    [rows.div_ceil(ATTENTION_ROWS), work.kv.heads, 1]
}
