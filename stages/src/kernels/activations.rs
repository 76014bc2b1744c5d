//! The right-hand side of a matrix product: activations as f32 and as 8-bit integers.

use super::formats::{GROUP, PAIR};
use super::simd::{Kernel, LANES, Simd};
use super::table::KernelTable;

/// Elements that share a scale.
const BLOCK: usize = 32;
/// Alignment of a token's codes, in bytes: one cache line, so that no vector load is split.
const LINE: usize = 64;
/// Below this magnitude `127 / max` is not finite; such a block counts as zero.
const TINY: f32 = 1e-36;

/// Activations of up to `max_tokens` tokens, quantised once and multiplied with many weights.
///
/// Per token and block of 32: `scale = max |x| / 127`, `code = round(x * 127 / max |x|)` (ties to
/// even), so codes are in -127..=127. Beside them are, per 16 elements, the scale again and
/// `scale * sum(code)`, which formats with an offset need. A block with an infinite or NaN element
/// has scale NaN, so that the fault shows in every product.
#[derive(Clone, Debug)]
pub struct Activations {
    max_tokens: usize,
    max_cols: usize,
    n_tokens: usize,
    cols: usize,
    values: Vec<f32>, // [n_tokens, padded]
    codes: Vec<i8>,   // [n_tokens, padded], from `first` on
    first: usize,
    scales: Vec<f32>, // [n_tokens, padded / 16]
    sums: Vec<f32>,   // [n_tokens, padded / 16]
}

/// One token's activations, padded with zeros to whole pairs of blocks.
#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) values: &'a [f32], // [padded]
    pub(super) codes: &'a [i8],   // [padded]
    pub(super) scales: &'a [f32], // [padded / 16]
    pub(super) sums: &'a [f32],   // [padded / 16]
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
        let codes = vec![0; len + LINE];
        let first = codes.as_ptr().align_offset(LINE).min(LINE);
        Self {
            max_tokens,
            max_cols,
            n_tokens: 0,
            cols: 0,
            values: vec![0.0; len],
            codes,
            first,
            scales: vec![0.0; len / GROUP],
            sums: vec![0.0; len / GROUP],
        }
    }

    /// Bytes that [`Self::new`] allocates, for memory budgets.
    pub fn bytes_for(max_tokens: usize, max_cols: usize) -> usize {
        let len = max_cols
            .next_multiple_of(PAIR)
            .saturating_mul(max_tokens);
        len.saturating_mul(5)
            .saturating_add(len / GROUP * 8 + LINE)
    }

    /// Tokens held now.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Columns of a token.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The f32 values of a token, `[cols]`.
    ///
    /// # Panics
    /// There is no such token.
    pub fn values(&self, token: usize) -> &[f32] {
        &self.token(token).values[..self.cols]
    }

    /// Takes `src`, `[n_tokens, cols]`.
    ///
    /// # Panics
    /// More tokens or columns than there is room for, or `src` has another length.
    pub fn load(&mut self, kernels: &KernelTable, n_tokens: usize, cols: usize, src: &[f32]) {
        assert_eq!(src.len(), n_tokens * cols, "activations of another shape");
        self.set(kernels, n_tokens, cols, |t, row| {
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
        (self.n_tokens, self.cols) = (n_tokens, cols);
        let padded = self.padded();
        for t in 0..n_tokens {
            let values = &mut self.values[t * padded..][..padded];
            fill(t, &mut values[..cols]);
            values[cols..].fill(0.0);
            let groups = t * padded / GROUP..(t + 1) * padded / GROUP;
            kernels.quantise(Quantise {
                values,
                codes: &mut self.codes[self.first + t * padded..][..padded],
                scales: &mut self.scales[groups.clone()],
                sums: &mut self.sums[groups],
            });
        }
    }

    fn padded(&self) -> usize {
        self.cols.next_multiple_of(PAIR)
    }

    #[inline(always)]
    pub(super) fn token(&self, t: usize) -> Token<'_> {
        assert!(t < self.n_tokens, "no activations of token {t}");
        let padded = self.padded();
        let groups = padded / GROUP;
        Token {
            values: &self.values[t * padded..][..padded],
            codes: &self.codes[self.first + t * padded..][..padded],
            scales: &self.scales[t * groups..][..groups],
            sums: &self.sums[t * groups..][..groups],
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
    let halves = values.as_chunks().0;
    let (a, b) = (s.load(&halves[0]), s.load(&halves[1]));
    let magnitudes = s.max_i32(s.magnitude_bits(a), s.magnitude_bits(b));
    let max = f32::from_bits(s.reduce_max_i32(magnitudes) as u32);
    if !(max >= TINY && max.is_finite()) {
        codes.fill(0);
        let scale = if max.is_finite() { 0.0 } else { f32::NAN };
        (*scales, *sums) = ([scale; 2], [scale; 2]);
        return;
    }
    let scale = max / 127.0;
    let inverse = s.splat(127.0 / max);
    let codes = codes.as_chunks_mut::<LANES>().0;
    for (i, half) in [a, b].into_iter().enumerate() {
        let rounded = s.round(s.mul(half, inverse));
        s.store_i8(rounded, &mut codes[i]);
        scales[i] = scale;
        sums[i] = scale * s.reduce_add_i32(rounded) as f32;
    }
}
