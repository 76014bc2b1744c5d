//! Taking activations in: rows are copied, padded and quantised by the kernels in use.

use super::activations::{Activations, Form, Quantise, QuantiseLane, QuantiseLaned};
use super::formats::GROUP;
use super::table::KernelTable;
use super::tokens::{BLOCK, Piece};

impl Activations {
    /// Takes `src`, `[n_tokens, cols]`.
    ///
    /// # Panics
    /// More tokens or columns than there is room for, or `src` has another length.
    pub fn load(
        &mut self,
        kernels: &KernelTable,
        form: Form,
        n_tokens: usize,
        cols: usize,
        src: &[f32],
    ) {
        assert_eq!(src.len(), n_tokens * cols, "activations of another shape");
        self.set(kernels, form, n_tokens, cols, |t, row| {
            row.copy_from_slice(&src[t * cols..][..cols]);
        });
    }

    /// Lets `fill(token, row)` write every row, `[cols]`; rows hold arbitrary old values.
    ///
    /// # Panics
    /// More tokens or columns than there is room for.
    pub fn set(
        &mut self,
        kernels: &KernelTable,
        form: Form,
        n_tokens: usize,
        cols: usize,
        mut fill: impl FnMut(usize, &mut [f32]),
    ) {
        assert!(
            n_tokens <= self.max_tokens && cols <= self.max_cols,
            "{n_tokens} x {cols} activations, but room for {} x {}",
            self.max_tokens,
            self.max_cols
        );
        (self.n_tokens, self.cols, self.form) = (n_tokens, cols, form);
        self.widest = kernels.widest();
        let padded = self.padded();
        match form {
            Form::Rows => {
                for t in 0..n_tokens {
                    let values = self.values.part_mut(t * padded, padded);
                    fill(t, &mut values[..cols]);
                    values[cols..].fill(0.0);
                    kernels.quantise(Quantise {
                        values,
                        codes: self.codes.part_mut(t * padded, padded),
                        scales: self.scales.part_mut(t * padded / GROUP, padded / GROUP),
                        sums: self.sums.part_mut(t * padded / GROUP, padded / GROUP),
                    });
                }
            }
            Form::Lanes => {
                for t in 0..n_tokens {
                    let row = self.row.part_mut(0, padded);
                    fill(t, &mut row[..cols]);
                    row[cols..].fill(0.0);
                    let (codes, blocks) = (t * padded, t * padded / BLOCK);
                    kernels.quantise_laned(QuantiseLaned {
                        row: self.row.part(0, cols),
                        codes: self.codes.part_mut(codes, cols),
                        scales: self.scales.part_mut(blocks, cols / BLOCK),
                        sums: self.block_sums.part_mut(blocks, cols / BLOCK),
                        counts: self.block_counts.part_mut(blocks, cols / BLOCK),
                    });
                }
            }
            Form::Panels => {
                for piece in self.pieces() {
                    for lane in 0..piece.width {
                        let row = self.row.part_mut(0, padded);
                        fill(piece.first + lane, &mut row[..cols]);
                        row[cols..].fill(0.0);
                        self.quantise_lane(kernels, piece, lane);
                    }
                }
            }
        }
    }

    /// Quantises the row into its place in `piece`.
    fn quantise_lane(&mut self, kernels: &KernelTable, piece: Piece, lane: usize) {
        let padded = self.padded();
        let (start, len) = (piece.first * padded, piece.width * padded);
        kernels.quantise_lane(QuantiseLane {
            row: self.row.part(0, padded),
            width: piece.width,
            lane,
            values: self.values.part_mut(start, len),
            codes: self.codes.part_mut(start, len),
            scales: self.scales.part_mut(start / BLOCK, len / BLOCK),
            sums: self.sums.part_mut(start / GROUP, len / GROUP),
            block_sums: self.block_sums.part_mut(start / BLOCK, len / BLOCK),
            block_counts: self.block_counts.part_mut(start / BLOCK, len / BLOCK),
            half_counts: self.half_counts.part_mut(start / GROUP, len / GROUP),
        });
    }
}
