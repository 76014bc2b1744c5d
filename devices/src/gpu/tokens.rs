//! Tokens in the layout of the shaders.

use std::ops::RangeInclusive;

use forebay_kernels::Activations;
use forebay_numbers::panel::PLANE_LEN;

use crate::fault::DeviceFault;

/// Words per block and token: 32 codes, scale, sum, and counts of both halves.
pub(super) const RECORD: usize = 12;

/// Magnitudes of scales and other factors with which no product or sum is subnormal or infinite, given the shaders' own
/// limits for weights.
const RANGE: RangeInclusive<f32> =
    f32::from_bits((127 - 60) << 23)..=f32::from_bits((127 + 40) << 23);

/// Whether the device's arithmetic with a number is the CPU's.
pub(super) fn is_in_range(number: f32) -> bool {
    number == 0.0 || RANGE.contains(&number.abs())
}

/// Bytes of the words of all tokens.
pub(super) fn bytes(tokens: &Activations) -> usize {
    tokens.cols() / PLANE_LEN * tokens.n_tokens() * RECORD * 4
}

/// Writes the words of all tokens to `out`, which is `[n_blocks, n_tokens, RECORD]`.
///
/// # Errors
/// A scale is so small or so large that the device might not have the CPU's bits, or is NaN.
pub(super) fn write(tokens: &Activations, out: &mut [u8]) -> Result<(), DeviceFault> {
    let n_tokens = tokens.n_tokens();
    let records = out.as_chunks_mut::<{ 4 * RECORD }>().0;
    for block in tokens.token_blocks() {
        if !is_in_range(block.scale) {
            return Err(DeviceFault::OutOfRange);
        }
        let record = &mut records[block.block * n_tokens + block.token];
        let (codes, about) = record.split_at_mut(32);
        codes.copy_from_slice(bytemuck::cast_slice(block.codes));
        let words = [
            block.scale.to_bits(),
            block.sum.to_bits(),
            block.half_counts[0] as u32,
            block.half_counts[1] as u32,
        ];
        about.copy_from_slice(bytemuck::cast_slice(&words));
    }
    Ok(())
}
