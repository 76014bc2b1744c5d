//! [`super::panels`] for quantised weights.
//!
//! For every block of 32 elements of a token, integer products are summed exactly, then scaled
//! and added to the lane's f32 sum: `sum += (scale * int) * x_scale`, then `sum -= min * x_sum`. The order of additions
//! of a (row, token) pair is that of the blocks, regardless of the other rows and tokens in the call.
//!
//! A block of weights is unpacked once and multiplied by up to 16 tokens, whose sums stay in registers: 8 registers of
//! codes, 16 of sums and one or two of scales fill AVX-512's 32. Per 8 integer multiplications there are 2 of f32 (3
//! with minima) and 10 loads, so the integer units can be busy 73 to 80 % of the time. With fewer registers, a block's
//! groups take turns; see [`Simd::BY_GROUP`].

use std::marker::PhantomData;

use super::panel_formats::{Halves, PanelFormat};
use super::panels::{PanelMatmul, Product, prefetch};
use super::prefetch::DISTANCE;
use super::simd::{GROUPS, Kernel, Simd, TOGETHER, groups, unrolled};
use super::tokens::{BLOCK, PanelTokens};

struct Quantised<F>(PhantomData<F>);

impl<F: PanelFormat> Kernel for PanelMatmul<'_, F> {
    /// Whether all results were within the range of fixed point, if that is used.
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        self.panels::<S, Quantised<F>>(s)
    }
}

impl<F: PanelFormat> Product for Quantised<F> {
    #[inline(always)]
    fn product<S: Simd, const T: usize, const AHEAD: bool>(
        s: S,
        panel: &[u8],
        _cols: usize,
        x: &PanelTokens<'_, T>,
    ) -> [S::F; T] {
        let mut sums = [s.zero(); T];
        for (i, tile) in panel.chunks_exact(F::TILE).enumerate() {
            if AHEAD {
                prefetch(s, &tile[..F::PLANES], distance::<S, F>());
            }
            let heads = F::heads(s, tile);
            let first = i * F::BLOCKS;
            if F::BLOCKS == 1 || T == 1 {
                // A loop that the optimiser leaves alone: unrolled, it would load the activations of several blocks
                // into registers that it does not have.
                for b in 0..F::BLOCKS {
                    let scales = F::scales(s, tile, heads, b);
                    block::<S, F, T, AHEAD>(s, (tile, scales), b, x, first + b, &mut sums);
                }
            } else {
                // How scales are found depends on the block, so that is done before the loop.
                let mut scales = [(heads, heads); 8];
                unrolled!(b in 0..8 => {
                    let (scale, min) = F::scales(s, tile, heads, b);
                    for half in 0..if F::HALVES { 2 } else { 1 } {
                        scales[b].0[half] = scale[half];
                        if F::MIN {
                            scales[b].1[half] = min[half];
                        }
                    }
                });
                for (b, scales) in scales.into_iter().enumerate() {
                    block::<S, F, T, AHEAD>(s, (tile, scales), b, x, first + b, &mut sums);
                }
            }
        }
        sums
    }
}

/// How far ahead weights are prefetched.
const fn distance<S: Simd, F: PanelFormat>() -> usize {
    match F::SIX_BITS {
        true => S::AHEAD_OF_SIX_BITS,
        false => DISTANCE,
    }
}

