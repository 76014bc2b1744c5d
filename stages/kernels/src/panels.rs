//! Weights in panels times activations, panel by panel and piece by piece: decode and prefill, one definition. Each
//! SIMD lane is a row. [`super::quantised_panels`] and [`super::float_panels`] are the products of a panel and a piece.

use std::marker::PhantomData;

use forebay_numbers::panel::PANEL_ROWS;

use super::activations::Activations;
use super::aligned::LINE;
use super::fixed::fold_each;
use super::simd::{Kernel, Simd, store_part, unrolled};
use super::tokens::{PanelTokens, Piece, pieces};
use super::weights::WeightPanels;

/// `w[r] . x[t]` for panels in the format `F`.
pub(super) struct PanelMatmul<'a, F> {
    pub(super) w: WeightPanels<'a>,
    pub(super) x: &'a Activations,
    out: Out<'a>,
    stride: usize,
    pub(super) panel_bytes: usize,
    /// Whether weights are prefetched for single tokens, and by tiles.
    pub(super) prefetches: bool,
    /// Tokens that are omitted: whole pieces.
    omitted: usize,
    format: PhantomData<F>,
}

/// Where results go, `[n_tokens, stride]`.
pub(super) enum Out<'a> {
    /// They are stored.
    Store(&'a mut [f32]),
    /// They are added in fixed point; see [`super::fixed`]. Token `t` is added to row `places[t]`, or to row `t` if
    /// there are no places.
    Fold(&'a mut [i64], &'a [u32]),
}

impl<'a> PanelMatmul<'a, ()> {
    /// Shapes are checked by the table.
    pub(super) fn new(
        w: WeightPanels<'a>,
        x: &'a Activations,
        out: Out<'a>,
        stride: usize,
        (panel_bytes, prefetches): (usize, bool),
    ) -> Self {
        Self {
            w,
            x,
            out,
            stride,
            panel_bytes,
            prefetches,
            omitted: 0,
            format: PhantomData,
        }
    }

    /// The same for weights known to be in the format `F`.
    pub(super) fn of<F>(self) -> PanelMatmul<'a, F> {
        PanelMatmul {
            w: self.w,
            x: self.x,
            out: self.out,
            stride: self.stride,
            panel_bytes: self.panel_bytes,
            prefetches: self.prefetches,
            omitted: self.omitted,
            format: PhantomData,
        }
    }
}

/// The product of a panel and a piece of tokens.
pub(super) trait Product {
    /// With `AHEAD`, weights are prefetched. Distance and choice are known at compile time: with both in memory, a core
    /// of Zen 5 takes 33 GB/s of Q4_1 instead of 40.
    fn product<S: Simd, const T: usize, const AHEAD: bool>(
        s: S,
        panel: &[u8],
        cols: usize,
        x: &PanelTokens<'_, T>,
    ) -> [S::F; T];
}

/// The product of a panel and a piece, as a kernel: that of 16 tokens takes all registers of AVX-512, and needs a
/// function of its own. With the adding of results around its loops, the compiler would keep constants of fixed point
/// in registers that are needed for sums.
struct PieceProduct<'p, P, const T: usize, const AHEAD: bool> {
    panel: &'p [u8],
    cols: usize,
    x: PanelTokens<'p, T>,
    product: PhantomData<P>,
}

/// Results of 16 rows, `[T, 16]`, on cache lines.
#[repr(align(64))]
struct Sums<const T: usize>([[f32; PANEL_ROWS]; T]);

impl<P: Product, const T: usize, const AHEAD: bool> Kernel for PieceProduct<'_, P, T, AHEAD> {
    type Output = Sums<T>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Sums<T> {
        let sums = P::product::<S, T, AHEAD>(s, self.panel, self.cols, &self.x);
        let mut results = Sums([[0.0; PANEL_ROWS]; T]);
        unrolled!(t in 0..T, max 16 => { s.store(sums[t], &mut results.0[t]); });
        results
    }
}

