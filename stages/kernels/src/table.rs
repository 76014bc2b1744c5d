//! The kernel table: one choice at run time, then plain calls.

mod recurrent;
mod vectors;

use std::fmt;

use forebay_numbers::block::BlockType;
use forebay_numbers::lanes;
use forebay_numbers::panel::{PANEL_ROWS, panel_bytes};

use super::activations::{Activations, Form, Quantise, QuantiseLane, QuantiseLaned};
#[cfg(target_arch = "x86_64")]
use super::amx::Amx;
use super::attention::{Attend, AttendScratch, Queries};
#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use super::avx512::Avx512;
use super::axpy::Axpy;
use super::dispatch::{Kernels, Products};
use super::isa::Isa;
use super::kv::{BLOCK, KvHead};
use super::lanes::LanedAxpy;
use super::matmul::Matmul;
#[cfg(target_arch = "aarch64")]
use super::neon::{Baseline, Dotprod, I8mm, Neon};
use super::panels::{Out, PanelMatmul};
use super::prefetch::Prefetching;
use super::probe::{F32Peak, Int8Peak, ReadPass};
use super::rows::{Gather, Rows};
use super::scalar::Scalar;
use super::simd::Simd;
use super::weights::{WeightPanels, WeightRows};

/// The kernels of one instruction set.
#[derive(Clone, Copy)]
pub struct KernelTable {
    isa: Isa,
    prefetching: Prefetching,
    kernels: &'static dyn Kernels,
    products: &'static dyn Products,
}

impl fmt::Debug for KernelTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KernelTable").field(&self.isa).finish()
    }
}

impl KernelTable {
    /// The kernels of `isa`, or `None` if this CPU lacks it.
    pub fn new(isa: Isa) -> Option<Self> {
        Some(match isa {
            Isa::Scalar => Self::vectors(isa, &Scalar),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Self::vectors(isa, Avx2::<false>::detect()?),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Self::vectors(isa, Avx2::<true>::detect()?),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Self::vectors(isa, Avx512::detect()?),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Self::of(isa, Avx512::detect()?, Amx::detect()?),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 | Isa::Amx => return None,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Self::vectors(isa, Neon::<Baseline>::detect()?),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotprod => Self::vectors(isa, Neon::<Dotprod>::detect()?),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => Self::vectors(isa, Neon::<I8mm>::detect()?),
            #[cfg(not(target_arch = "aarch64"))]
            Isa::Neon | Isa::NeonDotprod | Isa::NeonI8mm => return None,
        })
    }

    fn vectors(isa: Isa, kernels: &'static impl Simd) -> Self {
        Self::of(isa, kernels, kernels)
    }

    /// Kernels of `isa` that take their products of panels from elsewhere.
    pub(super) fn of(
        isa: Isa,
        kernels: &'static dyn Kernels,
        products: &'static dyn Products,
    ) -> Self {
        Self {
            isa,
            prefetching: Prefetching::of(isa),
            kernels,
            products,
        }
    }

    /// The kernels of the fastest instruction set that this CPU has.
    pub fn best() -> Self {
        Isa::ALL
            .into_iter()
            .rev()
            .find_map(Self::new)
            .unwrap_or_else(|| Self::vectors(Isa::Scalar, &Scalar))
    }

    /// Which instruction set these kernels use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// `out[t * out_stride + r] = w[r] . x[t]` for all rows `r` and tokens `t`; other elements of `out` are unchanged.
    /// Quantised weights are multiplied by the 8-bit activations, others by the f32 ones. In [`Form::Lanes`] rows are
    /// laned.
    ///
    /// The result of a (row, token) pair does not depend on what else is computed in the call.
    ///
    /// # Panics
    /// As [`Self::dot_gathered`] for the activations; the columns are not whole blocks, or `w.bytes` or `out` is too
    /// short for the shape.
    pub fn matmul(&self, w: WeightRows<'_>, x: &Activations, out: &mut [f32], out_stride: usize) {
        if w.n_rows == 0 || x.n_tokens() == 0 {
            return;
        }
        let row_bytes = product_row_bytes(w.block, x);
        let rows_end = (w.n_rows - 1)
            .checked_mul(w.stride)
            .and_then(|last| last.checked_add(row_bytes));
        assert!(
            rows_end.is_some_and(|end| end <= w.bytes.len()),
            "{} rows of {row_bytes} bytes, {} apart, exceed {} bytes",
            w.n_rows,
            w.stride,
            w.bytes.len()
        );
        assert_tokens(x.n_tokens(), w.n_rows, out.len(), out_stride);
        let job = Matmul::new(Rows::Strided(w), row_bytes, x, out, out_stride);
        self.kernels.matmul(w.block, job);
    }

