//! The right-hand side of a matrix product: activations as f32 and as 8-bit integers.

use forebay_numbers::lanes;

use super::aligned::{Aligned, LINE};
use super::formats::{GROUP, PAIR};
use super::simd::{Kernel, LANES, Simd};
use super::tokens::{BLOCK, PanelTokens, Piece, pieces};

/// Below this magnitude `127 / max` is not finite; such a block counts as zero.
const TINY: f32 = 1e-36;

/// Which product the activations are for: each wants a different layout of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// [`KernelTable::matmul`](crate::KernelTable::matmul): weights row by row. Every token is a row.
    #[default]
    Rows,
    /// The same for laned rows ([`forebay_numbers::lanes`]). Every token is a row, regrouped in the same way.
    Lanes,
    /// [`KernelTable::panels`](crate::KernelTable::panels): weights in panels. Up to 16 tokens are interleaved block by
    /// block.
    Panels,
}

/// Activations of up to `max_tokens` tokens, quantised once and multiplied by many weights.
///
/// Per token and block of 32: `scale = max |x| / 127`, `code = round(x * 127 / max |x|)` (ties to even), so codes are
/// in -127..=127. They come with the sums of codes that formats with an offset need. A block with an infinite or NaN
/// element has scale NaN, so that the fault shows in every product.
#[derive(Clone, Debug)]
pub struct Activations {
    pub(super) max_tokens: usize,
    pub(super) max_cols: usize,
    pub(super) n_tokens: usize,
    pub(super) cols: usize,
    pub(super) form: Form,
    /// Widest piece of the kernels that quantised the tokens.
    pub(super) widest: usize,
    /// One token while it is made, `[padded]`.
    pub(super) row: Aligned<f32>,
    pub(super) values: Aligned<f32>, // [n_tokens, padded], in the order of the form
    pub(super) codes: Aligned<i8>,   // [n_tokens, padded], in the order of the form
    /// Per 16 elements; in panels and lanes per 32.
    pub(super) scales: Aligned<f32>,
    /// Per 16 elements: `scale * sum(code)`.
    pub(super) sums: Aligned<f32>,
    /// Panels and lanes: per 32 elements, `scale * sum(code)`.
    pub(super) block_sums: Aligned<f32>,
    /// Panels and lanes: per 32 elements, `-sum(code)`.
    pub(super) block_counts: Aligned<i32>,
    /// Panels: per 16 elements, `-sum(code)`.
    pub(super) half_counts: Aligned<i32>,
}

/// One token's activations, padded with zeros to whole pairs of blocks.
#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) values: &'a [f32], // [padded]
    pub(super) codes: &'a [i8],   // [padded]
    pub(super) scales: &'a [f32], // [padded / 16]
    pub(super) sums: &'a [f32],   // [padded / 16]
}

/// One token's activations, regrouped: of every group of blocks, word `w` (elements `4w ..`) of each block, for each
/// `w` in turn.
#[derive(Clone, Copy)]
pub(super) struct LanedToken<'a> {
    pub(super) codes: &'a [i8],   // [cols]
    pub(super) scales: &'a [f32], // [cols / 32]
    pub(super) sums: &'a [f32],   // [cols / 32]
    pub(super) counts: &'a [i32], // [cols / 32]
}

impl Activations {
    /// Room for `max_tokens` tokens of `max_cols` columns. Nothing is allocated afterwards.
    ///
    /// # Panics
    /// The product overflows, or the memory is not available.
    pub fn new(max_tokens: usize, max_cols: usize) -> Self {
        let len = max_cols
            .checked_next_multiple_of(PAIR)
            .and_then(|padded| padded.checked_mul(max_tokens))
            .expect("size of the activations overflows");
        Self {
            max_tokens,
            max_cols,
            n_tokens: 0,
            cols: 0,
            form: Form::Rows,
            widest: 1,
            row: Aligned::new(max_cols.next_multiple_of(PAIR)),
            values: Aligned::new(len),
            codes: Aligned::new(len),
            scales: Aligned::new(len / GROUP),
            sums: Aligned::new(len / GROUP),
            block_sums: Aligned::new(len / BLOCK),
            block_counts: Aligned::new(len / BLOCK),
            half_counts: Aligned::new(len / GROUP),
        }
    }

