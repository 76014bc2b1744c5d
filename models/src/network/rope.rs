//! Rotary position embedding: which elements rotate together, and how fast.

use std::f64::consts::PI;

use forebay_numbers::rope_pairing::RopePairing;
use serde::{Deserialize, Serialize};

/// A divisor of a frequency so large that the pair is not rotated.
pub const NOT_ROTATED: f32 = 1e30;

/// Change of the rotary frequencies, mostly for long contexts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// Frequencies as trained.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// Divisor of every frequency.
        factor: f32,
    },
    /// Divides by wavelength (`rope_type` "llama3").
    Llama3 {
        /// Divisor for long wavelengths.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are divided by `factor`.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context length of the original training, in tokens.
        original_context: f32,
    },
    /// One divisor per frequency, `[rotary_dim / 2]` (GGUF's `rope_freqs.weight`). From [`NOT_ROTATED`] on, the pair is
    /// not rotated.
    Factors(Vec<f32>),
    /// Divisors that depend on whether the chosen context is longer than the original one, as in llama.cpp (`rope_type`
    /// "longrope"), each `[rotary_dim / 2]`.
    LongShort {
        /// For contexts up to the original one.
        short: Vec<f32>,
        /// For longer ones.
        long: Vec<f32>,
        /// Context length of the original training, in tokens.
        original_context: usize,
    },
    /// YaRN (Peng et al. 2023): slow frequencies divided by `factor`, fast ones kept, a ramp between.
    Yarn {
        /// Divisor for slow frequencies.
        factor: f32,
        /// Context length of the original training, in tokens.
        original_context: f32,
        /// A frequency with at least this many rotations over the original context is kept.
        beta_fast: f32,
        /// One with fewer rotations than this is divided.
        beta_slow: f32,
    },
}

/// One kind of rotation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the frequencies: `theta^(-2i/rotary_dim)`.
    pub theta: f32,
    /// Number of leading elements of a head that are rotated (even, at most `head_dim`).
    pub rotary_dim: usize,
    /// Which elements form a pair.
    pub pairing: RopePairing,
    /// Long-context change of the frequencies.
    pub scaling: RopeScaling,
    /// Factor of cosines and sines.
    pub magnitude: f32,
}

impl Rope {
    /// A rotation of `rotary_dim` elements without any change for long contexts.
    pub fn plain(theta: f32, rotary_dim: usize, pairing: RopePairing) -> Self {
        Self {
            theta,
            rotary_dim,
            pairing,
            scaling: RopeScaling::None,
            magnitude: 1.0,
        }
    }

    /// Angular frequency per pair in radians per position, `[rotary_dim / 2]`, scaling applied. `context` is the number
    /// of positions for which the run has room.
    pub fn frequencies(&self, context: usize) -> Vec<f32> {
        let half = self.rotary_dim / 2;
        (0..half)
            .map(|i| {
                let exponent = (2 * i) as f64 / self.rotary_dim as f64;
                let base = 1.0 / f64::from(self.theta).powf(exponent);
                self.scaled(i, base, context) as f32
            })
            .collect()
    }

    fn scaled(&self, i: usize, base: f64, context: usize) -> f64 {
        let divided = |factors: &[f32]| match factors.get(i) {
            Some(&factor) if factor >= NOT_ROTATED => 0.0,
            Some(&factor) => base / f64::from(factor),
            None => base,
        };
        match &self.scaling {
            RopeScaling::None => base,
            RopeScaling::Linear { factor } => base / f64::from(*factor),
            RopeScaling::Factors(factors) => divided(factors),
            RopeScaling::LongShort {
                short,
                long,
                original_context,
            } => divided(if context > *original_context {
                long
            } else {
                short
            }),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                let (factor, low, high, ctx) = (
                    f64::from(*factor),
                    f64::from(*low_freq_factor),
                    f64::from(*high_freq_factor),
                    f64::from(*original_context),
                );
                let wavelength = 2.0 * PI / base;
                if wavelength < ctx / high {
                    base
                } else if wavelength > ctx / low {
                    base / factor
                } else {
                    let smooth = (ctx / wavelength - low) / (high - low);
                    (1.0 - smooth) * base / factor + smooth * base
                }
            }
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
            } => {
                let context = f64::from(*original_context);
                let (low, high) = self.ramp(context, [*beta_fast, *beta_slow].map(f64::from));
                let kept = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                (1.0 - kept) * base / f64::from(*factor) + kept * base
            }
        }
    }

    /// The pairs between which YaRN's ramp is.
    fn ramp(&self, context: f64, [fast, slow]: [f64; 2]) -> (f64, f64) {
        let dim = self.rotary_dim as f64;
        let pair = |beta: f64| {
            dim * (context / (2.0 * PI * beta)).ln() / (2.0 * f64::from(self.theta).ln())
        };
        let low = pair(fast).floor().max(0.0);
        let high = pair(slow).ceil().min(dim - 1.0);
        (low, high)
    }
}
