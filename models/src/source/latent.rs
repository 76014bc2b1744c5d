//! Matrices of latent attention (MLA) that are one tensor in a file.

use super::placed::{Found, Piece, Place};
use super::transposed::Transposed;
use crate::network::{Attention, Latent, Shape};
use crate::tensor::TensorMeta;

/// KUp and VUp from a tensor that has for each head rows of keys, which become columns, and rows of values.
///
/// # Errors
/// The shape that it has not.
pub(super) fn ups_by_head(
    a: &Attention,
    latent: &Latent,
    found: &Found,
) -> Result<[(TensorMeta, Place); 2], Shape> {
    let meta = &found.meta;
    let (rows, cols) = (
        a.n_heads * (latent.plain_dim + latent.value_dim),
        latent.rank,
    );
    if (rows, cols) != (meta.rows, meta.cols) {
        return Err(Shape {
            rows: Some(rows),
            cols: Some(cols),
        });
    }
    let stride = meta.bytes() / a.n_heads;
    let keys = Transposed {
        file: found.file,
        start: found.start,
        stride,
        block: meta.block,
        cols,
    };
    let of_keys = TensorMeta {
        rows: a.n_heads * latent.rank,
        cols: latent.plain_dim,
        block: keys.written_as(),
        ..meta.clone()
    };
    let before = latent.plain_dim * meta.row_bytes();
    let values = |head: usize| Piece {
        file: found.file,
        start: found.start + (head * stride + before) as u64,
        bytes: stride - before,
    };
    let of_values = TensorMeta {
        rows: a.n_heads * latent.value_dim,
        ..meta.clone()
    };
    let values = (0..a.n_heads).map(|head| (head, values(head))).collect();
    Ok([
        (of_keys, Place::Transposed(keys)),
        (of_values, Place::Pieces(values)),
    ])
}
