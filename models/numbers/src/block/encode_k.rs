//! Writing the k-quants: scales of sub-blocks are searched, then rounded themselves, and then the levels follow from
//! the rounded scales.

use super::kquants::{LEN, two_bit_place};
use super::put_f16;
use super::row::{Group, Row};
use super::search::{nearest, sum, symmetric, unsigned, with_minimum};

/// The quotient as a level, and 0 if the scale is.
pub(super) fn level(v: f32, scale: f32) -> f32 {
    if scale == 0.0 {
        0.0
    } else {
        nearest(v / scale)
    }
}

/// Scales and minima of `SUBS` sub-blocks of `N` numbers as integers `0..=top`, and their factors.
struct Scales<const SUBS: usize> {
    scales: [u8; SUBS],
    minima: [u8; SUBS],
    d: f32,
    dmin: f32,
}

impl<const SUBS: usize> Scales<SUBS> {
    /// Searches them for levels `0..=levels` and writes their factors to byte `at` of the block.
    fn search<const N: usize>(
        numbers: Group<'_, LEN>,
        (levels, top): (f32, f32),
        (block, at): (&mut [u8], usize),
    ) -> Self {
        let (mut scales, mut minima, mut sums) = ([0.0; SUBS], [0.0; SUBS], [0.0; SUBS]);
        for (sub, part) in numbers.parts::<N>().enumerate() {
            let w = part.weights();
            (scales[sub], minima[sub]) = with_minimum(part.x, &w, levels, -10..=10);
            sums[sub] = sum::<N>(|i| w[i]);
        }
        let d = put_f16(block, at, unsigned(&scales, &sums, top));
        let dmin = put_f16(block, at + 2, unsigned(&minima, &sums, top));
        Self {
            scales: scales.map(|v| level(v, d).clamp(0.0, top) as u8),
            minima: minima.map(|v| level(v, dmin).clamp(0.0, top) as u8),
            d,
            dmin,
        }
    }

    /// The levels `0..=top` of sub-block `sub`.
    fn levels<'a>(&self, x: &'a [f32], sub: usize, top: f32) -> impl Iterator<Item = u8> + 'a {
        let scale = self.d * f32::from(self.scales[sub]);
        let min = self.dmin * f32::from(self.minima[sub]);
        x.iter()
            .map(move |v| level(v + min, scale).clamp(0.0, top) as u8)
    }
}

/// See [`decode_q2_k`](super::kquants::decode_q2_k).
pub(super) fn encode_q2_k(row: Row<'_>, out: &mut [u8]) {
    for (numbers, block) in row.blocks::<LEN, 84>(out) {
        let found = Scales::<16>::search::<16>(numbers, (3.0, 15.0), (&mut block[..], 80));
        for (sub, x) in numbers.x.as_chunks::<16>().0.iter().enumerate() {
            block[sub] = found.scales[sub] | found.minima[sub] << 4;
            let (first, shift) = two_bit_place(sub);
            for (j, level) in found.levels(x, sub, 3.0).enumerate() {
                block[16 + first + j] |= level << shift;
            }
        }
    }
}

/// See [`decode_q3_k`](super::kquants::decode_q3_k).
pub(super) fn encode_q3_k(row: Row<'_>, out: &mut [u8]) {
    for (numbers, block) in row.blocks::<LEN, 110>(out) {
        let (scales, sums) = signed_scales(numbers, 4.0);
        let d = put_f16(block, 108, symmetric(&scales, &sums, 32.0));
        for (sub, x) in numbers.x.as_chunks::<16>().0.iter().enumerate() {
            let scale = level(scales[sub], d).clamp(-32.0, 31.0);
            let code = (scale + 32.0) as u8;
            block[96 + sub % 8] |= (code & 0x0f) << (sub / 8 * 4);
            block[104 + sub % 4] |= code >> 4 << (sub / 4 * 2);
            let (first, shift) = two_bit_place(sub);
            for (j, &v) in x.iter().enumerate() {
                let level = (level(v, d * scale).clamp(-4.0, 3.0) + 4.0) as u8;
                block[32 + first + j] |= (level & 3) << shift;
                block[sub % 2 * 16 + j] |= level >> 2 << (sub / 2);
            }
        }
    }
}

