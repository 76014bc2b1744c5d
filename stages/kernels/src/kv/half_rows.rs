//! Keys and values in half precision.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::POSITIONS;

/// Elements that are converted together.
const PART: usize = 16;

/// Calls `put(first, halves)` for parts of `row`, rounded to the nearest f16 (ties to even).
fn convert(row: &[f32], mut put: impl FnMut(usize, &[f16])) {
    let mut halves = [f16::ZERO; PART];
    for (i, part) in row.chunks(PART).enumerate() {
        let halves = &mut halves[..part.len()];
        halves.convert_from_f32_slice(part);
        put(i * PART, halves);
    }
}

/// Writes `key`, `[head_dim]`, as position `lane` of a group, `[head_dim][16]`.
pub(super) fn store_key(group: &mut [u16], lane: usize, key: &[f32]) {
    convert(key, |first, halves| {
        let lanes = group[first * POSITIONS + lane..].iter_mut();
        for (to, half) in lanes.step_by(POSITIONS).zip(halves) {
            *to = half.to_bits();
        }
    });
}

/// Writes `value`, `[value_dim]`, to the start of a row.
pub(super) fn store_value(row: &mut [u16], value: &[f32]) {
    convert(value, |first, halves| {
        for (to, half) in row[first..].iter_mut().zip(halves) {
            *to = half.to_bits();
        }
    });
}
