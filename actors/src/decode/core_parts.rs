//! One core's actors and buffers, and what they take of the budget.

use std::sync::Arc;

use flume::Sender;
use forebay_models::bundle::{Bundle, ClusterKind, MAX_BUNDLES, MAX_NEURONS};
use forebay_models::config::ModelConfig;
use forebay_queues::exchange::Member;
use forebay_queues::lane::LaneRx;
use forebay_stages::attention::Attention;
use forebay_stages::kernels::Activations;
use forebay_stages::live_mask::LiveMask;
use forebay_stages::neuron_store::{CacheCounts, NeuronRules};
use forebay_stages::udc::UdcScratch;
use forebay_traces::clock::now_ns;
use forebay_traces::lane::TraceLane;
use forebay_traces::ledger::Ledger;

use super::attend::AttendActor;
use super::context::CoreContext;
use super::early::{EarlyActor, EarlyProducts};
use super::gc::GcActor;
use super::gio::GioActor;
use super::giving_way::{GivingClusters, stream_tag};
use super::neurons::NeuronActor;
use super::pred::PredActor;
use super::prefill::{PreloadWindow, Route, Routes};
use super::program::{Item, Program};
use super::rows::{RowsActor, SharedRows};
use super::sequencer::{CoreActors, Residual, Sequencer};
use super::shared::{Computed, Shared, Step, StepDone};
use super::udc::UdcActor;
use crate::io_link::IoLink;
use crate::memory::CoreMemory;

/// Everything one core is built from.
#[derive(Debug)]
pub(super) struct CoreParts {
    pub rank: usize,
    pub program: Program,
    pub rows: Arc<SharedRows>,
    pub memory: CoreMemory,
    pub member: Member,
    pub io: IoLink,
    pub commands: LaneRx<Step>,
    pub done: Sender<StepDone>,
    pub trace: TraceLane,
}

/// The actors of one core, downstream first.
pub(super) fn build_core(shared: &Arc<Shared>, parts: CoreParts) -> Sequencer {
    let CoreParts {
        rank,
        program,
        rows,
        memory,
        member,
        io,
        commands,
        done,
        trace,
    } = parts;
    let c = &shared.bundle.meta.config;
    let (batch, flights) = (shared.max_batch, program.max_flights());
    let layers = shared.bundle.meta.layers.iter();
    let max_neurons = layers.map(|l| l.ffn.neurons).max().unwrap_or(0);
    let widest = widest(shared);

    let udc = UdcActor::new(flights, UdcScratch::new(batch, max_neurons, c.d_model));
    let giving = GivingClusters::new(memory.giving, memory.stream.len());
    let rules = NeuronRules {
        policy: shared.neurons.policy,
        loading: shared.neurons.loading,
        whole: shared.pred.is_predicted(),
    };
    let window = PreloadWindow::of(shared, &program, &memory.neurons);
    let neurons = NeuronActor::new(memory.neurons, rules, (flights, max_neurons));
    let gc = GcActor::new(flights, batch);
    let most_clusters = max_phase(&program);
    let gio = GioActor::new(
        program.stream.clone(),
        memory.stream,
        flights.max(most_clusters),
        stream_tag,
    );
    let rows = RowsActor::new(rows, most_clusters, batch * most_rows(&shared.bundle));
    let stage = Attention::new(
        c,
        rank,
        shared.threads,
        shared.context,
        shared.kv_type,
        batch,
    );
    let attend = AttendActor::new(stage, batch, c.q_dim() + 2 * c.kv_dim());

    let cx = context(shared, rank, &program, (trace, giving));
    let residual = Residual::new(batch, c.d_model, widest);
    let pred = PredActor::new(&cx);
    let actors = CoreActors {
        attend,
        rows,
        pred,
        gc,
        early: EarlyActor::new(),
        neurons,
        udc,
    };
    let routes = Routes::new(Route { program, gio }, window, flights.max(most_clusters));
    Sequencer::new(cx, routes, actors, residual, (member, io), (commands, done))
}

