//! GC: computing the Gate of a neuron cluster.

use forebay_models::bundle::{FfnGeometry, FfnLayout};

use crate::kernels::{Activations, KernelTable, WeightPanels, WeightRows};
use crate::live_mask::LiveMask;
use crate::pred::Pred;

/// Where a cluster's Gate rows are.
#[derive(Clone, Copy, Debug)]
pub enum GateRows<'a> {
    /// Inside the whole cluster, as stored.
    Whole(&'a [u8]),
    /// One behind the other without Up and Down (neuron layout).
    Compact(&'a [u8]),
}

/// Computes `Gate x` (before the activation) for the `n` neurons of a cluster into `gates`, `[n_tokens, n]`,
/// and says which neurons are alive. `x` has the form that the layout asks for.
pub fn gate(
    kernels: &KernelTable,
    geometry: &FfnGeometry,
    rows: GateRows<'_>,
    n: usize,
    x: &Activations,
    pred: &Pred,
    gates: &mut [f32],
) -> LiveMask {
    let block = geometry.gate;
    let (bytes, stride) = match rows {
        GateRows::Whole(bytes) => (bytes, geometry.bundle_stride()),
        GateRows::Compact(bytes) => (bytes, geometry.gate_row()),
    };
    match geometry.layout {
        FfnLayout::Cluster => {
            let panels = WeightPanels {
                block,
                bytes: &bytes[..geometry.gate_bytes(n)],
                n_rows: n,
            };
            kernels.panels(panels, x, gates, n);
        }
        FfnLayout::Neuron => {
            let rows = WeightRows {
                block,
                bytes,
                stride,
                n_rows: n,
            };
            kernels.matmul(rows, x, gates, n);
        }
    }
    pred.survivors(gates, n)
}
