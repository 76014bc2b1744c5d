//! Predicts a choice's speed: the engine's own memory plan, put through the cost model.
//!
//! An [`Outlook`] is a model on a machine: all that a prediction needs and that no choice changes. [`Outlook::see`]
//! lays the memory out for one choice exactly as a run would, and returns a [`Seen`]: the choice with its speeds. This
//! is done for hundreds of choices per plan, so whatever they have in common is computed once.

use forebay_models::bundle::{ALIGN, Bundle, FfnGeometry, FfnLayout};
use forebay_models::network::{Content, MOST_GUESSED_LAYERS};
use forebay_plans::cost::{
    Activation, DecodeTime, ExpertCurves, MissCurve, MissSample, PartReads, Rates, Reads, Streamed,
    TokenWork,
};
use forebay_plans::machine::{DiskProfile, KernelCase, MachineProfile};
use forebay_plans::plan::{Choices, Expected};
use forebay_plans::preload::{PreloadWindow, sequential_gain};
use forebay_plans::residency::{Loading, Sparsity};

use crate::error::Error;
use crate::memory::{MemoryPlan, MemoryRequest, PROCESS_SPREAD, kv_bytes_read, plan, state_bytes};
use crate::profiles::{ExpertProfile, MissPoint, Profile};

/// Tokens of prompts for each one that is generated. Published traces of chats have medians of 8 to 1 (Splitwise, 2023:
/// 1,020 and 129 tokens), but most of a chat is in the KV cache from the turn before.
const PROMPT_TOKENS: f64 = 2.0;
/// Positions that a token sees, for the predicted speeds: those of a short conversation.
const USUAL_POSITIONS: usize = 256;
/// Reads in flight where prompts read whole clusters.
const PRELOAD_DEPTH: usize = 16;

/// The kernels that a model needs in a mode.
pub(crate) fn kernel_cases(bundle: &Bundle, sparsity: Sparsity) -> Vec<KernelCase> {
    // Which ones are needed does not depend on how many neurons are active.
    let active = Activation::of(sparsity, None);
    TokenWork::of(bundle, sparsity, active, 0.0).cases()
}

/// A model on a machine.
#[derive(Clone)]
pub(crate) struct Outlook<'a> {
    /// The request without the choices.
    pub request: MemoryRequest,
    pub(super) bundle: &'a Bundle,
    machine: &'a MachineProfile,
    disk: &'a DiskProfile,
    /// What has to be computed for a token.
    work: TokenWork,
    misses: Misses,
    /// What is known about the experts that tokens use.
    experts: Option<ExpertCurves>,
    /// Neurons of all layers.
    neurons: f64,
    /// Part of the neurons of a token's experts whose Up and Down are computed, and read if they can be read alone.
    alive: f64,
}

/// P_miss(m) in reads and bytes, by how single neurons are read.
#[derive(Clone)]
struct Misses {
    bundle: MissCurve,
    split: MissCurve,
    rows: MissCurve,
}

/// A choice with its predicted speeds.
pub(crate) struct Seen {
    pub choices: Choices,
    pub expected: Expected,
    /// Time of a prompt's token, seconds.
    pub prompt_seconds: f64,
}

impl Seen {
    /// What the planner minimises: the time of a generated token and of the prompts' tokens that come with it.
    pub fn cost(&self) -> f64 {
        self.expected.decode_seconds.total() + PROMPT_TOKENS * self.prompt_seconds
    }
}

impl<'a> Outlook<'a> {
    /// `profile` is what a text wants of the model's neurons and experts, if that is known.
    pub fn new(
        bundle: &'a Bundle,
        (machine, disk): (&'a MachineProfile, &'a DiskProfile),
        profile: Option<&Profile>,
        request: MemoryRequest,
    ) -> Self {
        let network = &bundle.meta.network;
        let active = activation(bundle, request.sparsity, profile);
        let positions = USUAL_POSITIONS.min(network.context_length);
        // A state is read and written, a snapshot is neither, and they are equally large.
        let past = kv_bytes_read(bundle, &request, positions) + state_bytes(bundle, &request);
        // Hot ones are never read by themselves.
        let cold = (0..network.n_layers()).map(|l| network.neurons(Content::Neurons(l)).0.len());
        let neurons = cold.sum::<usize>() as f64;
        Self {
            request,
            bundle,
            machine,
            disk,
            work: TokenWork::of(bundle, request.sparsity, active, past as f64),
            misses: Misses::of(bundle, request.sparsity, active.alive * neurons, profile),
            experts: profile
                .and_then(|p| p.experts.as_ref())
                .map(ExpertProfile::curves),
            neurons,
            alive: active.alive,
        }
    }

