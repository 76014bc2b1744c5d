//! What stays in memory, what is streamed, and which core owns which cluster.
//!
//! PowerInfer-2 section 4.2: attention weights are preloaded and kept; the FFN gets the rest. A dense model uses its
//! weights in a cycle, which defeats any recency policy, so a fixed part of it is pinned, spread evenly over the layers
//! so that the disk is never idle; a ReLU model keeps its Gate rows and caches Up and Down by neuron; with predictors
//! it caches whole neurons. Experts are cached by cluster.

mod neurons;

use std::collections::BTreeMap;

use forebay_models::bundle::{Bundle, DirectoryEntry};
use forebay_models::network::Content;
use forebay_models::tensor::{LayerTensor, TensorId};
use serde::{Deserialize, Serialize};

use crate::expert_cache::{ExpertCachePlan, is_expert};

/// Which neurons of the FFN are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sparsity {
    /// All of them.
    Dense,
    /// Gate for all, Up and Down only if the gate is not zero: the same sum, since the others
    /// contribute exactly 0.
    Exact,
    /// Those that the activation predictors name, if their gate is not zero.
    Predicted,
    /// Those whose activated gate is at least a calibrated threshold (CATS, arXiv 2404.08763).
    Threshold,
}

/// How single neurons are read, and those of experts if they are stored one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loading {
    /// A neuron's bundle in one read.
    #[default]
    Bundle,
    /// In two halves, the second only if the gate turns out to be live (PowerInfer-2 section 4.4). Of a cluster of an
    /// expert, likewise: first all Gates, then Up and Down of neurons that are alive.
    Split,
    /// Gate row, Up row and Down column in one read each: for comparison with bundles.
    Rows,
}

/// What overlaps while a layer's FFN is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pipeline {
    /// Clusters of any matrix are computed as they arrive (PowerInfer-2 section 4.3).
    #[default]
    Cluster,
    /// Reading and computing overlap within a matrix, and there is a barrier between matrices.
    Matrix,
    /// Reads block: first everything is read, then it is computed.
    None,
}

/// Where a cluster is while tokens are generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Residency {
    /// Always in memory.
    Pinned,
    /// Gate rows in memory; Up and Down by neuron, in the neuron cache or on flash.
    GatePinned,
    /// All rows by neuron, in the neuron cache or on flash.
    Neurons,
    /// Of an expert: in the expert cache or on flash, as a whole.
    Cached,
    /// Read through the stream window every time it is needed.
    Streamed,
    /// Not kept: predictors that are not used, and tables, of which single rows are read, unless all fit.
    OnFlash,
}

impl Residency {
    /// Whether single neurons of it are cached and read.
    pub fn is_by_neuron(self) -> bool {
        matches!(self, Self::GatePinned | Self::Neurons)
    }
}

/// The sizes by which residency is decided.
#[derive(Clone, Copy, Debug)]
pub struct ResidencyRequest {
    /// Bytes for weights: pinned clusters, stream window and neuron cache together.
    pub weight_bytes: u64,
    /// Compute cores.
    pub threads: usize,
    /// Neuron selection.
    pub sparsity: Sparsity,
    /// What overlaps: if a matrix is read as a whole, the cache needs room for a layer.
    pub pipeline: Pipeline,
    /// Bytes of the stream window over all cores, if clusters are streamed.
    pub stream_window: usize,
    /// Bytes that the neuron cache gets before attention and the head are pinned: a byte there may save more reading.
    pub neuron_cache: u64,
}

/// Slots of the neuron cache of one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NeuronCachePlan {
    /// Neurons that fit, per core.
    pub slots: usize,
    /// Bytes per neuron: its bundle, or its Up and Down rows if Gate rows are pinned.
    pub slot_bytes: usize,
    /// Read buffers per core for misses.
    pub staging: usize,
    /// Bytes of a read buffer.
    pub staging_bytes: usize,
    /// Minimum slots per core for the pipeline to make progress: the cache never shrinks below.
    #[serde(skip)]
    pub least_slots: usize,
}

impl NeuronCachePlan {
    /// Bytes per core: slots with their directory, and read buffers.
    pub fn bytes_per_core(&self) -> usize {
        self.slots * (self.slot_bytes + DIRECTORY_BYTES) + self.staging * self.staging_bytes
    }
}

