//! The plan that an engine follows, as its statistics show it.

use std::fmt::Display;

use forebay_actors::shared::NeuronOptions;
use forebay_models::bundle::Bundle;
use forebay_models::kv_type::KvType;
use forebay_plans::expert_cache::ExpertCachePlan;
use forebay_plans::fewer_experts::FewerExperts;
use forebay_plans::plan::{Expected, Plan, Reason};
use forebay_plans::preload::{PreloadWindow, SEQUENTIAL_GAIN};
use forebay_plans::residency::{Loading, NeuronCachePlan, Pipeline, Residency, Sparsity};
use forebay_stages::cache::PolicyKind;
use forebay_stages::kernels::Isa;
use serde::{Serialize, Serializer};

use crate::memory::MemoryPlan;

/// The plan in force. Field names are a contract (docs/cli.md, JSON).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PlanInForce {
    /// Compute threads.
    pub threads: usize,
    /// Instruction set of the kernels.
    #[serde(serialize_with = "as_text")]
    pub isa: Isa,
    /// Positions of the KV cache.
    pub context: usize,
    /// Number format of the KV cache.
    #[serde(serialize_with = "as_text")]
    pub kv: KvType,
    /// Maximum number of tokens in a prompt's batch.
    pub max_batch: usize,
    /// Maximum number of tokens that are drafted for a step; 0 if none are.
    pub drafts: usize,
    /// Which FFN neurons are computed.
    pub sparsity: Sparsity,
    /// Which neurons stay in the cache.
    #[serde(serialize_with = "as_text")]
    pub policy: PolicyKind,
    /// How single neurons are read.
    pub loading: Loading,
    /// What overlaps while a layer's FFN is computed.
    pub pipeline: Pipeline,
    /// What is given up for speed, if anything is.
    #[serde(skip_serializing_if = "FewerExperts::is_off")]
    pub fewer_experts: FewerExperts,
    /// Layers of the model.
    pub layers: usize,
    /// Where the model's clusters are.
    pub clusters: ClusterCounts,
    /// Buffers for streamed clusters.
    pub stream_window: StreamWindow,
    /// The neuron cache of one core.
    pub neuron_cache: NeuronCachePlan,
    /// The expert cache of one core.
    pub expert_cache: ExpertCachePlan,
    /// Of how many of the next layers the experts are guessed, and read ahead if they are not in memory.
    pub guessed_layers: usize,
    /// What prompts borrow of the neuron cache, on each core.
    pub preload_window: Option<PreloadWindow>,
    /// How much faster the disk is taken to read whole clusters than single neurons: prompts read all of the FFN where
    /// more than one part in this many is missing.
    pub sequential_gain: f64,
    /// What the system did not grant, and how the file is read.
    pub notes: Vec<String>,
    /// What the planner expects, if there is a plan.
    pub expected: Option<Expected>,
    /// The alternatives that its decisions beat.
    pub reasons: Option<Vec<Reason>>,
}

/// Numbers of clusters by where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ClusterCounts {
    /// In memory.
    pub pinned: usize,
    /// Their Gate rows in memory, the rest in the neuron cache or on flash.
    pub gate_pinned: usize,
    /// All their rows in the neuron cache or on flash.
    pub by_neuron: usize,
    /// Of experts: in the expert cache or on flash.
    pub by_expert: usize,
    /// Read every time.
    pub streamed: usize,
}

/// Buffers for streamed clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StreamWindow {
    /// Number per core.
    pub buffers_per_core: usize,
    /// Size of each in bytes.
    pub buffer_bytes: usize,
}

/// What a plan is made of, besides the memory.
pub(crate) struct Parts<'a> {
    pub bundle: &'a Bundle,
    pub memory: &'a MemoryPlan,
    pub layers: usize,
    pub threads: usize,
    pub isa: Isa,
    pub kv: KvType,
    pub sparsity: Sparsity,
    pub neurons: NeuronOptions,
    pub fewer: FewerExperts,
    pub notes: &'a [String],
    pub made: Option<&'a Plan>,
}

impl PlanInForce {
    pub(crate) fn of(parts: &Parts<'_>) -> Self {
        let residency = &parts.memory.residency;
        let all = &residency.residency;
        let count = |r: Residency| all.iter().filter(|&&x| x == r).count();
        let neurons = parts.neurons;
        Self {
            threads: parts.threads,
            isa: parts.isa,
            context: parts.memory.context,
            kv: parts.kv,
            max_batch: parts.memory.max_batch,
            drafts: parts.memory.drafts,
            sparsity: parts.sparsity,
            policy: neurons.policy,
            loading: neurons.loading,
            pipeline: neurons.pipeline,
            fewer_experts: parts.fewer,
            layers: parts.layers,
            clusters: ClusterCounts {
                pinned: count(Residency::Pinned),
                gate_pinned: count(Residency::GatePinned),
                by_neuron: count(Residency::Neurons),
                by_expert: count(Residency::Cached),
                streamed: count(Residency::Streamed),
            },
            stream_window: StreamWindow {
                buffers_per_core: residency.stream_slots,
                buffer_bytes: residency.stream_slot_bytes,
            },
            neuron_cache: residency.neuron_cache,
            expert_cache: residency.expert_cache,
            guessed_layers: neurons.guesses,
            preload_window: PreloadWindow::of(parts.bundle, residency),
            sequential_gain: parts
                .made
                .map_or(SEQUENTIAL_GAIN, |plan| plan.choices.sequential_gain),
            notes: parts.notes.to_vec(),
            expected: parts.made.map(|plan| plan.expected.clone()),
            reasons: parts.made.map(|plan| plan.reasons.clone()),
        }
    }
}

fn as_text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
