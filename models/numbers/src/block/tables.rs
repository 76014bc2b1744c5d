//! The formats whose 4-bit codes are places in a table of 16 values: a block holds its scales, and then the codes, 32
//! elements in 16 bytes, byte `j` with element `j` in its low and element `j + 16` in its high nibble.

use super::encode_k::level;
use super::legacy::put_nibbles;
use super::row::{Group, Row};
use super::search::{sum, symmetric, tabulated};
use super::{f16_at, put_f16};

/// Elements whose codes are in 16 consecutive bytes.
const LEN: usize = 32;
const HALF: usize = LEN / 2;

/// The values of IQ4_NL and IQ4_XS: closer to each other around 0, where most weights are.
pub const IQ4_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// The values of MXFP4, the 4-bit floating-point numbers of the OCP's Microscaling Formats, doubled. There is no
/// negative 0.
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `scale` times the values of 32 codes.
fn look_up(values: &[i8; 16], scale: f32, codes: &[u8], y: &mut [f32; LEN]) {
    for (j, &q) in codes.iter().enumerate() {
        y[j] = scale * f32::from(values[usize::from(q & 0x0f)]);
        y[j + HALF] = scale * f32::from(values[usize::from(q >> 4)]);
    }
}

/// IQ4_NL: d, codes `[16]`.
pub(super) fn decode_iq4_nl(bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.as_chunks::<18>().0.iter();
    for (block, y) in blocks.zip(out.as_chunks_mut::<LEN>().0) {
        look_up(&IQ4_VALUES, f16_at(block, 0), &block[2..], y);
    }
}

/// IQ4_XS: d, the upper two bits of eight scales `[2]`, their low nibbles `[4]`, codes `[128]`.
pub(super) fn decode_iq4_xs(bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.as_chunks::<136>().0.iter();
    for (block, y) in blocks.zip(out.as_chunks_mut::<{ 8 * LEN }>().0) {
        let d = f16_at(block, 0);
        let codes = block[8..].as_chunks::<HALF>().0.iter();
        for (sub, (codes, y)) in codes.zip(y.as_chunks_mut().0).enumerate() {
            let low = block[4 + sub / 2] >> (4 * (sub % 2)) & 0x0f;
            let high = block[2 + sub / 4] >> (2 * (sub % 4)) & 3;
            let scale = d * f32::from((low | high << 4) as i8 - 32);
            look_up(&IQ4_VALUES, scale, codes, y);
        }
    }
}

/// MXFP4: an exponent, codes `[16]`.
pub(super) fn decode_mxfp4(bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.as_chunks::<17>().0.iter();
    for (block, y) in blocks.zip(out.as_chunks_mut::<LEN>().0) {
        look_up(&MXFP4_VALUES, mxfp4_scale(block[0]), &block[1..], y);
    }
}

/// `2^(exponent - 128)`: half of what the exponent stands for, since the table's values are doubled. The two least are
/// subnormal.
fn mxfp4_scale(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    f32::from_bits(match exponent {
        0 | 1 => 1 << (21 + exponent),
        _ => (exponent - 1) << 23,
    })
}

/// Which value of IQ4's table is the nearest.
fn iq4_place(v: f32) -> u8 {
    let values = IQ4_VALUES.windows(2);
    let beyond = values.filter(|pair| v >= (f32::from(pair[0]) + f32::from(pair[1])) / 2.0);
    beyond.count() as u8
}

/// The best scale for 32 numbers, and the sum of their weights.
fn iq4_scale(numbers: Group<'_, LEN>) -> (f32, f32) {
    let w = numbers.weights();
    let nearest = |v| f32::from(IQ4_VALUES[usize::from(iq4_place(v))]);
    let scale = tabulated(numbers.x, &w, f32::from(IQ4_VALUES[0]), nearest);
    (scale, sum::<LEN>(|i| w[i]))
}

fn put_iq4(x: &[f32; LEN], scale: f32, codes: &mut [u8]) {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    put_nibbles(&x.map(|v| iq4_place(v * inverse)), codes);
}

/// See [`decode_iq4_nl`].
pub(super) fn encode_iq4_nl(row: Row<'_>, out: &mut [u8]) {
    for (numbers, block) in row.blocks::<LEN, 18>(out) {
        let (scale, _) = iq4_scale(numbers);
        let scale = put_f16(block, 0, scale);
        put_iq4(numbers.x, scale, &mut block[2..]);
    }
}

/// See [`decode_iq4_xs`].
pub(super) fn encode_iq4_xs(row: Row<'_>, out: &mut [u8]) {
    for (numbers, block) in row.blocks::<{ 8 * LEN }, 136>(out) {
        let (mut scales, mut sums) = ([0.0; 8], [0.0; 8]);
        for (sub, part) in numbers.parts::<LEN>().enumerate() {
            (scales[sub], sums[sub]) = iq4_scale(part);
        }
        let d = put_f16(block, 0, symmetric(&scales, &sums, 32.0));
        for (sub, x) in numbers.x.as_chunks::<LEN>().0.iter().enumerate() {
            let scale = level(scales[sub], d).clamp(-32.0, 31.0);
            let code = (scale + 32.0) as u8;
            block[4 + sub / 2] |= (code & 0x0f) << (4 * (sub % 2));
            block[2 + sub / 4] |= code >> 4 << (2 * (sub % 4));
            put_iq4(x, d * scale, &mut block[8 + HALF * sub..][..HALF]);
        }
    }
}

/// See [`decode_mxfp4`]. As the specification has it, the exponent is that of the largest number, which may be cut to
/// the largest value; numbers halfway between two values become the smaller one.
pub(super) fn encode_mxfp4(x: &[f32], out: &mut [u8]) {
    let blocks = x.as_chunks::<LEN>().0.iter();
    for (x, block) in blocks.zip(out.as_chunks_mut::<17>().0) {
        let largest = x.iter().fold(0.0, |a: f32, v| a.max(v.abs()));
        // The largest value is 1.5 * 2^2.
        block[0] = (largest.to_bits() >> 23).saturating_sub(2) as u8;
        let scale = mxfp4_scale(block[0]);
        let place = |v: f32| {
            let values = MXFP4_VALUES[..8].windows(2);
            let halfway = |pair: &[i8]| (f32::from(pair[0]) + f32::from(pair[1])) / 2.0 * scale;
            let beyond = values.filter(|pair| v.abs() > halfway(pair)).count() as u8;
            if v < 0.0 && beyond > 0 {
                beyond | 8
            } else {
                beyond
            }
        };
        put_nibbles(&x.map(place), &mut block[1..]);
    }
}