/// The decision.
#[derive(Clone, Debug, PartialEq)]
pub struct ResidencyPlan {
    /// Residency by directory index.
    pub residency: Vec<Residency>,
    /// Owning core by directory index.
    pub owner: Vec<u16>,
    /// Stream buffers per core; 0 when nothing is streamed.
    pub stream_slots: usize,
    /// Bytes of a stream buffer.
    pub stream_slot_bytes: usize,
    /// The neuron cache; `slots` is 0 when it is not used.
    pub neuron_cache: NeuronCachePlan,
    /// The expert cache; `cells` is 0 when it is not used.
    pub expert_cache: ExpertCachePlan,
    /// Bytes of pinned clusters and pinned Gate rows.
    pub pinned_bytes: u64,
    /// The place of each pinned cluster that a device computes among those of its phase, by directory index.
    pub device_places: BTreeMap<u32, u32>,
}

impl ResidencyPlan {
    /// Whether no weights are read while tokens are computed.
    pub fn is_all_in_memory(&self) -> bool {
        self.stream_slots == 0 && self.neuron_cache.slots == 0 && self.expert_cache.cells == 0
    }

    /// Bytes of a core's stream window.
    pub fn stream_bytes_per_core(&self) -> usize {
        self.stream_slots * self.stream_slot_bytes
    }
}

/// Minimum stream buffers per core for the pipeline to make progress.
const MIN_STREAM_SLOTS: usize = 2;
/// Default stream window, beyond which the disk gets no faster (depth 16 at 512 KiB reaches its plateau).
pub const STREAM_WINDOW: usize = 24 << 20;
/// Maximum number of stream buffers per core.
const MAX_STREAM_SLOTS: usize = 64;
/// Maximum bytes per slot of the cache's directory.
const DIRECTORY_BYTES: usize = 36;
const PAGE: usize = 4096;

/// Assigns every cluster to a core: within each group that runs between two exchanges, the next
/// cluster goes to the core with the fewest bytes so far.
pub fn assign_owners(bundle: &Bundle, threads: usize) -> Vec<u16> {
    let mut load = vec![0u64; threads];
    let mut current = None;
    let clusters = bundle.clusters.iter().map(|e| {
        if current != Some(group(e.content)) {
            current = Some(group(e.content));
            load.fill(0);
        }
        let rank = (0..threads).min_by_key(|&r| load[r]).unwrap_or(0);
        load[rank] += u64::from(e.len);
        rank as u16
    });
    clusters.collect()
}

/// What runs between the same two exchanges: the matrices of a mixer's input are one group, that of Q; QDown belongs to
/// it, too, so that K is divided with it.
fn group(content: Content) -> Content {
    use LayerTensor as T;
    let is_with_q =
        |t| matches!(t, T::K | T::V | T::QDown) || matches!(t, T::OutputGate | T::Alpha | T::Beta);
    match content {
        Content::Rows(TensorId::Layer(l, t)) if is_with_q(t) => {
            Content::Rows(TensorId::Layer(l, T::Q))
        }
        other => other,
    }
}

/// The minimum weight memory with which the model can run at all: everything is streamed except the
/// predictors, which are pinned if they are used.
pub fn least_weight_bytes(bundle: &Bundle, threads: usize, sparsity: Sparsity) -> u64 {
    let window = (threads * MIN_STREAM_SLOTS * largest_streamed(bundle)) as u64;
    let predictors: u64 = predictors(bundle, sparsity).map(|(_, b)| b).sum();
    let experts = (threads * ExpertCachePlan::least(bundle).bytes_per_core()) as u64;
    (predictors + window + experts).min(all_pinned_bytes(bundle, sparsity))
}

/// Bytes of the largest cluster that may have to be streamed.
fn largest_streamed(bundle: &Bundle) -> usize {
    let others = streamable(bundle).filter(|(_, e)| !is_expert(e));
    others.map(|(_, e)| e.padded_len()).max().unwrap_or(0)
}

/// Weight memory with which nothing is read after start-up.
pub fn all_pinned_bytes(bundle: &Bundle, sparsity: Sparsity) -> u64 {
    let weights: u64 = streamable(bundle).map(|(_, e)| e.padded_len() as u64).sum();
    weights + predictors(bundle, sparsity).map(|(_, b)| b).sum::<u64>()
}

/// Bytes of all tables. They are kept if everything else is, too, and there is room: else a row is read for each token.
pub fn table_bytes(bundle: &Bundle) -> u64 {
    let tables = bundle.clusters.iter().filter(|e| is_table(e));
    tables.map(|e| e.padded_len() as u64).sum()
}