    /// Bytes that [`Self::new`] allocates, for memory budgets.
    pub fn bytes_for(max_tokens: usize, max_cols: usize) -> usize {
        let padded = max_cols.next_multiple_of(PAIR);
        let len = padded.saturating_mul(max_tokens);
        len.saturating_mul(5)
            .saturating_add(len / GROUP * 12 + len / BLOCK * 8 + padded * 4 + 8 * LINE)
    }

    /// Gives the memory back to the system, as far as it covers whole pages; the tokens are lost.
    pub fn give_back(&mut self) {
        self.n_tokens = 0;
        self.values.give_back();
        self.codes.give_back();
        let sums = [&mut self.scales, &mut self.sums, &mut self.block_sums];
        sums.into_iter().for_each(Aligned::give_back);
        let counts = [&mut self.block_counts, &mut self.half_counts];
        counts.into_iter().for_each(Aligned::give_back);
    }

    /// Current number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Columns per token.
    pub fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn padded(&self) -> usize {
        self.cols.next_multiple_of(PAIR)
    }

    /// Which product the activations are for.
    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// The pieces into which the tokens are divided for panels.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> + use<> {
        pieces(self.n_tokens, self.widest)
    }

    #[inline(always)]
    pub(super) fn token(&self, t: usize) -> Token<'_> {
        assert!(t < self.n_tokens, "no activations of token {t}");
        let padded = self.padded();
        Token {
            values: self.values.part(t * padded, padded),
            codes: self.codes.part(t * padded, padded),
            scales: self.scales.part(t * padded / GROUP, padded / GROUP),
            sums: self.sums.part(t * padded / GROUP, padded / GROUP),
        }
    }

    /// Token `t` in the form for laned rows.
    #[inline(always)]
    pub(super) fn laned(&self, t: usize) -> LanedToken<'_> {
        assert!(t < self.n_tokens, "no activations of token {t}");
        let (padded, n) = (self.padded(), self.cols / BLOCK);
        LanedToken {
            codes: self.codes.part(t * padded, self.cols),
            scales: self.scales.part(t * padded / BLOCK, n),
            sums: self.block_sums.part(t * padded / BLOCK, n),
            counts: self.block_counts.part(t * padded / BLOCK, n),
        }
    }

    /// The tokens of a piece of width `T`.
    #[inline(always)]
    pub(super) fn piece<const T: usize>(&self, piece: Piece) -> PanelTokens<'_, T> {
        assert!(
            piece.width == T && piece.first + T <= self.n_tokens,
            "no such piece"
        );
        let padded = self.padded();
        let (start, len) = (piece.first * padded, T * padded);
        let (block, half) = (start / BLOCK, start / GROUP);
        PanelTokens {
            values: self.values.part(start, len).as_chunks().0.as_chunks().0,
            codes: self.codes.part(start, len).as_chunks().0.as_chunks().0,
            scales: self.scales.part(block, len / BLOCK).as_chunks().0,
            sums: self.block_sums.part(block, len / BLOCK).as_chunks().0,
            counts: self.block_counts.part(block, len / BLOCK).as_chunks().0,
            half_sums: self
                .sums
                .part(half, len / GROUP)
                .as_chunks()
                .0
                .as_chunks()
                .0,
            half_counts: self
                .half_counts
                .part(half, len / GROUP)
                .as_chunks()
                .0
                .as_chunks()
                .0,
        }
    }
}

/// Quantises one token; see [`Activations`].
pub(super) struct Quantise<'a> {
    pub(super) values: &'a [f32],     // [padded]
    pub(super) codes: &'a mut [i8],   // [padded]
    pub(super) scales: &'a mut [f32], // [padded / 16]
    pub(super) sums: &'a mut [f32],   // [padded / 16]
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let blocks = self.values.as_chunks::<BLOCK>().0.iter();
        let codes = self.codes.as_chunks_mut::<BLOCK>().0.iter_mut();
        let scales = self.scales.as_chunks_mut::<2>().0.iter_mut();
        let sums = self.sums.as_chunks_mut::<2>().0.iter_mut();
        for (((values, codes), scales), sums) in blocks.zip(codes).zip(scales).zip(sums) {
            quantise_block(s, values, codes, scales, sums);
        }
    }
}

