//! Pred: which neurons of a cluster have to be computed.

use forebay_models::config::Activation;
use forebay_plans::residency::Sparsity;

use crate::live_mask::LiveMask;

/// The selection rule of one run.
#[derive(Clone, Copy, Debug)]
pub struct Pred {
    sparsity: Sparsity,
    activation: Activation,
}

impl Pred {
    /// A rule for a model's activation. Exact sparsity needs an activation with true zeros; for
    /// others every neuron is alive.
    pub fn new(sparsity: Sparsity, activation: Activation) -> Self {
        Self {
            sparsity,
            activation,
        }
    }

    /// The model's activation.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Whether neurons may be skipped at all.
    pub fn is_sparse(&self) -> bool {
        self.sparsity == Sparsity::Exact && self.activation.is_sparse()
    }

    /// Neurons alive after Gate: those that are not zero for at least one token.
    /// `gates` is `[n_tokens, n]`, before the activation.
    pub fn survivors(&self, gates: &[f32], n: usize) -> LiveMask {
        if !self.is_sparse() {
            return LiveMask::first(n);
        }
        let mut live = LiveMask::default();
        for token in gates.chunks_exact(n) {
            for (i, &g) in token.iter().enumerate() {
                // NaN counts as alive, so that it is noticed rather than skipped.
                if g.is_nan() || self.activation.gate(g) != 0.0 {
                    live.set(i);
                }
            }
        }
        live
    }
}
