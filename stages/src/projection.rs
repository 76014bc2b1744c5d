//! Plain projections (Q, K, V, attention output, head) as clusters of matrix rows.

use forebay_models::block::BlockType;

use crate::kernels::{Activations, KernelTable, WeightRows};

/// Computes `count` rows of a projection into `out`, `[n_tokens, count]`, adding `bias`, `[count]`, where
/// there is one.
pub fn project(
    kernels: &KernelTable,
    block: BlockType,
    bytes: &[u8],
    count: usize,
    x: &Activations,
    bias: &[f32],
    out: &mut [f32],
) {
    let stride = x.cols() / block.block_len() * block.block_bytes();
    kernels.matmul(
        WeightRows {
            block,
            bytes,
            stride,
            n_rows: count,
        },
        x,
        out,
        count,
    );
    if !bias.is_empty() {
        for token in out.chunks_exact_mut(count).take(x.n_tokens()) {
            for (o, b) in token.iter_mut().zip(bias) {
                *o += b;
            }
        }
    }
}
