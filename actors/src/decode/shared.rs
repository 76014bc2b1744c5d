//! What all cores see: the model, the plan, pinned weights, boards. Immutable once tokens flow, but for
//! the boards' cells and the fault cell.

use std::sync::Arc;

use forebay_models::bundle::{Bundle, DirectoryEntry};
use forebay_models::kv_cache::KvType;
use forebay_plans::residency::{Loading, Pipeline, ResidencyPlan};
use forebay_queues::slab::Slot;
use forebay_stages::cache::PolicyKind;
use forebay_stages::kernels::KernelTable;
use forebay_stages::pred::Pred;
use forebay_traces::ledger::Charged;

use super::boards::Boards;
use super::observer::Observer;
use crate::fault::FaultCell;

/// One pass of a batch of consecutive tokens through the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Tokens in the batch.
    pub n_tokens: usize,
    /// Position of the first one.
    pub position: usize,
    /// How many of the last tokens need logits.
    pub n_logits: usize,
    /// Whether more of the same prompt follows, so that its weights may be read ahead.
    pub more: bool,
    /// Whether weights that were read ahead are to be read again: something was wrong before this step.
    /// The graph sets it after a step that failed.
    pub read_anew: bool,
    /// Instead of tokens, of which there are none: what is kept in memory from now on.
    pub resize: Option<Sizes>,
}

/// How much is kept in memory while tokens flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Slots of each core's neuron cache that are used.
    pub cache_slots: usize,
    /// So many of the clusters that may give way are streamed, the first ones in the order of
    /// [`GivingWay`](forebay_plans::giving_way::GivingWay).
    pub given_clusters: u32,
}

/// How much of a matrix was computed in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Computed {
    /// Neurons, for any token.
    pub neurons: u64,
    /// Products of a neuron and a token.
    pub products: u64,
}

impl Computed {
    /// Counts a cluster.
    pub fn add(&mut self, neurons: usize, products: usize) {
        self.neurons += neurons as u64;
        self.products += products as u64;
    }

    /// The counts of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            neurons: self.neurons + other.neurons,
            products: self.products + other.products,
        }
    }
}

/// A core's report at the end of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepDone {
    /// Rank of the core.
    pub rank: usize,
    /// Live FFN neurons found in memory.
    pub hits: u64,
    /// Live FFN neurons that had to be read.
    pub misses: u64,
    /// Gates.
    pub gated: Computed,
    /// Ups and Downs.
    pub live: Computed,
    /// The core's accounts when the step began.
    pub charged_before: Charged,
    /// The core's accounts now.
    pub charged: Charged,
}

/// How single neurons are kept and read, and what overlaps.
#[derive(Clone, Copy, Debug, Default)]
pub struct NeuronOptions {
    /// Which neurons stay in the cache.
    pub policy: PolicyKind,
    /// How a bundle is read.
    pub loading: Loading,
    /// What overlaps.
    pub pipeline: Pipeline,
    /// Whether the neurons that a layer will probably want are read while the one before it is computed. It
    /// costs a sixth more reads, which is too much for a disk that has more reads to do than it can.
    pub look_ahead: bool,
}

impl NeuronOptions {
    /// Whether the next layer's neurons are predicted and read ahead: guesses, but made into a disk that has
    /// nothing else to do while attention is computed.
    pub fn looks_ahead(&self, plan: &ResidencyPlan, predicted: bool) -> bool {
        let cached = plan.neuron_cache.slots > 0 && predicted;
        let overlaps = self.loading == Loading::Bundle && self.pipeline == Pipeline::Cluster;
        self.look_ahead && cached && overlaps
    }
}

/// Weights that stay in memory, by directory index: whole clusters, or their Gate rows only.
#[derive(Debug, Default)]
pub struct Resident {
    slots: Vec<Option<Slot>>,
}

impl Resident {
    /// Takes the loaded slots, `[clusters]`.
    pub fn new(slots: Vec<Option<Slot>>) -> Self {
        Self { slots }
    }

    /// Bytes of a resident cluster (empty where it is not resident, which the plan rules out).
    pub fn bytes(&self, cluster: usize) -> &[u8] {
        self.slots[cluster].as_deref().unwrap_or_default()
    }
}

/// Shared by all cores of a decode graph.
#[derive(Debug)]
pub struct Shared {
    /// Model metadata, vectors and directory.
    pub bundle: Bundle,
    /// Where every cluster lives.
    pub plan: ResidencyPlan,
    /// Neuron selection.
    pub pred: Pred,
    /// How neurons are kept and read.
    pub neurons: NeuronOptions,
    /// Is told what is computed, if anybody wants to know.
    pub observer: Option<Arc<dyn Observer>>,
    /// Compute kernels for this CPU.
    pub kernels: KernelTable,
    /// Pinned weights.
    pub resident: Resident,
    /// Results that cores exchange.
    pub boards: Boards,
    /// Root cause of a failing step.
    pub faults: FaultCell,
    /// Compute cores.
    pub threads: usize,
    /// Positions of the KV cache.
    pub context: usize,
    /// Its number format.
    pub kv_type: KvType,
    /// Most tokens in a step.
    pub max_batch: usize,
}

impl Shared {
    /// [`NeuronOptions::looks_ahead`] of this run.
    pub fn looks_ahead(&self) -> bool {
        self.neurons
            .looks_ahead(&self.plan, self.pred.is_predicted())
    }

    /// The largest rank of a predictor that is used, 0 if none is.
    pub fn predictor_rank(&self) -> usize {
        predictor_rank(&self.bundle, self.pred.is_predicted())
    }

    /// Directory entry of a cluster.
    pub fn entry(&self, cluster: u32) -> &DirectoryEntry {
        &self.bundle.clusters[cluster as usize]
    }

    /// Name of a cluster for messages.
    pub fn describe(&self, cluster: u32) -> String {
        let e = self.entry(cluster);
        let last = e.first + e.count;
        match e.layer {
            Some(layer) => format!("{:?} cluster {}..{last} of layer {layer}", e.kind, e.first),
            None => format!("{:?} cluster {}..{last}", e.kind, e.first),
        }
    }
}

/// The largest rank of a model's predictors, 0 where they are not used.
pub fn predictor_rank(bundle: &Bundle, predicted: bool) -> usize {
    let ranks = bundle.meta.predictors.iter().flatten().map(|p| p.rank);
    if predicted {
        ranks.max().unwrap_or(0)
    } else {
        0
    }
}
