//! The k-quants: 256 elements per block, split into sub-blocks of 16 or 32, each with its own small
//! integer scale (and minimum), under one f16 scale `d` (and one f16 scale `dmin` of minima).

use super::f16_at;

pub(super) const LEN: usize = 256;

/// Q2_K: scales `[16]` (low nibble scale, high nibble minimum), 2-bit levels `[64]`, d, dmin.
pub(super) fn decode_q2_k(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in bytes
        .as_chunks::<84>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<LEN>().0)
    {
        let (scales, levels) = (&block[..16], &block[16..80]);
        let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
        for (sub, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (first, shift) = two_bit_place(sub);
            let scale = d * f32::from(scales[sub] & 0x0f);
            let min = dmin * f32::from(scales[sub] >> 4);
            for (o, &q) in y.iter_mut().zip(&levels[first..first + 16]) {
                *o = scale * f32::from(q >> shift & 3) - min;
            }
        }
    }
}

/// Where the low two bits of sub-block `sub` of 16 elements are: the first byte and the shift. 128
/// elements share 32 bytes, 32 elements per bit pair.
pub(super) fn two_bit_place(sub: usize) -> (usize, usize) {
    (sub / 8 * 32 + sub % 2 * 16, sub % 8 / 2 * 2)
}

/// Q3_K: third bits `[32]` (set means no subtraction of 4), low bits `[64]`, 6-bit scales `[12]`, d.
pub(super) fn decode_q3_k(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in bytes
        .as_chunks::<110>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<LEN>().0)
    {
        let (third, low, packed) = (&block[..32], &block[32..96], &block[96..108]);
        let d = f16_at(block, 108);
        for (sub, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (first, shift) = two_bit_place(sub);
            let scale = d * f32::from(q3_k_scale(packed, sub));
            let third = &third[sub % 2 * 16..];
            for (l, o) in y.iter_mut().enumerate() {
                let kept = third[l] >> (sub / 2) & 1;
                let level = (low[first + l] >> shift & 3) as i8 - if kept == 1 { 0 } else { 4 };
                *o = scale * f32::from(level);
            }
        }
    }
}

/// The signed 6-bit scale of sub-block `sub`: its low nibble is in bytes 0..8 (sub-blocks 0..8
/// low, 8..16 high nibbles), its upper two bits in bytes 8..12.
fn q3_k_scale(packed: &[u8], sub: usize) -> i8 {
    let low = packed[sub % 8] >> (sub / 8 * 4) & 0x0f;
    let high = packed[8 + sub % 4] >> (sub / 4 * 2) & 3;
    (low | high << 4) as i8 - 32
}

/// The 6-bit scale and minimum of sub-block `sub` (of 32 elements) in Q4_K and Q5_K.
fn scale_and_min(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        let scale = packed[sub + 4] & 0x0f | packed[sub - 4] >> 6 << 4;
        let min = packed[sub + 4] >> 4 | packed[sub] >> 6 << 4;
        (scale, min)
    }
}

/// Q4_K: d, dmin, scales `[12]`, 4-bit levels `[128]`.
pub(super) fn decode_q4_k(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in bytes
        .as_chunks::<144>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<LEN>().0)
    {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        let (packed, levels) = (&block[4..16], &block[16..]);
        for (sub, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = scale_and_min(packed, sub);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            let shift = sub % 2 * 4;
            for (o, &q) in y.iter_mut().zip(&levels[sub / 2 * 32..]) {
                *o = scale * f32::from(q >> shift & 0x0f) - min;
            }
        }
    }
}

/// Q5_K: d, dmin, scales `[12]`, fifth bits `[32]`, low bits `[128]`.
pub(super) fn decode_q5_k(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in bytes
        .as_chunks::<176>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<LEN>().0)
    {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        let (packed, fifth, low) = (&block[4..16], &block[16..48], &block[48..]);
        for (sub, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = scale_and_min(packed, sub);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            let (shift, low) = (sub % 2 * 4, &low[sub / 2 * 32..]);
            for (l, o) in y.iter_mut().enumerate() {
                let level = low[l] >> shift & 0x0f | (fifth[l] >> sub & 1) << 4;
                *o = scale * f32::from(level) - min;
            }
        }
    }
}

/// Q6_K: low nibbles `[128]`, upper two bits `[64]`, i8 scales `[16]`, d.
pub(super) fn decode_q6_k(bytes: &[u8], out: &mut [f32]) {
    for (block, y) in bytes
        .as_chunks::<210>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<LEN>().0)
    {
        let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
        let d = f16_at(block, 208);
        for (sub, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            // 128 elements share 64 bytes of low nibbles and 32 bytes of upper bits.
            let (half, quarter, odd) = (sub / 8, sub % 8 / 2, sub % 2 * 16);
            let low = &low[half * 64 + quarter % 2 * 32 + odd..];
            let high = &high[half * 32 + odd..];
            let scale = d * f32::from(scales[sub] as i8);
            for (l, o) in y.iter_mut().enumerate() {
                let level =
                    low[l] >> (quarter / 2 * 4) & 0x0f | (high[l] >> (quarter * 2) & 3) << 4;
                *o = scale * f32::from(level as i8 - 32);
            }
        }
    }
}
