//! Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), in the form in which the matrices of keys and values
//! are multiplied by queries and results instead (section 2.1.2).

use serde::{Deserialize, Serialize};

use super::Attention;
use crate::tensor::LayerTensor as T;

/// What makes the keys and values of all heads from one short vector per position.
///
/// A row of K is that vector, which is normalised and then called the latent, and what all heads have of a rotated key.
/// A head's row of Q has a plain part, which KUp's matrix of the head brings into the space of latents, and a rotated
/// one. So there is one key/value head, [`Attention::head_dim`] wide: `latent query · latent + rotated query · rotated
/// key` is the score, the latent is the value, and VUp's matrix of the head makes the head's result of the mixed
/// latents.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latent {
    /// Elements of the latent; what follows them in a key is rotated.
    pub rank: usize,
    /// Elements of the plain part of a head's query.
    pub plain_dim: usize,
    /// Elements of a head's result.
    pub value_dim: usize,
    /// Rows of QDown, whose normalised result is the input of Q; `None` if that is the block's.
    pub query_rank: Option<usize>,
    /// Added to the mean square in both norms.
    pub eps: f32,
}

impl Attention {
    /// Elements of a stored value.
    pub fn value_dim(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.rank)
    }

    /// Elements of a head that Q computes, without its gate.
    pub fn query_dim(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| {
            latent.plain_dim + self.head_dim - latent.rank
        })
    }

    /// Columns of what heads make of values: O's, or VUp's of all heads.
    pub fn mixed_dim(&self) -> usize {
        self.n_heads * self.value_dim()
    }

    /// Columns of O.
    pub fn out_dim(&self) -> usize {
        let latent = self.latent.map(|latent| latent.value_dim);
        self.n_heads * latent.unwrap_or(self.head_dim)
    }

    /// Columns of the results of all matrices before the heads, side by side: Q, K and V, or QDown, K, Q and KUp.
    pub fn in_dim(&self) -> usize {
        match self.latent {
            None => self.q_rows() + self.k_rows() + self.v_rows(),
            Some(_) => self.query_column() + self.q_dim(),
        }
    }

    /// First column of Q's results.
    pub fn q_column(&self) -> usize {
        match self.query_rank() {
            0 => 0,
            rank => rank + self.k_rows(),
        }
    }

    /// First column of K's results.
    pub fn k_column(&self) -> usize {
        match self.query_rank() {
            0 => self.q_rows(),
            rank => rank,
        }
    }

    /// First column of the queries with which heads attend, [`Self::head_dim`] each: Q's results, or, with a latent,
    /// KUp's, each followed by its rotated part.
    pub fn query_column(&self) -> usize {
        match self.latent {
            None => 0,
            Some(_) => self.query_rank() + self.q_rows() + self.k_rows(),
        }
    }

    /// Rows of QDown; 0 if there is none.
    pub(super) fn query_rank(&self) -> usize {
        let latent = self.latent.and_then(|latent| latent.query_rank);
        latent.unwrap_or(0)
    }

    /// The matrices whose input is the block's, with their rows, in the order of their results.
    pub(super) fn inputs(&self) -> Vec<(T, usize)> {
        let first = match self.query_rank() {
            0 => (T::Q, self.q_rows()),
            rank => (T::QDown, rank),
        };
        let all = [first, (T::K, self.k_rows()), (T::V, self.v_rows())];
        all.into_iter().filter(|(_, rows)| *rows > 0).collect()
    }

    /// Rows and columns of a matrix of latent attention whose input is not the block's; `None` for others.
    pub(super) fn latent_shape(&self, t: T) -> Option<(usize, usize)> {
        let latent = self.latent?;
        match t {
            T::Q => latent.query_rank.map(|rank| (self.q_rows(), rank)),
            T::KUp => Some((self.n_heads * latent.rank, latent.plain_dim)),
            T::VUp => Some((self.n_heads * latent.value_dim, latent.rank)),
            _ => None,
        }
    }
}
