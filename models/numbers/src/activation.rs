//! Activations of FFNs.

use serde::{Deserialize, Serialize};

/// How the FFN combines gate and up: `h = act(gate) * up` unless said otherwise; `h = act(gate)` if there is no up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x * sigmoid(x)` (SwiGLU models; dense).
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))` (Gemma; dense).
    GeluTanh,
    /// `0.5 x (1 + erf(x / sqrt(2)))` (Falcon; dense).
    GeluErf,
    /// `max(x, 0)` (ReluLLaMA).
    Relu,
    /// `max(x, 0)²`, usually of FFNs that are not gated.
    ReluSquared,
    /// `x` if `x > threshold`, else 0 (ProSparse).
    FatRelu {
        /// The cut, in units of the gate's output.
        threshold: f32,
    },
    /// dReLU: `relu(gate) * relu(up)` (Bamboo, TurboSparse).
    DoubleRelu,
    /// `g * sigmoid(alpha * g) * (u + 1)`, where `g` is the gate, at most `limit`, and `u` is up, at most `limit` in
    /// size (gpt-oss; dense).
    ClampedSwiglu {
        /// Factor in the sigmoid.
        alpha: f32,
        /// Largest value.
        limit: f32,
    },
}

impl Activation {
    /// The gate's activation of one value.
    pub fn gate(self, x: f32) -> f32 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            Self::GeluErf => {
                let tail = 0.5 * erfc(f64::from(x.abs()) / std::f64::consts::SQRT_2) as f32;
                x * if x > 0.0 { 1.0 - tail } else { tail }
            }
            Self::Relu | Self::DoubleRelu => x.max(0.0),
            Self::ReluSquared => x.max(0.0) * x.max(0.0),
            Self::FatRelu { threshold } => {
                if x > threshold {
                    x
                } else {
                    0.0
                }
            }
            Self::ClampedSwiglu { alpha, limit } => {
                let x = if x > limit { limit } else { x };
                x / (1.0 + (-alpha * x).exp())
            }
        }
    }

    /// The up projection's activation of one value; most have none.
    pub fn up(self, x: f32) -> f32 {
        match self {
            Self::DoubleRelu => x.max(0.0),
            Self::ClampedSwiglu { limit, .. } => x.clamp(-limit, limit) + 1.0,
            _ => x,
        }
    }

    /// Whether a neuron whose gate is exactly 0 may be skipped without changing the result.
    pub fn is_sparse(self) -> bool {
        !matches!(
            self,
            Self::Silu | Self::GeluTanh | Self::GeluErf | Self::ClampedSwiglu { .. }
        )
    }
}

/// Coefficients of `erfc`, that of the highest power first.
pub const ERFC: [f32; 10] = [
    0.170_872_76,
    -0.822_152_26,
    1.488_515_9,
    -1.135_204,
    0.278_868_08,
    -0.186_288_06,
    0.096_784_18,
    0.374_091_95,
    1.000_023_7,
    -1.265_512_2,
];

/// `1 - erf(z)` for `z >= 0`, with a relative error below 1.2e-7: `t e^(p(t) - z²)` with `t = 1 / (1 + z / 2)` and a
/// polynomial `p` (Press et al., Numerical Recipes, 6.2).
fn erfc(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.5 * z);
    let power = ERFC.iter().fold(0.0, |p, &c| p * t + f64::from(c));
    t * (power - z * z).exp()
}
