//! What all cores see: the model, the plan, pinned weights, boards. Immutable once tokens are generated, except for the
//! boards' cells, the fault cell and, between two steps, what a device has in its memory.

use std::sync::Arc;

use forebay_models::bundle::{Bundle, DirectoryEntry};
use forebay_models::network::{Content, Network};
use forebay_plans::fewer_experts::FewerExperts;
use forebay_plans::on_device::OnDevice;
use forebay_plans::placement::PARTS;
use forebay_plans::program::Options;
use forebay_plans::residency::{Loading, Pipeline, Residency, ResidencyPlan};
use forebay_queues::lending::Lending;
use forebay_stages::attention::KvRoom;
use forebay_stages::boards::Boards;
use forebay_stages::cache::PolicyKind;
use forebay_stages::flight::Flight;
use forebay_stages::frame::Observer;
use forebay_stages::kernels::KernelTable;
use forebay_stages::rule::Rule;
use forebay_stages::weights::Resident;

use crate::device::DeviceParts;
use crate::fault::FaultCell;
use crate::step::Step;

/// How single neurons are kept and read, and what overlaps.
#[derive(Clone, Copy, Debug, Default)]
pub struct NeuronOptions {
    /// Which neurons stay in the cache.
    pub policy: PolicyKind,
    /// How a bundle is read.
    pub loading: Loading,
    /// What overlaps.
    pub pipeline: Pipeline,
    /// Of how many of the next layers the experts are guessed, and read ahead if they are not in memory.
    pub guesses: usize,
}

impl NeuronOptions {
    /// How programs are compiled.
    pub fn program(&self, predicted: bool) -> Options {
        Options {
            predicted,
            by_matrix: self.pipeline == Pipeline::Matrix,
            guesses: self.guesses,
        }
    }

    /// Whether tokens that are generated read an expert's Gates first, if they are stored first. Where matrices or
    /// reads are waited for, clusters are read whole, as without experts.
    pub fn reads_gates_first(&self) -> bool {
        self.loading == Loading::Split && self.pipeline == Pipeline::Cluster
    }
}

/// Shared by all cores.
#[derive(Debug)]
pub struct Shared {
    /// Model metadata, vectors and directory.
    pub bundle: Bundle,
    /// Where every cluster is.
    pub plan: ResidencyPlan,
    /// What of it a device computes; nothing without one.
    pub on_device: OnDevice,
    /// Which neurons are computed.
    pub rule: Rule,
    /// How neurons are kept and read.
    pub neurons: NeuronOptions,
    /// Which experts are left out, or preferred.
    pub fewer: FewerExperts,
    /// How much faster the disk reads whole clusters than single neurons.
    pub sequential_gain: f64,
    /// Sees what is computed, if anybody wants to.
    pub observer: Option<Arc<dyn Observer>>,
    /// Compute kernels for this CPU.
    pub kernels: KernelTable,
    /// Pinned weights.
    pub resident: Arc<Resident>,
    /// The device that computes beside the cores, if there is one.
    pub device: Option<DeviceParts>,
    /// Results that cores exchange.
    pub boards: Boards,
    /// Clusters of experts that cores offer each other.
    pub lending: Lending<Box<Flight>>,
    /// Root cause of a failed step.
    pub faults: FaultCell,
    /// Compute cores.
    pub threads: usize,
    /// What the KV cache has room for.
    pub kv: KvRoom,
    /// Maximum number of tokens in a step.
    pub max_batch: usize,
}

impl Shared {
    /// The model's description.
    pub fn network(&self) -> &Network {
        &self.bundle.meta.network
    }

    /// [`NeuronOptions::program`] of this run.
    pub fn program_options(&self) -> Options {
        self.neurons.program(self.rule.is_predicted())
    }

    /// The largest rank of a predictor that is used, 0 if none is.
    pub fn predictor_rank(&self) -> usize {
        predictor_rank(&self.bundle, self.rule.is_predicted())
    }

    /// Whether experts in memory are preferred to others; where all are, there is nothing to prefer.
    pub fn prefers_cached(&self) -> bool {
        self.fewer.prefer_cached > 0.0 && self.plan.expert_cache.cells > 0
    }

    /// Whether steps may draft ([`Step::drafts`]): some FFN clusters are streamed and nothing else is,
    /// and what a draft adds to the KV cache can be taken back. Where neurons or experts are cached, each token reads
    /// others, so that several in a step do not save reads.
    pub fn can_draft(&self) -> bool {
        let plan = &self.plan;
        let streamed = plan.residency.iter().zip(&self.bundle.clusters);
        let streamed = streamed.filter(|(residency, _)| **residency == Residency::Streamed);
        let is_ffn = |content| matches!(content, Content::Neurons(_));
        let (ffns, others): (Vec<_>, Vec<_>) = streamed.partition(|(_, e)| is_ffn(e.content));
        let caches = plan.neuron_cache.slots > 0 || plan.expert_cache.cells > 0;
        let slides = self.kv.pools.iter().any(|pool| pool.window.is_some());
        let plain = self.neurons.pipeline == Pipeline::Cluster && self.device.is_none();
        let is_dense = !ffns.is_empty() && others.is_empty() && !caches;
        is_dense && !slides && self.kv.states == 0 && plain
    }

    /// How many of the device's clusters of phase `number` it computes in a step; all cores agree.
    pub fn device_places(&self, step: &Step, number: usize) -> u32 {
        let device = self.device.as_ref().filter(|_| step.device_part > 0);
        if device.and_then(|device| device.of(number)).is_none() {
            return 0;
        }
        let planned = self.on_device.phases[number].places(step.tokens.places.len());
        let (part, all) = (u32::from(step.device_part), u32::from(PARTS));
        (planned * part + all / 2) / all
    }

    /// Directory entry of a cluster.
    pub fn entry(&self, cluster: u32) -> &DirectoryEntry {
        &self.bundle.clusters[cluster as usize]
    }

    /// Name of a cluster for messages.
    pub fn describe(&self, cluster: u32) -> String {
        let e = self.entry(cluster);
        let last = e.first + e.count;
        match e.content {
            Content::HotNeurons(layer) | Content::Neurons(layer) => {
                format!("FFN cluster {}..{last} of layer {layer}", e.first)
            }
            Content::Experts(layer) => {
                let expert = self.network().expert_of(e.content, e.first as usize);
                let expert = expert.unwrap_or_default();
                format!(
                    "cluster {}..{last} of expert {expert} of layer {layer}",
                    e.first
                )
            }
            content => format!("{content:?} cluster {}..{last}", e.first),
        }
    }
}

/// The largest rank of a model's predictors, 0 if they are not used.
pub fn predictor_rank(bundle: &Bundle, predicted: bool) -> usize {
    let ranks = bundle.meta.predictors.iter().flatten().map(|p| p.rank);
    if predicted {
        ranks.max().unwrap_or(0)
    } else {
        0
    }
}
