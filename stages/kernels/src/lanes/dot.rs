//! Laned rows times activations.
//!
//! Per block the products of codes are added as integers; the blocks' products with their scales are added in 16 SIMD
//! lanes, group after group, then the lanes are summed.

use std::marker::PhantomData;

use forebay_numbers::lanes::LANES;

use super::{Filled, GROUP, LaneFormat, LanedRow, MAX_WORDS, RowGroup, VECTOR};
use crate::activations::{Activations, LanedToken};
use crate::matmul::{Dot, Matmul};
use crate::rows::ask;
use crate::simd::{Kernel, Simd, load_part, unrolled};

/// `out[t, r] = w[r] . x[t]` for laned rows.
pub(crate) struct LanedMatmul<'a, F>(pub(crate) Matmul<'a, F>);

impl<F: LaneFormat> Kernel for LanedMatmul<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.0.tiles::<S, Laned<F>>(s);
    }
}

struct Laned<F>(PhantomData<F>);

/// A group of blocks of a token.
struct TokenGroup<'a, S: Simd> {
    codes: &'a [[i8; VECTOR]; MAX_WORDS],
    scales: S::F,
    sums: S::F,
    counts: S::I,
}

impl<F: LaneFormat> Dot for Laned<F> {
    type Token<'a> = LanedToken<'a>;

    #[inline(always)]
    fn token(x: &Activations, t: usize) -> LanedToken<'_> {
        x.laned(t)
    }

    #[inline(always)]
    fn dot<S: Simd, const R: usize, const T: usize>(
        s: S,
        rows: [&[u8]; R],
        x: [LanedToken<'_>; T],
        later: [&[u8]; R],
    ) -> [[f32; T]; R] {
        let mut sums = [[s.zero(); T]; R];
        let mut laned = [LanedRow::new::<F>(rows[0]); R];
        for r in 1..R {
            laned[r] = LanedRow::new::<F>(rows[r]);
        }
        let n = laned[0].n;
        for g in 0..n / LANES {
            unrolled!(r in 0..R, max 2 => {
                ask(s, later[r], F::WORDS * VECTOR * g, F::WORDS * VECTOR);
                if g % 2 == 0 {
                    ask(s, later[r], laned[r].scales_at(g), 1);
                }
                let w = laned[r].group::<F>(g);
                unrolled!(t in 0..T, max 4 => {
                    let x = whole(s, &x[t], g);
                    sums[r][t] = add::<S, F>(s, &w, &x, sums[r][t]);
                });
            });
        }
        if !n.is_multiple_of(LANES) {
            unrolled!(r in 0..R, max 2 => {
                ask(s, later[r], F::WORDS * VECTOR * (n / LANES), F::WORDS * VECTOR);
                let mut filled = Filled::EMPTY;
                laned[r].fill::<F>(&mut filled);
                let w = filled.group(F::WORDS);
                unrolled!(t in 0..T, max 4 => {
                    sums[r][t] = last::<S, F>(s, &w, &x[t], n, sums[r][t]);
                });
            });
        }
        let mut out = [[0.0; T]; R];
        unrolled!(r in 0..R, max 2 => {
            unrolled!(t in 0..T, max 4 => { out[r][t] = s.reduce_add(sums[r][t]); });
        });
        out
    }
}

/// The whole group `g` of a token.
#[inline(always)]
fn whole<'a, S: Simd>(s: S, x: &LanedToken<'a>, g: usize) -> TokenGroup<'a, S> {
    let counts: &[i32; LANES] = &x.counts.as_chunks().0[g];
    TokenGroup {
        codes: &x.codes.as_chunks().0.as_chunks().0[g],
        scales: s.load(&x.scales.as_chunks().0[g]),
        sums: s.load(&x.sums.as_chunks().0[g]),
        counts: s.words(bytemuck::cast_ref(counts)),
    }
}

/// Adds the products of the blocks of a group to their lanes.
#[inline(always)]
fn add<S: Simd, F: LaneFormat>(s: S, w: &RowGroup<'_>, x: &TokenGroup<'_, S>, sums: S::F) -> S::F {
    let mut dots = F::origin(s, x.counts);
    unrolled!(i in 0..8 => {
        dots = F::dot(s, dots, F::codes(s, w.codes, i), s.bytes(&x.codes[i]));
    });
    let scales = s.mul(s.widen_f16(w.scales), x.scales);
    let sums = s.fma(s.to_f32(dots), scales, sums);
    match F::MINIMUM {
        true => s.fma(s.widen_f16(w.minima), x.sums, sums),
        false => sums,
    }
}

/// Adds the products of the group after the whole ones, which is padded with zeros.
#[inline(always)]
fn last<S: Simd, F: LaneFormat>(
    s: S,
    w: &RowGroup<'_>,
    x: &LanedToken<'_>,
    n: usize,
    sums: S::F,
) -> S::F {
    let (first, k) = (n / LANES * LANES, n % LANES);
    let mut codes = [[0; VECTOR]; MAX_WORDS];
    let from = x.codes[first / LANES * GROUP..].chunks_exact(4 * k);
    for (to, from) in codes.iter_mut().zip(from) {
        to[..4 * k].copy_from_slice(from);
    }
    let mut counts = [0; LANES];
    counts[..k].copy_from_slice(&x.counts[first..]);
    let x = TokenGroup {
        codes: &codes,
        scales: load_part(s, &x.scales[first..]),
        sums: load_part(s, &x.sums[first..]),
        counts: s.words(bytemuck::cast_ref(&counts)),
    };
    add::<S, F>(s, w, &x, sums)
}
