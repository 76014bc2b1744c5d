//! Keys that were stored without a part that all of them have in common, and that part's products with queries.
//!
//! The bias of keys can be a hundred times larger than what makes keys differ, so it would take most of their codes. It
//! is the same for all positions but for the rotation. With the pair `(b1, b2)` of a bias, the pair `(q1, q2)` of a
//! query, the angle `a` per position and a position `p = 64 * block + near`, their product is
//!
//! ```text
//! c = q1 * b1 + q2 * b2,  s = q2 * b1 - q1 * b2                       once for each query
//! c' = c * cos(64 * block * a) + s * sin(64 * block * a)              once for each query and block
//! s' = s * cos(64 * block * a) - c * sin(64 * block * a)
//! c' * cos(near * a) + s' * sin(near * a)                             once for each query and position
//! ```
//!
//! The last is a product with the same 64 rows for all blocks, heads and layers.

use forebay_numbers::rope_pairing::RopePairing;

use super::super::simd::LANES;
use super::scratch::Line;
use crate::kv::BLOCK;

/// What was subtracted from the keys of a head before they were stored: this bias, rotated as keys are.
#[derive(Clone, Copy, Debug)]
pub struct KeyOrigin<'a> {
    /// `[head_dim]`; only what is rotated counts.
    pub bias: &'a [f32],
    /// The rotation.
    pub turns: &'a Turns,
}

/// Cosines and sines of a rotation by whole blocks, and within a block.
#[derive(Debug)]
pub struct Turns {
    pairing: RopePairing,
    /// Pairs that are rotated.
    half: usize,
    /// `[64 / 16][2 * half]` of 16 positions: first cosines, then sines.
    near: Vec<Line>,
    /// `[blocks][2 * half]`: first cosines, then sines.
    far: Vec<f32>,
    /// Factor of the rotated bias's cosines and sines; those of the tables have none.
    magnitude: f32,
}

impl Turns {
    /// For `frequencies` in radians per position, and sequences of up to `context` positions.
    pub fn new(
        frequencies: &[f32],
        (pairing, magnitude): (RopePairing, f32),
        context: usize,
    ) -> Self {
        let half = frequencies.len();
        let angle = |position: usize, i: usize| position as f64 * f64::from(frequencies[i]);
        let element = |position: usize, i: usize| match i.checked_sub(half) {
            None => angle(position, i).cos() as f32,
            Some(i) => angle(position, i).sin() as f32,
        };
        let line = |at: usize| {
            let (part, i) = (at / (2 * half), at % (2 * half));
            Line(std::array::from_fn(|lane| element(part * LANES + lane, i)))
        };
        let far = |at: usize| element(at / (2 * half) * BLOCK, at % (2 * half));
        Self {
            pairing,
            half,
            near: (0..BLOCK / LANES * 2 * half).map(line).collect(),
            far: (0..context.div_ceil(BLOCK) * 2 * half).map(far).collect(),
            magnitude,
        }
    }

    /// Bytes that [`Self::new`] allocates, for memory budgets.
    pub fn bytes(half: usize, context: usize) -> usize {
        let positions = BLOCK + context.div_ceil(BLOCK);
        positions.saturating_mul(2 * half * size_of::<f32>())
    }

    /// Elements of a head that are rotated.
    pub(super) fn width(&self) -> usize {
        2 * self.half
    }

    /// `[64 / 16][width]` of 16 positions.
    pub(super) fn near(&self) -> &[Line] {
        &self.near
    }

    /// Writes `c` and `s` of a query, `[head_dim]`, `[half]` each.
    pub(super) fn begin(&self, bias: &[f32], q: &[f32], to: &mut [f32]) {
        let half = self.half;
        let (c, s) = to[..2 * half].split_at_mut(half);
        for i in 0..half {
            let (first, second) = match self.pairing {
                RopePairing::HalfSplit => (i, i + half),
                RopePairing::Interleaved => (2 * i, 2 * i + 1),
            };
            let (b1, b2) = (bias[first] * self.magnitude, bias[second] * self.magnitude);
            c[i] = q[first] * b1 + q[second] * b2;
            s[i] = q[second] * b1 - q[first] * b2;
        }
    }

    /// Writes `c'` and `s'` of what [`Self::begin`] wrote.
    pub(super) fn turn(&self, block: usize, from: &[f32], to: &mut [f32]) {
        let half = self.half;
        let (cos, sin) = self.far[block * 2 * half..][..2 * half].split_at(half);
        let (c, s) = from[..2 * half].split_at(half);
        let (c_turned, s_turned) = to[..2 * half].split_at_mut(half);
        for i in 0..half {
            c_turned[i] = c[i] * cos[i] + s[i] * sin[i];
            s_turned[i] = s[i] * cos[i] - c[i] * sin[i];
        }
    }
}