impl<F> PanelMatmul<'_, F> {
    /// The same without the tokens before `first`, which are whole pieces.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn after(self, first: usize) -> Self {
        Self {
            omitted: first,
            ..self
        }
    }

    #[inline(always)]
    fn pieces(&self) -> impl Iterator<Item = Piece> + use<F> {
        let omitted = self.omitted;
        pieces(self.x.n_tokens() - omitted, self.x.widest).map(move |piece| Piece {
            first: omitted + piece.first,
            ..piece
        })
    }

    /// Panel by panel, so that a panel stays in the first-level cache while it is multiplied by all
    /// tokens.
    #[inline(always)]
    pub(super) fn panels<S: Simd, P: Product>(mut self, s: S) -> bool {
        let mut in_range = true;
        for first in (0..self.w.n_rows).step_by(PANEL_ROWS) {
            let panel = &self.w.bytes[first / PANEL_ROWS * self.panel_bytes..][..self.panel_bytes];
            for piece in self.pieces() {
                // In const blocks: what an instruction set does not use is not compiled.
                if const { S::WIDEST >= 16 } && piece.width == 16 {
                    in_range &= self.piece::<S, P, 16, true>(s, panel, first, piece);
                } else if const { S::WIDEST >= 4 } && piece.width == 4 {
                    in_range &= self.piece::<S, P, 4, true>(s, panel, first, piece);
                } else if self.prefetches {
                    in_range &= self.piece::<S, P, 1, true>(s, panel, first, piece);
                } else {
                    in_range &= self.piece::<S, P, 1, false>(s, panel, first, piece);
                }
            }
        }
        in_range
    }

    #[inline(always)]
    fn piece<S: Simd, P: Product, const T: usize, const AHEAD: bool>(
        &mut self,
        s: S,
        panel: &[u8],
        first: usize,
        piece: Piece,
    ) -> bool {
        if T > 1 {
            self.request(s, first, piece);
        }
        let product = PieceProduct::<P, T, AHEAD> {
            panel,
            cols: self.x.cols(),
            x: self.x.piece::<T>(piece),
            product: PhantomData,
        };
        let Sums(sums) = match T {
            16 => s.run(product),
            _ => product.run(s),
        };
        self.put(s, first, piece, &sums)
    }

    /// Prefetches the sums to which a piece's results will be added: a single token's stay in the nearest cache, those
    /// of a batch's tokens have long been evicted from it.
    #[inline(always)]
    fn request<S: Simd>(&self, s: S, first: usize, piece: Piece) {
        let Out::Fold(acc, places) = &self.out else {
            return;
        };
        let rows = PANEL_ROWS.min(self.w.n_rows - first);
        for token in piece.first..piece.first + piece.width {
            let row = row_of(places, token);
            let sums = &acc[row * self.stride + first..][..rows];
            prefetch(s, bytemuck::cast_slice(sums), 0);
        }
    }

    /// Stores or adds the results of 16 rows from `first` on; whether all were within the range of fixed point.
    #[inline(always)]
    pub(super) fn put<S: Simd>(
        &mut self,
        s: S,
        first: usize,
        piece: Piece,
        sums: &[[f32; PANEL_ROWS]],
    ) -> bool {
        let rows = PANEL_ROWS.min(self.w.n_rows - first);
        let mut in_range = true;
        for (token, sums) in (piece.first..).zip(sums) {
            let at = |row: usize| row * self.stride + first;
            match &mut self.out {
                Out::Store(out) => store_part(s, s.load(sums), &mut out[at(token)..][..rows]),
                Out::Fold(acc, places) => {
                    let row = row_of(places, token);
                    in_range &= fold_part(s, sums, &mut acc[at(row)..][..rows]);
                }
            }
        }
        in_range
    }
}

/// The row of the sums to which a token's results are added: its place, if it has one.
#[inline(always)]
fn row_of(places: &[u32], token: usize) -> usize {
    places.get(token).map_or(token, |place| *place as usize)
}

/// Adds the first values to up to 16 sums; false if one is out of range.
#[inline(always)]
fn fold_part<S: Simd>(s: S, values: &[f32; PANEL_ROWS], acc: &mut [i64]) -> bool {
    match acc.first_chunk_mut() {
        Some(full) => s.fold(values, full),
        None => fold_each(&values[..acc.len()], acc),
    }
}

/// Prefetches what is so many bytes ahead of `bytes`.
#[inline(always)]
pub(super) fn prefetch<S: Simd>(s: S, bytes: &[u8], ahead: usize) {
    let mut line = 0;
    while line < bytes.len() {
        s.prefetch(bytes, ahead + line);
        line += LINE;
    }
}
