//! Queries times keys, with positions in the lanes.

use std::ops::Range;

use super::super::simd::{Kernel, LANES, Simd, unrolled};
use super::product::{LINE as CACHE_LINE, Part, groups, widen, with_rows};
use super::scratch::{AttendScratch, Block, Line, Row, Scores};
use crate::kv::BLOCK;

/// Vectors of positions in a block.
const PARTS: usize = BLOCK / LANES;
/// With more rows than these, keys are widened once for all of them.
pub(super) const WIDEN_FROM: usize = 12;

/// Vectors of a block that contain positions which some of the rows see.
#[inline(always)]
fn parts(rows: &[Row], block: Block) -> Range<usize> {
    let from = rows.first().map_or(0, |row| row.within(block).0);
    let to = rows.last().map_or(0, |row| row.within(block).1);
    from / LANES..to.div_ceil(LANES)
}

/// Scores with keys of `d` elements that are plain numbers.
#[inline(always)]
pub(super) fn score_floats<S: Simd, P: Part>(
    s: S,
    keys: &[P], // [blocks][64 / 16][d]
    (q, d): (&[f32], usize),
    (block, rows): (Block, Range<usize>),
    scratch: &mut AttendScratch,
) {
    let seen = parts(&scratch.rows[rows.clone()], block);
    let keys = &keys[block.place * PARTS * d..][..seen.end * d];
    let AttendScratch {
        rows: all,
        scores,
        wide,
        state,
        ..
    } = scratch;
    let factor = state.factor[rows.start];
    if rows.len() > WIDEN_FROM {
        let wide = &mut wide[..keys.len()];
        widen(s, &keys[seen.start * d..], &mut wide[seen.start * d..]);
        for g in groups::<S>(rows) {
            let (rows, scores) = (&all[g.clone()], &mut scores[g]);
            with_rows!(S, rows.len(), R => s.run(ScoreRows::<Line, R> { keys: wide, q, d, block, rows, factor, scores }));
        }
    } else {
        for g in groups::<S>(rows) {
            let (rows, scores) = (&all[g.clone()], &mut scores[g]);
            with_rows!(S, rows.len(), R => s.run(ScoreRows::<P, R> { keys, q, d, block, rows, factor, scores }));
        }
    }
}

/// Scores of `R` rows in a block.
struct ScoreRows<'a, P, const R: usize> {
    keys: &'a [P], // [BLOCK / 16][d], or what is seen of it
    q: &'a [f32],
    d: usize,
    block: Block,
    rows: &'a [Row], // [R]
    factor: f32,
    scores: &'a mut [Scores], // [R]
}

impl<P: Part, const R: usize> Kernel for ScoreRows<'_, P, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            d,
            block,
            factor,
            scores,
            ..
        } = self;
        let mut queries = [self.q; R];
        for (query, row) in queries.iter_mut().zip(self.rows) {
            *query = &self.q[row.q..][..d];
        }
        let parts = parts(self.rows, block);
        let ahead = block.ahead.wrapping_mul(PARTS * d);
        if const { S::TILE[1] == PARTS } && parts.len() == PARTS {
            let keys = (self.keys, ahead);
            return score_tile::<S, P, R, PARTS>(s, queries, keys, factor, (scores, 0));
        }
        for part in parts {
            let keys = (&self.keys[part * d..], ahead);
            score_tile::<S, P, R, 1>(s, queries, keys, factor, (scores, part));
        }
    }
}

/// Scores of `R` rows with `V` vectors of positions from vector `first` of the block on.
#[inline(always)]
fn score_tile<S: Simd, P: Part, const R: usize, const V: usize>(
    s: S,
    queries: [&[f32]; R],         // [R][d]
    (keys, ahead): (&[P], usize), // [V][d]
    factor: f32,
    (scores, first): (&mut [Scores], usize),
) {
    let d = queries[0].len();
    let mut lines = [keys; V];
    unrolled!(v in 0..V, max 4 => { lines[v] = &keys[v * d..][..d]; });
    let mut rows = queries;
    unrolled!(r in 0..R, max 6 => { rows[r] = &queries[r][..d]; });
    let mut sums = [[s.zero(); V]; R];
    for i in 0..d {
        let mut key = [s.zero(); V];
        unrolled!(v in 0..V, max 4 => { key[v] = lines[v][i].widen(s); });
        if i.is_multiple_of(CACHE_LINE / size_of::<P>()) {
            unrolled!(v in 0..V, max 4 => { lines[v][i].prefetch(s, ahead); });
        }
        unrolled!(r in 0..R, max 6 => {
            let x = s.splat(rows[r][i]);
            unrolled!(v in 0..V, max 4 => { sums[r][v] = s.fma(x, key[v], sums[r][v]); });
        });
    }
    let factor = s.splat(factor);
    unrolled!(r in 0..R, max 6 => {
        let to = &mut scores[r].0.as_chunks_mut::<LANES>().0[first..][..V];
        unrolled!(v in 0..V, max 4 => { s.store(s.mul(sums[r][v], factor), &mut to[v]); });
    });
}

