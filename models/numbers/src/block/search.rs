//! Scales with which rounding loses least. For each group of numbers several are tried, each is improved by least
//! squares for the levels that it leads to, and the best one is kept (as in ggml's `make_qx_quants` and
//! `make_qkx2_quants`).
//!
//! Errors are squares times a weight per number. All sums are in [`LANES`] parts, in a fixed order.

use std::ops::RangeInclusive;

/// Parts of a sum, which a compiler can keep in vectors. Groups of numbers are multiples of it.
const LANES: usize = 8;

/// Below this magnitude a group counts as zeros: no f16 could be its scale.
const TINY: f32 = 1e-15;

/// Distance between the numbers of levels that are tried.
const STEP: f32 = 0.1;

/// The nearest integer, ties to even, for magnitudes below 2^22. `round_ties_even` would be a call on most CPUs.
#[inline(always)]
pub(super) fn nearest(v: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23
    (v + MAGIC) - MAGIC
}

/// The sum of `term(i)` over `i < N`.
#[inline(always)]
pub(super) fn sum<const N: usize>(term: impl Fn(usize) -> f32) -> f32 {
    const { assert!(N.is_multiple_of(LANES)) };
    let mut parts = [0.0; LANES];
    for first in (0..N).step_by(LANES) {
        for (lane, part) in parts.iter_mut().enumerate() {
            *part += term(first + lane);
        }
    }
    parts.into_iter().sum()
}

/// `(scale, minimum)` for `x = scale * level - minimum` with levels `0..=top` and neither of them negative. `steps`
/// says how far the numbers of levels that are tried are from `top`, in tenths.
pub(super) fn with_minimum<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    top: f32,
    steps: RangeInclusive<i32>,
) -> (f32, f32) {
    let lowest = x.iter().fold(0.0, |a: f32, &v| a.min(v));
    let highest = x.iter().fold(lowest, |a: f32, &v| a.max(v));
    let range = highest - lowest;
    if range < TINY {
        return (0.0, -lowest);
    }
    let (sum_w, sum_x) = (sum::<N>(|i| w[i]), sum::<N>(|i| w[i] * x[i]));
    let (mut best, mut least) = ((range / top, lowest), f32::INFINITY);
    for step in steps {
        let inverse = (top + STEP * step as f32) / range;
        let l = x.map(|v| nearest((v - lowest) * inverse).clamp(0.0, top));
        let sum_l = sum::<N>(|i| w[i] * l[i]);
        let sum_ll = sum::<N>(|i| w[i] * l[i] * l[i]);
        let sum_xl = sum::<N>(|i| w[i] * x[i] * l[i]);
        let determinant = sum_w * sum_ll - sum_l * sum_l;
        if determinant <= 0.0 {
            continue;
        }
        let mut scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        let mut offset = (sum_ll * sum_x - sum_l * sum_xl) / determinant;
        if offset > 0.0 {
            (scale, offset) = (sum_xl / sum_ll, 0.0);
        }
        let error = sum::<N>(|i| {
            let e = scale * l[i] + offset - x[i];
            w[i] * e * e
        });
        if error < least {
            (best, least) = ((scale, offset), error);
        }
    }
    (best.0, -best.1)
}

/// The scale of `x = scale * level` that is best among those for which the extreme number is at one of `places`;
/// `level` rounds a quotient to a level.
fn without_minimum<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    places: impl Iterator<Item = f32>,
    level: impl Fn(f32) -> f32,
) -> f32 {
    let extreme = x.iter().fold(
        0.0,
        |most: f32, &v| {
            if v.abs() > most.abs() { v } else { most }
        },
    );
    if extreme.abs() < TINY {
        return 0.0;
    }
    let (mut best, mut most) = (0.0, 0.0);
    for place in places {
        let inverse = place / extreme;
        let l = x.map(|v| level(v * inverse));
        let sum_ll = sum::<N>(|i| w[i] * l[i] * l[i]);
        let sum_xl = sum::<N>(|i| w[i] * x[i] * l[i]);
        let scale = sum_xl / sum_ll;
        // The error is that of zeros less this.
        let gain = scale * sum_xl;
        if gain > most {
            (best, most) = (scale, gain);
        }
    }
    best
}

/// The scale of `x = scale * level` with levels `-half..half`.
pub(super) fn symmetric<const N: usize>(x: &[f32; N], w: &[f32; N], half: f32) -> f32 {
    let places = (-9..=9).map(|step| STEP * step as f32 - half);
    without_minimum(x, w, places, |v| nearest(v).clamp(-half, half - 1.0))
}

/// The scale of `x = scale * level` with levels `0..=top`, no number being negative.
pub(super) fn unsigned<const N: usize>(x: &[f32; N], w: &[f32; N], top: f32) -> f32 {
    let places = (-9..=9).map(|step| STEP * step as f32 + top);
    without_minimum(x, w, places, |v| nearest(v).min(top))
}

/// The scale of `x = scale * value` with values of a table, of which `first` is extreme; `nearest` finds them.
pub(super) fn tabulated<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    first: f32,
    nearest: impl Fn(f32) -> f32,
) -> f32 {
    let places = (-7..=7).map(|step| first + step as f32);
    without_minimum(x, w, places, nearest)
}
