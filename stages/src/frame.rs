//! What the stages of a core may see while a phase runs.

use forebay_models::bundle::{Bundle, DirectoryEntry, FfnGeometry};
use forebay_plans::program::{Phase, Work};

use crate::boards::Boards;
use crate::kernels::{Activations, KernelTable};
use crate::live_mask::LiveMask;
use crate::pred::Rule;
use crate::sequences::TokenPlace;
use crate::weights::Weights;

/// Sees what the cores compute, on their threads; slow observers make slow steps.
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// The residual stream before a layer's FFN norm, `[n_tokens, d_model]`, for the tokens from `position`
    /// on. Called once per layer and step.
    fn residual(&self, layer: usize, position: usize, x: &[f32]);

    /// Which of the neurons from `first` on the predictors name for each token, `[n_tokens]`. Called for every cluster,
    /// if there are predictors.
    fn named(&self, _layer: usize, _position: usize, _first: usize, _named: &[LiveMask]) {}

    /// Gates of neurons `first..first + n` of a layer before the activation, `[n_tokens, n]`; 0 for a token that
    /// skips the neuron. Called for every cluster whose Gate is computed, by the core that owns it.
    fn gates(&self, layer: usize, position: usize, neurons: (usize, usize), gates: &[f32]);
}

/// The current phase, as its stages see it. Only the weights change within it.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The model's metadata, vectors and directory.
    pub bundle: &'a Bundle,
    /// Kernels for this CPU.
    pub kernels: &'a KernelTable,
    /// Which neurons are computed.
    pub rule: &'a Rule,
    /// Sees what is computed, if there is one.
    pub observer: Option<&'a dyn Observer>,
    /// Results that cores exchange.
    pub boards: &'a Boards,
    /// Index of this core.
    pub rank: usize,
    /// What is to be done.
    pub phase: &'a Phase,
    /// Number of the phase in its program; the same on all cores.
    pub number: usize,
    /// The step's tokens.
    pub tokens: &'a [TokenPlace],
    /// Whether more of the same prompt follows.
    pub more: bool,
    /// The phase's input, `[n_tokens, columns]`.
    pub input: &'a Activations,
    /// `relu(fc1 · x)` of the layer, `[n_tokens, rank]`, if neurons are predicted.
    pub hidden: &'a Activations,
    /// Where weights are.
    pub weights: &'a mut Weights,
}

impl<'a> Frame<'a> {
    /// Directory entry of a cluster.
    pub fn entry(&self, cluster: u32) -> &DirectoryEntry {
        &self.bundle.clusters[cluster as usize]
    }

    /// Gate's biases of the neurons of a cluster, `[count]`; empty if Gate has none.
    pub fn gate_bias(&self, cluster: u32) -> &'a [f32] {
        let bundle = self.bundle;
        match &self.phase.work {
            Work::Neurons { bias, .. } if !bias.is_empty() => {
                let entry = &bundle.clusters[cluster as usize];
                let (first, count) = (entry.first as usize, entry.count as usize);
                &bundle.vectors.values()[bias.clone()][first..first + count]
            }
            _ => &[],
        }
    }

    /// Storage of the layer's FFN.
    pub fn geometry(&self) -> &FfnGeometry {
        &self.bundle.meta.ffns[self.phase.layer]
    }

    /// Tokens of the step.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Position of the first token.
    pub fn position(&self) -> usize {
        self.tokens.first().map_or(0, |t| t.position as usize)
    }
}