    /// `out[t, j] = row_j . x[t]` for rows anywhere in memory, with the same bits as [`Self::matmul`]. Rows are
    /// prefetched in the order in which they are given, well before they are used; the more there are in a call, the
    /// better the memory's latency is hidden.
    ///
    /// # Panics
    /// The activations are in [`Form::Panels`], or in [`Form::Lanes`] for a format without laned rows, the columns
    /// are not whole blocks, a row has another length, or `out` is not of that shape.
    pub fn dot_gathered(
        &self,
        block: BlockType,
        gather: Gather<'_>, // [k]
        x: &Activations,
        out: &mut [f32], // [n_tokens, k]
    ) {
        let (n_tokens, k) = (x.n_tokens(), gather.rows.len());
        assert_eq!(out.len(), n_tokens * k, "products of another shape");
        if out.is_empty() {
            return;
        }
        let row_bytes = product_row_bytes(block, x);
        assert_rows(gather.rows, row_bytes);
        let job = Matmul::new(Rows::Gathered(gather), row_bytes, x, out, k);
        self.kernels.matmul(block, job);
    }

    /// [`Self::dot_gathered`] for only the token `t`: `out[j] = row_j . x[t]`, if tokens want different rows.
    ///
    /// # Panics
    /// As [`Self::dot_gathered`], or there is no such token.
    pub fn dot_gathered_of(
        &self,
        block: BlockType,
        rows: &[&[u8]], // [k]
        x: &Activations,
        t: usize,
        out: &mut [f32], // [k]
    ) {
        assert_eq!(out.len(), rows.len(), "products of another shape");
        assert!(t < x.n_tokens(), "token {t} of {}", x.n_tokens());
        if rows.is_empty() {
            return;
        }
        let row_bytes = product_row_bytes(block, x);
        assert_rows(rows, row_bytes);
        let job = Matmul::new(
            Rows::Gathered(Gather::new(rows)),
            row_bytes,
            x,
            out,
            rows.len(),
        );
        self.kernels.matmul(block, job.of_token(t));
    }

    /// [`Self::matmul`] for weights in panels: `out[t * out_stride + r] = w[r] . x[t]`.
    ///
    /// The result of a (row, token) pair does not depend on what else is computed in the call.
    ///
    /// # Panics
    /// The activations are not in [`Form::Panels`], the columns are not whole blocks, or `w.bytes` or
    /// `out` is too short for the shape.
    pub fn panels(&self, w: WeightPanels<'_>, x: &Activations, out: &mut [f32], out_stride: usize) {
        assert_tokens(x.n_tokens(), w.n_rows, out.len(), out_stride);
        self.run_panels(w, x, Out::Store(out), out_stride);
    }

    /// `acc[t * acc_stride + r] += round(w[r] . x[t] * 2^32)`: [`Self::panels`] and [`Self::fold_fixed`] in one pass,
    /// so that sums over many clusters are read and written once per cluster. Returns false when [`Self::fold_fixed`]
    /// does.
    ///
    /// # Panics
    /// As [`Self::panels`].
    #[must_use = "false means that the sums are wrong"]
    pub fn fold_panels(
        &self,
        w: WeightPanels<'_>,
        x: &Activations,
        acc: &mut [i64],
        acc_stride: usize,
    ) -> bool {
        assert_tokens(x.n_tokens(), w.n_rows, acc.len(), acc_stride);
        self.run_panels(w, x, Out::Fold(acc, &[]), acc_stride)
    }

    /// The same for tokens that are not consecutive: token `t` is added to row `places[t]`.
    ///
    /// # Panics
    /// As [`Self::panels`]; there is not one place for each token, or one is outside `acc`.
    #[must_use = "false means that the sums are wrong"]
    pub fn fold_panels_at(
        &self,
        w: WeightPanels<'_>,
        x: &Activations,
        places: &[u32], // [n_tokens]
        acc: &mut [i64],
        acc_stride: usize,
    ) -> bool {
        assert_eq!(places.len(), x.n_tokens(), "places of the tokens");
        let rows = places.iter().max().map_or(0, |last| *last as usize + 1);
        assert_tokens(rows, w.n_rows, acc.len(), acc_stride);
        self.run_panels(w, x, Out::Fold(acc, places), acc_stride)
    }

