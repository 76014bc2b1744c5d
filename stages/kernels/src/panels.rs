//! Weights in panels times activations: decode and prefill, one definition.
//!
//! Each SIMD lane is a row. For every block of 32 elements of a token, integer products are summed exactly, then scaled
//! and added to the lane's f32 sum: `sum += (scale * int) * x_scale`, then `sum -= min * x_sum`. The order of additions
//! of a (row, token) pair is that of the blocks, regardless of the other rows and tokens in the call.
//!
//! A block of weights is unpacked once and multiplied by up to 16 tokens, whose sums stay in registers: 8 registers of
//! codes, 16 of sums and one or two of scales fill AVX-512's 32. Per 8 integer multiplications there are 2 of f32 (3
//! with minima) and 10 loads, so the integer units can be busy 73 to 80 % of the time.

use std::marker::PhantomData;

use forebay_numbers::panel::PANEL_ROWS;

use super::activations::Activations;
use super::fixed::fold_each;
use super::formats::Float;
use super::panel_formats::{GROUPS, Halves, PanelFormat};
use super::simd::{Kernel, Simd, store_part, unrolled};
use super::tokens::{BLOCK, PanelTokens, Piece, pieces};
use super::weights::WeightPanels;

/// `w[r] . x[t]` for panels in the format `F`.
pub(super) struct PanelMatmul<'a, F> {
    pub(super) w: WeightPanels<'a>,
    pub(super) x: &'a Activations,
    out: Out<'a>,
    stride: usize,
    pub(super) panel_bytes: usize,
    /// How many bytes ahead weights are prefetched for single tokens, and by tiles; 0 if not at all.
    pub(super) ahead: usize,
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
    /// Shapes are checked by the table; `ahead` is how many bytes ahead weights are prefetched.
    pub(super) fn new(
        w: WeightPanels<'a>,
        x: &'a Activations,
        out: Out<'a>,
        stride: usize,
        (panel_bytes, ahead): (usize, usize),
    ) -> Self {
        Self {
            w,
            x,
            out,
            stride,
            panel_bytes,
            ahead,
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
            ahead: self.ahead,
            omitted: self.omitted,
            format: PhantomData,
        }
    }
}

/// The weights of 16 rows.
#[derive(Clone, Copy)]
struct Panel<'a> {
    bytes: &'a [u8],
    /// How many bytes ahead they are prefetched; 0 if not at all.
    ahead: usize,
}

/// The product of a panel and a piece of tokens.
trait Product {
    fn product<S: Simd, const T: usize>(
        s: S,
        panel: Panel<'_>,
        cols: usize,
        x: &PanelTokens<'_, T>,
    ) -> [S::F; T];
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
    fn panels<S: Simd, P: Product>(mut self, s: S) -> bool {
        let mut in_range = true;
        for first in (0..self.w.n_rows).step_by(PANEL_ROWS) {
            let panel = Panel {
                bytes: &self.w.bytes[first / PANEL_ROWS * self.panel_bytes..][..self.panel_bytes],
                ahead: self.ahead,
            };
            // How much of the next panel is prefetched with each piece, bytes. Counted once per product, it costs 3 to 4% of
            // prompts on Zen 4: one more value for the compiler to keep across all loops. A single token's panel may take
            // only 20 ns, and needs none of it.
            let part = match self.x.n_tokens() {
                1 => 0,
                _ => {
                    let n_pieces = self.pieces().count().max(1);
                    self.panel_bytes.div_ceil(n_pieces).next_multiple_of(LINE)
                }
            };
            for (i, piece) in self.pieces().enumerate() {
                if piece.width > 1 {
                    // Of the next panel: loops over the blocks of many tokens have no register and no time for requests.
                    let from = (i * part).min(self.panel_bytes);
                    let to = (from + part).min(self.panel_bytes);
                    prefetch(s, &panel.bytes[from..to], self.panel_bytes);
                }
                // In const blocks: what an instruction set does not use is not compiled.
                if const { S::WIDEST >= 16 } && piece.width == 16 {
                    in_range &= self.piece::<S, P, 16>(s, panel, first, piece);
                } else if const { S::WIDEST >= 4 } && piece.width == 4 {
                    in_range &= self.piece::<S, P, 4>(s, panel, first, piece);
                } else {
                    in_range &= self.piece::<S, P, 1>(s, panel, first, piece);
                }
            }
        }
        in_range
    }

    #[inline(always)]
    fn piece<S: Simd, P: Product, const T: usize>(
        &mut self,
        s: S,
        panel: Panel<'_>,
        first: usize,
        piece: Piece,
    ) -> bool {
        let sums = P::product::<S, T>(s, panel, self.x.cols(), &self.x.piece::<T>(piece));
        self.put(s, first, piece, sums)
    }

