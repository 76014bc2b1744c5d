//! UDC: computing Up (of gated FFNs) and Down of a cluster's live neurons.
//!
//! The sum over Down could make a token depend on the order of arrival, so it is computed in two steps that do not:
//! inside a cluster, the live neurons are added in index order in f32, and the clusters' sums are added as 64-bit
//! fixed-point integers, whose addition is associative. Neither the budget, nor the number of cores, nor the disk's
//! timing can change a bit of the result.

use forebay_models::block::BlockType;
use forebay_models::bundle::{DirectoryEntry, FfnGeometry, FfnLayout, MAX_BUNDLES};
use forebay_models::lanes::add_to_columns;
use forebay_models::network::Activation;
use forebay_queues::pages::give_back;

use crate::expert_input::ClusterTokens;
use crate::frame::Observer;
use crate::gathered::Gathered;
use crate::kernels::{Activations, Form, Gather, KernelTable, WeightPanels, WeightRows};
use crate::live_mask::LiveMask;
use crate::neuron_rows::NeuronRows;

/// Buffers of a core's UDC stage.
#[derive(Debug)]
pub struct UdcScratch {
    /// `[n_tokens, n]`
    up: Vec<f32>,
    /// Activated Gate, times Up if there is one, `[n_tokens, n]`
    product: Vec<f32>,
    /// The same, as input of Down.
    hidden: Activations,
    /// Hidden values of the live neurons, `[n_tokens, live]`.
    live: Vec<f32>,
    gathered: Gathered,
    /// Neurons that each token wants, `[n_tokens]`.
    wanted: Vec<LiveMask>,
    /// The cluster's share of the FFN's output, `[n_tokens, d_model]`.
    partial: Vec<f32>,
}

impl UdcScratch {
    /// Buffers for at most `max_tokens` tokens and clusters of `max_neurons`; `by_neuron` of these tokens may have
    /// neurons that are computed one by one.
    pub fn new(
        (max_tokens, max_neurons, d_model): (usize, usize, usize),
        by_neuron: usize,
    ) -> Self {
        Self {
            up: vec![0.0; max_tokens * max_neurons],
            product: vec![0.0; max_tokens * max_neurons],
            hidden: Activations::new(max_tokens, max_neurons),
            live: vec![0.0; by_neuron * MAX_BUNDLES],
            gathered: Gathered::new(by_neuron),
            wanted: vec![LiveMask::NONE; by_neuron],
            partial: vec![0.0; by_neuron * d_model],
        }
    }

    /// Gives memory back to the system until a step needs it.
    pub fn give_back(&mut self) {
        give_back(&mut self.up);
        give_back(&mut self.product);
        self.hidden.give_back();
    }
}

/// One cluster's work.
#[derive(Clone, Copy, Debug)]
pub struct ClusterWork<'a> {
    /// Storage of the layer's FFN.
    pub geometry: &'a FfnGeometry,
    /// Neurons of the cluster.
    pub n: usize,
    /// Those to compute.
    pub live: LiveMask,
    /// Gates before the activation, `[n_tokens, n]`; 0 if a neuron is skipped.
    pub gates: &'a [f32],
    /// Up and Down.
    pub rows: NeuronRows<'a>,
    /// Live neurons whose Up is already known, and Up for one token, `[n]`; with more tokens there
    /// are none.
    pub ups: (&'a LiveMask, &'a [f32]),
    /// The tokens that use the cluster.
    pub tokens: ClusterTokens<'a>,
    /// Biases of Up, `[n]`; empty if it has none.
    pub up_bias: &'a [f32],
    /// What is needed after this cluster.
    pub next: &'a [&'a [u8]],
    /// Who sees the input of Down, and which cluster this is.
    pub observer: Option<(&'a dyn Observer, &'a DirectoryEntry)>,
}

/// A value of the FFN's output is not finite, or too large for the accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

