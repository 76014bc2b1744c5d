//! Attention of one token with online softmax: positions are taken in blocks of a fixed size, so no
//! matrix of scores exists, and the result depends on the data only.

use half::f16;

use super::exp::exp;
use super::simd::{Kernel, LANES, Simd, load_part, store_part, unrolled};

/// Positions of a block: scores stay in the first-level cache, as do the block's keys and values.
const BLOCK: usize = 64;
/// Query heads that share a pass over the keys and values.
const HEADS: usize = 8;
/// Positions whose scores are computed together.
const KEYS: usize = 4;

/// `out[g] = softmax(scale * q[g] . k^T) . v` for the query heads of one kv head.
pub(super) struct Attend<'a> {
    pub(super) q: &'a [f32], // [group, head_dim]
    pub(super) k: &'a [f16], // [n_pos, head_dim]
    pub(super) v: &'a [f16], // [n_pos, head_dim]
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

/// 16 or fewer f16, filled up with zeros.
#[inline(always)]
fn widen_part<S: Simd>(s: S, part: &[f16]) -> S::F {
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
        let heads = q.len() / d;
        for first in (0..k.len() / d).step_by(KEYS) {
            let mut h = 0;
            while h + 2 <= heads {
                self.score_tile::<S, 2>(s, &q[h * d..], k, d, scale, (h, first));
                h += 2;
            }
            if h < heads {
                self.score_tile::<S, 1>(s, &q[h * d..], k, d, scale, (h, first));
            }
        }
    }

    /// Scores of `N` heads from `h` on with four keys from `first` on; keys behind the last are taken
    /// to be the last again.
    #[inline(always)]
    fn score_tile<S: Simd, const N: usize>(
        &mut self,
        s: S,
        q: &[f32],
        k: &[f16],
        d: usize,
        scale: f32,
        (h, first): (usize, usize),
    ) {
        let n = k.len() / d;
        let mut keys = [k; KEYS];
        for (j, key) in keys.iter_mut().enumerate() {
            *key = &k[(first + j).min(n - 1) * d..][..d];
        }
        let mut sums = [[s.zero(); KEYS]; N];
        for i in (0..d).step_by(LANES) {
            let width = LANES.min(d - i);
            let mut queries = [s.zero(); N];
            unrolled!(g in 0..N => { queries[g] = load_part(s, &q[g * d + i..][..width]); });
            unrolled!(j in 0..4 => {
                let key = widen_part(s, &keys[j][i..][..width]);
                unrolled!(g in 0..N => { sums[g][j] = s.fma(queries[g], key, sums[g][j]); });
            });
        }
        unrolled!(g in 0..N => {
            let dots = s.reduce_add4(sums[g]);
            let scores = &mut self.scores[h + g][first..][..KEYS];
            for (score, dot) in scores.iter_mut().zip(dots) {
                *score = scale * dot;
            }
        });
    }

    /// Turns the first `n` scores of a head into weights; the rest become 0.
    #[inline(always)]
    fn soften<S: Simd>(&mut self, s: S, h: usize, n: usize) {
        self.scores[h][n..].fill(f32::NEG_INFINITY);
        let scores = self.scores[h].as_chunks_mut::<LANES>().0;
        let old = s.splat(self.max[h]);
        let mut max = old;
        for part in scores.iter() {
            max = s.max(s.load(part), max);
        }
        self.max[h] = s.reduce_max(max);
        let (base, mut sum) = (s.splat(self.max[h]), s.zero());
        for part in scores {
            let weights = exp(s, s.sub(s.load(part), base));
            sum = s.add(sum, weights);
            s.store(weights, part);
        }
        let mut correction = [0.0; LANES];
        s.store(exp(s, s.sub(old, base)), &mut correction);
        self.correction[h] = correction[0];
        self.sum[h] = self.sum[h] * correction[0] + s.reduce_add(sum);
    }

    /// Adds a block's values, weighted, to `out: [heads, d]`.
    #[inline(always)]
    fn gather<S: Simd>(&self, s: S, v: &[f16], d: usize, out: &mut [f32]) {
        let heads = out.len() / d;
        let mut h = 0;
        while h + 2 <= heads {
            self.gather_heads::<S, 2>(s, v, d, h, out);
            h += 2;
        }
        if h < heads {
            self.gather_heads::<S, 1>(s, v, d, h, out);
        }
    }

    /// `N` heads from `h` on.
    #[inline(always)]
    fn gather_heads<S: Simd, const N: usize>(
        &self,
        s: S,
        v: &[f16],
        d: usize,
        h: usize,
        out: &mut [f32],
    ) {
        let mut first = 0;
        while first + 4 * LANES <= d {
            self.gather_tile::<S, N, 4>(s, v, d, (h, first), out);
            first += 4 * LANES;
        }
        while first < d {
            self.gather_tile::<S, N, 1>(s, v, d, (h, first), out);
            first += LANES;
        }
    }

    /// `W` vectors from element `first` on of `N` heads from `h` on; a single one may be cut short by
    /// the end of the head.
    #[inline(always)]
    fn gather_tile<S: Simd, const N: usize, const W: usize>(
        &self,
        s: S,
        v: &[f16],
        d: usize,
        (h, first): (usize, usize),
        out: &mut [f32],
    ) {
        let end = d.min(first + W * LANES);
        let mut sums = [[s.zero(); W]; N];
        unrolled!(g in 0..N => {
            let correction = s.splat(self.correction[h + g]);
            let old = &out[(h + g) * d..][first..end];
            unrolled!(i in 0..W => {
                let part = &old[i * LANES..old.len().min((i + 1) * LANES)];
                sums[g][i] = s.mul(load_part(s, part), correction);
            });
        });
        for (j, row) in v.chunks_exact(d).enumerate() {
            let row = &row[first..end];
            let mut values = [s.zero(); W];
            unrolled!(i in 0..W => {
                values[i] = widen_part(s, &row[i * LANES..row.len().min((i + 1) * LANES)]);
            });
            unrolled!(g in 0..N => {
                let weight = s.splat(self.scores[h + g][j]);
                unrolled!(i in 0..W => { sums[g][i] = s.fma(weight, values[i], sums[g][i]); });
            });
        }
        unrolled!(g in 0..N => {
            let new = &mut out[(h + g) * d..][first..end];
            for (part, &sum) in new.chunks_mut(LANES).zip(&sums[g]) {
                store_part(s, sum, part);
            }
        });
    }
}
