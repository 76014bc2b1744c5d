//! UDC: computing Up and Down of a cluster's live neurons.
//!
//! The sum over Down is what makes a token depend on the order of arrival, so it is taken in two steps
//! that do not: inside a cluster the live neurons are added in index order in f32, and the clusters'
//! sums are added as 64-bit fixed-point integers, whose addition is associative. Neither the budget, nor
//! the number of cores, nor the disk's timing can change a bit of the result.

use forebay_models::bundle::{FfnGeometry, FfnLayout};

use crate::kernels::{Activations, Form, KernelTable, WeightPanels, WeightRows};
use crate::live_mask::LiveMask;
use crate::pred::Pred;
use crate::udio::Udio;

/// Where a cluster's Up and Down rows are.
#[derive(Clone, Copy, Debug)]
pub enum UpDown<'a> {
    /// Inside the whole cluster, as stored.
    Whole(&'a [u8]),
    /// Neuron by neuron in the neuron cache.
    Cached {
        /// The cache.
        udio: &'a Udio,
        /// The flight that holds the neurons.
        flight: usize,
    },
}

/// Buffers of a core's UDC stage.
#[derive(Debug)]
pub struct UdcScratch {
    /// `[n_tokens, n]`
    up: Vec<f32>,
    /// Activated Gate times Up, `[n_tokens, n]`
    product: Vec<f32>,
    /// The same as input of Down.
    hidden: Activations,
    /// One neuron's hidden value by token, `[n_tokens]`.
    column: Vec<f32>,
    /// The cluster's share of the FFN's output, `[n_tokens, d_model]`.
    partial: Vec<f32>,
}

impl UdcScratch {
    /// Buffers for at most `max_tokens` tokens and clusters of `max_neurons`.
    pub fn new(max_tokens: usize, max_neurons: usize, d_model: usize) -> Self {
        Self {
            up: vec![0.0; max_tokens * max_neurons],
            product: vec![0.0; max_tokens * max_neurons],
            hidden: Activations::new(max_tokens, max_neurons),
            column: vec![0.0; max_tokens],
            partial: vec![0.0; max_tokens * d_model],
        }
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
    /// Gates before the activation, `[n_tokens, n]`.
    pub gates: &'a [f32],
    /// Up and Down.
    pub data: UpDown<'a>,
}

/// A value of the FFN's output is not finite, or too large for the accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

/// Adds the cluster's share of `Down (act(Gate x) * Up x)` to `acc`, `[n_tokens, d_model]` in fixed point.
///
/// # Errors
/// [`OutOfRange`] if the share is not finite: the weights are damaged or the model is broken.
pub fn up_down(
    kernels: &KernelTable,
    work: &ClusterWork<'_>,
    x: &Activations,
    pred: &Pred,
    scratch: &mut UdcScratch,
    acc: &mut [i64],
) -> Result<(), OutOfRange> {
    let (n, n_tokens) = (work.n, x.n_tokens());
    let up = &mut scratch.up[..n_tokens * n];
    match (work.geometry.layout, work.data) {
        (FfnLayout::Cluster, UpDown::Whole(bytes)) => up_panels(kernels, work, bytes, x, up),
        _ => up_rows(kernels, work, x, up),
    }
    let product = &mut scratch.product[..n_tokens * n];
    kernels.gate_up(pred.activation(), work.gates, up, product);
    let d_model = work.geometry.d_model;
    let acc = &mut acc[..n_tokens * d_model];
    let in_range = match work.geometry.layout {
        FfnLayout::Cluster => {
            let hidden = &mut scratch.hidden;
            hidden.load(kernels, Form::Panels, n_tokens, n, product);
            down_panels(kernels, work, hidden, acc)
        }
        FfnLayout::Neuron => {
            let partial = &mut scratch.partial[..n_tokens * d_model];
            partial.fill(0.0);
            for neuron in work.live.iter() {
                let column = &mut scratch.column[..n_tokens];
                for (t, c) in column.iter_mut().enumerate() {
                    *c = product[t * n + neuron];
                }
                let row = down_column(work, neuron);
                kernels.axpy(work.geometry.down, row, column, partial, d_model);
            }
            kernels.fold_fixed(partial, acc)
        }
    };
    if in_range { Ok(()) } else { Err(OutOfRange) }
}

/// Cluster layout: Up of all neurons. Dead ones cost little in a panel that is computed anyway, and their
/// activated Gate is 0.
fn up_panels(
    kernels: &KernelTable,
    work: &ClusterWork<'_>,
    bytes: &[u8],
    x: &Activations,
    up: &mut [f32],
) {
    let (g, n) = (work.geometry, work.n);
    let panels = WeightPanels {
        block: g.up,
        bytes: &bytes[g.gate_bytes(n)..][..g.up_bytes(n)],
        n_rows: n,
    };
    kernels.panels(panels, x, up, n);
}

/// Neuron layout: Up of the live neurons, 0 for the others.
fn up_rows(kernels: &KernelTable, work: &ClusterWork<'_>, x: &Activations, up: &mut [f32]) {
    let (g, n) = (work.geometry, work.n);
    if work.live.count() < n {
        up.fill(0.0);
    }
    let mut rows = |bytes: &[u8], stride: usize, first: usize, n_rows: usize| {
        let rows = WeightRows {
            block: g.up,
            bytes,
            stride,
            n_rows,
        };
        kernels.matmul(rows, x, &mut up[first..], n);
    };
    match work.data {
        UpDown::Whole(bytes) => {
            let (start, stride) = (g.up_offset(), g.bundle_stride());
            for (first, len) in work.live.runs() {
                rows(&bytes[start + first * stride..], stride, first, len);
            }
        }
        UpDown::Cached { udio, flight } => {
            for neuron in work.live.iter() {
                rows(udio.rows(flight, neuron), g.up_row(), neuron, 1);
            }
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
    let UpDown::Whole(bytes) = work.data else {
        return true;
    };
    let (g, n) = (work.geometry, work.n);
    let start = g.gate_bytes(n) + g.up_bytes(n);
    let panels = WeightPanels {
        block: g.down,
        bytes: &bytes[start..][..g.down_bytes(n)],
        n_rows: g.d_model,
    };
    kernels.fold_panels(panels, hidden, acc, g.d_model)
}

/// Neuron layout: one neuron's column of Down.
fn down_column<'a>(work: &ClusterWork<'a>, neuron: usize) -> &'a [u8] {
    let g = work.geometry;
    let (bytes, at) = match work.data {
        UpDown::Whole(bytes) => (bytes, neuron * g.bundle_stride() + g.down_offset()),
        UpDown::Cached { udio, flight } => {
            (udio.rows(flight, neuron), g.down_offset() - g.up_offset())
        }
    };
    &bytes[at..at + g.down_column()]
}