    /// Stores or adds the results of 16 rows from `first` on; whether all were within the range of fixed point.
    #[inline(always)]
    pub(super) fn put<S: Simd, const T: usize>(
        &mut self,
        s: S,
        first: usize,
        piece: Piece,
        sums: [S::F; T],
    ) -> bool {
        let rows = PANEL_ROWS.min(self.w.n_rows - first);
        let mut in_range = true;
        unrolled!(t in 0..T, max 16 => {
            let token = piece.first + t;
            let at = |row: usize| row * self.stride + first;
            match &mut self.out {
                Out::Store(out) => store_part(s, sums[t], &mut out[at(token)..][..rows]),
                Out::Fold(acc, places) => {
                    let row = places.get(token).map_or(token, |place| *place as usize);
                    in_range &= fold_part(s, sums[t], &mut acc[at(row)..][..rows]);
                }
            }
        });
        in_range
    }
}

/// Adds the first lanes to up to 16 sums; false if one is out of range.
#[inline(always)]
fn fold_part<S: Simd>(s: S, lanes: S::F, acc: &mut [i64]) -> bool {
    let mut values = [0.0; PANEL_ROWS];
    s.store(lanes, &mut values);
    match acc.first_chunk_mut() {
        Some(full) => s.fold(&values, full),
        None => fold_each(&values[..acc.len()], acc),
    }
}

struct Quantised<F>(PhantomData<F>);

impl<F: PanelFormat> Kernel for PanelMatmul<'_, F> {
    /// Whether all results were within the range of fixed point, if that is used.
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        self.panels::<S, Quantised<F>>(s)
    }
}

impl<F: PanelFormat> Product for Quantised<F> {
    #[inline(always)]
    fn product<S: Simd, const T: usize>(
        s: S,
        panel: Panel<'_>,
        _cols: usize,
        x: &PanelTokens<'_, T>,
    ) -> [S::F; T] {
        let mut sums = [s.zero(); T];
        for (i, tile) in panel.bytes.chunks_exact(F::TILE).enumerate() {
            if T == 1 {
                prefetch(s, &tile[..F::PLANES], panel.ahead);
            }
            let heads = F::heads(s, tile);
            let first = i * F::BLOCKS;
            if F::BLOCKS == 1 || T == 1 {
                // A loop that the optimiser leaves alone: unrolled, it would load the activations of several blocks
                // into registers that it does not have.
                for b in 0..F::BLOCKS {
                    block::<S, F, T>(s, (tile, heads, panel.ahead), b, x, first + b, &mut sums);
                }
            } else {
                // Halves of a tile differ in how their scales are found: no branch inside.
                unrolled!(half in 0..2 => {
                    for b in 4 * half..4 * half + 4 {
                        block::<S, F, T>(s, (tile, heads, panel.ahead), b, x, first + b, &mut sums);
                    }
                });
            }
        }
        sums
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches what is so many bytes ahead of `bytes`, if any.
#[inline(always)]
pub(super) fn prefetch<S: Simd>(s: S, bytes: &[u8], ahead: usize) {
    if ahead == 0 {
        return;
    }
    let mut line = 0;
    while line < bytes.len() {
        s.prefetch(bytes, ahead + line);
        line += LINE;
    }
}

/// Adds the products of block `b` of a tile, which is block `i` of the tokens.
#[inline(always)]
fn block<S: Simd, F: PanelFormat, const T: usize>(
    s: S,
    (tile, heads, ahead): (&[u8], [S::F; 2], usize),
    b: usize,
    x: &PanelTokens<'_, T>,
    i: usize,
    sums: &mut [S::F; T],
) {
    let planes = &tile[F::PLANES + b * F::BITS * 64..][..F::BITS * 64];
    if T == 1 {
        prefetch(s, planes, ahead);
    }
    let codes = F::codes(s, planes);
    let (scales, mins) = F::scales(s, tile, heads, b);
    if F::HALVES {
        let [c0, c1, c2, c3, c4, c5, c6, c7] = codes;
        unrolled!(t in 0..T, max 16 => {
            let counts = x.half_counts[i][t];
            let (low, high) = x.codes[i][t].split_at(BLOCK / 2);
            let low = dot::<S, F, 4>(s, [c0, c1, c2, c3], groups(low), counts[0]);
            let high = dot::<S, F, 4>(s, [c4, c5, c6, c7], groups(high), counts[1]);
            add_halves::<S, F, T>(s, [low, high], (scales, mins), x, (i, t), sums);
        });
        return;
    }
    let (scale, min) = (scales[0], mins[0]);
    if T == 1 {
        let dot = dot::<S, F, GROUPS>(s, codes, groups(&x.codes[i][0]), x.counts[i][0]);
        add::<S, F, T>(s, dot, (scale, min), x, (i, 0), sums);
        return;
    }
    unrolled!(pair in 0..T / 2, max 8 => {
        let (t, u) = (2 * pair, 2 * pair + 1);
        let tokens = [groups(&x.codes[i][t]), groups(&x.codes[i][u])];
        let dots = dot_pair::<S, F, GROUPS>(s, codes, tokens, [x.counts[i][t], x.counts[i][u]]);
        add::<S, F, T>(s, dots[0], (scale, min), x, (i, t), sums);
        add::<S, F, T>(s, dots[1], (scale, min), x, (i, u), sums);
    });
}

/// Adds a block's scaled integer products with token `t` to its sum.
#[inline(always)]
pub(super) fn add<S: Simd, F: PanelFormat, const T: usize>(
    s: S,
    dot: S::I,
    (scale, min): (S::F, S::F),
    x: &PanelTokens<'_, T>,
    (i, t): (usize, usize),
    sums: &mut [S::F; T],
) {
    let scaled = s.mul(s.to_f32(dot), scale);
    sums[t] = s.fma(scaled, s.splat(x.scales[i][t]), sums[t]);
    if F::MIN {
        sums[t] = s.fnma(min, s.splat(x.sums[i][t]), sums[t]);
    }
}

/// [`add`] for formats with a scale per half of a block.
#[inline(always)]
pub(super) fn add_halves<S: Simd, F: PanelFormat, const T: usize>(
    s: S,
    [low, high]: [S::I; 2],
    (scales, mins): (Halves<S>, Halves<S>),
    x: &PanelTokens<'_, T>,
    (i, t): (usize, usize),
    sums: &mut [S::F; T],
) {
    let scaled = s.fma(s.to_f32(low), scales[0], s.mul(s.to_f32(high), scales[1]));
    sums[t] = s.fma(scaled, s.splat(x.scales[i][t]), sums[t]);
    if F::MIN {
        sums[t] = s.fnma(mins[0], s.splat(x.half_sums[i][t][0]), sums[t]);
        sums[t] = s.fnma(mins[1], s.splat(x.half_sums[i][t][1]), sums[t]);
    }
}

/// Groups of four codes.
#[inline(always)]
fn groups<const N: usize>(codes: &[i8]) -> &[[i8; 4]; N] {
    match codes.as_chunks().0.first_chunk() {
        Some(groups) => groups,
        None => panic!("a block of activations is cut short"),
    }
}

/// The start of exact sums of `(code - bias) * x`; `count` is `-sum(x)`.
#[inline(always)]
fn start<S: Simd, F: PanelFormat>(s: S, count: i32) -> S::I {
    if F::BIAS_BITS > 0 {
        s.shift_left(s.splat_i32(count), F::BIAS_BITS)
    } else {
        s.splat_i32(0)
    }
}

/// Exact sums of `(code - bias) * x`.
#[inline(always)]
fn dot<S: Simd, F: PanelFormat, const N: usize>(
    s: S,
    codes: [S::B; N],
    x: &[[i8; 4]; N],
    count: i32,
) -> S::I {
    if F::SIGNED {
        s.dot_signed(codes, x, count)
    } else {
        s.dot_unsigned(codes, x, start::<S, F>(s, count))
    }
}

/// [`dot`] of two tokens.
#[inline(always)]
fn dot_pair<S: Simd, F: PanelFormat, const N: usize>(
    s: S,
    codes: [S::B; N],
    x: [&[[i8; 4]; N]; 2],
    counts: [i32; 2],
) -> [S::I; 2] {
    if F::SIGNED {
        s.dot_signed_pair(codes, x, counts)
    } else {
        let starts = [start::<S, F>(s, counts[0]), start::<S, F>(s, counts[1])];
        s.dot_unsigned_pair(codes, x, starts)
    }
}

/// [`PanelMatmul`] for weights that are plain numbers.
pub(super) struct FloatPanelMatmul<'a, F>(pub(super) PanelMatmul<'a, F>);

struct Floats<F>(PhantomData<F>);

impl<F: Float> Kernel for FloatPanelMatmul<'_, F> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        self.0.panels::<S, Floats<F>>(s)
    }
}

