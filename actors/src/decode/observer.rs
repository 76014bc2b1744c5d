//! Watching what a model computes: for fitting predictors, calibrating thresholds, profiles.

use forebay_stages::live_mask::LiveMask;

/// Is told what the cores compute, on their threads; slow observers make slow steps.
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// The residual stream before a layer's FFN norm, `[n_tokens, d_model]`, for the tokens from `position`
    /// on. Told once per layer and step.
    fn residual(&self, layer: usize, position: usize, x: &[f32]);

    /// Which of the neurons from `first` on the predictors name for each token, `[n_tokens]`. Told for every cluster,
    /// where there are predictors.
    fn named(&self, _layer: usize, _position: usize, _first: usize, _named: &[LiveMask]) {}

    /// Gates of neurons `first..first + n` of a layer before the activation, `[n_tokens, n]`; 0 for a token that
    /// skips the neuron. Told for
    /// every cluster whose Gate is computed, by the core that owns it.
    fn gates(&self, layer: usize, position: usize, neurons: (usize, usize), gates: &[f32]);
}
