//! Weights times values, with a value's elements in the lanes.

use std::ops::Range;

use super::super::simd::{Kernel, LANES, Simd, load_part, store_part, unrolled};
use super::kv_formats::KvFormat;
use super::product::{Part, groups, widen, with_rows};
use super::scores::WIDEN_FROM;
use super::scratch::{AttendScratch, Block, Line, Row, Scores};
use crate::aligned::LINE;
use crate::kv::BLOCK;

/// Vectors of a register tile.
const PARTS: usize = 4;

/// Where the results of a tile's rows are.
struct Target<'a> {
    out: &'a mut [f32],
    d: usize,
    /// Distance from a value to the one that the tile uses a block later, in vectors.
    ahead: usize,
}

/// Adds a block's weighted values to the results of some rows, after correcting these.
#[inline(always)]
pub(super) fn gather<S: Simd, N: KvFormat>(
    s: S,
    stored: N,
    (block, rows): (Block, Range<usize>),
    scratch: &mut AttendScratch,
    out: &mut [f32],
) {
    let d = stored.value_dim();
    let parts = d.div_ceil(LANES);
    let (Some(first), Some(last)) = (
        scratch.rows[rows.clone()].first(),
        scratch.rows[rows.clone()].last(),
    ) else {
        return;
    };
    let seen = first.within(block).0..last.within(block).1;
    let values = &stored.values()[block.place * BLOCK * parts..][..seen.end * parts];
    let ahead = block.ahead.wrapping_mul(BLOCK * parts);
    let mut target = Target { out, d, ahead };
    let AttendScratch {
        rows: all,
        scores,
        wide,
        state,
        ..
    } = scratch;
    if rows.len() > WIDEN_FROM {
        let wide = &mut wide[..values.len()];
        let first = seen.start * parts;
        widen(s, &values[first..], &mut wide[first..]);
        for g in groups::<S>(rows) {
            let (scores, corrections) = (&scores[g.clone()], &state.correction[g.clone()]);
            with_rows!(S, g.len(), R => {
                gather_rows::<S, Line, R>(s, wide, (block, &all[g]), scores, corrections, &mut target)
            });
        }
    } else {
        for g in groups::<S>(rows) {
            let (scores, corrections) = (&scores[g.clone()], &state.correction[g.clone()]);
            with_rows!(S, g.len(), R => {
                gather_rows::<S, N::Value, R>(s, values, (block, &all[g]), scores, corrections, &mut target)
            });
        }
    }
}

/// `R` rows. Positions that all of them see are done together; those before and after, row by row.
#[inline(always)]
fn gather_rows<S: Simd, P: Part, const R: usize>(
    s: S,
    values: &[P], // [BLOCK][d / 16], or what is seen of it
    (block, rows): (Block, &[Row]),
    weights: &[Scores],
    corrections: &[f32],
    target: &mut Target<'_>,
) {
    let (first, last) = (rows[0].within(block), rows[R - 1].within(block));
    // Ranges of later rows neither begin nor end earlier.
    let (from, to) = (last.0, first.1.max(last.0));
    let mut factors = [1.0; R];
    factors.copy_from_slice(corrections);
    if first.0 < from {
        for (r, row) in rows.iter().enumerate() {
            let (start, end) = row.within(block);
            let range = start..end.min(from).max(start);
            s.run(GatherRange {
                values,
                range,
                weights: &weights[r..=r],
                factors: [factors[r]],
                places: [row.out],
                target,
            });
            factors[r] = 1.0;
        }
    }
    let mut places = [0; R];
    for (place, row) in places.iter_mut().zip(rows) {
        *place = row.out;
    }
    s.run(GatherRange {
        values,
        range: from..to,
        weights,
        factors,
        places,
        target,
    });
    if to < last.1 {
        for (r, row) in rows.iter().enumerate() {
            let (start, end) = row.within(block);
            let range = start.max(to)..end;
            if !range.is_empty() {
                s.run(GatherRange {
                    values,
                    range,
                    weights: &weights[r..=r],
                    factors: [1.0],
                    places: [row.out],
                    target,
                });
            }
        }
    }
}

/// Positions of a block that all of `R` rows see.
struct GatherRange<'a, 'b, P, const R: usize> {
    values: &'a [P], // [BLOCK][d / 16], or what is seen of it
    range: Range<usize>,
    weights: &'a [Scores], // [R]
    factors: [f32; R],
    places: [usize; R],
    target: &'a mut Target<'b>,
}

impl<P: Part, const R: usize> Kernel for GatherRange<'_, '_, P, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let parts = self.target.d.div_ceil(LANES);
        let mut first = 0;
        while const { S::TILE[1] == PARTS } && first + PARTS <= parts {
            self.tile::<S, PARTS>(s, first);
            first += PARTS;
        }
        while first < parts {
            self.tile::<S, 1>(s, first);
            first += 1;
        }
    }
}

impl<P: Part, const R: usize> GatherRange<'_, '_, P, R> {
    /// `V` vectors of the results from vector `first` on.
    #[inline(always)]
    fn tile<S: Simd, const V: usize>(&mut self, s: S, first: usize) {
        let Self {
            values,
            factors,
            places,
            target,
            ..
        } = self;
        let (d, parts) = (target.d, target.d.div_ceil(LANES));
        let (start, end) = (first * LANES, d.min((first + V) * LANES));
        let mut sums = [[s.zero(); V]; R];
        unrolled!(r in 0..R, max 6 => {
            let factor = s.splat(factors[r]);
            let old = &target.out[places[r]..][start..end];
            unrolled!(v in 0..V, max 4 => {
                let part = &old[v * LANES..old.len().min((v + 1) * LANES)];
                sums[r][v] = s.mul(load_part(s, part), factor);
            });
        });
        let weights = &self.weights[..R];
        assert!(self.range.end <= BLOCK);
        for j in self.range.clone() {
            let row = &values[j * parts + first..][..V];
            let mut value = [s.zero(); V];
            unrolled!(v in 0..V, max 4 => {
                value[v] = row[v].widen(s);
                if (v * size_of::<P>()).is_multiple_of(LINE) {
                    row[v].prefetch(s, target.ahead);
                }
            });
            unrolled!(r in 0..R, max 6 => {
                let weight = s.splat(weights[r].0[j]);
                unrolled!(v in 0..V, max 4 => { sums[r][v] = s.fma(weight, value[v], sums[r][v]); });
            });
        }
        unrolled!(r in 0..R, max 6 => {
            let new = &mut target.out[places[r]..][start..end];
            for (part, &sum) in new.chunks_mut(LANES).zip(&sums[r]) {
                store_part(s, sum, part);
            }
        });
    }
}