    fn run_panels(
        &self,
        w: WeightPanels<'_>,
        x: &Activations,
        out: Out<'_>,
        stride: usize,
    ) -> bool {
        if w.n_rows == 0 || x.n_tokens() == 0 {
            return true;
        }
        assert_eq!(x.form(), Form::Panels, "activations in another form");
        let (cols, block) = (x.cols(), w.block);
        let Some(panel_bytes) = panel_bytes(block, cols) else {
            panic!("{cols} columns are not whole blocks of {block}");
        };
        let n_panels = w.n_rows.div_ceil(PANEL_ROWS);
        assert!(
            n_panels <= w.bytes.len() / panel_bytes.max(1),
            "{n_panels} panels of {panel_bytes} bytes exceed {} bytes",
            w.bytes.len()
        );
        let prefetches = self
            .prefetching
            .is_by_kernels(block, n_panels * panel_bytes);
        self.products.panels(PanelMatmul::new(
            w,
            x,
            out,
            stride,
            (panel_bytes, prefetches),
        ))
    }

    /// `acc[t] += sum_j h[t, j] * row_j` for rows anywhere in memory, element by element in the order of `j`, so it
    /// does not matter in how many calls the rows are added. For numbers a row adds `acc = fma(h, w, acc)`; for codes
    /// `acc = fma(h * scale, code - bias, acc)`, then `acc = acc - h * minimum` if the format has minima. If `h[t, j]`
    /// is 0, `acc[t]` keeps its bits. Rows are prefetched as in [`Self::dot_gathered`].
    ///
    /// # Panics
    /// `cols` are not whole blocks, a row has another length, or `h` or `acc` is not of that shape.
    pub fn axpy_gathered(
        &self,
        block: BlockType,
        gather: Gather<'_>, // [k]
        h: &[f32],          // [n_tokens, k]
        acc: &mut [f32],    // [n_tokens, cols]
        cols: usize,
    ) {
        if assert_axpy(block, gather.rows, h, acc, cols).is_some() {
            self.kernels.axpy(block, Axpy::new(gather, h, acc, cols));
        }
    }

    /// [`Self::axpy_gathered`] of laned rows, with sums in lane order ([`forebay_numbers::lanes`]).
    ///
    /// Rows whose `h` is not 0 are taken in their order, eight at a time. A block's factors `h * scale` become
    /// integers of 15 bits, in units of the largest of the eight divided by 16383, and the sums over the eight are
    /// exact: `acc = fma(sum_j round(h_j * scale_j / unit) * (code_j - bias), unit, acc)`. If a format has minima,
    /// `sum_j h_j * minimum_j` is added to `acc` before. So one call gives other bits than several. A factor that is
    /// not finite makes the sums not finite.
    ///
    /// # Panics
    /// As [`Self::axpy_gathered`], or the format has no laned rows.
    pub fn axpy_laned(
        &self,
        block: BlockType,
        gather: Gather<'_>, // [k]
        h: &[f32],          // [n_tokens, k]
        acc: &mut [f32],    // [n_tokens, cols]
        cols: usize,
    ) {
        assert!(lanes::words(block).is_some(), "{block} has no laned rows");
        if let Some(n_tokens) = assert_axpy(block, gather.rows, h, acc, cols) {
            self.kernels
                .axpy_laned(block, LanedAxpy::new(gather, h, acc, n_tokens));
        }
    }

