//! Norms, RoPE and the FFN's activation.

use forebay_numbers::activation::{Activation, ERFC};
use forebay_numbers::rope_pairing::RopePairing;

use super::exp::exp;
use super::simd::{Kernel, LANES, Simd, load_part, store_part};

/// Squares that are summed in f32 before they join the f64 sum.
const NORM_BLOCK: usize = 4 * LANES;

/// `out = x / sqrt(mean(x^2) + eps) * w`.
pub(super) struct RmsNorm<'a> {
    pub(super) x: &'a [f32], // [d]
    pub(super) w: &'a [f32], // [d]
    pub(super) eps: f32,
    pub(super) out: &'a mut [f32], // [d]
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = inverse_root(s, self.x, self.eps);
        let rows = self.x.chunks(LANES).zip(self.w.chunks(LANES));
        for ((x, w), out) in rows.zip(self.out.chunks_mut(LANES)) {
            let normed = s.mul(load_part(s, x), scale);
            store_part(s, s.mul(normed, load_part(s, w)), out);
        }
    }
}

/// `out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w`.
pub(super) struct LayerNorm<'a> {
    pub(super) x: &'a [f32], // [d]
    pub(super) w: &'a [f32], // [d]
    pub(super) eps: f32,
    pub(super) out: &'a mut [f32], // [d]
}

impl Kernel for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let d = self.x.len() as f64;
        let mut total = 0.0;
        for block in self.x.chunks(NORM_BLOCK) {
            let mut sum = s.zero();
            for part in block.chunks(LANES) {
                sum = s.add(sum, load_part(s, part));
            }
            total += f64::from(s.reduce_add(sum));
        }
        let mean = s.splat((total / d) as f32);
        // Centred first: lanes beyond the end are read as 0 and must not count.
        for (x, out) in self.x.chunks(LANES).zip(self.out.chunks_mut(LANES)) {
            store_part(s, s.sub(load_part(s, x), mean), out);
        }
        let scale = inverse_root(s, self.out, self.eps);
        for (out, w) in self.out.chunks_mut(LANES).zip(self.w.chunks(LANES)) {
            let normed = s.mul(load_part(s, out), scale);
            store_part(s, s.mul(normed, load_part(s, w)), out);
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)` in all lanes.
#[inline(always)]
fn inverse_root<S: Simd>(s: S, x: &[f32], eps: f32) -> S::F {
    let mut squares = 0.0;
    for block in x.chunks(NORM_BLOCK) {
        let mut sum = s.zero();
        for part in block.chunks(LANES) {
            let x = load_part(s, part);
            sum = s.fma(x, x, sum);
        }
        squares += f64::from(s.reduce_add(sum));
    }
    let mean = squares / x.len() as f64;
    s.splat((1.0 / (mean + f64::from(eps)).sqrt()) as f32)
}

/// Rotates pairs of one head.
pub(super) struct Rope<'a> {
    pub(super) x: &'a mut [f32], // [head_dim]
    pub(super) cos: &'a [f32],   // [rotary_dim / 2]
    pub(super) sin: &'a [f32],   // [rotary_dim / 2]
    pub(super) pairing: RopePairing,
}

impl Kernel for Rope<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        // Plain multiplications and additions, which the compiler turns into vectors of the current instruction set;
        // without fused operations, so that every set gives the same bits.
        let angles = self.cos.iter().zip(self.sin);
        match self.pairing {
            RopePairing::Interleaved => {
                for (pair, (&c, &s)) in self.x.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
                    let [a, b] = *pair;
                    *pair = [a * c - b * s, a * s + b * c];
                }
            }
            RopePairing::HalfSplit => {
                let (first, second) = self.x.split_at_mut(self.cos.len());
                for ((a, b), (&c, &s)) in first.iter_mut().zip(second).zip(angles) {
                    (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                }
            }
        }
    }
}

/// `out = act(gate) * act(up)`, or `out = act(gate)`.
pub(super) struct GateUp<'a> {
    pub(super) activation: Activation,
    pub(super) gate: &'a [f32],       // [n]
    pub(super) up: Option<&'a [f32]>, // [n]
    pub(super) out: &'a mut [f32],    // [n]
}

impl Kernel for GateUp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Some(up) = self.up else {
            let gates = self.gate.chunks(LANES);
            for (gate, out) in gates.zip(self.out.chunks_mut(LANES)) {
                let (gate, _) = activate(s, self.activation, load_part(s, gate), s.zero());
                store_part(s, gate, out);
            }
            return;
        };
        let inputs = self.gate.chunks(LANES).zip(up.chunks(LANES));
        for ((gate, up), out) in inputs.zip(self.out.chunks_mut(LANES)) {
            let (gate, up) = (load_part(s, gate), load_part(s, up));
            let (gate, up) = activate(s, self.activation, gate, up);
            store_part(s, s.mul(gate, up), out);
        }
    }
}

/// The definition is [`Activation::gate`] and [`Activation::up`].
#[inline(always)]
fn activate<S: Simd>(s: S, activation: Activation, gate: S::F, up: S::F) -> (S::F, S::F) {
    match activation {
        Activation::Silu => {
            let one_plus = s.add(s.splat(1.0), exp(s, s.sub(s.zero(), gate)));
            (s.div(gate, one_plus), up)
        }
        // `1 + tanh(u)` is twice the sigmoid of `2 u`.
        Activation::GeluTanh => {
            let cubic = s.mul(s.mul(gate, gate), s.mul(gate, s.splat(0.044_715)));
            let factor = s.splat(-2.0 * (2.0 / std::f32::consts::PI).sqrt());
            let one_plus = s.add(s.splat(1.0), exp(s, s.mul(factor, s.add(gate, cubic))));
            (s.div(gate, one_plus), up)
        }
        Activation::GeluErf => (gelu_erf(s, gate), up),
        Activation::Relu => (s.max(gate, s.zero()), up),
        Activation::ReluSquared => {
            let gate = s.max(gate, s.zero());
            (s.mul(gate, gate), up)
        }
        Activation::FatRelu { threshold } => {
            (s.select_gt(gate, s.splat(threshold), gate, s.zero()), up)
        }
        Activation::DoubleRelu => (s.max(gate, s.zero()), s.max(up, s.zero())),
        Activation::ClampedSwiglu { alpha, limit } => {
            let (low, high) = (s.splat(-limit), s.splat(limit));
            let gate = s.min(gate, high);
            let power = exp(s, s.mul(s.splat(-alpha), gate));
            let up = s.min(s.max(up, low), high);
            let one = s.splat(1.0);
            (s.div(gate, s.add(one, power)), s.add(up, one))
        }
    }
}

/// `x` times the share of a normal distribution below `x`, which is `erfc(|x| / sqrt(2)) / 2` or 1 less that.
#[inline(always)]
fn gelu_erf<S: Simd>(s: S, x: S::F) -> S::F {
    let size = s.max(x, s.sub(s.zero(), x));
    let z = s.mul(size, s.splat(std::f32::consts::FRAC_1_SQRT_2));
    let one = s.splat(1.0);
    let t = s.div(one, s.fma(s.splat(0.5), z, one));
    let mut power = s.splat(ERFC[0]);
    for &c in &ERFC[1..] {
        power = s.fma(power, t, s.splat(c));
    }
    let tail = s.mul(s.mul(s.splat(0.5), t), exp(s, s.fnma(z, z, power)));
    s.mul(x, s.select_gt(x, s.zero(), s.sub(one, tail), tail))
}
