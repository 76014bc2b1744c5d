//! Keys and values as integers with a scale per row, after their elements were [spread](crate::spread::spread).
//!
//! | | `scale` | codes |
//! |---|---|---|
//! | values | `max abs(x) / 127` | 8 bits, -127..=127 |
//! | keys | `max abs(x) / 254` | 9 bits, -254..=254: `2 * byte + bit` |
//!
//! Codes are `round(x / scale)`, ties to even. An error in a key moves the weights of all positions, one in a value
//! only what its position adds: so keys have a bit more.

use super::{POSITIONS, WORD};
use crate::spread::spread;

/// Largest code of a value.
const VALUE_LEVELS: f32 = 127.0;
/// Largest code of a key.
pub(crate) const KEY_LEVELS: f32 = 254.0;
/// Below this magnitude the inverse of a scale is not finite; such a row counts as zero.
const TINY: f32 = 1e-36;

/// Calls `put(i, code)` for the elements of `row` and returns the scale; a row with an infinite or NaN element has
/// scale NaN and codes 0, so that the fault shows in every product.
fn convert(row: &[f32], levels: f32, mut put: impl FnMut(usize, i32)) -> f32 {
    /// Adding it to a number below 2^22 rounds the number to an integer, whose low bits are the
    /// sum's.
    const MAGIC: f32 = 12_582_912.0;
    // The order of magnitudes as integers is that of the numbers, with infinity and NaN last.
    let bits = row.iter().map(|v| (v.to_bits() & 0x7fff_ffff) as i32);
    let max = f32::from_bits(bits.max().unwrap_or(0) as u32);
    let (scale, inverse) = match max {
        _ if !max.is_finite() => (f32::NAN, None),
        _ if max < TINY => (0.0, None),
        _ => (max / levels, Some(levels / max)),
    };
    for (i, &v) in row.iter().enumerate() {
        let code = |inverse: f32| {
            (v * inverse + MAGIC)
                .to_bits()
                .wrapping_sub(MAGIC.to_bits())
        };
        put(i, inverse.map_or(0, |inverse| code(inverse) as i32));
    }
    scale
}

/// Writes `key`, `[head_dim]`, which it spreads, as position `lane` of a group: bytes `[head_dim / 4][16][4]` and bits
/// `[head_dim / 4]` of `[16][4]`, the first of them lowest. Returns its scale.
pub(super) fn store_key(
    (bytes, bits): (&mut [i8], &mut [u64]),
    lane: usize,
    key: &mut [f32],
) -> f32 {
    spread(key);
    convert(key, KEY_LEVELS, |i, code| {
        let (word, place) = (i / WORD, lane * WORD + i % WORD);
        bytes[word * POSITIONS * WORD + place] = (code >> 1) as i8;
        let bit = 1 << place;
        bits[word] = bits[word] & !bit | if code & 1 == 1 { bit } else { 0 };
    })
}

/// Writes `value`, `[value_dim]`, which it spreads, to the start of a row, and returns its scale.
pub(super) fn store_value(row: &mut [i8], value: &mut [f32]) -> f32 {
    spread(value);
    convert(value, VALUE_LEVELS, |i, code| row[i] = code as i8)
}
