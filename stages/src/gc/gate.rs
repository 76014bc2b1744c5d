//! GC: computing the Gate of a neuron cluster.

use forebay_models::bundle::{FfnGeometry, FfnLayout};

use crate::gathered::Gathered;
use crate::kernels::{Activations, KernelTable, WeightPanels, WeightRows};
use crate::live_mask::LiveMask;
use crate::neuron_rows::NeuronRows;

/// Computes `Gate x` (before the activation) for the neurons `wanted` of a cluster of `n` into `gates`, `[n_tokens,
/// n]`; the others get 0. `x` has the form that the layout requires. In cluster layout all are computed, since panels
/// are. `named` are those that each token wants, `[n_tokens]`, if they are known; what a token does not want may be 0
/// for it. Returns how many products of a row and a token were computed.
pub fn gate(
    kernels: &KernelTable,
    geometry: &FfnGeometry,
    rows: NeuronRows<'_>,
    (n, wanted, named): (usize, &LiveMask, Option<&[LiveMask]>),
    x: &Activations,
    gathered: &mut Gathered,
    gates: &mut [f32],
) -> usize {
    let block = geometry.gate;
    let together = wanted.count() * x.n_tokens();
    match (geometry.layout, rows) {
        (FfnLayout::Cluster, NeuronRows::Whole { bytes, .. }) => {
            let panels = WeightPanels {
                block,
                bytes: &bytes[..geometry.gate_bytes(n)],
                n_rows: n,
            };
            kernels.panels(panels, x, gates, n);
            together
        }
        (FfnLayout::Neuron | FfnLayout::GateFirst, _)
            if named.is_some_and(|named| Gathered::is_by_token(named, wanted.count())) =>
        {
            let named = named.unwrap_or_default();
            let row = |i| rows.gate(geometry, i);
            gathered.dot_by_token(kernels, block, row, (n, named), x, gates)
        }
        (_, NeuronRows::Gates(bytes)) => {
            all(kernels, geometry, (bytes, geometry.gate_row()), n, x, gates);
            together
        }
        (_, NeuronRows::Whole { bytes, .. }) if wanted.count() == n => {
            let rows = (bytes, geometry.gate_stride());
            all(kernels, geometry, rows, n, x, gates);
            together
        }
        _ => {
            let row = |i| rows.gate(geometry, i);
            let next = |i| rows.after_gate(geometry, i);
            gathered.dot(kernels, block, (row, next), (n, wanted), x, gates);
            together
        }
    }
}

/// Adds `bias`, `[n]`, if there is one, to the gates of the neurons `wanted` of a cluster of `n`, `[n_tokens, n]`.
pub fn add_bias(bias: &[f32], wanted: &LiveMask, gates: &mut [f32]) {
    let n = bias.len();
    if n == 0 {
        return;
    }
    for token in gates.chunks_exact_mut(n) {
        match wanted.count() == n {
            true => token.iter_mut().zip(bias).for_each(|(g, b)| *g += b),
            false => wanted.iter().for_each(|i| token[i] += bias[i]),
        }
    }
}

/// All rows, at equal distances.
fn all(
    kernels: &KernelTable,
    geometry: &FfnGeometry,
    (bytes, stride): (&[u8], usize),
    n: usize,
    x: &Activations,
    gates: &mut [f32],
) {
    let rows = WeightRows {
        block: geometry.gate,
        bytes,
        stride,
        n_rows: n,
    };
    kernels.matmul(rows, x, gates, n);
}