/// Adds the cluster's share of `Down (act(Gate x) * Up x)`, or of `Down act(Gate x)`, times the tokens' weights, to
/// their rows of `acc`, `[tokens of the step, d_model]` in fixed point, in lane order if Down's columns are laned
/// ([`add_to_residual`] restores the order). Returns for how many pairs of a neuron and a token Up and Down were
/// computed.
///
/// # Errors
/// [`OutOfRange`] if the share is not finite: the weights are damaged or the model is broken.
pub fn up_down(
    kernels: &KernelTable,
    work: &ClusterWork<'_>,
    x: &Activations,
    activation: Activation,
    scratch: &mut UdcScratch,
    acc: &mut [i64],
) -> Result<usize, OutOfRange> {
    let (n, n_tokens, d_model) = (work.n, x.n_tokens(), work.geometry.d_model);
    let by_token = match work.geometry.layout {
        FfnLayout::Cluster => None,
        FfnLayout::Neuron | FfnLayout::GateFirst => {
            let wanted = &mut scratch.wanted[..n_tokens];
            wanted_by_token(work, activation, wanted);
            Gathered::is_by_token(wanted, work.live.count()).then_some(&*wanted)
        }
    };
    let product = &mut scratch.product[..n_tokens * n];
    match work.geometry.up {
        Some(block) => {
            let up = &mut scratch.up[..n_tokens * n];
            let gathered = &mut scratch.gathered;
            compute_up(kernels, (work, block), x, by_token, gathered, up);
            if !work.up_bias.is_empty() {
                let tokens = up.chunks_exact_mut(n);
                tokens.for_each(|up| up.iter_mut().zip(work.up_bias).for_each(|(u, b)| *u += b));
            }
            kernels.gate_up(activation, work.gates, up, product);
        }
        None => kernels.activate(activation, work.gates, product),
    }
    if let Some((observer, entry)) = work.observer {
        observer.hidden(entry.content, (entry.first as usize, n), product);
    }
    for (product, weight) in product.chunks_exact_mut(n).zip(work.tokens.weights) {
        product.iter_mut().for_each(|p| *p *= weight);
    }
    let in_range = match work.geometry.layout {
        FfnLayout::Cluster => {
            let hidden = &mut scratch.hidden;
            hidden.load(kernels, Form::Panels, n_tokens, n, product);
            down_panels(kernels, work, hidden, acc)
        }
        FfnLayout::Neuron | FfnLayout::GateFirst => {
            let partial = &mut scratch.partial[..n_tokens * d_model];
            partial.fill(0.0);
            down_columns(kernels, work, product, by_token, &mut scratch.live, partial);
            fold_rows(kernels, work, partial, acc)
        }
    };
    let pairs = match by_token {
        Some(wanted) => wanted.iter().map(LiveMask::count).sum(),
        None => work.live.count() * n_tokens,
    };
    if in_range { Ok(pairs) } else { Err(OutOfRange) }
}

/// Adds the sum of all clusters' shares for a token, `[d_model]` in fixed point, to its residual stream `x`, with
/// `lanes`, `[d_model]`, as room for it in lane order.
pub fn add_to_residual(
    kernels: &KernelTable,
    geometry: &FfnGeometry,
    sum: &[i64],
    lanes: &mut [f32],
    x: &mut [f32],
) {
    if !geometry.has_laned_columns() {
        return kernels.unfold_fixed(sum, x);
    }
    lanes.fill(0.0);
    kernels.unfold_fixed(sum, lanes);
    add_to_columns(lanes, x);
}

/// The neurons whose activated gate is not zero, by token.
fn wanted_by_token(work: &ClusterWork<'_>, activation: Activation, wanted: &mut [LiveMask]) {
    if let [only] = wanted {
        *only = work.live;
        return;
    }
    for (mask, gates) in wanted.iter_mut().zip(work.gates.chunks_exact(work.n)) {
        *mask = LiveMask::NONE;
        for i in work.live.iter() {
            // NaN counts, so that it is noticed. Smooth activations are zero only at zero, or where one definition of
            // them underflows and another does not.
            let gate = gates[i];
            let counts = match activation.is_sparse() {
                true => gate.is_nan() || activation.gate(gate) != 0.0,
                false => gate != 0.0,
            };
            if counts {
                mask.set(i);
            }
        }
    }
}

/// Neuron layout: adds the columns of Down, weighted by their hidden values, to `partial`, `[n_tokens, d_model]`: those
/// of the live neurons, or those that each token wants. A value of 0 adds nothing, so it does not matter whose columns
/// are omitted.
fn down_columns(
    kernels: &KernelTable,
    work: &ClusterWork<'_>,
    product: &[f32],
    by_token: Option<&[LiveMask]>,
    live: &mut [f32],
    partial: &mut [f32],
) {
    let (g, n) = (work.geometry, work.n);
    let mut columns = [&[][..]; MAX_BUNDLES];
    let mut add = |mask: &LiveMask, products: &[f32], partial: &mut [f32]| {
        let k = mask.count();
        for (column, i) in columns.iter_mut().zip(mask.iter()) {
            *column = work.rows.down(g, i);
        }
        let live = &mut live[..products.len() / n * k];
        for (hidden, product) in live
            .chunks_exact_mut(k.max(1))
            .zip(products.chunks_exact(n))
        {
            for (h, i) in hidden.iter_mut().zip(mask.iter()) {
                *h = product[i];
            }
        }
        let columns = Gather::new(&columns[..k]).then(work.next);
        match g.has_laned_columns() {
            true => kernels.axpy_laned(g.down, columns, live, partial, g.d_model),
            false => kernels.axpy_gathered(g.down, columns, live, partial, g.d_model),
        }
    };
    if let Some(wanted) = by_token {
        let tokens = product
            .chunks_exact(n)
            .zip(partial.chunks_exact_mut(g.d_model));
        for (mask, (product, partial)) in wanted.iter().zip(tokens) {
            add(mask, product, partial);
        }
    } else {
        add(&work.live, product, partial);
    }
}

