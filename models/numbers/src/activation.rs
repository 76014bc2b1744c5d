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
            Self::Relu | Self::DoubleRelu => x.max(0.0),
            Self::ReluSquared => x.max(0.0) * x.max(0.0),
            Self::FatRelu { threshold } => {
                if x > threshold {
                    x
                } else {
                    0.0
                }
            }
        }
    }

    /// The up projection's activation of one value (identity except for dReLU).
    pub fn up(self, x: f32) -> f32 {
        match self {
            Self::DoubleRelu => x.max(0.0),
            _ => x,
        }
    }

    /// Whether a neuron whose gate is exactly 0 may be skipped without changing the result.
    pub fn is_sparse(self) -> bool {
        !matches!(self, Self::Silu | Self::GeluTanh)
    }
}
