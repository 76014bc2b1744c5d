//! Taking activations in: rows are copied, padded and quantised by the kernels in use.

use bytemuck::Pod;

use super::activations::{Activations, Form, Quantise, QuantiseLane, QuantiseLaned};
use super::aligned::Aligned;
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
        self.reshape(n_tokens, cols, form);
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

    /// Panics if there is no room for so many tokens or columns.
    pub(super) fn reshape(&mut self, n_tokens: usize, cols: usize, form: Form) {
        assert!(
            n_tokens <= self.max_tokens && cols <= self.max_cols,
            "{n_tokens} x {cols} activations, but room for {} x {}",
            self.max_tokens,
            self.max_cols
        );
        (self.n_tokens, self.cols, self.form) = (n_tokens, cols, form);
    }

    /// Takes over the tokens `places` of `other`: the same numbers as if they had been loaded again, for less work.
    /// Values that are not quantised, which only floating-point weights need, are taken over if `with_values`.
    ///
    /// # Panics
    /// More tokens or columns than there is room for, or a place that `other` does not have.
    pub fn select(&mut self, other: &Self, places: &[u32], with_values: bool) {
        self.reshape(places.len(), other.cols, other.form);
        self.widest = other.widest;
        if self.form != Form::Panels {
            for (t, &place) in places.iter().enumerate() {
                self.copy_row(other, t, place as usize);
            }
            return;
        }
        let mut from = Piece::NONE;
        for piece in self.pieces() {
            for lane in 0..piece.width {
                let place = places[piece.first + lane] as usize;
                if !from.has(place) {
                    let has = |piece: &Piece| piece.has(place);
                    let found = other.pieces().find(has);
                    from = found.unwrap_or_else(|| panic!("no activations of token {place}"));
                }
                let to = (piece, lane);
                self.copy_lane(other, to, (from, place - from.first), with_values);
            }
        }
    }

    /// Copies token `place` of `other` to token `t`; every token is a row.
    fn copy_row(&mut self, other: &Self, t: usize, place: usize) {
        assert!(place < other.n_tokens, "no activations of token {place}");
        let padded = self.padded();
        let row = |len: usize| (t * len, place * len, len);
        // A laned token has no values.
        if self.form == Form::Rows {
            self.values.copy_part(&other.values, row(padded));
        }
        self.codes.copy_part(&other.codes, row(padded));
        let per = match self.form {
            Form::Rows => GROUP,
            Form::Lanes | Form::Panels => BLOCK,
        };
        self.scales.copy_part(&other.scales, row(padded / per));
        self.sums.copy_part(&other.sums, row(padded / GROUP));
        let blocks = row(padded / BLOCK);
        self.block_sums.copy_part(&other.block_sums, blocks);
        self.block_counts.copy_part(&other.block_counts, blocks);
    }

    /// Copies a token of `other` from its place in one piece to a place in another one.
    fn copy_lane(
        &mut self,
        other: &Self,
        (to, lane): (Piece, usize),
        (from, place): (Piece, usize),
        with_values: bool,
    ) {
        let padded = self.padded();
        let n = padded / BLOCK;
        if n == 0 {
            return;
        }
        let ours = (to.first * n + lane, to.width);
        let theirs = (from.first * n + place, from.width);
        if with_values {
            copy_strided::<_, BLOCK>(n, (&mut self.values, ours), (&other.values, theirs));
        }
        copy_strided::<_, BLOCK>(n, (&mut self.codes, ours), (&other.codes, theirs));
        copy_strided::<_, 1>(n, (&mut self.scales, ours), (&other.scales, theirs));
        copy_strided::<_, 2>(n, (&mut self.sums, ours), (&other.sums, theirs));
        copy_strided::<_, 1>(n, (&mut self.block_sums, ours), (&other.block_sums, theirs));
        let counts = (&mut self.block_counts, ours);
        copy_strided::<_, 1>(n, counts, (&other.block_counts, theirs));
        let halves = (&mut self.half_counts, ours);
        copy_strided::<_, 2>(n, halves, (&other.half_counts, theirs));
    }
}

/// Copies `n` groups of `N` numbers, given the first group and their distance on each side.
fn copy_strided<T: Pod + Default, const N: usize>(
    n: usize,
    (to, (first, stride)): (&mut Aligned<T>, (usize, usize)),
    (from, (other_first, other_stride)): (&Aligned<T>, (usize, usize)),
) {
    let len = |stride: usize| ((n - 1) * stride + 1) * N;
    let to = to.part_mut(first * N, len(stride)).as_chunks_mut::<N>().0;
    let from = from
        .part(other_first * N, len(other_stride))
        .as_chunks::<N>()
        .0;
    for (to, from) in to
        .iter_mut()
        .step_by(stride)
        .zip(from.iter().step_by(other_stride))
    {
        *to = *from;
    }
}
