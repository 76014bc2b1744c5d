//! The right-hand side of a matrix product: activations as f32 and as 8-bit integers.

use super::formats::{GROUP, PAIR};
use super::simd::{Kernel, LANES, Simd};
use super::table::KernelTable;

/// Elements that share a scale.
const BLOCK: usize = 32;
/// Alignment of the buffers in bytes: one cache line, so that no vector load is split.
const LINE: usize = 64;
/// Below this magnitude `127 / max` is not finite; such a block counts as zero.
const TINY: f32 = 1e-36;

/// Which product the quantised activations are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Rows as ggml stores them.
    Rows,
    /// Panels of 16 rows.
    Panels,
}

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
    values: Aligned<f32>, // [n_tokens, padded]
    codes: Aligned<i8>,   // [n_tokens, padded]
    scales: Aligned<f32>, // [n_tokens, padded / 16]
    sums: Aligned<f32>,   // [n_tokens, padded / 16]
}

/// A buffer that starts on a cache line, as far as the allocator's address allows.
#[derive(Clone, Debug)]
struct Aligned<T> {
    buffer: Vec<T>,
    first: usize,
}

impl<T: Copy + Default> Aligned<T> {
    fn new(len: usize) -> Self {
        let slack = LINE / size_of::<T>();
        let buffer = vec![T::default(); len + slack];
        let first = buffer.as_ptr().align_offset(LINE).min(slack);
        Self { buffer, first }
    }

    /// `[len]` of token `t`.
    #[inline(always)]
    fn row(&self, t: usize, len: usize) -> &[T] {
        &self.buffer[self.first + t * len..][..len]
    }

    #[inline(always)]
    fn row_mut(&mut self, t: usize, len: usize) -> &mut [T] {
        &mut self.buffer[self.first + t * len..][..len]
    }
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
        Self {
            max_tokens,
            max_cols,
            n_tokens: 0,
            cols: 0,
            values: Aligned::new(len),
            codes: Aligned::new(len),
            scales: Aligned::new(len / GROUP),
            sums: Aligned::new(len / GROUP),
        }
    }

    /// Bytes that [`Self::new`] allocates, for memory budgets.
    pub fn bytes_for(max_tokens: usize, max_cols: usize) -> usize {
        let len = max_cols.next_multiple_of(PAIR).saturating_mul(max_tokens);
        len.saturating_mul(5)
            .saturating_add(len / GROUP * 8 + 4 * LINE)
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
        _form: Form,
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
            let values = self.values.row_mut(t, padded);
            fill(t, &mut values[..cols]);
            values[cols..].fill(0.0);
            kernels.quantise(Quantise {
                values,
                codes: self.codes.row_mut(t, padded),
                scales: self.scales.row_mut(t, padded / GROUP),
                sums: self.sums.row_mut(t, padded / GROUP),
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
        Token {
            values: self.values.row(t, padded),
            codes: self.codes.row(t, padded),
            scales: self.scales.row(t, padded / GROUP),
            sums: self.sums.row(t, padded / GROUP),
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