#[inline(always)]
fn quantise_block<S: Simd>(
    s: S,
    values: &[f32; BLOCK],
    codes: &mut [i8; BLOCK],
    scales: &mut [f32; 2],
    sums: &mut [f32; 2],
) {
    let (scale, counts) = quantise_codes(s, values, codes);
    *scales = [scale; 2];
    *sums = [scale * counts[0] as f32, scale * counts[1] as f32];
}

/// Writes the codes of a block; returns its scale and the sums of the codes of each half.
#[inline(always)]
fn quantise_codes<S: Simd>(
    s: S,
    values: &[f32; BLOCK],
    codes: &mut [i8; BLOCK],
) -> (f32, [i32; 2]) {
    let halves = values.as_chunks().0;
    let (a, b) = (s.load(&halves[0]), s.load(&halves[1]));
    let magnitudes = s.max_i32(s.magnitude_bits(a), s.magnitude_bits(b));
    let max = f32::from_bits(s.reduce_max_i32(magnitudes) as u32);
    if !(max >= TINY && max.is_finite()) {
        codes.fill(0);
        return (if max.is_finite() { 0.0 } else { f32::NAN }, [0; 2]);
    }
    let inverse = s.splat(127.0 / max);
    let codes = codes.as_chunks_mut::<LANES>().0;
    let (a, b) = (s.round(s.mul(a, inverse)), s.round(s.mul(b, inverse)));
    s.store_i8(a, &mut codes[0]);
    s.store_i8(b, &mut codes[1]);
    (max / 127.0, [s.reduce_add_i32(a), s.reduce_add_i32(b)])
}

/// Quantises one token for laned rows; see [`Activations`].
pub(super) struct QuantiseLaned<'a> {
    pub(super) row: &'a [f32],        // [cols]
    pub(super) codes: &'a mut [i8],   // [cols]
    pub(super) scales: &'a mut [f32], // [cols / 32]
    pub(super) sums: &'a mut [f32],   // [cols / 32]
    pub(super) counts: &'a mut [i32], // [cols / 32]
}

impl Kernel for QuantiseLaned<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut codes = [0; BLOCK];
        for (first, blocks) in lanes::groups(self.row.len()) {
            for lane in 0..blocks {
                let b = first / BLOCK + lane;
                let row = &self.row.as_chunks().0[b];
                let (scale, counts) = quantise_codes(s, row, &mut codes);
                let count = counts[0] + counts[1];
                self.scales[b] = scale;
                self.sums[b] = scale * count as f32;
                self.counts[b] = -count;
                let group = self.codes[first..].as_chunks_mut::<4>().0;
                for (w, word) in codes.as_chunks().0.iter().enumerate() {
                    group[w * blocks + lane] = *word;
                }
            }
        }
    }
}

/// Quantises one token into lane `lane` of a piece of `width` tokens; see [`Activations`].
pub(super) struct QuantiseLane<'a> {
    pub(super) row: &'a [f32], // [padded]
    pub(super) width: usize,
    pub(super) lane: usize,
    pub(super) values: &'a mut [f32],     // [padded / 32, width, 32]
    pub(super) codes: &'a mut [i8],       // [padded / 32, width, 32]
    pub(super) scales: &'a mut [f32],     // [padded / 32, width]
    pub(super) sums: &'a mut [f32],       // [padded / 32, width, 2]
    pub(super) block_sums: &'a mut [f32], // [padded / 32, width]
    pub(super) block_counts: &'a mut [i32], // [padded / 32, width]
    pub(super) half_counts: &'a mut [i32], // [padded / 32, width, 2]
}

impl Kernel for QuantiseLane<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let values = self.values.as_chunks_mut::<BLOCK>().0;
        let codes = self.codes.as_chunks_mut::<BLOCK>().0;
        let sums = self.sums.as_chunks_mut::<2>().0;
        let half_counts = self.half_counts.as_chunks_mut::<2>().0;
        for (b, block) in self.row.as_chunks::<BLOCK>().0.iter().enumerate() {
            let i = b * self.width + self.lane;
            values[i] = *block;
            let (scale, counts) = quantise_codes(s, block, &mut codes[i]);
            let count = counts[0] + counts[1];
            self.scales[i] = scale;
            self.block_sums[i] = scale * count as f32;
            self.block_counts[i] = -count;
            sums[i] = [scale * counts[0] as f32, scale * counts[1] as f32];
            half_counts[i] = [-counts[0], -counts[1]];
        }
    }
}
