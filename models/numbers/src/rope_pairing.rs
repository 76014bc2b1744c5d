//! Which elements of a head RoPE rotates together.

use serde::{Deserialize, Serialize};

/// Which elements of a head RoPE rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopePairing {
    /// `(x[2i], x[2i+1])`: if rows of Q and K were permuted for it when the file was converted.
    Interleaved,
    /// `(x[i], x[i + rotary_dim/2])`: the usual pairs of checkpoints ("neox").
    HalfSplit,
}
