//! Queries times keys, with positions in the lanes.

use std::ops::Range;

use super::super::simd::{Kernel, LANES, Simd, unrolled};
use super::origin::Turns;
use super::product::{Part, groups, widen, with_rows};
use super::scratch::{AttendScratch, Block, Line, Row, Scores};
use crate::aligned::LINE;
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
            with_rows!(S, rows.len(), R => {
                s.run(ScoreRows::<Line, R> { keys: wide, q, d, block, rows, factor, scores })
            });
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
        if i.is_multiple_of(LINE / size_of::<P>()) {
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

/// Scores of the keys' origin, for queries that [`Turns`] has prepared.
#[inline(always)]
pub(super) fn score_origin<S: Simd>(
    s: S,
    turns: &Turns,
    (block, rows): (Block, Range<usize>),
    scratch: &mut AttendScratch,
) {
    let d = turns.width();
    let [queries, turned] = &mut scratch.origin;
    for r in rows.clone() {
        turns.turn(block.index, &queries[r * d..], &mut turned[r * d..]);
    }
    let (q, keys, factor) = (&turned[..], turns.near(), 1.0);
    // There are no keys to come.
    let block = Block { ahead: 0, ..block };
    for g in groups::<S>(rows) {
        let (rows, scores) = (&scratch.origin_rows[g.clone()], &mut scratch.scores[g]);
        with_rows!(S, rows.len(), R => s.run(ScoreRows::<Line, R> { keys, q, d, block, rows, factor, scores }));
    }
}

/// Keys whose codes are `2 * byte + bit`.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub bytes: &'a [[i8; 64]], // [positions / 16][head_dim / 4]
    pub bits: &'a [u64],       // [positions / 16][head_dim / 4]
    pub scales: &'a [f32],     // [positions]
}

/// Codes of queries, `128 * high + low`, and what their products are multiplied by.
struct Codes<'a> {
    high: &'a [[i8; 4]],  // [rows][head_dim / 4], rows padded to 16 codes
    low: &'a [[i8; 4]],   // [rows][head_dim / 4], rows padded to 16 codes
    sums: [&'a [i32]; 2], // [rows] of high and low codes
    factors: &'a [f32],   // [rows]
}

/// Adds the products with keys of `d` codes to the scores.
#[inline(always)]
pub(super) fn add_codes<S: Simd>(
    s: S,
    keys: Keys<'_>,
    d: usize,
    (block, rows): (Block, Range<usize>),
    scratch: &mut AttendScratch,
) {
    let (words, padded) = (d.div_ceil(4), d.div_ceil(LANES));
    let seen = parts(&scratch.rows[rows.clone()], block);
    let first = block.place * PARTS * words;
    let keys = Keys {
        bytes: &keys.bytes[first..][..seen.end * words],
        bits: &keys.bits[first..][..seen.end * words],
        scales: &keys.scales[block.place * BLOCK..][..seen.end * LANES],
    };
    for g in groups::<S>(rows) {
        let of = |part: usize| {
            let codes = &scratch.codes[part][g.start * padded..g.end * padded];
            codes.as_flattened().as_chunks().0
        };
        let codes = Codes {
            high: of(0),
            low: of(1),
            sums: scratch
                .state
                .code_sums
                .each_ref()
                .map(|sums| &sums[g.clone()]),
            factors: &scratch.state.factor[g.clone()],
        };
        let (rows, scores) = (&scratch.rows[g.clone()], &mut scratch.scores[g]);
        with_rows!(S, rows.len(), R => s.run(AddCodes::<R> { keys, words, codes, block, rows, scores }));
    }
}

/// Products of `R` rows in a block, from integers.
struct AddCodes<'a, const R: usize> {
    keys: Keys<'a>, // of a block, or what is seen of it
    words: usize,
    codes: Codes<'a>,
    block: Block,
    rows: &'a [Row],          // [R]
    scores: &'a mut [Scores], // [R]
}

