//! Scores become weights.

use std::ops::Range;

use super::super::exp::{exp, exp2_below};
use super::super::simd::{LANES, Simd};
use super::scratch::{AttendScratch, Block, ROWS};
use crate::kv::BLOCK;

/// Turns the scores of some rows in a block into `cap * tanh(score)`.
#[inline(always)]
pub(super) fn cap_scores<S: Simd>(
    s: S,
    cap: f32,
    (block, rows): (Block, Range<usize>),
    scratch: &mut AttendScratch,
) {
    let (one, two, cap) = (s.splat(1.0), s.splat(2.0), s.splat(cap));
    for r in rows {
        let (from, to) = scratch.rows[r].within(block);
        let parts = scratch.scores[r].0.as_chunks_mut::<LANES>().0;
        for part in &mut parts[from / LANES..to.div_ceil(LANES)] {
            // `tanh(x) = 1 - 2 / (1 + e^2x)`; the exponential is finite for all x.
            let x = s.load(part);
            let power = exp(s, s.add(x, x));
            let tanh = s.sub(one, s.div(two, s.add(one, power)));
            s.store(s.mul(cap, tanh), part);
        }
    }
}

/// Turns the scores of some rows in a block into weights (times `value_scales`), and updates their maxima,
/// sums and corrections; other rows' corrections become 1.
#[inline(always)]
pub(super) fn soften<S: Simd>(
    s: S,
    value_scales: Option<&[f32]>,
    (block, rows): (Block, Range<usize>),
    scratch: &mut AttendScratch,
) {
    const { assert!(ROWS.is_multiple_of(LANES)) };
    let state = &mut *scratch.state;
    let n = scratch.rows.len().next_multiple_of(LANES);
    state.correction[..n].fill(0.0);
    state.added[..n].fill(0.0);
    for r in rows {
        let seen = scratch.rows[r].within(block);
        let scores = &mut scratch.scores[r].0;
        let old = state.max[r];
        let (max, sum) = weigh(s, scores, seen, old, value_scales);
        state.correction[r] = old - max;
        (state.max[r], state.added[r]) = (max, sum);
    }
    let sums = state.sum[..n].as_chunks_mut::<LANES>().0.iter_mut();
    let corrections = state.correction.as_chunks_mut::<LANES>().0.iter_mut();
    let added = state.added.as_chunks::<LANES>().0;
    for ((sum, correction), added) in sums.zip(corrections).zip(added) {
        let factor = exp2_below(s, s.load(correction));
        s.store(factor, correction);
        s.store(s.fma(s.load(sum), factor, s.load(added)), sum);
    }
}

/// One row's weights of positions `from..to`; returns its new maximum and the weights' sum.
#[inline(always)]
fn weigh<S: Simd>(
    s: S,
    scores: &mut [f32; BLOCK],
    (from, to): (usize, usize),
    old: f32,
    value_scales: Option<&[f32]>,
) -> (f32, f32) {
    let parts = from / LANES..to.div_ceil(LANES);
    scores[parts.start * LANES..from].fill(f32::NEG_INFINITY);
    scores[to..parts.end * LANES].fill(f32::NEG_INFINITY);
    let scores = &mut scores.as_chunks_mut::<LANES>().0[parts.clone()];
    let mut max = s.splat(old);
    for part in scores.iter() {
        max = s.max(s.load(part), max);
    }
    let max = s.reduce_max(max);
    let (base, mut sum) = (s.splat(max), s.zero());
    let scales = value_scales.map(|v| &v.as_chunks::<LANES>().0[parts]);
    for (i, part) in scores.iter_mut().enumerate() {
        let weights = exp2_below(s, s.sub(s.load(part), base));
        sum = s.add(sum, weights);
        let scaled = match scales {
            Some(scales) => s.mul(weights, s.load(&scales[i])),
            None => weights,
        };
        s.store(scaled, part);
    }
    (max, s.reduce_add(sum))
}