/// Up, stored as `block`, of the neurons that are needed.
fn compute_up(
    kernels: &KernelTable,
    (work, block): (&ClusterWork<'_>, BlockType),
    x: &Activations,
    by_token: Option<&[LiveMask]>,
    gathered: &mut Gathered,
    up: &mut [f32],
) {
    match (work.geometry.layout, work.rows) {
        (FfnLayout::Cluster, NeuronRows::Whole { bytes, .. }) => {
            up_panels(kernels, (work, block), bytes, x, up);
        }
        _ => up_rows(kernels, (work, block), x, by_token, gathered, up),
    }
}

/// Cluster layout: Up of all neurons. Dead ones cost little in a panel that is computed anyway, and their
/// activated Gate is 0.
fn up_panels(
    kernels: &KernelTable,
    (work, block): (&ClusterWork<'_>, BlockType),
    bytes: &[u8],
    x: &Activations,
    up: &mut [f32],
) {
    let (g, n) = (work.geometry, work.n);
    let panels = WeightPanels {
        block,
        bytes: &bytes[g.gate_bytes(n)..][..g.up_bytes(n)],
        n_rows: n,
    };
    kernels.panels(panels, x, up, n);
}

/// Neuron layout: Up of the live neurons, 0 for the others.
fn up_rows(
    kernels: &KernelTable,
    (work, block): (&ClusterWork<'_>, BlockType),
    x: &Activations,
    by_token: Option<&[LiveMask]>,
    gathered: &mut Gathered,
    up: &mut [f32],
) {
    let (g, n) = (work.geometry, work.n);
    match (work.rows, by_token) {
        (_, Some(wanted)) => {
            let row = |i| work.rows.up(g, i);
            gathered.dot_by_token(kernels, block, row, (n, wanted), x, up);
        }
        (NeuronRows::Whole { bytes, .. }, None) if work.live.count() == n => {
            let rows = WeightRows {
                block,
                bytes: &bytes[g.pairs_offset(n)..],
                stride: g.pair_stride(),
                n_rows: n,
            };
            kernels.matmul(rows, x, up, n);
        }
        _ => {
            let (known, ups) = work.ups;
            let mut wanted = work.live;
            wanted.remove(known);
            let row = |i| work.rows.up(g, i);
            let next = |i| work.rows.down(g, i);
            gathered.dot(kernels, block, (row, next), (n, &wanted), x, up);
            known.iter().for_each(|i| up[i] = ups[i]);
        }
    }
}

/// Cluster layout: every output row times the cluster's hidden values, added to `acc` one by one; false
/// if one is out of range.
fn down_panels(
    kernels: &KernelTable,
    work: &ClusterWork<'_>,
    hidden: &Activations,
    acc: &mut [i64],
) -> bool {
    let NeuronRows::Whole { bytes, .. } = work.rows else {
        return true;
    };
    let (g, n) = (work.geometry, work.n);
    let start = g.gate_bytes(n) + g.up_bytes(n);
    let panels = WeightPanels {
        block: g.down,
        bytes: &bytes[start..][..g.down_bytes(n)],
        n_rows: g.d_model,
    };
    match work.tokens.places {
        [] => kernels.fold_panels(panels, hidden, acc, g.d_model),
        places => kernels.fold_panels_at(panels, hidden, places, acc, g.d_model),
    }
}

/// Adds the rows of `partial`, `[n_tokens, d_model]`, to those of their tokens in `acc`; false if a value is out of
/// range.
fn fold_rows(
    kernels: &KernelTable,
    work: &ClusterWork<'_>,
    partial: &[f32],
    acc: &mut [i64],
) -> bool {
    let d_model = work.geometry.d_model;
    if work.tokens.places.is_empty() {
        return kernels.fold_fixed(partial, &mut acc[..partial.len()]);
    }
    let rows = partial.chunks_exact(d_model).zip(work.tokens.places);
    rows.fold(true, |all, (row, &place)| {
        let acc = &mut acc[place as usize * d_model..][..d_model];
        kernels.fold_fixed(row, acc) && all
    })
}