/// Adds the products of block `b` of a tile, which is block `i` of the tokens.
#[inline(always)]
fn block<S: Simd, F: PanelFormat, const T: usize, const AHEAD: bool>(
    s: S,
    (tile, (scales, mins)): (&[u8], (Halves<S>, Halves<S>)),
    b: usize,
    x: &PanelTokens<'_, T>,
    i: usize,
    sums: &mut [S::F; T],
) {
    let planes = &tile[F::PLANES + b * F::BITS * 64..][..F::BITS * 64];
    if AHEAD {
        prefetch(s, planes, distance::<S, F>());
    }
    let codes = F::codes(s, planes);
    if T > 1 && s.add_block::<F, T>(&codes, (scales, mins), x, i, sums) {
        return;
    }
    if const { S::BY_GROUP && T > 1 } {
        by_group::<S, F, T>(s, codes, (scales, mins), x, i, sums);
        return;
    }
    if F::HALVES {
        let [c0, c1, c2, c3, c4, c5, c6, c7] = codes;
        unrolled!(t in 0..T, max 16 => {
            let counts = x.half_counts[i][t];
            let (low, high) = x.codes[i][t].split_at(BLOCK / 2);
            let low = dot::<S, F, 4>(s, [c0, c1, c2, c3], groups(low), counts[0]);
            let high = dot::<S, F, 4>(s, [c4, c5, c6, c7], groups(high), counts[1]);
            add_halves::<S, F, T>(s, [low, high], (scales, mins), x, (i, t), sums);
        });
        return;
    }
    let (scale, min) = (scales[0], mins[0]);
    if T == 1 {
        let dot = dot::<S, F, GROUPS>(s, codes, groups(&x.codes[i][0]), x.counts[i][0]);
        add::<S, F, T>(s, dot, (scale, min), x, (i, 0), sums);
        return;
    }
    unrolled!(pair in 0..T / 2, max 8 => {
        let (t, u) = (2 * pair, 2 * pair + 1);
        let tokens = [groups(&x.codes[i][t]), groups(&x.codes[i][u])];
        let dots = dot_pair::<S, F>(s, codes, tokens, [x.counts[i][t], x.counts[i][u]]);
        add::<S, F, T>(s, dots[0], (scale, min), x, (i, t), sums);
        add::<S, F, T>(s, dots[1], (scale, min), x, (i, u), sums);
    });
}

/// [`block`] for instruction sets whose registers do not hold the codes of a block: see [`Simd::BY_GROUP`].
#[inline(always)]
fn by_group<S: Simd, F: PanelFormat, const T: usize>(
    s: S,
    codes: [S::B; GROUPS],
    (scales, mins): (Halves<S>, Halves<S>),
    x: &PanelTokens<'_, T>,
    i: usize,
    sums: &mut [S::F; T],
) {
    let (low, high) = codes.split_at(GROUPS / 2);
    for first in (0..T).step_by(TOGETHER) {
        let Some(tokens) = x.codes[i][first..].first_chunk() else {
            panic!("a piece of tokens is cut short");
        };
        if F::HALVES {
            let mut dots = [[s.splat_i32(0); TOGETHER]; 2];
            for (half, codes) in [low, high].into_iter().enumerate() {
                let counts = [0, 1, 2, 3].map(|t| x.half_counts[i][first + t][half]);
                let Some(codes) = codes.first_chunk::<4>() else {
                    unreachable!()
                };
                let starts = starts::<S, F>(s, counts);
                dots[half] =
                    s.dot_unsigned_together(codes, (tokens, 4 * half), starts, F::MAX_CODE);
            }
            unrolled!(t in 0..4 => {
                let halves = [dots[0][t], dots[1][t]];
                add_halves::<S, F, T>(s, halves, (scales, mins), x, (i, first + t), sums);
            });
        } else {
            let counts = [0, 1, 2, 3].map(|t| x.counts[i][first + t]);
            let dots = if F::SIGNED {
                s.dot_signed_together(&codes, tokens, counts)
            } else {
                let starts = starts::<S, F>(s, counts);
                s.dot_unsigned_together(&codes, (tokens, 0), starts, F::MAX_CODE)
            };
            unrolled!(t in 0..4 => {
                add::<S, F, T>(s, dots[t], (scales[0], mins[0]), x, (i, first + t), sums);
            });
        }
    }
}

/// Adds a block's scaled integer products with token `t` to its sum.
#[inline(always)]
pub(super) fn add<S: Simd, F: PanelFormat, const T: usize>(
    s: S,
    dot: S::I,
    (scale, min): (S::F, S::F),
    x: &PanelTokens<'_, T>,
    (i, t): (usize, usize),
    sums: &mut [S::F; T],
) {
    let scaled = s.mul(s.to_f32(dot), scale);
    add_scaled::<S, F, T>(s, scaled, min, x, (i, t), sums);
}

