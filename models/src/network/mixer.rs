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

impl Mixer {
    /// Attention, if that is what it is.
    pub fn attention(&self) -> Option<&Attention> {
        match self {
            Self::Attention(attention) => Some(attention),
            Self::ShortConv(_) => None,
        }
    }

    /// The same, to be changed.
    pub fn attention_mut(&mut self) -> Option<&mut Attention> {
        match self {
            Self::Attention(attention) => Some(attention),
            Self::ShortConv(_) => None,
        }
    }

    /// Whether its past is a state of a fixed size, which cannot be taken back to an earlier position.
    pub fn is_recurrent(&self) -> bool {
        self.attention().is_none()
    }

    /// The matrices of its input, as far as it has them, with their rows, in the order of their results.
    pub fn inputs(&self) -> Vec<(T, usize)> {
        match self {
            Self::Attention(a) => {
                let all = [(T::Q, a.q_dim()), (T::K, a.k_rows()), (T::V, a.v_rows())];
                all.into_iter().filter(|(_, rows)| *rows > 0).collect()
            }
            Self::ShortConv(conv) => vec![(T::ConvIn, conv.in_dim())],
        }
    }

    /// Rows of all of these together.
    pub fn in_dim(&self) -> usize {
        match self {
            Self::Attention(a) => a.qkv_dim(),
            Self::ShortConv(conv) => conv.in_dim(),
        }
    }

    /// Columns of O: the results of all heads or channels.
    pub fn out_dim(&self) -> usize {
        match self {
            Self::Attention(a) => a.q_dim(),
            Self::ShortConv(conv) => conv.channels,
        }
    }

    /// No more cores can share it than it has query heads or channels.
    pub fn most_cores(&self) -> usize {
        match self {
            Self::Attention(a) => a.n_heads,
            Self::ShortConv(conv) => conv.channels,
        }
    }
}

impl ShortConv {
    /// Rows of the input matrix.
    pub fn in_dim(&self) -> usize {
        3 * self.channels
    }
}
