//! Products with weights, in panels and in rows.

use std::hint::black_box;

use forebay_models::block::BlockType;
use forebay_models::lanes;
use forebay_models::panel::PANEL_ROWS;
use forebay_stages::kernels::{Activations, Form, Gather, KernelTable, WeightPanels, WeightRows};

use super::{Entry, Limit, PIECE_BYTES, ramp};

fn row_bytes(block: BlockType, cols: usize) -> usize {
    cols / block.block_len() * block.block_bytes()
}

/// Rows of a piece, in whole panels: at least one, however wide.
pub(super) fn rows_of_piece(block: BlockType, cols: usize) -> usize {
    whole_panels(PIECE_BYTES, (block, cols)).max(PANEL_ROWS)
}

/// Rows of whole panels in `bytes`.
pub(super) fn whole_panels(bytes: usize, (block, cols): (BlockType, usize)) -> usize {
    bytes / row_bytes(block, cols) / PANEL_ROWS * PANEL_ROWS
}

/// Pieces of `bytes`, in an endless cycle.
fn pieces(weights: &[u8], bytes: usize) -> impl Iterator<Item = &[u8]> + Send {
    weights.chunks_exact(bytes).cycle()
}

fn activations(k: &KernelTable, form: Form, n_tokens: usize, cols: usize) -> Activations {
    let mut x = Activations::new(n_tokens, cols);
    x.load(k, form, n_tokens, cols, &ramp(n_tokens * cols));
    x
}

/// A matrix product with `n_rows` rows of weights in panels, or as many as there are; with one token, every weight is
/// used once.
pub(super) fn panels(
    k: KernelTable,
    (block, cols): (BlockType, usize),
    n_rows: usize,
    n_tokens: usize,
    weights: &[u8],
) -> Entry<'_> {
    let n_rows = n_rows.min(whole_panels(weights.len(), (block, cols)));
    let bytes = n_rows * row_bytes(block, cols);
    let x = activations(&k, Form::Panels, n_tokens, cols);
    let mut out = vec![0.0; n_tokens * n_rows];
    let mut pieces = pieces(weights, bytes);
    let is_float = matches!(block, BlockType::F32 | BlockType::F16 | BlockType::BF16);
    Entry {
        kernel: if n_tokens == 1 { "gemv" } else { "gemm" },
        format: Some(block.name()),
        shape: format!("{n_rows} x {cols} x {n_tokens}"),
        bytes,
        operations: 2 * n_rows * cols * n_tokens,
        limit: match is_float {
            _ if n_tokens == 1 => Limit::Memory,
            true => Limit::F32,
            false => Limit::Int8,
        },
        run: Box::new(move || {
            let w = WeightPanels {
                block,
                bytes: pieces.next().unwrap_or_default(),
                n_rows,
            };
            k.panels(w, &x, &mut out, n_rows);
            black_box(&out);
            1
        }),
    }
}

/// The form of inputs for rows in neuron bundles.
fn rows_form(block: BlockType) -> Form {
    match lanes::words(block) {
        Some(_) => Form::Lanes,
        None => Form::Rows,
    }
}

/// Gate or Up rows of neuron bundles times one token.
pub(super) fn rows(k: KernelTable, (block, cols): (BlockType, usize), weights: &[u8]) -> Entry<'_> {
    let (stride, n_rows) = (row_bytes(block, cols), rows_of_piece(block, cols));
    let x = activations(&k, rows_form(block), 1, cols);
    let mut out = vec![0.0; n_rows];
    let mut pieces = pieces(weights, n_rows * stride);
    Entry {
        kernel: "gemv by rows",
        format: Some(block.name()),
        shape: format!("{n_rows} x {cols}"),
        bytes: n_rows * stride,
        operations: 2 * n_rows * cols,
        limit: Limit::Memory,
        run: Box::new(move || {
            let w = WeightRows {
                block,
                bytes: pieces.next().unwrap_or_default(),
                stride,
                n_rows,
            };
            k.matmul(w, &x, &mut out, n_rows);
            black_box(&out);
            1
        }),
    }
}

/// The weights' rows in an order in which none is near the one before it, as the live neurons of a layer lie in the
/// cache: lists of as many rows as are in a piece.
fn scattered((block, cols): (BlockType, usize), weights: &[u8]) -> Vec<Vec<&[u8]>> {
    // A prime that does not divide the number of rows: every row comes once before any is repeated.
    const STEP: usize = 10_007;
    let bytes = row_bytes(block, cols);
    let n_rows = weights.len() / bytes;
    let row = |i: usize| &weights[i * STEP % n_rows * bytes..][..bytes];
    let rows: Vec<_> = (0..n_rows).map(row).collect();
    let lists = rows.chunks_exact(rows_of_piece(block, cols));
    lists.map(<[_]>::to_vec).collect()
}

/// Gate or Up rows of live neurons that lie anywhere, times one token.
pub(super) fn dot_gathered(
    k: KernelTable,
    (block, cols): (BlockType, usize),
    weights: &[u8],
) -> Entry<'_> {
    let x = activations(&k, rows_form(block), 1, cols);
    let mut out = vec![0.0; rows_of_piece(block, cols)];
    gathered("dot gathered", (block, cols), weights, move |rows| {
        k.dot_gathered(block, Gather::new(rows), &x, &mut out);
        black_box(&out);
    })
}

/// Down columns of live neurons that lie anywhere, added to one token's result.
pub(super) fn axpy_gathered(
    k: KernelTable,
    (block, cols): (BlockType, usize),
    weights: &[u8],
) -> Entry<'_> {
    let h = vec![0.5; rows_of_piece(block, cols)];
    let mut acc = vec![0.0; cols];
    gathered("axpy gathered", (block, cols), weights, move |rows| {
        match lanes::words(block) {
            Some(_) => k.axpy_laned(block, Gather::new(rows), &h, &mut acc, cols),
            None => k.axpy_gathered(block, Gather::new(rows), &h, &mut acc, cols),
        }
        black_box(&acc);
    })
}

fn gathered<'a>(
    kernel: &'static str,
    (block, cols): (BlockType, usize),
    weights: &'a [u8],
    mut call: impl FnMut(&[&[u8]]) + Send + 'a,
) -> Entry<'a> {
    let n_rows = rows_of_piece(block, cols);
    let lists = scattered((block, cols), weights);
    let mut next = 0;
    Entry {
        kernel,
        format: Some(block.name()),
        shape: format!("{n_rows} x {cols}"),
        bytes: n_rows * row_bytes(block, cols),
        operations: 2 * n_rows * cols,
        limit: Limit::Memory,
        run: Box::new(move || {
            call(&lists[next]);
            next = (next + 1) % lists.len();
            1
        }),
    }
}