/// What integer products need besides the keys.
struct Scaled<'a> {
    codes: &'a [[i8; 4]],  // [rows][head_dim / 4], rows padded to 16 codes
    sums: &'a [i32],       // [rows]
    factors: &'a [f32],    // [rows]
    key_scales: &'a [f32], // [BLOCK], or what is seen of it
}

/// Scores with keys of `d` signed bytes.
#[inline(always)]
pub(super) fn score_bytes<S: Simd>(
    s: S,
    keys: &[[i8; 64]],  // [blocks][64 / 16][d / 4]
    key_scales: &[f32], // [blocks][64]
    d: usize,
    (block, rows): (Block, Range<usize>),
    scratch: &mut AttendScratch,
) {
    let (words, padded) = (d.div_ceil(4), d.div_ceil(LANES));
    let seen = parts(&scratch.rows[rows.clone()], block);
    let keys = &keys[block.place * PARTS * words..][..seen.end * words];
    let key_scales = &key_scales[block.place * BLOCK..][..seen.end * LANES];
    for g in groups::<S>(rows) {
        let codes = scratch.codes[g.start * padded..g.end * padded].as_flattened();
        let scaled = Scaled {
            codes: codes.as_chunks().0,
            sums: &scratch.state.code_sum[g.clone()],
            factors: &scratch.state.factor[g.clone()],
            key_scales,
        };
        let (rows, scores) = (&scratch.rows[g.clone()], &mut scratch.scores[g]);
        with_rows!(S, rows.len(), R => s.run(DotRows::<R> { keys, words, scaled, block, rows, scores }));
    }
}

/// Scores of `R` rows in a block, from integers.
struct DotRows<'a, const R: usize> {
    keys: &'a [[i8; 64]], // [BLOCK / 16][words], or what is seen of it
    words: usize,
    scaled: Scaled<'a>,
    block: Block,
    rows: &'a [Row],          // [R]
    scores: &'a mut [Scores], // [R]
}

impl<const R: usize> Kernel for DotRows<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            words,
            block,
            scores,
            ..
        } = self;
        let parts = parts(self.rows, block);
        let ahead = block
            .ahead
            .wrapping_mul(PARTS * words * size_of::<[i8; 64]>());
        if const { S::TILE[1] == PARTS } && parts.len() == PARTS {
            let keys = (self.keys, ahead);
            return dot_tile::<S, R, PARTS>(s, keys, words, &self.scaled, (scores, 0));
        }
        for part in parts {
            let keys = (&self.keys[part * words..], ahead);
            dot_tile::<S, R, 1>(s, keys, words, &self.scaled, (scores, part));
        }
    }
}

/// Scores of `R` rows with `V` vectors of positions from vector `first` of the block on.
#[inline(always)]
fn dot_tile<S: Simd, const R: usize, const V: usize>(
    s: S,
    (keys, ahead): (&[[i8; 64]], usize), // [V][words]; bytes to the next block
    words: usize,
    scaled: &Scaled<'_>,
    (scores, first): (&mut [Scores], usize),
) {
    let padded = scaled.codes.len() / R;
    let mut lines = [keys; V];
    unrolled!(v in 0..V, max 4 => { lines[v] = &keys[v * words..][..words]; });
    let mut queries = [scaled.codes; R];
    let mut sums = [[s.dot_origin(0); V]; R];
    unrolled!(r in 0..R, max 6 => {
        queries[r] = &scaled.codes[r * padded..][..words];
        sums[r] = [s.dot_origin(scaled.sums[r]); V];
    });
    for i in 0..words {
        let mut key = [s.bytes(&[0; 64]); V];
        unrolled!(v in 0..V, max 4 => {
            key[v] = s.bytes(&lines[v][i]);
            s.prefetch(bytemuck::cast_slice(&lines[v][i]), ahead);
        });
        unrolled!(r in 0..R, max 6 => {
            unrolled!(v in 0..V, max 4 => { sums[r][v] = s.dot_add(sums[r][v], key[v], queries[r][i]); });
        });
    }
    let scales = scaled.key_scales.as_chunks::<LANES>().0;
    unrolled!(r in 0..R, max 6 => {
        let factor = s.splat(scaled.factors[r]);
        let to = &mut scores[r].0.as_chunks_mut::<LANES>().0[first..][..V];
        unrolled!(v in 0..V, max 4 => {
            let product = s.mul(s.to_f32(sums[r][v]), factor);
            s.store(s.mul(product, s.load(&scales[first + v])), &mut to[v]);
        });
    });
}