/// Two sums per token take turns, so that one need not wait for the other.
impl<F: Float> Product for Floats<F> {
    #[inline(always)]
    fn product<S: Simd, const T: usize>(
        s: S,
        panel: Panel<'_>,
        cols: usize,
        x: &PanelTokens<'_, T>,
    ) -> [S::F; T] {
        let width = PANEL_ROWS * F::BYTES;
        let mut sums = [[s.zero(); 2]; T];
        for (block, x) in panel.bytes.chunks(BLOCK * width).zip(x.values) {
            if T == 1 {
                prefetch(s, block, panel.ahead);
            }
            let pairs = block.chunks_exact(2 * width);
            let last = pairs.remainder();
            for (k, pair) in pairs.enumerate() {
                let w = [F::widen(s, pair), F::widen(s, &pair[width..])];
                unrolled!(t in 0..T, max 16 => {
                    sums[t][0] = s.fma(w[0], s.splat(x[t][2 * k]), sums[t][0]);
                    sums[t][1] = s.fma(w[1], s.splat(x[t][2 * k + 1]), sums[t][1]);
                });
            }
            if !last.is_empty() {
                let w = F::widen(s, last);
                unrolled!(t in 0..T, max 16 => {
                    sums[t][0] = s.fma(w, s.splat(x[t][(cols - 1) % BLOCK]), sums[t][0]);
                });
            }
        }
        let mut out = [s.zero(); T];
        unrolled!(t in 0..T, max 16 => { out[t] = s.add(sums[t][0], sums[t][1]); });
        out
    }
}
