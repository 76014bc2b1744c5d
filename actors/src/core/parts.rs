//! Building one core, and the bytes of its buffers for the budget.

use std::sync::Arc;

use forebay_models::bundle::{Bundle, FfnLayout};
use forebay_models::network::{Content, Network};
use forebay_plans::preload::PreloadWindow;
use forebay_plans::program::Program;
use forebay_plans::residency::Pipeline;
use forebay_queues::capacity::Capacity;
use forebay_queues::doorbell::Bell;
use forebay_queues::exchange::Member;
use forebay_queues::lane::{LaneRx, LaneTx};
use forebay_stages::contract::Outbox;
use forebay_stages::early::Early;
use forebay_stages::expert_flights::ExpertFlights;
use forebay_stages::expert_input::ExpertInput;
use forebay_stages::expert_store::{ExpertMemory, ExpertStore, MOST_READS};
use forebay_stages::gc::Gc;
use forebay_stages::gio::{Gio, Reader};
use forebay_stages::neuron_store::{NeuronRules, NeuronStore};
use forebay_stages::pred::{Pred, SharedClusters};
use forebay_stages::preload::Preload;
use forebay_stages::router::Preference;
use forebay_stages::rows::{Rows, SharedRows};
use forebay_stages::udc::Udc;
use forebay_stages::udio::Udio;
use forebay_stages::weights::{Evictable, EvictableView, SharedEvictables, Weights};
use forebay_traces::lane::TraceLane;

use super::device::reserve;
use super::mix::Mixers;
use super::recorder::Recorder;
use super::residual::Residual;
use super::{Core, State};
use crate::baselines::{BlockingGraph, MatrixGraph};
use crate::decode::DecodeGraph;
use crate::device::DeviceEnds;
use crate::io_link::IoLink;
use crate::memory::CoreMemory;
use crate::prefill::{PrefillGraph, Prompts};
use crate::shared::Shared;
use crate::step::{Sizes, Step, StepDone};
use crate::wiring::{Stages, Wiring};

/// Everything one core is built from.
#[derive(Debug)]
pub(crate) struct CoreParts {
    pub rank: usize,
    pub program: Program,
    pub rows: Arc<SharedRows>,
    pub clusters: Option<Arc<SharedClusters>>,
    pub evictables: Arc<SharedEvictables>,
    pub memory: CoreMemory,
    pub member: Member,
    pub bell: Bell,
    pub io: IoLink,
    pub device: DeviceEnds,
    pub commands: LaneRx<Step>,
    pub done: LaneTx<StepDone>,
    pub trace: TraceLane,
}

/// Reads that a core may have in flight: one per buffer. Its lanes have room for them.
pub(crate) fn most_reads(shared: &Shared, program: &Program, memory: &CoreMemory) -> Capacity {
    let preloads = preload_window(shared, program).map_or(0, |window| window.buffers);
    Capacity::of(&[
        ("stream windows", memory.stream_buffers()),
        ("neuron reads", memory.neurons.buffers.len()),
        ("expert reads", memory.experts.cells.len().min(MOST_READS)),
        ("prefill windows", preloads),
    ])
}

/// The window that the core's prefill graph borrows from the neuron cache.
fn preload_window(shared: &Shared, program: &Program) -> Option<PreloadWindow> {
    let caches = program.cached_neurons > 0;
    PreloadWindow::of(&shared.bundle, &shared.plan).filter(|_| caches)
}

/// A core with its buffers.
pub(crate) fn build_core(shared: &Arc<Shared>, parts: CoreParts) -> Core {
    let CoreParts {
        rank,
        program,
        rows,
        clusters,
        evictables,
        memory,
        member,
        bell,
        io,
        device,
        commands,
        done,
        trace,
    } = parts;
    let DeviceEnds {
        link: device,
        uploader,
        attender,
    } = device;
    let (bundle, network) = (&shared.bundle, shared.network());
    let (batch, flights) = (shared.max_batch, max_flights(shared, &program));
    let max_neurons = max_neurons(bundle);
    let waiting = flights.max(program.max_rows());
    let window = preload_window(shared, &program);
    check_room(rank, &memory, window, &io);
    let (prompts, preload) = Prompts::new(shared, &program, window, waiting);
    let evictable = evictable((evictables, rank), &memory);
    let rules = NeuronRules {
        policy: shared.neurons.policy,
        loading: shared.neurons.loading,
        whole: shared.rule.is_predicted(),
    };
    let store = NeuronStore::new(memory.neurons, rules, (flights, max_neurons));
    let readers = [
        Reader::new(program.stream.clone(), memory.stream, waiting),
        preload,
    ];
    let experts = expert_store(shared, memory.experts, (flights, program.max_experts()));
    let mut stages = stages(shared, &program, (rows, clusters), readers);
    stages.uploader = uploader;
    reserve(device.as_deref(), &mut stages);
    Core {
        rank,
        bell,
        seen: 0,
        blocked: true,
        state: State::Idle,
        step: Step::default(),
        no_step: Step::default(),
        prompts,
        decode: graph(shared.neurons.pipeline),
        prefill: PrefillGraph,
        stages,
        mixers: Mixers::new(shared, rank, attender),
        residual: residual(shared, network.widest_input(shared.predictor_rank())),
        expert_input: expert_input(network, batch),
        weights: Weights::new(Arc::clone(&shared.resident), evictable, store, experts),
        out: Outbox::new(flights),
        unread: Vec::new(),
        recorder: Recorder::new(trace),
        program,
        member,
        io,
        device,
        commands,
        done,
        sizes: Sizes::ALL,
        shared: Arc::clone(shared),
    }
}