    /// The same with another budget.
    pub fn within(&self, total: u64) -> Self {
        let mut other = self.clone();
        other.request.total = total;
        other
    }

    /// The same with a process that has grown by [`PROCESS_SPREAD`], as it may when the plan is carried out.
    pub fn with_larger_process(&self) -> Self {
        self.within(self.request.total.saturating_sub(PROCESS_SPREAD))
    }

    /// The request with the choices made.
    fn requested(&self, choices: &Choices) -> MemoryRequest {
        MemoryRequest {
            threads: choices.threads,
            context: Some(choices.context),
            max_batch: Some(choices.max_batch),
            stream_window: choices.stream_window_bytes,
            neuron_cache: choices.neuron_cache_bytes,
            ..self.request
        }
    }

    /// Of how many of the next layers it is possible to guess the experts.
    pub fn guessable(&self) -> usize {
        match self.work.guesses.is_empty() {
            true => 0,
            false => MOST_GUESSED_LAYERS,
        }
    }

    /// How much faster the disk reads whole clusters than single neurons.
    pub fn sequential_gain(&self) -> f64 {
        let g = geometry(self.bundle);
        let cluster = g.cluster_bytes(g.neurons) as f64;
        let neuron = g.up_down_bytes().next_multiple_of(ALIGN) as f64;
        sequential_gain(self.disk, (cluster, PRELOAD_DEPTH), neuron)
    }

    /// Lays the memory out; how neurons are read does not change it.
    ///
    /// # Errors
    /// The choices do not fit.
    pub fn layout(&self, choices: &Choices) -> Result<MemoryPlan, Error> {
        plan(self.bundle, &self.requested(choices))
    }

    /// Lays the memory out and predicts the speed.
    ///
    /// # Errors
    /// The choices do not fit.
    pub fn see(&self, choices: Choices) -> Result<Seen, Error> {
        let memory = self.layout(&choices)?;
        Ok(self.predict(choices, &memory))
    }

    /// The speed of `choices`, whose memory plan is `memory`.
    pub fn predict(&self, choices: Choices, memory: &MemoryPlan) -> Seen {
        let (work, plan) = (&self.work, &memory.residency);
        let streamed = Streamed::of(self.bundle, plan, choices.threads);
        let rates = Rates {
            machine: self.machine,
            disk: self.disk,
            threads: choices.threads,
            depth: choices.threads * plan.stream_slots,
            window: (choices.threads * plan.stream_bytes_per_core()) as f64,
        };
        let missed = self.misses.curve(choices.loading).at(streamed.cached);
        // A model whose FFNs are experts has no single neurons.
        let part = streamed.neurons / self.neurons.max(1.0);
        let (neuron_reads, bytes) = (missed.reads * part, missed.bytes * part);
        let missed_experts = 1.0 - streamed.expert_hits(self.experts.as_ref());
        let expert_reads = streamed.expert_clusters * missed_experts;
        let expert_bytes = streamed.expert_bytes * missed_experts;
        let mut time = DecodeTime {
            stream: rates.stream(streamed.clusters, streamed.bytes),
            io: rates.neurons(neuron_reads, bytes),
            ..rates.compute(work)
        };
        let mut read = Reads {
            reads: expert_reads,
            bytes: expert_bytes,
        };
        let asked = (work.layers, streamed.clusters_per_expert());
        let mut of_experts = rates.experts(read.reads, read.bytes, asked);
        if let (Loading::Split, Some(g)) = (choices.loading, &streamed.gates_first) {
            let parts = PartReads::of(g, self.alive, missed_experts);
            let parts = parts.times(streamed.expert_clusters);
            read = parts.sum();
            of_experts = rates.experts_in_parts(&parts, asked);
        }
        let guessed = match plan.expert_cache.cells {
            0 => 0,
            _ => choices.guessed_layers,
        };
        time.predictor += rates.weights(&work.guesses) * guessed as f64;
        let more = time.add_experts(of_experts, guessed);
        let prompt_rates = self.prompt_rates(&rates, memory);
        let reads = self.prompt_reads(&streamed, &choices);
        let prompt_seconds = prompt_rates.prompt(work, choices.max_batch, reads);
        let items = memory.budget.items().iter();
        Seen {
            expected: Expected {
                decode_tokens_per_second: 1.0 / time.total().max(1e-9),
                prefill_tokens_per_second: 1.0 / prompt_seconds.max(1e-9),
                bound_by: time.bound_by().into(),
                decode_seconds: time,
                reads_per_token: streamed.clusters + neuron_reads + read.reads * more,
                bytes_per_token: streamed.bytes + bytes + read.bytes * more,
                memory_items: items.map(|i| (i.name.to_string(), i.bytes)).collect(),
            },
            choices,
            prompt_seconds,
        }
    }

