//! Random numbers by position: any number of any row can be computed without those before it.

use crate::random::{GOLDEN, mix};

/// The numbers of one row, by counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream(u64);

impl Stream {
    /// The stream of a model.
    pub(super) fn of_seed(seed: u64) -> Self {
        Self(mix(seed ^ GOLDEN))
    }

    /// The stream number `index` below this one.
    pub(super) fn child(self, index: u64) -> Self {
        Self(mix(self.at(index) ^ 0x5851_f42d_4c95_7f2d))
    }

    /// 64 random bits.
    pub(super) fn at(self, counter: u64) -> u64 {
        mix(self
            .0
            .wrapping_add(counter.wrapping_add(1).wrapping_mul(GOLDEN)))
    }

    /// A normal deviate (mean 0, variance 1; the sum of 8 bytes, so never beyond 4.9).
    pub(super) fn normal(self, counter: u64) -> f32 {
        const MEAN: f32 = 8.0 * 127.5;
        const DEVIATION: f32 = 209.020_3; // sqrt(8 * (256² - 1) / 12)
        let bits = self.at(counter);
        let pairs = (bits & 0x00ff_00ff_00ff_00ff) + (bits >> 8 & 0x00ff_00ff_00ff_00ff);
        let sum = pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48;
        (sum as f32 - MEAN) / DEVIATION
    }

    /// 1 or -1.
    pub(super) fn sign(self, counter: u64) -> i8 {
        if self.at(counter) >> 63 == 0 { 1 } else { -1 }
    }
}

/// The `x` below which a normal deviate is with probability `p`, `0 < p < 1` (Acklam's rational
/// approximation, relative error below 1.2e-9).
pub(super) fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    let polynomial = |c: &[f64], x: f64| c.iter().fold(0.0, |sum, c| sum * x + c);
    let tail = |p: f64| {
        let q = (-2.0 * p.ln()).sqrt();
        polynomial(&C, q) / polynomial(&D, q)
    };
    if p < 0.024_25 {
        tail(p)
    } else if p > 1.0 - 0.024_25 {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        q * polynomial(&A, q * q) / polynomial(&B, q * q)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_the_normal_distribution() {
        // Tables of the standard normal distribution.
        for (p, x) in [
            (0.5, 0.0),
            (0.9, 1.281_551_6),
            (0.01, -2.326_347_9),
            (0.999, 3.090_232_3),
        ] {
            assert!((normal_quantile(p) - x).abs() < 1e-6, "{p}");
        }
    }

    #[test]
    fn normal_deviates_have_their_moments_and_rows_differ() {
        let (a, b) = (Stream::of_seed(1).child(3), Stream::of_seed(1).child(4));
        let n = 20_000;
        let mean = |f: &dyn Fn(u64) -> f32| (0..n).map(|i| f64::from(f(i))).sum::<f64>() / n as f64;
        assert!(mean(&|i| a.normal(i)).abs() < 0.03);
        assert!((mean(&|i| a.normal(i).powi(2)) - 1.0).abs() < 0.04);
        assert!(mean(&|i| a.normal(i) * b.normal(i)).abs() < 0.03);
        assert!(mean(&|i| f32::from(a.sign(i))).abs() < 0.03);
    }
}