/// What the core's actors share, with nothing in it yet.
fn context(
    shared: &Arc<Shared>,
    rank: usize,
    program: &Program,
    (trace, giving): (TraceLane, GivingClusters),
) -> CoreContext {
    let (c, batch) = (&shared.bundle.meta.config, shared.max_batch);
    let (flights, predicted) = (program.max_flights(), shared.predictor_rank());
    let owned = max_owned_neurons(shared, program);
    CoreContext {
        shared: Arc::clone(shared),
        rank,
        step: Step::default(),
        layer: 0,
        giving,
        x: Activations::new(batch, widest(shared)),
        gates: vec![0.0; batch * owned],
        gate_start: Vec::with_capacity(flights),
        early: EarlyProducts::new(flights, owned),
        hidden: Activations::new(batch, predicted),
        hidden_ahead: Activations::new(1, predicted),
        named: vec![LiveMask::default(); if predicted > 0 { flights * batch } else { 0 }],
        acc: vec![0; batch * c.d_model],
        retired: 0,
        trace,
        last_ns: 0,
        counts: CacheCounts::default(),
        gated: Computed::default(),
        live: Computed::default(),
        ledger: Ledger::start(now_ns()),
    }
}

/// Columns of the widest matrix's input, the predictor's among them.
fn widest(shared: &Shared) -> usize {
    let c = &shared.bundle.meta.config;
    c.d_model.max(c.q_dim()).max(shared.predictor_rank())
}

/// Most row clusters of one phase.
pub(super) fn max_phase(program: &Program) -> usize {
    let layers = program
        .qkv
        .iter()
        .chain(&program.output)
        .chain(&program.predictor)
        .map(Vec::len);
    layers.chain([program.head.len()]).max().unwrap_or(0)
}

/// Most rows of a row cluster, of whichever core.
pub fn most_rows(bundle: &Bundle) -> usize {
    let by_neuron = |kind| matches!(kind, ClusterKind::Ffn | ClusterKind::PredictorScore);
    let rows = bundle.clusters.iter().filter(|e| !by_neuron(e.kind));
    rows.map(|e| e.count as usize).max().unwrap_or(0)
}

/// Most neurons that this core owns in one layer.
fn max_owned_neurons(shared: &Shared, program: &Program) -> usize {
    let layer = |items: &Vec<Item>| -> usize {
        items
            .iter()
            .map(|i| shared.entry(i.cluster).count as usize)
            .sum()
    };
    program.ffn.iter().map(layer).max().unwrap_or(0)
}

/// Bytes of buffers that [`DecodeGraph::start`](super::graph::DecodeGraph::start) allocates outside the slab, for
/// the budget.
pub fn scratch_bytes(
    c: &ModelConfig,
    threads: usize,
    batch: usize,
    max_logits: usize,
    max_neurons: usize,
    max_cluster_rows: usize,
    rank: usize,
) -> usize {
    let (d, qkv) = (c.d_model, c.q_dim() + 2 * c.kv_dim());
    let widest = d.max(c.q_dim()).max(rank);
    let boards = batch * (d + qkv + c.q_dim() + d + 2 * rank + 2 * threads * d) * 4
        + max_logits * c.vocab_size * 4;
    // Scores of a cluster, masks of all clusters of a layer, and the second matrix's input.
    let predictor = match rank {
        0 => 0,
        _ => {
            let clusters = c.d_ff.div_ceil(max_neurons.max(1)) + 1;
            batch * (MAX_NEURONS * 4 + clusters * size_of::<LiveMask>())
                + Activations::bytes_for(batch + 1, rank)
        }
    };
    // Products and hidden values of single neurons.
    let gathered = batch * (MAX_BUNDLES * 4 * 3 + size_of::<LiveMask>());
    // Of UDC's buffers over a cluster's neurons there are two beside its activations: Up and the product.
    let per_core = Activations::bytes_for(batch, widest)
        + Activations::bytes_for(batch, max_neurons)
        + batch * (2 * max_neurons * 4 + d * 4 + d * 8 * 2 + d * 4 + widest * 4 + qkv * 4)
        + batch * max_cluster_rows * 4
        + predictor
        + gathered
        + Attention::scratch_bytes(c, batch);
    let owned = c.d_ff + max_neurons * threads;
    let gates_and_attention = batch * (owned + c.q_dim()) * 4;
    // Early Gates and Ups of one token.
    let early =
        2 * owned * 4 + 2 * (c.d_ff.div_ceil(max_neurons.max(1)) + threads) * size_of::<LiveMask>();
    boards + threads * per_core + gates_and_attention + early
}
