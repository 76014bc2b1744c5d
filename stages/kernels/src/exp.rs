//! The exponential function.

use super::simd::Simd;

/// Largest argument that is not clamped; the result stays finite.
const MAX: f32 = 88.0;
/// Arguments below give 0; the true value is below 1.2e-38.
const MIN: f32 = -87.0;

/// `e^x` within 2 units in the last place, 0 below [`MIN`], `e^88` above [`MAX`]; NaN stays NaN.
///
/// Cephes' `expf`: `x = n ln 2 + r` with `|r| <= ln 2 / 2`, a polynomial for `e^r`, times `2^n`.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const POLYNOMIAL: [f32; 6] = [
        1.987_569_1e-4,
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        0.166_666_65,
        0.5,
    ];
    // The bound comes first: `max` and `min` return the second operand for NaN.
    let clamped = s.min(s.splat(MAX), s.max(s.splat(MIN), x));
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    let whole = s.to_f32(n);
    let r = s.fnma(whole, s.splat(LN2_HIGH), clamped);
    let r = s.fnma(whole, s.splat(LN2_LOW), r);
    let mut y = s.splat(POLYNOMIAL[0]);
    for &c in &POLYNOMIAL[1..] {
        y = s.fma(y, r, s.splat(c));
    }
    let y = s.add(s.fma(y, s.mul(r, r), r), s.splat(1.0));
    s.select_gt(s.splat(MIN), x, s.zero(), s.mul(y, s.pow2(n)))
}

/// `2^x` within 2 units in the last place for `x <= 0`, 0 below -60; NaN stays NaN. Exactly 1 for 0.
///
/// Cephes' `exp2f`: `x = n + r` with `|r| <= 1 / 2`, a polynomial for `2^r`, times `2^n`. Beside a weight of 1, what is
/// below 2^-60 is nothing; so products with weights are never subnormal, which devices may take for zero.
#[inline(always)]
pub(super) fn exp2_below<S: Simd>(s: S, x: S::F) -> S::F {
    const MIN: f32 = -60.0;
    const POLYNOMIAL: [f32; 7] = [
        1.535_336_2e-4,
        1.339_887_4e-3,
        9.618_437e-3,
        5.550_332_5e-2,
        0.240_226_48,
        std::f32::consts::LN_2,
        1.0,
    ];
    // The bound comes first: `max` returns the second operand for NaN.
    let clamped = s.max(s.splat(MIN), x);
    let n = s.round(clamped);
    let r = s.sub(clamped, s.to_f32(n));
    let mut y = s.splat(POLYNOMIAL[0]);
    for &c in &POLYNOMIAL[1..] {
        y = s.fma(y, r, s.splat(c));
    }
    s.select_gt(s.splat(MIN), x, s.zero(), s.mul(y, s.pow2(n)))
}