/// Clusters that are used in every mode.
fn streamable(bundle: &Bundle) -> impl Iterator<Item = (usize, &DirectoryEntry)> {
    bundle
        .clusters
        .iter()
        .enumerate()
        .filter(|(_, e)| !is_table(e) && !e.content.is_predictor())
}

/// Predictor clusters in use, with their bytes.
fn predictors(bundle: &Bundle, sparsity: Sparsity) -> impl Iterator<Item = (usize, u64)> {
    let used =
        move |e: &DirectoryEntry| sparsity == Sparsity::Predicted && e.content.is_predictor();
    let entries = bundle.clusters.iter().enumerate();
    entries
        .filter(move |(_, e)| used(e))
        .map(|(i, e)| (i, e.padded_len() as u64))
}

/// Decides residency; `None` when `weight_bytes` is below [`least_weight_bytes`].
pub fn decide(bundle: &Bundle, request: &ResidencyRequest) -> Option<ResidencyPlan> {
    let owner = assign_owners(bundle, request.threads);
    let mut planner = Planner {
        bundle,
        request,
        left: request.weight_bytes,
        plan: ResidencyPlan {
            residency: vec![Residency::Streamed; owner.len()],
            owner,
            stream_slots: 0,
            stream_slot_bytes: 0,
            neuron_cache: NeuronCachePlan::default(),
            expert_cache: ExpertCachePlan::default(),
            pinned_bytes: 0,
            device_places: BTreeMap::new(),
        },
    };
    for (e, r) in bundle.clusters.iter().zip(&mut planner.plan.residency) {
        if is_table(e) || e.content.is_predictor() {
            *r = Residency::OnFlash;
        }
    }
    let whole = all_pinned_bytes(bundle, request.sparsity);
    let least = least_weight_bytes(bundle, request.threads, request.sparsity);
    if request.weight_bytes < whole.min(least) {
        return None;
    }
    planner.pin_predictors();
    if request.weight_bytes >= whole {
        planner.pin_spread(|_| true);
        planner.pin_tables();
    } else {
        planner.partial();
    }
    Some(planner.plan)
}

struct Planner<'a> {
    bundle: &'a Bundle,
    request: &'a ResidencyRequest,
    left: u64,
    plan: ResidencyPlan,
}

