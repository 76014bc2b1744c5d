//! What the stages of a core may see while a phase runs.

use forebay_models::bundle::{Bundle, DirectoryEntry, FfnGeometry};
use forebay_models::network::Content;
use forebay_models::tensor::TensorId;
use forebay_plans::program::{Item, Phase, Work};
use forebay_queues::lending::Lending;

use crate::boards::Boards;
use crate::expert_input::{ClusterTokens, ExpertInput};
use crate::flight::Flight;
use crate::kernels::{Activations, KernelTable};
use crate::live_mask::LiveMask;
use crate::router::Routes;
use crate::rule::Rule;
use crate::sequences::TokenPlace;
use crate::weights::Weights;

/// Sees what the cores compute, on their threads; slow observers make slow steps.
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// Memory that it takes as it sees more: a part of the engine's budget.
    fn bytes(&self) -> u64 {
        0
    }

    /// The residual stream before a layer, `[n_tokens, d_model]`, for the tokens from `position` on. Called once per
    /// layer and step.
    fn layer_input(&self, _layer: usize, _position: usize, _x: &[f32]) {}

    /// The same before the layer's FFN norm.
    fn residual(&self, _layer: usize, _position: usize, _x: &[f32]) {}

    /// Rows by which a matrix is multiplied, `[n_tokens, columns]`, before they are quantised; `expert` says which of a
    /// layer's if it has one for each. Called on one core, in the order of the tokens, for every matrix but those of
    /// predictors' scores and Down.
    fn input(&self, _tensor: TensorId, _expert: Option<u16>, _rows: &[f32]) {}

    /// The same of Down, `[n_tokens, n]`: activated gates, times Up if there is one, of neurons `first..first + n` of a
    /// content. Called for every cluster that some token wants, by the core that computes it.
    fn hidden(&self, _content: Content, _neurons: (usize, usize), _hidden: &[f32]) {}

    /// Experts of the tokens from `position` on with their weights, the best first, `[n_tokens, used]`. Called once per
    /// layer with experts and step.
    fn routed(&self, _layer: usize, _position: usize, _chosen: &[(u32, f32)]) {}

    /// Which of the neurons from `first` on the predictors name for each token, `[n_tokens]`. Called for every cluster,
    /// if there are predictors.
    fn named(&self, _layer: usize, _position: usize, _first: usize, _named: &[LiveMask]) {}

    /// Gates of neurons `first..first + n` of a layer before the activation, `[n_tokens, n]`; 0 for a token that
    /// skips the neuron. Called for every cluster whose Gate is computed, by the core that owns it, except those of
    /// experts.
    fn gates(&self, _layer: usize, _position: usize, _neurons: (usize, usize), _gates: &[f32]) {}

    /// The same of `n` neurons of an expert for the tokens that use it, `[n_tokens, n]`.
    fn expert_gates(&self, _layer: usize, _n: usize, _gates: &[f32]) {}
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
    /// Clusters of experts that a core has in memory and has not begun to compute: any core may.
    pub lending: &'a Lending<Box<Flight>>,
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
    /// Whether streamed clusters are left out, because the step only drafts.
    pub drafts: bool,
    /// Clusters of minor experts ([`Routes::is_minor`]) are left out if they are not in memory; 0 leaves none out.
    pub drop_cold: f32,
    /// The phase's input, `[n_tokens, columns]`.
    pub input: &'a Activations,
    /// The same in panels for hot neurons, if the phase has any.
    pub hot_input: &'a Activations,
    /// Which experts the tokens use.
    pub routes: &'a Routes,
    /// The input of one expert.
    pub expert_input: &'a mut ExpertInput,
    /// `relu(fc1 · x)` of the layer, `[n_tokens, rank]`, if neurons are predicted.
    pub hidden: &'a Activations,
    /// How many of the phase's clusters on a device, from the first on, it computes in this step.
    pub on_device: u32,
    /// Where weights are.
    pub weights: &'a mut Weights,
}

impl<'a> Frame<'a> {
    /// Directory entry of a cluster.
    pub fn entry(&self, cluster: u32) -> &DirectoryEntry {
        &self.bundle.clusters[cluster as usize]
    }

    /// Gate's and Up's biases of the neurons of a cluster, `[count]`; empty if they have none.
    pub fn biases(&self, item: &Item) -> [&'a [f32]; 2] {
        let bundle = self.bundle;
        let Work::Neurons {
            bias,
            expert_biases,
            ..
        } = &self.phase.work
        else {
            return [&[]; 2];
        };
        let entry = &bundle.clusters[item.cluster as usize];
        let (first, count) = (entry.first as usize, entry.count as usize);
        let of = |range: &std::ops::Range<usize>| match range.is_empty() {
            true => &[][..],
            false => &bundle.vectors.values()[range.clone()][first..first + count],
        };
        match item.expert {
            None => [of(bias), &[]],
            Some(_) => [of(&expert_biases[0]), of(&expert_biases[1])],
        }
    }

    /// Whether a cluster is left out because it would have to be streamed for a draft.
    pub fn skips(&self, item: &Item) -> bool {
        self.drafts && item.source.ordinal().is_some()
    }

    /// Whether a cluster's neurons are hot.
    pub fn is_hot(&self, item: &Item) -> bool {
        matches!(self.entry(item.cluster).content, Content::HotNeurons(_))
    }

    /// Storage of a cluster's neurons.
    pub fn geometry(&self, item: &Item) -> &'a FfnGeometry {
        let bundle = self.bundle;
        let geometry = bundle.meta.geometry(self.entry(item.cluster).content);
        // The metadata have been checked to have one for each kind of neurons.
        geometry.expect("clusters of these neurons are stored")
    }

    /// The input of a cluster's neurons, of all tokens.
    pub fn input_of(&self, item: &Item) -> &'a Activations {
        match self.is_hot(item) {
            true => self.hot_input,
            false => self.input,
        }
    }

    /// The step's tokens that use a cluster.
    pub fn tokens_of(&self, item: &Item) -> ClusterTokens<'a> {
        match &self.phase.work {
            Work::Neurons { routed: true, .. } => {
                ClusterTokens::of(self.routes, item.expert, self.n_tokens())
            }
            _ => ClusterTokens::all(self.n_tokens()),
        }
    }

    /// Whether a device computes a cluster in this step.
    pub fn is_on_device(&self, item: &Item) -> bool {
        item.source.is_computed_elsewhere(self.on_device)
    }

    /// Whether a cluster is left out, because it is not in memory and would change little.
    pub fn leaves_out(&self, item: &Item) -> bool {
        if self.drop_cold == 0.0 {
            return false;
        }
        let (Some(expert), Some(key)) = (item.expert, item.source.key()) else {
            return false;
        };
        !self.weights.experts.has(key) && self.routes.is_minor(expert, self.drop_cold)
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
