//! Attention of one token with online softmax: positions are taken in blocks of a fixed size, so no
//! matrix of scores exists, and the result depends on the data only.

use half::f16;

use super::exp::exp;
use super::simd::{Kernel, LANES, Simd, load_part, store_part};

/// Positions of a block: scores stay in the first-level cache, as do the block's keys and values.
const BLOCK: usize = 64;
/// Query heads that share a pass over the keys and values.
const HEADS: usize = 8;
/// Query heads whose accumulators are in registers together.
const TILE: usize = 4;

/// `out[g] = softmax(scale * q[g] . k^T) . v` for the query heads of one kv head.
pub(super) struct Attend<'a> {
    pub(super) q: &'a [f32],  // [group, head_dim]
    pub(super) k: &'a [f16],  // [n_pos, head_dim]
    pub(super) v: &'a [f16],  // [n_pos, head_dim]
    pub(super) head_dim: usize,
    pub(super) scale: f32,
    pub(super) out: &'a mut [f32], // [group, head_dim]
}

/// Running softmax of a few heads.
struct State {
    scores: [[f32; BLOCK]; HEADS],
    max: [f32; HEADS],
    sum: [f32; HEADS],
    /// What the sums so far are multiplied with, since the maximum grew.
    correction: [f32; HEADS],
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (d, scale) = (self.head_dim, self.scale);
        self.out.fill(0.0);
        let heads = self.q.chunks(HEADS * d).zip(self.out.chunks_mut(HEADS * d));
        for (q, out) in heads {
            let mut state = State {
                scores: [[0.0; BLOCK]; HEADS],
                max: [f32::NEG_INFINITY; HEADS],
                sum: [0.0; HEADS],
                correction: [0.0; HEADS],
            };
            for (k, v) in self.k.chunks(BLOCK * d).zip(self.v.chunks(BLOCK * d)) {
                let n = k.len() / d;
                state.score(s, q, k, d, scale);
                for h in 0..q.len() / d {
                    state.soften(s, h, n);
                }
                state.gather(s, v, d, out);
            }
            for (h, out) in out.chunks_mut(d).enumerate() {
                if state.sum[h] != 0.0 {
                    out.iter_mut().for_each(|v| *v /= state.sum[h]);
                }
            }
        }
    }
}

/// 16 or fewer f16 from `first` on, filled up with zeros.
#[inline(always)]
fn widen_part<S: Simd>(s: S, row: &[f16], first: usize) -> S::F {
    let part = &row[first..];
    match part.first_chunk::<LANES>() {
        Some(full) => s.widen_f16(bytemuck::cast_ref(full)),
        None => {
            let mut lanes = [f16::ZERO; LANES];
            lanes[..part.len()].copy_from_slice(part);
            s.widen_f16(bytemuck::cast_ref(&lanes))
        }
    }
}

impl State {
    /// Scores of a block's keys.
    #[inline(always)]
    fn score<S: Simd>(&mut self, s: S, q: &[f32], k: &[f16], d: usize, scale: f32) {
        for (j, k) in k.chunks_exact(d).enumerate() {
            for (h, q) in q.chunks_exact(d).enumerate() {
                let mut sums = [s.zero(); 2];
                for (i, q) in q.chunks(LANES).enumerate() {
                    let k = widen_part(s, k, i * LANES);
                    sums[i % 2] = s.fma(load_part(s, q), k, sums[i % 2]);
                }
                self.scores[h][j] = scale * s.reduce_add(s.add(sums[0], sums[1]));
            }
        }
    }

    /// Turns the first `n` scores of a head into weights; the rest become 0.
    #[inline(always)]
    fn soften<S: Simd>(&mut self, s: S, h: usize, n: usize) {
        let scores = &mut self.scores[h];
        let mut max = self.max[h];
        for &v in &scores[..n] {
            max = if v > max { v } else { max };
        }
        scores[n..].fill(f32::NEG_INFINITY);
        let (base, mut sum) = (s.splat(max), s.zero());
        for part in scores.as_chunks_mut::<LANES>().0 {
            let weights = exp(s, s.sub(s.load(part), base));
            sum = s.add(sum, weights);
            s.store(weights, part);
        }
        let mut correction = [0.0; LANES];
        s.store(exp(s, s.sub(s.splat(self.max[h]), base)), &mut correction);
        self.correction[h] = correction[0];
        self.sum[h] = self.sum[h] * correction[0] + s.reduce_add(sum);
        self.max[h] = max;
    }

    /// Adds a block's values, weighted, to `out: [heads, d]`.
    #[inline(always)]
    fn gather<S: Simd>(&self, s: S, v: &[f16], d: usize, out: &mut [f32]) {
        let heads = out.len() / d;
        for first in (0..d).step_by(LANES) {
            let mut h = 0;
            while h + TILE <= heads {
                self.gather_tile::<S, TILE>(s, v, d, first, h, out);
                h += TILE;
            }
            while h < heads {
                self.gather_tile::<S, 1>(s, v, d, first, h, out);
                h += 1;
            }
        }
    }

    /// Elements `first ..` of `N` heads from `h` on.
    #[inline(always)]
    fn gather_tile<S: Simd, const N: usize>(
        &self,
        s: S,
        v: &[f16],
        d: usize,
        first: usize,
        h: usize,
        out: &mut [f32],
    ) {
        let n = LANES.min(d - first);
        let mut sums = [s.zero(); N];
        for i in 0..N {
            let old = load_part(s, &out[(h + i) * d + first..][..n]);
            sums[i] = s.mul(old, s.splat(self.correction[h + i]));
        }
        for (j, row) in v.chunks_exact(d).enumerate() {
            let values = widen_part(s, &row[..first + n], first);
            for i in 0..N {
                sums[i] = s.fma(s.splat(self.scores[h + i][j]), values, sums[i]);
            }
        }
        for i in 0..N {
            store_part(s, sums[i], &mut out[(h + i) * d + first..][..n]);
        }
    }
}