impl Planner<'_> {
    fn partial(&mut self) {
        for (i, _) in streamable(self.bundle).filter(|(_, e)| is_expert(e)) {
            self.plan.residency[i] = Residency::Cached;
        }
        if self.all_but_neurons_fits() {
            // Only neurons are read on demand; nothing is streamed, so no window is needed.
            self.pin_spread(|e| !is_neurons(e));
            self.cache_neurons();
            return;
        }
        if self.all_but_experts_fits() {
            self.pin_spread(|e| !is_expert(e));
            self.cache_experts();
            return;
        }
        let threads = self.request.threads;
        let largest = largest_streamed(self.bundle).max(PAGE);
        let experts = (threads * ExpertCachePlan::least(self.bundle).bytes_per_core()) as u64;
        self.left -= experts;
        // At most a third of the memory goes into the stream window: pinning certainly saves reads,
        // read-ahead only hides them.
        let window = self.request.stream_window.min((self.left / 3) as usize);
        let slots = (window / threads / largest).clamp(MIN_STREAM_SLOTS, MAX_STREAM_SLOTS);
        self.plan.stream_slots = slots;
        self.plan.stream_slot_bytes = largest;
        self.left -= (threads * slots * largest) as u64;
        let reserved = self.reserved();
        self.left -= reserved;
        let head = Content::Rows(self.bundle.meta.network.head_tensor());
        // Every token uses hot neurons, too.
        let always = |e: &DirectoryEntry| !e.content.is_ffn() || is_hot(e);
        self.pin_spread(|e| always(e) && e.content != head);
        self.pin_spread(|e| e.content == head);
        self.left += reserved;
        if self.neuron_geometry().is_some() {
            self.cache_neurons();
        } else {
            self.pin_spread(is_neurons);
        }
        self.drop_idle_window();
        self.left += experts;
        self.cache_experts();
    }

    /// Whether everything except the experts fits, together with the smallest expert cache.
    fn all_but_experts_fits(&self) -> bool {
        let experts =
            (self.request.threads * ExpertCachePlan::least(self.bundle).bytes_per_core()) as u64;
        let others = streamable(self.bundle).filter(|(_, e)| !is_expert(e));
        let resident: u64 = others.map(|(_, e)| e.padded_len() as u64).sum();
        experts > 0 && resident + experts <= self.left
    }

    /// Gives the rest to the expert cache, if the model has experts.
    fn cache_experts(&mut self) {
        let mut own = vec![0; self.request.threads];
        for (i, _) in streamable(self.bundle).filter(|(_, e)| is_expert(e)) {
            own[usize::from(self.plan.owner[i])] += 1;
        }
        let mut cache = ExpertCachePlan::least(self.bundle);
        if cache.cells == 0 {
            return;
        }
        let threads = self.request.threads as u64;
        let room = (self.left / threads) as usize / cache.bytes_per_cell();
        // No core needs more cells than it owns clusters.
        cache.cells = room.min(own.into_iter().max().unwrap_or(0));
        self.left -= threads * cache.bytes_per_core() as u64;
        self.plan.expert_cache = cache;
    }

    /// Predictors are used for every layer and token, and decide what else to read.
    fn pin_predictors(&mut self) {
        for (i, bytes) in predictors(self.bundle, self.request.sparsity) {
            self.plan.residency[i] = Residency::Pinned;
            self.plan.pinned_bytes += bytes;
            self.left -= bytes;
        }
    }

    /// Pins all tables if they fit. All or none: a token needs any row of them.
    fn pin_tables(&mut self) {
        let bytes = table_bytes(self.bundle);
        if bytes > self.left {
            return;
        }
        self.left -= bytes;
        self.plan.pinned_bytes += bytes;
        for (e, residency) in self.bundle.clusters.iter().zip(&mut self.plan.residency) {
            if is_table(e) {
                *residency = Residency::Pinned;
            }
        }
    }

    /// Pins the clusters chosen by `wanted`: all of them if they fit, else as many as fit, spread evenly over the model
    /// so that reads come at a steady rate.
    fn pin_spread(&mut self, wanted: impl Fn(&DirectoryEntry) -> bool) {
        let chosen: Vec<(usize, u64)> = streamable(self.bundle)
            .filter(|(_, e)| wanted(e))
            .map(|(i, e)| (i, e.padded_len() as u64))
            .collect();
        self.spread(&chosen, self.left, Residency::Pinned);
    }

    /// Gives `residency` to as many of the `chosen` clusters (with the bytes that each takes) as fit into `room`, at
    /// equal distances on each core's list.
    fn spread(&mut self, chosen: &[(usize, u64)], mut room: u64, residency: Residency) {
        let total: u64 = chosen.iter().map(|(_, b)| b).sum();
        let fraction = (room as f64 / total.max(1) as f64).min(1.0);
        let mut due = vec![0.0; self.request.threads];
        for &(i, bytes) in chosen {
            let due = &mut due[usize::from(self.plan.owner[i])];
            *due += fraction * bytes as f64;
            if *due + 0.5 >= bytes as f64 && bytes <= room {
                *due -= bytes as f64;
                room -= bytes;
                self.left -= bytes;
                self.plan.pinned_bytes += bytes;
                self.plan.residency[i] = residency;
            }
        }
    }

    /// Fits the stream window to what is really streamed: smaller buffers, or none.
    fn drop_idle_window(&mut self) {
        let streamed = || {
            streamable(self.bundle).filter(|(i, _)| self.plan.residency[*i] == Residency::Streamed)
        };
        let largest = streamed().map(|(_, e)| e.padded_len()).max().unwrap_or(0);
        let count = streamed().count();
        let threads = self.request.threads;
        let room = self.plan.stream_bytes_per_core();
        let wanted = room.checked_div(largest).map_or(0, |n| n.min(count).max(1));
        let wanted = wanted.min(MAX_STREAM_SLOTS);
        self.left += (threads * (room - wanted * largest)) as u64;
        self.plan.stream_slots = wanted;
        self.plan.stream_slot_bytes = largest;
    }
}

/// Whether single rows of it are read.
fn is_table(e: &DirectoryEntry) -> bool {
    matches!(e.content, Content::Table(_))
}

fn is_hot(e: &DirectoryEntry) -> bool {
    matches!(e.content, Content::HotNeurons(_))
}

fn is_neurons(e: &DirectoryEntry) -> bool {
    matches!(e.content, Content::Neurons(_))
}
