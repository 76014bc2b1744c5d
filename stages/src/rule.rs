//! Pred: which neurons of a cluster have to be computed.
//!
//! Before Gate, an activation predictor may say so (PowerInfer's `fc2 · relu(fc1 · x) >= threshold`);
//! after Gate, the gate itself does: it is exactly zero, or too small to matter (CATS, arXiv 2404.08763).

use forebay_models::block::BlockType;
use forebay_models::bundle::LayerPredictor;
use forebay_models::network::Activation;
use forebay_models::panel::{PANEL_ROWS, panels_bytes};
use forebay_plans::residency::Sparsity;

use crate::kernels::{Activations, KernelTable, WeightPanels};
use crate::live_mask::LiveMask;

/// The selection rule of one run.
#[derive(Clone, Debug)]
pub struct Rule {
    sparsity: Sparsity,
    activation: Activation,
    /// Minimum size of an activated gate by layer, `[n_layers]`; empty unless the sparsity is by threshold.
    thresholds: Vec<f32>,
}

impl Rule {
    /// A rule for a model's activation. Exact sparsity needs an activation with true zeros; for
    /// others every neuron is alive. `thresholds` counts for [`Sparsity::Threshold`] only, `[n_layers]`.
    pub fn new(sparsity: Sparsity, activation: Activation, thresholds: Vec<f32>) -> Self {
        Self {
            sparsity,
            activation,
            thresholds,
        }
    }

    /// The model's activation.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Whether neurons are chosen before their Gate is computed.
    pub fn is_predicted(&self) -> bool {
        self.sparsity == Sparsity::Predicted
    }

    /// Which of `n` neurons the predictor names for each token: `scores` is `[n_tokens, n]`, `named` takes
    /// `[n_tokens]` masks. Returns their union.
    pub fn named(
        predictor: &LayerPredictor,
        scores: &[f32],
        n: usize,
        named: &mut [LiveMask],
    ) -> LiveMask {
        let mut union = LiveMask::default();
        for (token, mask) in scores.chunks_exact(n).zip(named) {
            // A NaN score counts as named, so that it is noticed rather than skipped.
            *mask = LiveMask::of(token, |s| s >= predictor.threshold || s.is_nan());
            union.join(mask);
        }
        union
    }

    /// Neurons of `candidates` alive after Gate: those that matter for at least one token. `gates` is
    /// `[n_tokens, n]`, before the activation; those that do not matter for a token, or that the predictor
    /// did not name for it (`named`, `[n_tokens]`), are set to 0.
    pub fn survivors(
        &self,
        layer: usize,
        gates: &mut [f32],
        n: usize,
        candidates: &LiveMask,
        named: Option<&[LiveMask]>,
    ) -> LiveMask {
        if let Some(named) = named {
            for (token, mask) in gates.chunks_exact_mut(n).zip(named) {
                mask.clear_others(token);
            }
        }
        match self.sparsity {
            Sparsity::Threshold => self.above(self.thresholds[layer], gates, n),
            Sparsity::Exact | Sparsity::Predicted if self.activation.is_sparse() => {
                self.non_zero(gates, n)
            }
            _ => *candidates,
        }
    }

    fn non_zero(&self, gates: &[f32], n: usize) -> LiveMask {
        let mut live = LiveMask::default();
        for token in gates.chunks_exact(n) {
            // NaN counts as alive, so that it is noticed rather than skipped.
            let alive = |g: f32| g.is_nan() || self.activation.gate(g) != 0.0;
            live.join(&LiveMask::of(token, alive));
        }
        live
    }

    fn above(&self, threshold: f32, gates: &mut [f32], n: usize) -> LiveMask {
        let mut live = LiveMask::default();
        for token in gates.chunks_exact_mut(n) {
            for (i, g) in token.iter_mut().enumerate() {
                if self.activation.gate(*g).abs() < threshold {
                    *g = 0.0;
                } else {
                    live.set(i);
                }
            }
        }
        live
    }
}

/// Scores of neurons `first..first + n` of a layer (`first` at the start of a panel) into `scores`,
/// `[n_tokens, n]`. `fc2` is the whole matrix in panels with its format, `hidden` is `relu(fc1 · x)`,
/// `[n_tokens, rank]`.
pub fn scores(
    kernels: &KernelTable,
    rank: usize,
    (fc2, block): (&[u8], BlockType),
    (first, n): (usize, usize),
    hidden: &Activations,
    scores: &mut [f32],
) {
    let bytes = |rows: usize| panels_bytes(block, rows, rank).unwrap_or(0);
    debug_assert!(first.is_multiple_of(PANEL_ROWS));
    let panels = WeightPanels {
        block,
        bytes: &fc2[bytes(first)..][..bytes(n)],
        n_rows: n,
    };
    kernels.panels(panels, hidden, scores, n);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predictor(threshold: f32) -> LayerPredictor {
        LayerPredictor { rank: 4, threshold }
    }

    #[test]
    fn a_predictor_names_each_token_its_own_neurons() {
        let scores = [0.5, -1.0, f32::NAN, 0.0, 2.0, -0.1];
        let mut named = [LiveMask::default(); 2];
        let union = Rule::named(&predictor(0.0), &scores, 3, &mut named);
        let lists = named.map(|m| m.iter().collect::<Vec<_>>());
        assert_eq!(lists, [vec![0, 2], vec![0, 1]]);
        assert_eq!(union.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn neurons_that_a_token_does_not_need_are_zero_for_it() {
        let pred = Rule::new(Sparsity::Predicted, Activation::Relu, Vec::new());
        let mut gates = [1.0, 2.0, -3.0, 4.0];
        let named = [[0], [1]].map(|list| {
            let mut mask = LiveMask::default();
            list.iter().for_each(|&i| mask.set(i));
            mask
        });
        let live = pred.survivors(0, &mut gates, 2, &LiveMask::first(2), Some(&named));
        assert_eq!(gates, [1.0, 0.0, 0.0, 4.0]);
        assert_eq!(live.iter().collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn thresholds_cut_by_activated_size() {
        let pred = Rule::new(Sparsity::Threshold, Activation::Silu, vec![9.0, 0.2]);
        // silu: 0.73, -0.27, 0.05, -0.02.
        let mut gates = [1.0, -1.0, 0.1, -5.0];
        let live = pred.survivors(1, &mut gates, 4, &LiveMask::first(4), None);
        assert_eq!(live.iter().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(gates, [1.0, -1.0, 0.0, 0.0]);
    }

    #[test]
    fn dense_keeps_what_it_was_given() {
        let pred = Rule::new(Sparsity::Dense, Activation::Relu, Vec::new());
        let mut gates = [-1.0, 0.0];
        let live = pred.survivors(0, &mut gates, 2, &LiveMask::first(2), None);
        assert_eq!(live, LiveMask::first(2));
    }
}