    /// The rates of prompts: they borrow a part of the neuron cache as their window, and read experts into all cells.
    fn prompt_rates<'r>(&self, rates: &Rates<'r>, memory: &MemoryPlan) -> Rates<'r> {
        let plan = &memory.residency;
        let borrowed = PreloadWindow::of(self.bundle, plan);
        let (buffers, buffer_bytes) = borrowed.map_or((0, 0), |w| (w.buffers, w.buffer_bytes));
        let experts = &plan.expert_cache;
        let window = (buffers * buffer_bytes).max(experts.bytes_per_core());
        Rates {
            window: rates.window.max((rates.threads * window) as f64),
            depth: rates.depth.max(rates.threads * buffers.max(experts.cells)),
            ..*rates
        }
    }

    /// Clusters, and their bytes, that a batch of a prompt reads.
    fn prompt_reads(&self, streamed: &Streamed, choices: &Choices) -> (f64, f64) {
        let sequential_gain = choices.sequential_gain;
        let g = geometry(self.bundle);
        if streamed.neurons <= 0.0 {
            let experts = streamed.experts_of_batch(choices.max_batch, self.experts.as_ref());
            return (
                streamed.clusters + streamed.all_expert_clusters * experts,
                streamed.bytes + streamed.all_expert_bytes * experts,
            );
        }
        // Beyond that, a batch reads what its tokens miss, at most the rest.
        let part = match (1.0 - streamed.cached) * sequential_gain >= 1.0 {
            true => 1.0,
            false => 1.0 - streamed.cached,
        };
        let clusters = streamed.neurons / g.neurons as f64 * part;
        (
            streamed.clusters + clusters,
            streamed.bytes + clusters * g.cluster_bytes(g.neurons) as f64,
        )
    }
}

/// How the first layer's neurons are stored.
fn geometry(bundle: &Bundle) -> &FfnGeometry {
    let first = bundle.meta.geometries().next();
    first.expect("every layer has an FFN")
}

/// Which part of the FFN a token computes; of its experts, if they are what is stored neuron by neuron.
fn activation(bundle: &Bundle, sparsity: Sparsity, profile: Option<&Profile>) -> Activation {
    if has_gates_first(bundle) {
        let experts = profile.and_then(|p| p.experts.as_ref());
        return Activation::of(sparsity, experts.and_then(|e| e.alive));
    }
    let mean = |p: &Profile| {
        let layers = p.wanted.len().max(1) as f64;
        (p.wanted.iter().sum::<f64>() / layers).min(1.0)
    };
    Activation::of(sparsity, profile.map(mean))
}

/// Whether the Gates of some experts can be read before the rest.
pub(super) fn has_gates_first(bundle: &Bundle) -> bool {
    let mut experts = bundle.meta.experts.iter().flatten();
    experts.any(|g| g.layout == FfnLayout::GateFirst)
}

