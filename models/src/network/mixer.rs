//! What mixes positions: attention, or a recurrent mixer, whose past is a state of a fixed size.

use serde::{Deserialize, Serialize};

use super::Attention;
use crate::tensor::LayerTensor as T;

/// The body of a layer's first block. Its input is multiplied by some matrices, heads or channels mix the positions of
/// the results, and the result of that is multiplied by O.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Every position of the past is kept.
    Attention(Attention),
    /// The last few positions count.
    ShortConv(ShortConv),
    /// A memory of keys and values, which forgets.
    DeltaNet(DeltaNet),
}

/// A gated short convolution (LFM2): `c * conv(b * x)`, channel by channel, where b, c and x are rows of the one input
/// matrix, in this order, and the convolution is causal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShortConv {
    /// Channels.
    pub channels: usize,
    /// Positions that a result depends on, including its own.
    pub kernel: usize,
}

/// A gated delta net (Yang et al. 2024; Qwen3.5).
///
/// Rows of Q, K and V pass a causal convolution and SiLU; queries and keys then get the length 1, queries divided by
/// `sqrt(key_dim)`. Each value head has a matrix `s`: `s *= e^(rate * softplus(alpha + bias))`, then
/// `s += k * sigmoid(beta) * (v - k · s)`, and its result is `rms_norm(q · s) * silu(z)`, where z are rows of the
/// output gate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeltaNet {
    /// Heads of queries and keys.
    pub n_key_heads: usize,
    /// Heads of values, a multiple of them.
    pub n_value_heads: usize,
    /// Width of a query and of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Positions that the convolution sees, including the current one.
    pub kernel: usize,
    /// Which value heads read which key head.
    pub sharing: KeySharing,
    /// Added to the mean square in the norm of the results.
    pub eps: f32,
}

/// Which value heads read which key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeySharing {
    /// Those of a key head are adjacent, as in checkpoints.
    Grouped,
    /// Key heads take turns, as in GGUF files.
    Tiled,
}

impl Mixer {
    /// Attention, if that is what it is.
    pub fn attention(&self) -> Option<&Attention> {
        match self {
            Self::Attention(attention) => Some(attention),
            Self::ShortConv(_) | Self::DeltaNet(_) => None,
        }
    }

    /// The same, to be changed.
    pub fn attention_mut(&mut self) -> Option<&mut Attention> {
        match self {
            Self::Attention(attention) => Some(attention),
            Self::ShortConv(_) | Self::DeltaNet(_) => None,
        }
    }

    /// Whether its past is a state of a fixed size, which cannot be taken back to an earlier position.
    pub fn is_recurrent(&self) -> bool {
        self.attention().is_none()
    }

    /// The matrices of its input, as far as it has them, with their rows, in the order of their results.
    pub fn inputs(&self) -> Vec<(T, usize)> {
        match self {
            Self::Attention(a) => a.inputs(),
            Self::ShortConv(conv) => vec![(T::ConvIn, 3 * conv.channels)],
            Self::DeltaNet(net) => vec![
                (T::Q, net.keys_dim()),
                (T::K, net.keys_dim()),
                (T::V, net.values_dim()),
                (T::OutputGate, net.values_dim()),
                (T::Alpha, net.n_value_heads),
                (T::Beta, net.n_value_heads),
            ],
        }
    }

    /// Columns of the results from which heads or channels are made: of all these, and with latent attention of the
    /// matrices after them.
    pub fn in_dim(&self) -> usize {
        match self {
            Self::Attention(a) => a.in_dim(),
            _ => self.inputs().iter().map(|(_, rows)| rows).sum(),
        }
    }

    /// Columns of what heads or channels make of them.
    pub fn mixed_dim(&self) -> usize {
        match self {
            Self::Attention(a) => a.mixed_dim(),
            _ => self.out_dim(),
        }
    }

    /// Columns of O: the results of all heads or channels.
    pub fn out_dim(&self) -> usize {
        match self {
            Self::Attention(a) => a.out_dim(),
            Self::ShortConv(conv) => conv.channels,
            Self::DeltaNet(net) => net.values_dim(),
        }
    }

    /// Heads of its keys; 1 for a convolution.
    pub fn n_key_heads(&self) -> usize {
        match self {
            Self::Attention(a) => a.n_kv_heads,
            Self::ShortConv(_) => 1,
            Self::DeltaNet(net) => net.n_key_heads,
        }
    }

    /// No more cores can share it than it has query heads, value heads or channels.
    pub fn most_cores(&self) -> usize {
        match self {
            Self::Attention(a) => a.n_heads,
            Self::ShortConv(conv) => conv.channels,
            Self::DeltaNet(net) => net.n_value_heads,
        }
    }
}

impl DeltaNet {
    /// Added to the sum of squares by which queries and keys are divided.
    pub const EPS: f32 = 1e-6;

    /// Rows of Q, and of K.
    pub fn keys_dim(&self) -> usize {
        self.n_key_heads * self.key_dim
    }

    /// Rows of V, and of the output gate.
    pub fn values_dim(&self) -> usize {
        self.n_value_heads * self.value_dim
    }

    /// Channels of the convolution: rows of Q, K and V.
    pub fn channels(&self) -> usize {
        2 * self.keys_dim() + self.values_dim()
    }

    /// The key head that a value head reads.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.sharing {
            KeySharing::Grouped => value_head / (self.n_value_heads / self.n_key_heads),
            KeySharing::Tiled => value_head % self.n_key_heads,
        }
    }
}
