//! The formats with 32 elements per block. A block holds an f16 scale `d`, for the `_1` formats
//! an f16 minimum `m`, for the 5-bit formats the 32 fifth bits, and then the low bits: byte `j`
//! has element `j` in its low and element `j + 16` in its high nibble.

use half::f16;

use super::encode_k::level;
use super::row::{Group, Row};
use super::search::{symmetric, with_minimum};
use super::{f16_at, put_f16};

const LEN: usize = 32;
const HALF: usize = LEN / 2;

fn fifth_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

pub(super) fn decode_q4_0(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in bytes
        .as_chunks::<18>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<LEN>().0)
    {
        let d = f16_at(block, 0);
        for (j, &q) in block[2..].iter().enumerate() {
            y[j] = f32::from((q & 0x0f) as i8 - 8) * d;
            y[j + HALF] = f32::from((q >> 4) as i8 - 8) * d;
        }
    }
}

pub(super) fn decode_q4_1(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in bytes
        .as_chunks::<20>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<LEN>().0)
    {
        let (d, m) = (f16_at(block, 0), f16_at(block, 2));
        for (j, &q) in block[4..].iter().enumerate() {
            y[j] = f32::from(q & 0x0f) * d + m;
            y[j + HALF] = f32::from(q >> 4) * d + m;
        }
    }
}

/// The two 5-bit values of byte `j`.
fn pair_of_5_bits(q: u8, high: u32, j: usize) -> (u8, u8) {
    let first = (q & 0x0f) | (((high >> j) & 1) as u8) << 4;
    let second = (q >> 4) | (((high >> (j + HALF)) & 1) as u8) << 4;
    (first, second)
}

pub(super) fn decode_q5_0(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in bytes
        .as_chunks::<22>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<LEN>().0)
    {
        let (d, high) = (f16_at(block, 0), fifth_bits(block, 2));
        for (j, &q) in block[6..].iter().enumerate() {
            let (a, b) = pair_of_5_bits(q, high, j);
            y[j] = f32::from(a as i8 - 16) * d;
            y[j + HALF] = f32::from(b as i8 - 16) * d;
        }
    }
}

pub(super) fn decode_q5_1(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in bytes
        .as_chunks::<24>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<LEN>().0)
    {
        let (d, m, high) = (f16_at(block, 0), f16_at(block, 2), fifth_bits(block, 4));
        for (j, &q) in block[8..].iter().enumerate() {
            let (a, b) = pair_of_5_bits(q, high, j);
            y[j] = f32::from(a) * d + m;
            y[j + HALF] = f32::from(b) * d + m;
        }
    }
}

pub(super) fn decode_q8_0(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in bytes
        .as_chunks::<34>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<LEN>().0)
    {
        let d = f16_at(block, 0);
        for (o, &q) in y.iter_mut().zip(&block[2..]) {
            *o = f32::from(q as i8) * d;
        }
    }
}

/// The first element of largest magnitude, with its sign.
fn signed_extreme(x: &[f32; LEN]) -> f32 {
    x.iter().fold(
        0.0,
        |best: f32, &v| if best.abs() < v.abs() { v } else { best },
    )
}

fn range(x: &[f32; LEN]) -> (f32, f32) {
    x.iter().fold((f32::MAX, f32::MIN), |(lo, hi), &v| {
        (if v < lo { v } else { lo }, if v > hi { v } else { hi })
    })
}

/// `1 / d`, and 0 for a block of zeros.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Scale and levels of the formats without a minimum: the extreme element gets the lowest level, so that all `2 *
/// half_levels` levels are used. With weights, the scale is searched.
fn symmetric_levels(numbers: Group<'_, LEN>, half_levels: i8) -> (f32, [u8; LEN]) {
    let (x, half) = (numbers.x, f32::from(half_levels));
    if numbers.is_weighed() {
        let d = as_stored(symmetric(x, &numbers.weights(), half));
        let levels = x.map(|v| (level(v, d).clamp(-half, half - 1.0) + half) as u8);
        return (d, levels);
    }
    let d = signed_extreme(x) / -half;
    let id = inverse(d);
    let top = (2 * half_levels - 1) as u8;
    (d, x.map(|v| ((v * id + (half + 0.5)) as u8).min(top)))
}