impl Misses {
    /// `wanted` neurons per token are read if none is cached.
    fn of(bundle: &Bundle, sparsity: Sparsity, wanted: f64, profile: Option<&Profile>) -> Self {
        let g = geometry(bundle);
        let bytes = match sparsity {
            Sparsity::Predicted => g.bundle_bytes(),
            _ => g.up_down_bytes(),
        };
        let read = bytes.next_multiple_of(ALIGN) as f64;
        let curve = |loading| match profile {
            Some(profile) => {
                let of_split = match (sparsity, loading) {
                    // With Gate rows in memory, there is but one half to read.
                    (Sparsity::Exact | Sparsity::Threshold, Loading::Split) => None,
                    _ => split(g, loading),
                };
                let samples = profile.misses.iter().map(|p| sample(p, of_split, read));
                let (reads, bytes) = of_split.unwrap_or((1.0, read));
                let empty = MissSample {
                    cached: 0.0,
                    reads: wanted * reads,
                    bytes: wanted * bytes,
                };
                MissCurve::new(empty, &samples.collect::<Vec<_>>())
            }
            None => MissCurve::unknown(wanted, read),
        };
        Self {
            bundle: curve(Loading::Bundle),
            split: curve(Loading::Split),
            rows: curve(Loading::Rows),
        }
    }

    fn curve(&self, loading: Loading) -> &MissCurve {
        match loading {
            Loading::Bundle => &self.bundle,
            Loading::Split => &self.split,
            Loading::Rows => &self.rows,
        }
    }
}

/// Reads of a neuron that is not read as a whole, and their bytes: as the neuron store cuts it.
fn split(g: &FfnGeometry, loading: Loading) -> Option<(f64, f64)> {
    let end = g.bundle_bytes();
    let cuts = match loading {
        Loading::Bundle => return None,
        // Halves of bundles that fill pages meet between two pages.
        Loading::Split if g.bundle_stride().is_multiple_of(ALIGN) => {
            vec![g.gate_row().next_multiple_of(ALIGN).min(end)]
        }
        Loading::Split => vec![g.up_offset()],
        Loading::Rows => vec![g.up_offset(), g.down_offset()],
    };
    let ends = cuts.iter().copied().chain([end]);
    let pieces = [0].into_iter().chain(cuts.iter().copied()).zip(ends);
    let bytes = pieces.map(|(from, to)| (to - from).next_multiple_of(ALIGN));
    Some((cuts.len() as f64 + 1.0, bytes.sum::<usize>() as f64))
}

/// What a cache of a measured size misses, if a neuron takes `read` bytes, or is `split` into reads.
fn sample(p: &MissPoint, split: Option<(f64, f64)>, read: f64) -> MissSample {
    let (reads, bytes) = match split {
        Some((reads, bytes)) => (reads * p.per_token, bytes * p.per_token),
        None if p.reads > 0.0 || p.per_token == 0.0 => (p.reads, p.bytes),
        // A profile by an earlier version.
        None => (p.per_token, p.per_token * read),
    };
    MissSample {
        cached: p.cached,
        reads,
        bytes,
    }
}

#[cfg(test)]
mod tests {
    use forebay_models::block::BlockType;

    use super::*;

    #[test]
    fn halves_and_rows_are_as_long_as_the_model_is_wide() {
        let of = |block, d_model, loading| {
            let g = FfnGeometry::choose(
                FfnLayout::Neuron,
                (block, Some(block), block),
                d_model,
                4096,
            );
            split(&g, loading)
        };
        let small = |loading| of(BlockType::Q4_0, 4096, loading);
        assert_eq!(small(Loading::Bundle), None);
        assert_eq!(small(Loading::Split), Some((2.0, 8192.0)));
        assert_eq!(small(Loading::Rows), Some((3.0, 12288.0)));
        assert_eq!(
            of(BlockType::F16, 4096, Loading::Split),
            Some((2.0, 24576.0))
        );
    }
}
