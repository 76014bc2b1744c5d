//! What the buffers of a core take, and which of them give their memory back between steps: what a prompt's batch
//! fills, a generated token hardly touches.

use forebay_models::bundle::{Bundle, DirectoryEntry, FfnGeometry, MAX_BUNDLES, MAX_NEURONS};
use forebay_models::network::Content;
use forebay_plans::program::Item;
use forebay_queues::pages::page;
use forebay_stages::attention::Attention;
use forebay_stages::boards::Boards;
use forebay_stages::expert_store::Request;
use forebay_stages::flight::Flight;
use forebay_stages::live_mask::LiveMask;
use forebay_stages::recurrent::Recurrent;
use forebay_stages::rows::Rows;
use forebay_stages::udc::Udc;

use super::Core;
use super::parts::{expert_input_bytes, max_neurons, max_rows, tokens_by_neuron};
use super::residual::Residual;

/// More than the buffers of a core, and its boards, that give memory back: each may keep a page.
const BUFFERS: usize = 48;

impl Core {
    /// Between two steps: the memory of what a step fills goes back. The next one commits as much as its tokens need.
    pub(super) fn give_back_scratch(&mut self) {
        self.mixers.give_back();
        self.residual.give_back();
        self.expert_input.give_back();
        self.stages.rows.give_back();
        self.stages.pred.give_back();
        self.stages.udc.give_back();
        // No core is in a step.
        if self.rank == 0 {
            self.shared.boards.give_back();
        }
    }
}

/// Most clusters that are under way in a phase, on all cores.
fn flights(bundle: &Bundle, threads: usize) -> usize {
    let network = &bundle.meta.network;
    // A layer's clusters, with those of experts as far as a token uses them, are divided among the cores; each may have
    // one more than its share, and of each expert.
    let flights = |layer: usize| {
        let of = |all: &[Option<FfnGeometry>], neurons: usize| match all.get(layer) {
            Some(Some(g)) => neurons.div_ceil(g.neurons.max(1)),
            _ => 0,
        };
        let experts = network.experts(layer);
        let (each, used) = experts.map_or((0, 0), |e| (e.d_ff, e.used));
        let (hot, all) = (network.ffn(layer).hot, network.ffn(layer).d_ff);
        let meta = &bundle.meta;
        let of_experts = used * (of(&meta.experts, each) + threads - 1);
        of(&meta.hot, hot) + of(&meta.ffns, all - hot) + of_experts
    };
    (0..network.n_layers()).map(flights).max().unwrap_or(0) + threads
}

/// Most clusters of a layer's experts, on all cores; each may have one more than its share.
fn experts_of_layer(bundle: &Bundle, threads: usize) -> usize {
    let network = &bundle.meta.network;
    let clusters = |layer: usize| {
        let (experts, g) = (
            network.experts(layer)?,
            bundle.meta.experts[layer].as_ref()?,
        );
        Some(experts.count * experts.d_ff.div_ceil(g.neurons.max(1)) + threads)
    };
    let layers = (0..network.n_layers()).filter_map(clusters);
    layers.max().unwrap_or(0)
}

/// Bytes of the buffers that give their memory back, for steps of `batch` tokens.
fn bytes_of_steps(bundle: &Bundle, threads: usize, batch: usize, rank: usize) -> usize {
    let network = &bundle.meta.network;
    let neurons = max_neurons(bundle);
    let per_core = Residual::bytes_of_steps(network, batch, network.widest_input(rank), rank)
        + Udc::bytes_of_steps((batch, neurons, network.d_model))
        + Rows::bytes_of_steps(batch, max_rows(bundle))
        + batch * network.widest_mixer_in() * size_of::<f32>()
        + expert_input_bytes(network, batch);
    Boards::bytes_of_steps(network, threads, batch, rank)
        + threads * per_core
        + flights(bundle, threads) * Flight::bytes_of_steps(batch, neurons)
        // Each core has room for all heads and uses that of its own.
        + batch * network.widest_mixed() * size_of::<f32>()
}

/// Bytes of the other buffers, for steps of `batch` tokens, of which `max_logits` want logits.
fn bytes_kept(
    bundle: &Bundle,
    threads: usize,
    (batch, max_logits): (usize, usize),
    rank: usize,
) -> usize {
    let network = &bundle.meta.network;
    let predicted = rank > 0;
    let scores = if predicted {
        batch * MAX_NEURONS * 4
    } else {
        0
    };
    // Products and hidden values of single neurons, and what these add to the output.
    let gathered = tokens_by_neuron(bundle, batch)
        * (MAX_BUNDLES * 4 * 3 + size_of::<LiveMask>() + network.d_model * 4);
    let per_core = Residual::bytes_kept(network, batch)
        + gathered
        + scores
        + Rows::bytes_kept(batch, network.widest_head_input())
        + Attention::scratch_bytes(network, batch)
        + Recurrent::scratch_bytes(network);
    // Of experts, there are many more clusters than are under way: places in programs and in directories of caches.
    let of_experts = |e: &&DirectoryEntry| matches!(e.content, Content::Experts(_));
    let experts = bundle.clusters.iter().filter(of_experts).count();
    Boards::bytes_kept(network, threads, batch, max_logits)
        + experts * (3 * size_of::<Item>() + 2 * size_of::<u32>())
        // Those of two layers are named before they are wanted.
        + 2 * experts_of_layer(bundle, threads) * size_of::<Request>()
        + threads * per_core
        + flights(bundle, threads) * Flight::bytes_kept(batch, max_neurons(bundle), predicted)
}

/// Bytes of the buffers that [`Runtime::start`](crate::runtime::Runtime::start) allocates outside the slab, for the
/// budget, as long as steps have at most `tokens` of the `batch` tokens that they may have.
pub fn scratch_bytes_for(
    bundle: &Bundle,
    threads: usize,
    (batch, max_logits, tokens): (usize, usize, usize),
    rank: usize,
) -> usize {
    let of_steps = |n| bytes_of_steps(bundle, threads, n, rank);
    let all = of_steps(batch);
    let pages = (threads * BUFFERS + flights(bundle, threads)) * page();
    let filled = all.min(of_steps(tokens.min(batch)) + pages);
    filled + bytes_kept(bundle, threads, (batch, max_logits), rank)
}
