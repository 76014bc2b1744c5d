//! Plain projections (Q, K, V, attention output, head) as clusters of matrix rows.

use forebay_models::block::BlockType;

use crate::kernels::{Activations, KernelTable, WeightPanels};

/// Computes `count` rows of a projection, whose panels are `bytes`, into `out`, `[n_tokens,
/// count]`, adding `bias`, `[count]`, if there is one.
pub fn project(
    kernels: &KernelTable,
    block: BlockType,
    bytes: &[u8],
    count: usize,
    x: &Activations,
    bias: &[f32],
    out: &mut [f32],
) {
    let panels = WeightPanels {
        block,
        bytes,
        n_rows: count,
    };
    kernels.panels(panels, x, out, count);
    if !bias.is_empty() {
        for token in out.chunks_exact_mut(count).take(x.n_tokens()) {
            for (o, b) in token.iter_mut().zip(bias) {
                *o += b;
            }
        }
    }
}
