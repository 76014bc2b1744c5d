//! [`super::panels`] for weights that are plain numbers.

use std::marker::PhantomData;

use forebay_numbers::panel::PANEL_ROWS;

use super::formats::Float;
use super::panels::{PanelMatmul, Product, prefetch};
use super::prefetch::DISTANCE;
use super::simd::{Kernel, Simd, unrolled};
use super::tokens::{BLOCK, PanelTokens};

/// [`PanelMatmul`] for weights that are plain numbers.
pub(super) struct FloatPanelMatmul<'a, F>(pub(super) PanelMatmul<'a, F>);

struct Floats<F>(PhantomData<F>);

impl<F: Float> Kernel for FloatPanelMatmul<'_, F> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        self.0.panels::<S, Floats<F>>(s)
    }
}

/// Two sums per token take turns, so that one need not wait for the other.
impl<F: Float> Product for Floats<F> {
    #[inline(always)]
    fn product<S: Simd, const T: usize, const AHEAD: bool>(
        s: S,
        panel: &[u8],
        cols: usize,
        x: &PanelTokens<'_, T>,
    ) -> [S::F; T] {
        let mut sums = [[s.zero(); 2]; T];
        for (block, x) in panel.chunks(BLOCK * PANEL_ROWS * F::BYTES).zip(x.values) {
            if AHEAD {
                prefetch(s, block, DISTANCE);
            }
            if const { S::BY_GROUP && T > 1 } {
                // Of more tokens, the sums would not stay in registers.
                for (x, sums) in x.as_chunks::<2>().0.iter().zip(sums.as_chunks_mut().0) {
                    float_block::<S, F, 2>(s, block, cols, x, sums);
                }
            } else {
                float_block::<S, F, T>(s, block, cols, x, &mut sums);
            }
        }
        let mut out = [s.zero(); T];
        unrolled!(t in 0..T, max 16 => { out[t] = s.add(sums[t][0], sums[t][1]); });
        out
    }
}

/// Adds the products of up to [`BLOCK`] columns, the last of `cols` if there are fewer.
#[inline(always)]
fn float_block<S: Simd, F: Float, const T: usize>(
    s: S,
    block: &[u8],
    cols: usize,
    x: &[[f32; BLOCK]; T],
    all: &mut [[S::F; 2]; T],
) {
    // Not by reference, so that they stay in registers.
    let mut sums = *all;
    let width = PANEL_ROWS * F::BYTES;
    let pairs = block.chunks_exact(2 * width);
    let last = pairs.remainder();
    for (k, pair) in pairs.enumerate() {
        let w = [F::widen(s, pair), F::widen(s, &pair[width..])];
        unrolled!(t in 0..T, max 16 => {
            sums[t][0] = s.fma(w[0], s.splat(x[t][2 * k]), sums[t][0]);
            sums[t][1] = s.fma(w[1], s.splat(x[t][2 * k + 1]), sums[t][1]);
        });
    }
    if !last.is_empty() {
        let w = F::widen(s, last);
        unrolled!(t in 0..T, max 16 => {
            sums[t][0] = s.fma(w, s.splat(x[t][(cols - 1) % BLOCK]), sums[t][0]);
        });
    }
    *all = sums;
}
