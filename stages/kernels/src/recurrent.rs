//! What recurrent mixers need: sigmoids, decays, and the gated delta rule.

use super::exp::exp;
use super::simd::{Kernel, LANES, Simd, load_part, store_part, unrolled};

/// `out = 1 / (1 + e^-x)`.
pub(super) struct Sigmoid<'a> {
    pub x: &'a [f32],       // [n]
    pub out: &'a mut [f32], // [n]
}

impl Kernel for Sigmoid<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let one = s.splat(1.0);
        for (x, out) in self.x.chunks(LANES).zip(self.out.chunks_mut(LANES)) {
            let power = exp(s, s.sub(s.zero(), load_part(s, x)));
            store_part(s, s.div(one, s.add(one, power)), out);
        }
    }
}

/// `out = e^(rate * ln(1 + e^(x + bias)))`.
pub(super) struct Decay<'a> {
    pub x: &'a [f32],       // [n]
    pub bias: &'a [f32],    // [n]
    pub rate: &'a [f32],    // [n]
    pub out: &'a mut [f32], // [n]
}

impl Kernel for Decay<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let inputs = self.x.chunks(LANES).zip(self.bias.chunks(LANES));
        let outputs = self.rate.chunks(LANES).zip(self.out.chunks_mut(LANES));
        for ((x, bias), (rate, out)) in inputs.zip(outputs) {
            let step = softplus(s, s.add(load_part(s, x), load_part(s, bias)));
            store_part(s, exp(s, s.mul(load_part(s, rate), step)), out);
        }
    }
}

/// `ln(1 + e^x)`, within a few units in the last place; NaN stays NaN.
#[inline(always)]
fn softplus<S: Simd>(s: S, x: S::F) -> S::F {
    /// Of `artanh(r) / r` in `r^2`, the highest power first: `r` is at most 1/3.
    const SERIES: [f32; 9] = [
        1.0 / 17.0,
        1.0 / 15.0,
        1.0 / 13.0,
        1.0 / 11.0,
        1.0 / 9.0,
        1.0 / 7.0,
        1.0 / 5.0,
        1.0 / 3.0,
        1.0,
    ];
    let negative = s.sub(s.zero(), x);
    // The bound comes first: `max` and `min` return the second operand for NaN.
    let power = exp(s, s.min(negative, x)); // e^-|x|
    // ln(1 + t) = 2 artanh(t / (2 + t))
    let r = s.div(power, s.add(s.splat(2.0), power));
    let square = s.mul(r, r);
    let mut y = s.splat(SERIES[0]);
    for &c in &SERIES[1..] {
        y = s.fma(y, square, s.splat(c));
    }
    s.add(s.max(s.zero(), x), s.mul(s.add(r, r), y))
}

/// One position of the gated delta rule (Yang et al. 2024) for one head.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule<'a> {
    /// `[key_dim]`
    pub q: &'a [f32],
    /// `[key_dim]`
    pub k: &'a [f32],
    /// `[value_dim]`
    pub v: &'a [f32],
    /// How much of the state is kept.
    pub decay: f32,
    /// How much of the difference between `v` and what the state has for `k` is written.
    pub beta: f32,
}

impl DeltaRule<'_> {
    /// Columns of a state's row for values of `value_dim` elements.
    pub fn width(value_dim: usize) -> usize {
        value_dim.next_multiple_of(LANES)
    }
}

pub(super) struct DeltaStep<'a> {
    pub rule: DeltaRule<'a>,
    pub state: &'a mut [f32], // [key_dim, width]
    pub width: usize,
    pub out: &'a mut [f32], // [value_dim]
}

impl Kernel for DeltaStep<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        const WIDE: usize = 4 * LANES;
        let mut first = 0;
        while first + WIDE <= self.width {
            self.columns::<S, 4>(s, first);
            first += WIDE;
        }
        while first < self.width {
            self.columns::<S, 1>(s, first);
            first += LANES;
        }
    }
}

impl DeltaStep<'_> {
    /// `N` vectors of columns, each by itself: sums go over the rows in their order.
    #[inline(always)]
    fn columns<S: Simd, const N: usize>(&mut self, s: S, first: usize) {
        let DeltaRule {
            q,
            k,
            v,
            decay,
            beta,
        } = self.rule;
        let columns = first..first + N * LANES;
        let (decay, beta) = (s.splat(decay), s.splat(beta));
        let mut known = [s.zero(); N];
        for (row, &k) in self.state.chunks_exact_mut(self.width).zip(k) {
            let (parts, k) = (row[columns.clone()].as_chunks_mut().0, s.splat(k));
            unrolled!(j in 0..N, max 4 => {
                let kept = s.mul(decay, s.load(&parts[j]));
                s.store(kept, &mut parts[j]);
                known[j] = s.fma(k, kept, known[j]);
            });
        }
        let (mut delta, mut sums) = ([s.zero(); N], [s.zero(); N]);
        unrolled!(j in 0..N, max 4 => {
            let v = load_part(s, part(v, first + j * LANES));
            delta[j] = s.mul(beta, s.sub(v, known[j]));
        });
        let keys = k.iter().zip(q);
        for (row, (&k, &q)) in self.state.chunks_exact_mut(self.width).zip(keys) {
            let parts = row[columns.clone()].as_chunks_mut().0;
            let (k, q) = (s.splat(k), s.splat(q));
            unrolled!(j in 0..N, max 4 => {
                let new = s.fma(k, delta[j], s.load(&parts[j]));
                s.store(new, &mut parts[j]);
                sums[j] = s.fma(q, new, sums[j]);
            });
        }
        unrolled!(j in 0..N, max 4 => {
            let at = (first + j * LANES).min(self.out.len());
            let end = (at + LANES).min(self.out.len());
            store_part(s, sums[j], &mut self.out[at..end]);
        });
    }
}

/// Up to [`LANES`] elements from `first` on.
#[inline(always)]
fn part(values: &[f32], first: usize) -> &[f32] {
    let first = first.min(values.len());
    &values[first..(first + LANES).min(values.len())]
}
