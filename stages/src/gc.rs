//! GC: computing the Gate of a neuron cluster.

use forebay_models::bundle::{FfnGeometry, FfnLayout};

use crate::kernels::{Activations, KernelTable, WeightRows};
use crate::live_mask::LiveMask;
use crate::pred::Pred;

/// Where a cluster's Gate rows are.
#[derive(Clone, Copy, Debug)]
pub enum GateRows<'a> {
    /// Inside the whole cluster, as stored.
    Whole(&'a [u8]),
    /// One behind the other without Up and Down.
    Compact(&'a [u8]),
}

/// Computes `Gate x` (before the activation) for the `n` neurons of a cluster into `gates`, `[n_tokens, n]`, and says which
/// neurons are alive.
pub fn gate(
    kernels: &KernelTable,
    geometry: &FfnGeometry,
    rows: GateRows<'_>,
    n: usize,
    x: &Activations,
    pred: &Pred,
    gates: &mut [f32],
) -> LiveMask {
    let (bytes, stride) = match rows {
        GateRows::Whole(bytes) if geometry.layout == FfnLayout::Neuron => {
            (bytes, geometry.bundle_stride())
        }
        GateRows::Whole(bytes) | GateRows::Compact(bytes) => (bytes, geometry.gate_row()),
    };
    let rows = WeightRows {
        block: geometry.gate,
        bytes,
        stride,
        n_rows: n,
    };
    kernels.matmul(rows, x, gates, n);
    pred.survivors(gates, n)
}