impl<const R: usize> Kernel for AddCodes<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            keys,
            words,
            codes,
            block,
            rows,
            scores,
        } = self;
        let parts = parts(rows, block);
        let ahead = block
            .ahead
            .wrapping_mul(PARTS * words * size_of::<[i8; 64]>());
        if const { S::TILE[1] == PARTS } && parts.len() == PARTS {
            return code_tile::<S, R, PARTS>(s, (keys, ahead), words, &codes, (scores, 0));
        }
        for part in parts {
            code_tile::<S, R, 1>(s, (keys, ahead), words, &codes, (scores, part));
        }
    }
}

/// Adds the products of word `$i` of the rows' codes with a word of each vector's keys.
macro_rules! add_products {
    ($s:ident, $sums:ident[$R:ident][$V:ident] += $codes:ident[$i:ident] * |$v:ident| $key:expr) => {
        let mut key = [$s.bytes(&[0; 64]); $V];
        unrolled!($v in 0..$V, max 4 => { key[$v] = $key; });
        unrolled!(r in 0..$R, max 6 => {
            unrolled!(v in 0..$V, max 4 => {
                $sums[r][v] = $s.dot_add($sums[r][v], key[v], $codes[r][$i]);
            });
        });
    };
}

/// Products of `R` rows with `V` vectors of positions from vector `first` of the block on.
///
/// A key is `2 * byte + bit` and a query `128 * high + low`; the products of bits with low parts are omitted, which are
/// below the steps of either. The sum is exact: it is half of all, `64 * (2 * byte * high + bit * high) + byte * low`.
#[inline(always)]
fn code_tile<S: Simd, const R: usize, const V: usize>(
    s: S,
    (keys, ahead): (Keys<'_>, usize), // bytes to the next block
    words: usize,
    codes: &Codes<'_>,
    (scores, first): (&mut [Scores], usize),
) {
    let padded = codes.high.len() / R;
    let (mut bytes, mut bits) = ([keys.bytes; V], [keys.bits; V]);
    unrolled!(v in 0..V, max 4 => {
        bytes[v] = &keys.bytes[(first + v) * words..][..words];
        bits[v] = &keys.bits[(first + v) * words..][..words];
    });
    let (mut high, mut low) = ([codes.high; R], [codes.low; R]);
    let mut sums = [[s.dot_origin(0); V]; R];
    unrolled!(r in 0..R, max 6 => {
        high[r] = &codes.high[r * padded..][..words];
        low[r] = &codes.low[r * padded..][..words];
        sums[r] = [s.dot_origin(codes.sums[0][r]); V];
    });
    for i in 0..words {
        unrolled!(v in 0..V, max 4 => { s.prefetch(bytemuck::cast_slice(&bytes[v][i]), ahead); });
        add_products!(s, sums[R][V] += high[i] * |v| s.bytes(&bytes[v][i]));
    }
    unrolled!(r in 0..R, max 6 => {
        let origin = s.dot_origin(codes.sums[0][r]);
        unrolled!(v in 0..V, max 4 => { sums[r][v] = s.add_i32(s.shift_left(sums[r][v], 1), origin); });
    });
    let none = s.bytes(&[0; 64]);
    for i in 0..words {
        add_products!(
            s,
            sums[R][V] += high[i] * |v| s.add_where(none, bits[v][i], 1)
        );
    }
    unrolled!(r in 0..R, max 6 => {
        let origin = s.dot_origin(codes.sums[1][r]);
        unrolled!(v in 0..V, max 4 => { sums[r][v] = s.add_i32(s.shift_left(sums[r][v], 6), origin); });
    });
    for i in 0..words {
        add_products!(s, sums[R][V] += low[i] * |v| s.bytes(&bytes[v][i]));
    }
    let scales = keys.scales.as_chunks::<LANES>().0;
    unrolled!(r in 0..R, max 6 => {
        let factor = s.splat(codes.factors[r]);
        let to = &mut scores[r].0.as_chunks_mut::<LANES>().0[first..][..V];
        unrolled!(v in 0..V, max 4 => {
            let product = s.mul(s.to_f32(sums[r][v]), factor);
            s.store(s.fma(product, s.load(&scales[first + v]), s.load(&to[v])), &mut to[v]);
        });
    });
}
