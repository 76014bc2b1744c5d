//! What both products share: numbers of any format as vectors, and rows in groups whose sums stay in
//! registers.

use std::ops::Range;

use super::super::simd::{LANES, Simd};
use super::scratch::Line;

/// 16 stored numbers.
pub(super) trait Part: Copy {
    /// As f32.
    fn widen<S: Simd>(&self, s: S) -> S::F;

    /// Prefetches what is `ahead` elements of this type further on, unless it is in the cache anyway. `ahead` wraps for
    /// what is before.
    fn prefetch<S: Simd>(&self, s: S, ahead: usize) {
        let _ = (s, ahead);
    }
}

impl Part for Line {
    #[inline(always)]
    fn widen<S: Simd>(&self, s: S) -> S::F {
        s.load(&self.0)
    }
}

impl Part for [u16; LANES] {
    #[inline(always)]
    fn widen<S: Simd>(&self, s: S) -> S::F {
        s.widen_f16(bytemuck::cast_ref(self))
    }

    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, ahead: usize) {
        s.prefetch(
            bytemuck::bytes_of(self),
            ahead.wrapping_mul(size_of::<Self>()),
        );
    }
}

impl Part for [i8; LANES] {
    #[inline(always)]
    fn widen<S: Simd>(&self, s: S) -> S::F {
        let [lo, hi] = bytemuck::cast::<_, [u64; 2]>(*self).map(u64::from_le);
        s.i8_lanes(lo, hi)
    }

    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, ahead: usize) {
        s.prefetch(
            bytemuck::bytes_of(self),
            ahead.wrapping_mul(size_of::<Self>()),
        );
    }
}

/// Writes stored numbers as f32.
#[inline(always)]
pub(super) fn widen<S: Simd, P: Part>(s: S, from: &[P], to: &mut [Line]) {
    for (from, to) in from.iter().zip(to) {
        s.store(from.widen(s), &mut to.0);
    }
}

/// Splits rows into as few groups as register tiles allow, of about the same size.
#[inline(always)]
pub(super) fn groups<S: Simd>(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let n_groups = rows.len().div_ceil(S::TILE[0]);
    let n = rows.len();
    (0..n_groups).map(move |i| rows.start + i * n / n_groups..rows.start + (i + 1) * n / n_groups)
}

/// Evaluates an expression with `$R` the number of rows of a group as a constant.
macro_rules! with_rows {
    ($S:ident, $n:expr, $R:ident => $body:expr) => {
        $crate::attention::product::with_rows!(@ $S, $n, $R, $body, 2 3 4 5 6)
    };
    (@ $S:ident, $n:expr, $R:ident, $body:expr, $($count:literal)*) => {
        match $n {
            // Constants, so that for narrow units no groups are compiled that they never form.
            $($count if const { $S::TILE[0] >= $count } => {
                const $R: usize = $count;
                $body
            })*
            _ => {
                const $R: usize = 1;
                $body
            }
        }
    };
}
pub(super) use with_rows;