/// Scale, minimum and levels of the formats with a minimum. With weights, the former are searched; the minimum is not
/// above 0 then.
fn affine_levels(numbers: Group<'_, LEN>, top: u8) -> (f32, f32, [u8; LEN]) {
    let x = numbers.x;
    if numbers.is_weighed() {
        let most = f32::from(top);
        let (d, below) = with_minimum(x, &numbers.weights(), most, -10..=10);
        let (d, min) = (as_stored(d), as_stored(-below));
        let levels = x.map(|v| level(v - min, d).clamp(0.0, most) as u8);
        return (d, min, levels);
    }
    let (min, max) = range(x);
    let d = (max - min) / f32::from(top);
    let id = inverse(d);
    (d, min, x.map(|v| (((v - min) * id + 0.5) as u8).min(top)))
}

/// A scale or minimum as it is read again.
fn as_stored(v: f32) -> f32 {
    f16::from_f32(v).to_f32()
}

/// Low nibbles of `levels` in ggml's order.
pub(super) fn put_nibbles(levels: &[u8; LEN], out: &mut [u8]) {
    for (j, o) in out.iter_mut().enumerate() {
        *o = (levels[j] & 0x0f) | (levels[j + HALF] & 0x0f) << 4;
    }
}

/// Fifth bits of `levels`, element `j` in bit `j`.
fn put_fifth_bits(levels: &[u8; LEN], out: &mut [u8]) {
    let bits = levels
        .iter()
        .enumerate()
        .fold(0u32, |acc, (j, &q)| acc | u32::from(q >> 4 & 1) << j);
    out.copy_from_slice(&bits.to_le_bytes());
}

pub(super) fn encode_q4_0(row: Row<'_>, out: &mut [u8]) {
    for (numbers, block) in row.blocks::<LEN, 18>(out) {
        let (d, levels) = symmetric_levels(numbers, 8);
        put_f16(block, 0, d);
        put_nibbles(&levels, &mut block[2..]);
    }
}

pub(super) fn encode_q4_1(row: Row<'_>, out: &mut [u8]) {
    for (numbers, block) in row.blocks::<LEN, 20>(out) {
        let (d, min, levels) = affine_levels(numbers, 15);
        put_f16(block, 0, d);
        put_f16(block, 2, min);
        put_nibbles(&levels, &mut block[4..]);
    }
}

pub(super) fn encode_q5_0(row: Row<'_>, out: &mut [u8]) {
    for (numbers, block) in row.blocks::<LEN, 22>(out) {
        let (d, levels) = symmetric_levels(numbers, 16);
        put_f16(block, 0, d);
        put_fifth_bits(&levels, &mut block[2..6]);
        put_nibbles(&levels, &mut block[6..]);
    }
}

pub(super) fn encode_q5_1(row: Row<'_>, out: &mut [u8]) {
    for (numbers, block) in row.blocks::<LEN, 24>(out) {
        let (d, min, levels) = affine_levels(numbers, 31);
        put_f16(block, 0, d);
        put_f16(block, 2, min);
        put_fifth_bits(&levels, &mut block[4..8]);
        put_nibbles(&levels, &mut block[8..]);
    }
}

pub(super) fn encode_q8_0(x: &[f32], out: &mut [u8]) {
    for (x, block) in x
        .as_chunks::<LEN>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<34>().0)
    {
        let extreme = x.iter().fold(0.0, |best: f32, v| best.max(v.abs()));
        let d = extreme / 127.0;
        let id = inverse(d);
        put_f16(block, 0, d);
        for (&v, o) in x.iter().zip(&mut block[2..]) {
            // roundf: halves away from zero, like `f32::round`.
            *o = (v * id).round() as i8 as u8;
        }
    }
}