    /// `out = softmax(scale * q . k^T) . v`, with the softcap of `queries` around the scores, for query heads of
    /// consecutive tokens that share a key/value head; head `h` of token `t` goes to `t * out_stride + h * value_dim`.
    ///
    /// The result of a (token, head) pair does not depend on what else is computed in the call, nor on where the
    /// sequence's blocks are.
    ///
    /// # Panics The sequence or the cache has fewer blocks, `q` or `out` is too short for the shape, the window is 0,
    /// or `scratch` was made for smaller heads.
    pub fn attend(
        &self,
        queries: Queries<'_>,
        kv: KvHead<'_>,
        scratch: &mut AttendScratch,
        out: &mut [f32],
        out_stride: usize,
    ) {
        let (n, width) = (queries.n_tokens, queries.heads * kv.head_dim);
        let mixed = queries.heads * kv.value_dim;
        if n == 0 || width == 0 {
            return;
        }
        assert!(
            (queries.position + n).div_ceil(BLOCK) <= queries.blocks.len() && queries.window > 0,
            "{n} tokens from position {} on see {} of the positions in {} blocks",
            queries.position,
            queries.window,
            queries.blocks.len()
        );
        assert!(
            kv.head_dim.max(kv.value_dim) <= scratch.room(),
            "attention buffers are for smaller heads than {}",
            kv.head_dim
        );
        assert_tokens(n, width, queries.q.len(), queries.stride);
        assert_tokens(n, mixed, out.len(), out_stride);
        self.kernels.attend(Attend {
            queries,
            kv,
            scratch,
            out,
            out_stride,
        });
    }

    /// Reads all of `bytes` as fast as one core can, which bounds every kernel that uses each
    /// weight once. The result depends on all bytes, so that the reads cannot be optimised away.
    pub fn read_pass(&self, bytes: &[u8]) -> i32 {
        self.kernels.read_pass(ReadPass(bytes))
    }

    /// Multiplies 8-bit numbers in registers for `rounds` rounds (at most 65536 are done) and returns
    /// how many multiply-adds that were: the bound of integer matrix products.
    pub fn int8_peak(&self, rounds: usize) -> u64 {
        self.products.int8_peak(Int8Peak { rounds })
    }

    /// Like [`Self::int8_peak`], for f32: the bound of attention and of weights that are plain
    /// numbers.
    pub fn f32_peak(&self, rounds: usize) -> u64 {
        self.kernels.f32_peak(F32Peak { rounds })
    }

    pub(super) fn kernels(&self) -> &'static dyn Kernels {
        self.kernels
    }

    pub(super) fn quantise(&self, job: Quantise<'_>) {
        self.kernels.quantise(job);
    }

    /// Maximum number of tokens in a piece.
    pub(super) fn widest(&self) -> usize {
        self.products.widest()
    }

    pub(super) fn quantise_laned(&self, job: QuantiseLaned<'_>) {
        self.kernels.quantise_laned(job);
    }

    pub(super) fn quantise_lane(&self, job: QuantiseLane<'_>) {
        self.kernels.quantise_lane(job);
    }
}

fn row_bytes(block: BlockType, cols: usize) -> usize {
    let Some(bytes) = block.row_bytes(cols) else {
        panic!("{cols} columns are not whole blocks of {block}");
    };
    bytes
}

/// Bytes of a row that can be multiplied by `x`.
fn product_row_bytes(block: BlockType, x: &Activations) -> usize {
    let fits = match x.form() {
        Form::Rows => true,
        Form::Lanes => lanes::words(block).is_some(),
        Form::Panels => false,
    };
    assert!(fits, "activations in another form than rows of {block}");
    row_bytes(block, x.cols())
}

fn assert_rows(rows: &[&[u8]], row_bytes: usize) {
    for row in rows {
        assert_eq!(row.len(), row_bytes, "row of another length");
    }
}

/// Checks the shapes of sums over rows; returns the number of tokens, or `None` if there is nothing
/// to do.
fn assert_axpy(
    block: BlockType,
    rows: &[&[u8]],
    h: &[f32],
    acc: &[f32],
    cols: usize,
) -> Option<usize> {
    if rows.is_empty() || cols == 0 {
        assert!(h.is_empty() || cols == 0, "values of another shape");
        return None;
    }
    assert_rows(rows, row_bytes(block, cols));
    let n_tokens = h.len() / rows.len();
    assert_eq!(h.len(), n_tokens * rows.len(), "values of another shape");
    assert_eq!(acc.len(), n_tokens * cols, "accumulators of another shape");
    (n_tokens > 0).then_some(n_tokens)
}

/// `[n_tokens, width]` with `stride` fits into `len`, and tokens do not overlap.
fn assert_tokens(n_tokens: usize, width: usize, len: usize, stride: usize) {
    let end = n_tokens
        .saturating_sub(1)
        .checked_mul(stride)
        .and_then(|last| last.checked_add(width));
    assert!(
        end.is_some_and(|end| end <= len) && (n_tokens <= 1 || stride >= width),
        "{n_tokens} tokens of {width}, {stride} apart, exceed {len} elements"
    );
}
