//! The number formats of the KV cache.

use std::ops::Range;

use super::super::simd::{LANES, Simd, load_part};
use super::product::Part;
use super::scores::{score_bytes, score_floats};
use super::scratch::{AttendScratch, Block};
use crate::kv::BLOCK;

/// Keys and values of one head.
pub(super) trait Numbers: Copy {
    /// 16 elements of a value.
    type Value: Part;

    /// Elements of a key and of a value.
    fn head_dim(self) -> usize;

    /// Prepares the queries and factors of the tile's rows.
    fn begin<S: Simd>(self, s: S, q: &[f32], scale: f32, scratch: &mut AttendScratch);

    /// Scores of some rows, `scale * q . k` with the `scale` of [`Self::begin`], for the positions of a block.
    fn score<S: Simd>(
        self,
        s: S,
        q: &[f32],
        at: (Block, Range<usize>),
        scratch: &mut AttendScratch,
    );

    /// `[positions][head_dim / 16]`
    fn values(&self) -> &[Self::Value];

    /// What weights are multiplied by, from the first position of a block on.
    fn value_scales(&self, block: Block) -> Option<&[f32]>;
}

/// Half precision.
#[derive(Clone, Copy)]
pub(super) struct Halves<'a> {
    head_dim: usize,
    pub keys: &'a [[u16; LANES]], // [positions / 16][head_dim]
    values: &'a [[u16; LANES]],   // [positions][head_dim / 16]
}

impl<'a> Halves<'a> {
    #[inline(always)]
    pub fn new(head_dim: usize, keys: &'a [u16], values: &'a [u16]) -> Self {
        Self {
            head_dim,
            keys: keys.as_chunks().0,
            values: values.as_chunks().0,
        }
    }
}

impl Numbers for Halves<'_> {
    type Value = [u16; LANES];

    #[inline(always)]
    fn head_dim(self) -> usize {
        self.head_dim
    }

    #[inline(always)]
    fn begin<S: Simd>(self, _: S, _: &[f32], scale: f32, scratch: &mut AttendScratch) {
        scratch.state.factor.fill(scale);
    }

    #[inline(always)]
    fn score<S: Simd>(
        self,
        s: S,
        q: &[f32],
        at: (Block, Range<usize>),
        scratch: &mut AttendScratch,
    ) {
        let s = s.plain();
        score_floats(s, self.keys, (q, self.head_dim), at, scratch);
    }

    #[inline(always)]
    fn values(&self) -> &[[u16; LANES]] {
        self.values
    }

    #[inline(always)]
    fn value_scales(&self, _: Block) -> Option<&[f32]> {
        None
    }
}

/// Signed bytes with a scale per key and value. The query is also turned into signed bytes, so a score is a sum of
/// integers times three factors.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a> {
    head_dim: usize,
    keys: &'a [[i8; 64]],      // [positions / 16][head_dim / 4]
    values: &'a [[i8; LANES]], // [positions][head_dim / 16]
    key_scales: &'a [f32],     // [positions]
    value_scales: &'a [f32],   // [positions]
}

impl<'a> Bytes<'a> {
    #[inline(always)]
    pub fn new(
        head_dim: usize,
        (keys, values): (&'a [i8], &'a [i8]),
        (key_scales, value_scales): (&'a [f32], &'a [f32]),
    ) -> Self {
        Self {
            head_dim,
            keys: keys.as_chunks().0,
            values: values.as_chunks().0,
            key_scales,
            value_scales,
        }
    }
}

impl Numbers for Bytes<'_> {
    type Value = [i8; LANES];

    #[inline(always)]
    fn head_dim(self) -> usize {
        self.head_dim
    }

    #[inline(always)]
    fn begin<S: Simd>(self, s: S, q: &[f32], scale: f32, scratch: &mut AttendScratch) {
        let parts = self.head_dim.div_ceil(LANES);
        let state = &mut scratch.state;
        for (r, row) in scratch.rows.iter().enumerate() {
            let codes = &mut scratch.codes[r * parts..][..parts];
            let (factor, sum) = quantise(s, &q[row.q..][..self.head_dim], codes);
            state.factor[r] = factor * scale;
            state.code_sum[r] = sum;
        }
    }

    #[inline(always)]
    fn score<S: Simd>(
        self,
        s: S,
        _: &[f32],
        at: (Block, Range<usize>),
        scratch: &mut AttendScratch,
    ) {
        score_bytes(s, self.keys, self.key_scales, self.head_dim, at, scratch);
    }

    #[inline(always)]
    fn values(&self) -> &[[i8; LANES]] {
        self.values
    }

    #[inline(always)]
    fn value_scales(&self, block: Block) -> Option<&[f32]> {
        Some(&self.value_scales[block.place * BLOCK..])
    }
}

/// Below this magnitude `127 / max` is not finite; such a query counts as zero.
const TINY: f32 = 1e-36;

/// Writes a query's codes, in -127..=127 and then zeros; returns their scale, NaN if an element is infinite or NaN, and
/// their sum.
#[inline(always)]
fn quantise<S: Simd>(s: S, q: &[f32], codes: &mut [[i8; LANES]]) -> (f32, i32) {
    let mut largest = s.magnitude_bits(s.zero());
    for part in q.chunks(LANES) {
        largest = s.max_i32(largest, s.magnitude_bits(load_part(s, part)));
    }
    let max = f32::from_bits(s.reduce_max_i32(largest) as u32);
    if !(max >= TINY && max.is_finite()) {
        codes.fill([0; LANES]);
        return (if max.is_finite() { 0.0 } else { f32::NAN }, 0);
    }
    let inverse = s.splat(127.0 / max);
    let mut sum = 0;
    for (part, codes) in q.chunks(LANES).zip(codes) {
        let rounded = s.round(s.mul(load_part(s, part), inverse));
        s.store_i8(rounded, codes);
        sum += s.reduce_add_i32(rounded);
    }
    (max / 127.0, sum)
}