/// The same for products that are scaled by the block's scale.
#[inline(always)]
pub(super) fn add_scaled<S: Simd, F: PanelFormat, const T: usize>(
    s: S,
    scaled: S::F,
    min: S::F,
    x: &PanelTokens<'_, T>,
    (i, t): (usize, usize),
    sums: &mut [S::F; T],
) {
    sums[t] = s.fma(scaled, s.splat(x.scales[i][t]), sums[t]);
    if F::MIN {
        sums[t] = s.fnma(min, s.splat(x.sums[i][t]), sums[t]);
    }
}

/// [`add`] for formats with a scale per half of a block.
#[inline(always)]
pub(super) fn add_halves<S: Simd, F: PanelFormat, const T: usize>(
    s: S,
    [low, high]: [S::I; 2],
    (scales, mins): (Halves<S>, Halves<S>),
    x: &PanelTokens<'_, T>,
    (i, t): (usize, usize),
    sums: &mut [S::F; T],
) {
    let scaled = s.fma(s.to_f32(low), scales[0], s.mul(s.to_f32(high), scales[1]));
    add_scaled_halves::<S, F, T>(s, scaled, mins, x, (i, t), sums);
}

/// [`add_scaled`] for formats with a scale per half of a block.
#[inline(always)]
pub(super) fn add_scaled_halves<S: Simd, F: PanelFormat, const T: usize>(
    s: S,
    scaled: S::F,
    mins: Halves<S>,
    x: &PanelTokens<'_, T>,
    (i, t): (usize, usize),
    sums: &mut [S::F; T],
) {
    sums[t] = s.fma(scaled, s.splat(x.scales[i][t]), sums[t]);
    if F::MIN {
        sums[t] = s.fnma(mins[0], s.splat(x.half_sums[i][t][0]), sums[t]);
        sums[t] = s.fnma(mins[1], s.splat(x.half_sums[i][t][1]), sums[t]);
    }
}

/// The start of exact sums of `(code - bias) * x`; `count` is `-sum(x)`.
#[inline(always)]
fn start<S: Simd, F: PanelFormat>(s: S, count: i32) -> S::I {
    if F::BIAS_BITS > 0 {
        s.shift_left(s.splat_i32(count), F::BIAS_BITS)
    } else {
        s.splat_i32(0)
    }
}

/// Exact sums of `(code - bias) * x`.
#[inline(always)]
fn dot<S: Simd, F: PanelFormat, const N: usize>(
    s: S,
    codes: [S::B; N],
    x: &[[i8; 4]; N],
    count: i32,
) -> S::I {
    if F::SIGNED {
        s.dot_signed(codes, x, count)
    } else {
        s.dot_unsigned(codes, x, start::<S, F>(s, count), F::MAX_CODE)
    }
}

/// [`start`] of several tokens.
#[inline(always)]
fn starts<S: Simd, F: PanelFormat>(s: S, counts: [i32; TOGETHER]) -> [S::I; TOGETHER] {
    let mut starts = [s.splat_i32(0); TOGETHER];
    unrolled!(t in 0..4 => { starts[t] = start::<S, F>(s, counts[t]); });
    starts
}

/// [`dot`] of two tokens.
#[inline(always)]
fn dot_pair<S: Simd, F: PanelFormat>(
    s: S,
    codes: [S::B; GROUPS],
    x: [&[[i8; 4]; GROUPS]; 2],
    counts: [i32; 2],
) -> [S::I; 2] {
    if F::SIGNED {
        s.dot_signed_pair(codes, x, counts)
    } else {
        let starts = [start::<S, F>(s, counts[0]), start::<S, F>(s, counts[1])];
        s.dot_unsigned_pair(codes, x, starts, F::MAX_CODE)
    }
}
