//! Keys and values in signed bytes: `scale = max |x| / 127`, `code = round(x * 127 / max |x|)`, ties to
//! even, so codes are in -127..=127.

use super::{POSITIONS, WORD};

/// Elements that are converted together.
const PART: usize = 16;
/// Below this magnitude `127 / max` is not finite; such a row counts as zero.
const TINY: f32 = 1e-36;

/// Calls `put(first, codes)` for parts of `row` and returns the scale; a row with an infinite or NaN element
/// has scale NaN and codes 0, so that the fault shows in every product.
fn convert(row: &[f32], mut put: impl FnMut(usize, &[i8])) -> f32 {
    /// Adding it to a number below 2^22 rounds the number to an integer, whose low bits are the
    /// sum's.
    const MAGIC: f32 = 12_582_912.0;
    // The order of magnitudes as integers is that of the numbers, with infinity and NaN last.
    let bits = row.iter().map(|v| (v.to_bits() & 0x7fff_ffff) as i32);
    let max = f32::from_bits(bits.max().unwrap_or(0) as u32);
    let (scale, inverse) = match max {
        _ if !max.is_finite() => (f32::NAN, None),
        _ if max < TINY => (0.0, None),
        _ => (max / 127.0, Some(127.0 / max)),
    };
    let mut codes = [0; PART];
    for (i, part) in row.chunks(PART).enumerate() {
        let codes = &mut codes[..part.len()];
        for (code, &v) in codes.iter_mut().zip(part) {
            *code = inverse.map_or(0, |inverse| (v * inverse + MAGIC).to_bits() as i8);
        }
        put(i * PART, codes);
    }
    scale
}

/// Writes `key`, `[head_dim]`, as position `lane` of a group, `[head_dim / 4][16][4]`, and returns its
/// scale.
pub(super) fn store_key(group: &mut [i8], lane: usize, key: &[f32]) -> f32 {
    convert(key, |first, codes| {
        let words = group[first * POSITIONS..].chunks_mut(POSITIONS * WORD);
        for (to, codes) in words.zip(codes.chunks(WORD)) {
            to[lane * WORD..][..codes.len()].copy_from_slice(codes);
        }
    })
}

/// Writes `value`, `[head_dim]`, to the start of a row, and returns its scale.
pub(super) fn store_value(row: &mut [i8], value: &[f32]) -> f32 {
    convert(value, |first, codes| {
        row[first..][..codes.len()].copy_from_slice(codes)
    })
}