/// What the core sees of all cores' clusters that may be evicted, and its own.
fn evictable(
    (all, rank): (Arc<SharedEvictables>, usize),
    memory: &CoreMemory,
) -> (EvictableView, Evictable) {
    let own = (Arc::clone(&all), rank);
    let own = Evictable::new(&memory.evictable, own, memory.stream.len());
    (EvictableView::new(all), own)
}

/// The core's cells of experts. Gates are read first where the file lets them be, and the loading asks for it.
fn expert_store(shared: &Shared, memory: ExpertMemory, sizes: (usize, usize)) -> ExpertStore {
    let mut experts = ExpertStore::new(memory, shared.neurons.policy, sizes);
    let mut geometries = shared.bundle.meta.experts.iter().flatten();
    experts.gates_first =
        shared.neurons.reads_gates_first() && geometries.any(|g| g.layout == FfnLayout::GateFirst);
    experts
}

/// Panics if there are more buffers that are read into than the core's lanes have room for.
fn check_room(rank: usize, memory: &CoreMemory, window: Option<PreloadWindow>, io: &IoLink) {
    let buffers = memory.stream.len() + memory.neurons.buffers.len();
    let buffers = buffers + memory.experts.cells.len().min(MOST_READS);
    let buffers = buffers + window.map_or(0, |window| window.buffers);
    let room = io.capacity();
    assert!(
        buffers <= room.total(),
        "core {rank} reads into {buffers} buffers, but has lanes of {room}"
    );
}

/// The stages, with the windows of GIO and Preload.
fn stages(
    shared: &Shared,
    program: &Program,
    (rows, clusters): (Arc<SharedRows>, Option<Arc<SharedClusters>>),
    [gio, preload]: [Reader; 2],
) -> Stages {
    let (bundle, batch) = (&shared.bundle, shared.max_batch);
    let (flights, max_neurons) = (max_flights(shared, program), max_neurons(bundle));
    let predicted = shared.rule.is_predicted();
    let by_neuron = tokens_by_neuron(bundle, batch);
    let d_model = shared.network().d_model;
    Stages {
        rows: Rows::new(rows, program.max_rows(), batch, of_rows(bundle)),
        pred: Pred::new(bundle, predicted, (flights, max_neurons), batch, clusters),
        gio: Gio::new(gio, flights),
        preload: Preload {
            reader: preload,
            experts: ExpertFlights::new(flights),
        },
        gc: Gc::new(flights, by_neuron),
        early: Early::default(),
        udio: Udio::new(flights),
        udc: Udc::new(flights, (batch, max_neurons, d_model), by_neuron),
        uploader: None,
        retired: 0,
        gave_back_to: None,
        ahead: None,
    }
}

/// The graph for generating tokens: the product's, or a baseline.
fn graph(pipeline: Pipeline) -> Box<dyn Wiring> {
    match pipeline {
        Pipeline::Cluster => Box::new(DecodeGraph::default()),
        Pipeline::Matrix => Box::new(MatrixGraph::default()),
        Pipeline::None => Box::new(BlockingGraph::default()),
    }
}

/// Maximum number of neuron clusters of a core that are under way.
pub(super) fn max_flights(shared: &Shared, program: &Program) -> usize {
    program.max_flights(shared.network().most_used_experts())
}

/// The input of single experts, if there are any.
fn expert_input(network: &Network, batch: usize) -> ExpertInput {
    match network.most_used_experts() {
        0 => ExpertInput::new(0, 0),
        _ => ExpertInput::new(batch, network.d_model),
    }
}

/// The residual stream, with what is kept to choose experts in memory, if they are preferred.
fn residual(shared: &Shared, widest: usize) -> Residual {
    let network = shared.network();
    let mut residual = Residual::new(network, shared.max_batch, widest, shared.predictor_rank());
    let sizes = (network.n_layers(), network.widest_router());
    let preference = || Preference::new(sizes, shared.fewer.prefer_cached);
    residual.preference = shared.prefers_cached().then(preference);
    residual
}

/// Bytes of [`expert_input`].
pub(super) fn expert_input_bytes(network: &Network, batch: usize) -> usize {
    match network.most_used_experts() {
        0 => 0,
        _ => ExpertInput::bytes_for(batch, network.d_model),
    }
}

/// Neurons of the largest cluster.
pub(super) fn max_neurons(bundle: &Bundle) -> usize {
    let neurons = bundle.meta.geometries().map(|g| g.neurons);
    neurons.max().unwrap_or(0)
}

/// Tokens of a step of `batch` whose neurons may be computed one by one: none where they are stored in panels.
pub(super) fn tokens_by_neuron(bundle: &Bundle, batch: usize) -> usize {
    match bundle.meta.geometries().any(|g| g.layout.is_by_neuron()) {
        true => batch,
        false => 0,
    }
}

/// Maximum number of rows in a row cluster, and columns of the input of a head that has its own.
fn of_rows(bundle: &Bundle) -> (usize, usize) {
    (max_rows(bundle), bundle.meta.network.widest_head_input())
}

/// Maximum number of rows in a row cluster of any core.
pub fn max_rows(bundle: &Bundle) -> usize {
    let by_row = |content| match content {
        Content::HotNeurons(_) | Content::Neurons(_) | Content::Experts(_) => false,
        // Rows of the predictor's second matrix are computed as part of their FFN cluster.
        Content::Rows(id) => !is_scores(id),
        Content::Table(_) => true,
    };
    let rows = bundle.clusters.iter().filter(|e| by_row(e.content));
    rows.map(|e| e.count as usize).max().unwrap_or(0)
}

fn is_scores(id: forebay_models::tensor::TensorId) -> bool {
    use forebay_models::tensor::{LayerTensor, TensorId};
    matches!(id, TensorId::Layer(_, LayerTensor::PredictorFc2))
}
