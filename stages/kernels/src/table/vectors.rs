//! The kernels over plain vectors: exact sums, norms, rotation, activations.

use forebay_numbers::activation::Activation;
use forebay_numbers::rope_pairing::RopePairing;

use super::KernelTable;
use crate::elementwise::{GateUp, LayerNorm, RmsNorm, Rope};
use crate::fixed::{Fold, Unfold};

impl KernelTable {
    /// `acc[i] += round(partial[i] * 2^32)` (ties to even), clamped to a magnitude of 2^30. Integer sums
    /// do not depend on the order of the calls. Returns false if a value was NaN (which adds nothing)
    /// or beyond the limit: the sums are then no longer exact, and the token is a fault.
    ///
    /// # Panics
    /// The lengths differ.
    #[must_use = "false means that the sums are wrong"]
    pub fn fold_fixed(&self, partial: &[f32], acc: &mut [i64]) -> bool {
        assert_eq!(partial.len(), acc.len(), "sums of another length");
        self.kernels.fold(Fold { partial, acc })
    }

    /// `x[i] += sum[i] * 2^-32`, the product rounded to f32 before the addition.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn unfold_fixed(&self, sum: &[i64], x: &mut [f32]) {
        assert_eq!(sum.len(), x.len(), "sums of another length");
        self.kernels.unfold(Unfold { sum, x });
    }

    /// `out = x / sqrt(mean(x^2) + eps) * w`, all `[d]`.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn rmsnorm(&self, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
        assert!(
            x.len() == w.len() && x.len() == out.len(),
            "norm of another length"
        );
        self.kernels.rmsnorm(RmsNorm { x, w, eps, out });
    }

    /// `out = (x - m) / sqrt(mean((x - m)^2) + eps) * w` with the mean `m` of `x`, all `[d]`.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn layernorm(&self, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
        assert!(
            x.len() == w.len() && x.len() == out.len(),
            "norm of another length"
        );
        self.kernels.layernorm(LayerNorm { x, w, eps, out });
    }

    /// Rotates the first `2 * cos.len()` elements of one head, `[head_dim]`, by the angles whose cosines
    /// and sines are given, `[rotary_dim / 2]`.
    ///
    /// # Panics
    /// The head is shorter than that, or cosines and sines differ in number.
    pub fn rope(&self, x: &mut [f32], cos: &[f32], sin: &[f32], pairing: RopePairing) {
        assert!(
            cos.len() == sin.len() && 2 * cos.len() <= x.len(),
            "more angles than pairs"
        );
        let job = Rope {
            x: &mut x[..2 * cos.len()],
            cos,
            sin,
            pairing,
        };
        self.kernels.rope(job);
    }

    /// `out = activation.gate(gate) * activation.up(up)`, all `[n]`; SiLU within 4 units in the last place, GELU with a
    /// relative error below 3e-5.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn gate_up(&self, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert!(
            gate.len() == up.len() && gate.len() == out.len(),
            "FFN vectors differ in length"
        );
        let job = GateUp {
            activation,
            gate,
            up: Some(up),
            out,
        };
        self.kernels.gate_up(job);
    }

    /// `out = activation.gate(gate)`, both `[n]`, as accurate as [`Self::gate_up`].
    ///
    /// # Panics
    /// The lengths differ.
    pub fn activate(&self, activation: Activation, gate: &[f32], out: &mut [f32]) {
        assert_eq!(gate.len(), out.len(), "FFN vectors differ in length");
        let job = GateUp {
            activation,
            gate,
            up: None,
            out,
        };
        self.kernels.gate_up(job);
    }
}
