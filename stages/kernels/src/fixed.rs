//! Sums that do not depend on the order of arrival.
//!
//! The FFN's output is a sum over clusters that finish in any order. Partial sums are therefore added
//! as integers in units of 2^-32: integer addition is associative, so every order, every number of
//! threads and every memory budget gives the same bits.

use super::simd::{Kernel, LANES, Simd};

/// Units per 1.0.
pub(super) const UNIT: f64 = 4_294_967_296.0;
/// Largest magnitude of a partial sum. Two such values fill the 64 bits, so a sum stays exact while
/// its magnitude is below 2^31.
pub(super) const LIMIT: f32 = 1_073_741_824.0;

/// The definition: `acc += round(p * 2^32)`, ties to even, clamped to the limit. NaN adds nothing.
/// Returns whether all values were within the limit.
pub(super) fn fold_each(p: &[f32], acc: &mut [i64]) -> bool {
    let mut in_range = true;
    for (&p, acc) in p.iter().zip(acc) {
        in_range &= p.abs() <= LIMIT;
        let clamped = p.clamp(-LIMIT, LIMIT);
        let units = (f64::from(clamped) * UNIT).round_ties_even();
        *acc = acc.wrapping_add(units as i64);
    }
    in_range
}

/// The definition: `x += (sum * 2^-32) as f32`.
pub(super) fn unfold_each(sum: &[i64], x: &mut [f32]) {
    for (&sum, x) in sum.iter().zip(x) {
        *x += (sum as f64 * (1.0 / UNIT)) as f32;
    }
}

/// Adds partial sums `[n]` to integers `[n]`.
pub(super) struct Fold<'a> {
    pub(super) partial: &'a [f32],
    pub(super) acc: &'a mut [i64],
}

impl Kernel for Fold<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        let (partials, rest) = self.partial.as_chunks::<LANES>();
        let (accs, rest_acc) = self.acc.as_chunks_mut::<LANES>();
        let mut in_range = true;
        for (p, acc) in partials.iter().zip(accs) {
            in_range &= s.fold(p, acc);
        }
        in_range & fold_each(rest, rest_acc)
    }
}

/// Adds integer sums `[n]` to `x: [n]`.
pub(super) struct Unfold<'a> {
    pub(super) sum: &'a [i64],
    pub(super) x: &'a mut [f32],
}

impl Kernel for Unfold<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (sums, rest) = self.sum.as_chunks::<LANES>();
        let (xs, rest_x) = self.x.as_chunks_mut::<LANES>();
        for (sum, x) in sums.iter().zip(xs) {
            s.unfold(sum, x);
        }
        unfold_each(rest, rest_x);
    }
}
