//! The number formats of the KV cache.

use std::ops::Range;

use super::super::simd::{LANES, Simd, load_part};
use super::origin::KeyOrigin;
use super::product::Part;
use super::scores::{Keys, add_codes, score_floats, score_origin};
use super::scratch::{AttendScratch, Block, Row};
use crate::kv::{BLOCK, KvHead};
use crate::spread::spread;

/// Keys and values of one head.
pub(super) trait KvFormat: Copy {
    /// 16 elements of a value.
    type Value: Part;

    /// Elements of a value.
    fn value_dim(self) -> usize;

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

    /// `[positions][value_dim / 16]`
    fn values(&self) -> &[Self::Value];

    /// Undoes in a result, `[value_dim]`, what was done to values when they were stored.
    fn finish(self, out: &mut [f32]);

    /// What weights are multiplied by, from the first position of a block on.
    fn value_scales(&self, block: Block) -> Option<&[f32]>;
}

/// Half precision.
#[derive(Clone, Copy)]
pub(super) struct Halves<'a> {
    head_dim: usize,
    value_dim: usize,
    pub keys: &'a [[u16; LANES]], // [positions / 16][head_dim]
    values: &'a [[u16; LANES]],   // [positions][value_dim / 16]
}

impl<'a> Halves<'a> {
    #[inline(always)]
    pub fn new(head: &KvHead<'_>, keys: &'a [u16], values: &'a [u16]) -> Self {
        Self {
            head_dim: head.head_dim,
            value_dim: head.value_dim,
            keys: keys.as_chunks().0,
            values: values.as_chunks().0,
        }
    }
}

impl KvFormat for Halves<'_> {
    type Value = [u16; LANES];

    #[inline(always)]
    fn value_dim(self) -> usize {
        self.value_dim
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
    fn finish(self, _: &mut [f32]) {}

    #[inline(always)]
    fn value_scales(&self, _: Block) -> Option<&[f32]> {
        None
    }
}

/// Keys in 9 bits and values in 8, with a scale for each. The query is turned into integers of 15 bits, so a score is a
/// sum of integers times three factors, and the product with the origin of keys.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a> {
    head_dim: usize,
    value_dim: usize,
    keys: Keys<'a>,
    values: &'a [[i8; LANES]], // [positions][value_dim / 16]
    value_scales: &'a [f32],   // [positions]
    origin: Option<KeyOrigin<'a>>,
}

impl<'a> Bytes<'a> {
    #[inline(always)]
    pub fn new(
        head: &KvHead<'_>,
        ((bytes, bits), values): ((&'a [i8], &'a [u64]), &'a [i8]),
        (scales, value_scales): (&'a [f32], &'a [f32]),
        origin: Option<KeyOrigin<'a>>,
    ) -> Self {
        Self {
            head_dim: head.head_dim,
            value_dim: head.value_dim,
            keys: Keys {
                bytes: bytes.as_chunks().0,
                bits,
                scales,
            },
            values: values.as_chunks().0,
            value_scales,
            origin,
        }
    }
}

impl KvFormat for Bytes<'_> {
    type Value = [i8; LANES];

    #[inline(always)]
    fn value_dim(self) -> usize {
        self.value_dim
    }

    #[inline(always)]
    fn begin<S: Simd>(self, s: S, q: &[f32], scale: f32, scratch: &mut AttendScratch) {
        let (d, parts) = (self.head_dim, self.head_dim.div_ceil(LANES));
        let [high, low] = &mut scratch.codes;
        for (r, row) in scratch.rows.iter().enumerate() {
            let query = &mut scratch.query[..d];
            query.copy_from_slice(&q[row.q..][..d]);
            spread(query);
            let codes = (
                &mut high[r * parts..][..parts],
                &mut low[r * parts..][..parts],
            );
            let (factor, sums) = quantise(s, query, codes);
            // Scores come as half of the products.
            scratch.state.factor[r] = 2.0 * factor * scale;
            [scratch.state.code_sums[0][r], scratch.state.code_sums[1][r]] = sums;
        }
        if let Some(origin) = self.origin {
            begin_origin(origin, (q, d), scale, scratch);
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
        match self.origin {
            Some(origin) => score_origin(s.plain(), origin.turns, at.clone(), scratch),
            None => {
                let scores = &mut scratch.scores[at.1.clone()];
                scores.iter_mut().for_each(|row| row.0.fill(0.0));
            }
        }
        add_codes(s, self.keys, self.head_dim, at, scratch);
    }

    #[inline(always)]
    fn values(&self) -> &[[i8; LANES]] {
        self.values
    }

    #[inline(always)]
    fn finish(self, out: &mut [f32]) {
        spread(out);
    }

    #[inline(always)]
    fn value_scales(&self, block: Block) -> Option<&[f32]> {
        Some(&self.value_scales[block.place * BLOCK..])
    }
}

/// Prepares the products of the tile's queries with the origin of keys, `scale` included.
fn begin_origin(
    origin: KeyOrigin<'_>,
    (q, d): (&[f32], usize),
    scale: f32,
    scratch: &mut AttendScratch,
) {
    let width = origin.turns.width();
    scratch.origin_rows.clear();
    for (r, row) in scratch.rows.iter().enumerate() {
        let to = &mut scratch.origin[0][r * width..][..width];
        origin.turns.begin(origin.bias, &q[row.q..][..d], to);
        to.iter_mut().for_each(|v| *v *= scale);
        let row = Row {
            q: r * width,
            ..*row
        };
        scratch.origin_rows.push(row);
    }
}

/// Largest code of a query: `128 * high + low`, with `high` in -127..=127 and `low` in -64..=63.
const QUERY_LEVELS: f32 = 16_256.0;
/// Below this magnitude the inverse of the scale is not finite; such a query counts as zero.
const TINY: f32 = 1e-34;

/// Writes a query's codes, padded with zeros, in their high and low parts; returns their scale, NaN if an element is
/// infinite or NaN, and the sums of both parts.
#[inline(always)]
fn quantise<S: Simd>(
    s: S,
    q: &[f32],
    (high, low): (&mut [[i8; LANES]], &mut [[i8; LANES]]),
) -> (f32, [i32; 2]) {
    let mut largest = s.magnitude_bits(s.zero());
    for part in q.chunks(LANES) {
        largest = s.max_i32(largest, s.magnitude_bits(load_part(s, part)));
    }
    let max = f32::from_bits(s.reduce_max_i32(largest) as u32);
    if !(max >= TINY && max.is_finite()) {
        high.fill([0; LANES]);
        low.fill([0; LANES]);
        return (if max.is_finite() { 0.0 } else { f32::NAN }, [0; 2]);
    }
    let inverse = s.splat(QUERY_LEVELS / max);
    let mut sums = [0; 2];
    for ((part, high), low) in q.chunks(LANES).zip(high).zip(low) {
        let code = s.round(s.mul(load_part(s, part), inverse));
        let upper = s.round(s.mul(s.to_f32(code), s.splat(1.0 / 128.0)));
        let lower = s.sub_i32(code, s.shift_left(upper, 7));
        s.store_i8(upper, high);
        s.store_i8(lower, low);
        sums[0] += s.reduce_add_i32(upper);
        sums[1] += s.reduce_add_i32(lower);
    }
    (max / QUERY_LEVELS, sums)
}