/// See `scale_and_min` in [`super::kquants`].
fn put_scales_and_minima(found: &Scales<8>, packed: &mut [u8]) {
    for sub in 0..4 {
        let (scale, min) = (found.scales[sub + 4], found.minima[sub + 4]);
        packed[sub] = found.scales[sub] | scale >> 4 << 6;
        packed[sub + 4] = found.minima[sub] | min >> 4 << 6;
        packed[sub + 8] = scale & 0x0f | (min & 0x0f) << 4;
    }
}

/// See [`decode_q4_k`](super::kquants::decode_q4_k).
pub(super) fn encode_q4_k(row: Row<'_>, out: &mut [u8]) {
    for (numbers, block) in row.blocks::<LEN, 144>(out) {
        let found = Scales::<8>::search::<32>(numbers, (15.0, 63.0), (&mut block[..], 0));
        put_scales_and_minima(&found, &mut block[4..16]);
        for (sub, x) in numbers.x.as_chunks::<32>().0.iter().enumerate() {
            for (j, level) in found.levels(x, sub, 15.0).enumerate() {
                block[16 + sub / 2 * 32 + j] |= level << (sub % 2 * 4);
            }
        }
    }
}

/// See [`decode_q5_k`](super::kquants::decode_q5_k).
pub(super) fn encode_q5_k(row: Row<'_>, out: &mut [u8]) {
    for (numbers, block) in row.blocks::<LEN, 176>(out) {
        let found = Scales::<8>::search::<32>(numbers, (31.0, 63.0), (&mut block[..], 0));
        put_scales_and_minima(&found, &mut block[4..16]);
        for (sub, x) in numbers.x.as_chunks::<32>().0.iter().enumerate() {
            for (j, level) in found.levels(x, sub, 31.0).enumerate() {
                block[16 + j] |= level >> 4 << sub;
                block[48 + sub / 2 * 32 + j] |= (level & 0x0f) << (sub % 2 * 4);
            }
        }
    }
}

/// See [`decode_q6_k`](super::kquants::decode_q6_k).
pub(super) fn encode_q6_k(row: Row<'_>, out: &mut [u8]) {
    for (numbers, block) in row.blocks::<LEN, 210>(out) {
        let (scales, sums) = signed_scales(numbers, 32.0);
        let d = put_f16(block, 208, symmetric(&scales, &sums, 128.0));
        for (sub, x) in numbers.x.as_chunks::<16>().0.iter().enumerate() {
            let scale = level(scales[sub], d).clamp(-128.0, 127.0);
            block[192 + sub] = scale as i8 as u8;
            let (half, quarter, odd) = (sub / 8, sub % 8 / 2, sub % 2 * 16);
            for (j, &v) in x.iter().enumerate() {
                let level = (level(v, d * scale).clamp(-32.0, 31.0) + 32.0) as u8;
                let low = half * 64 + quarter % 2 * 32 + odd + j;
                block[low] |= (level & 0x0f) << (quarter / 2 * 4);
                block[128 + half * 32 + odd + j] |= level >> 4 << (quarter * 2);
            }
        }
    }
}

/// Scales of 16 sub-blocks of 16 numbers for levels `-half..half`, and the sums of the weights.
fn signed_scales(numbers: Group<'_, LEN>, half: f32) -> ([f32; 16], [f32; 16]) {
    let (mut scales, mut sums) = ([0.0; 16], [0.0; 16]);
    for (sub, part) in numbers.parts::<16>().enumerate() {
        let w = part.weights();
        scales[sub] = symmetric(part.x, &w, half);
        sums[sub] = sum::<16>(|i| w[i]);
    }
    (scales, sums)
}
