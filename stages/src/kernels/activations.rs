//! The right-hand side of a matrix product: activations as f32 and as 8-bit integers.

use half::f16;

use super::formats::{GROUP, PAIR};
use super::simd::{Kernel, LANES, Simd};
use super::table::KernelTable;

/// Elements that share a scale in the narrow form.
const BLOCK: usize = 32;
/// Elements that share a scale in the wide form.
const WIDE: usize = 256;
/// Alignment of the buffers in bytes: one cache line, so that no vector load is split.
const LINE: usize = 64;
/// Below this magnitude `127 / max` is not finite; such a block counts as zero.
const TINY: f32 = 1e-36;

/// Which quantised form of the activations a weight format is multiplied with. The forms are
/// llama.cpp's, so that both engines round alike and their tokens can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Blocks of 32 whose scale is rounded to f16 (ggml's Q8_0).
    Narrow,
    /// As [`Self::Narrow`] for formats with a minimum: `scale * sum(code)` of the whole block is
    /// computed with the unrounded scale and rounded to f16 (ggml's Q8_1).
    NarrowWithMinimum,
    /// Blocks of 256 with an f32 scale, for K formats (ggml's Q8_K).
    Wide,
}

/// Activations of up to `max_tokens` tokens, quantised once and multiplied with many weights.
///
/// Per token and block: `scale = max |x| / 127`, `code = round(x * 127 / max |x|)` (ties to even), so
/// codes are in -127..=127. Beside them are, per 16 elements, the scale again and `scale * sum(code)`,
/// which formats with an offset need. Three forms are kept, one for each family of weight formats:
/// blocks of 32, the same with rounded sums, and blocks of 256. A block with an infinite or NaN element
/// has scale NaN, so that the fault shows in every product.
#[derive(Clone, Debug)]
pub struct Activations {
    max_tokens: usize,
    max_cols: usize,
    n_tokens: usize,
    cols: usize,
    values: Aligned<f32>, // [n_tokens, padded]
    narrow: Codes,
    /// Sums of the narrow form for formats with a minimum: that of a block of 32 in the first of its two
    /// groups, 0 in the second.
    minimum_sums: Aligned<f32>, // [n_tokens, padded / 16]
    wide: Codes,
}

/// One quantised form.
#[derive(Clone, Debug)]
struct Codes {
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

impl Codes {
    fn new(len: usize) -> Self {
        let groups = len / GROUP;
        Self { codes: Aligned::new(len), scales: Aligned::new(groups), sums: Aligned::new(groups) }
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
            narrow: Codes::new(len),
            minimum_sums: Aligned::new(len / GROUP),
            wide: Codes::new(len),
        }
    }

    /// Bytes that [`Self::new`] allocates, for memory budgets.
    pub fn bytes_for(max_tokens: usize, max_cols: usize) -> usize {
        let len = max_cols.next_multiple_of(PAIR).saturating_mul(max_tokens);
        len.saturating_mul(6)
            .saturating_add(len / GROUP * 20 + 8 * LINE)
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
        &self.token(token, Form::Narrow).values[..self.cols]
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
            let values = self.values.row_mut(t, padded);
            fill(t, &mut values[..cols]);
            values[cols..].fill(0.0);
            let (narrow, wide) = (&mut self.narrow, &mut self.wide);
            kernels.quantise(Quantise {
                values,
                codes: narrow.codes.row_mut(t, padded),
                scales: narrow.scales.row_mut(t, padded / GROUP),
                sums: narrow.sums.row_mut(t, padded / GROUP),
                minimum_sums: Some(self.minimum_sums.row_mut(t, padded / GROUP)),
            });
            if cols.is_multiple_of(WIDE) {
                kernels.quantise(Quantise {
                    values,
                    codes: wide.codes.row_mut(t, padded),
                    scales: wide.scales.row_mut(t, padded / GROUP),
                    sums: wide.sums.row_mut(t, padded / GROUP),
                    minimum_sums: None,
                });
            }
        }
    }

    fn padded(&self) -> usize {
        self.cols.next_multiple_of(PAIR)
    }

    #[inline(always)]
    pub(super) fn token(&self, t: usize, form: Form) -> Token<'_> {
        assert!(t < self.n_tokens, "no activations of token {t}");
        let padded = self.padded();
        let groups = padded / GROUP;
        let (set, sums) = match form {
            Form::Narrow => (&self.narrow, &self.narrow.sums),
            Form::NarrowWithMinimum => (&self.narrow, &self.minimum_sums),
            Form::Wide => (&self.wide, &self.wide.sums),
        };
        Token {
            values: self.values.row(t, padded),
            codes: set.codes.row(t, padded),
            scales: set.scales.row(t, groups),
            sums: sums.row(t, groups),
        }
    }
}

/// Quantises one token; see [`Activations`].
pub(super) struct Quantise<'a> {
    pub(super) values: &'a [f32],     // [padded]
    pub(super) codes: &'a mut [i8],   // [padded]
    pub(super) scales: &'a mut [f32], // [padded / 16]
    pub(super) sums: &'a mut [f32],   // [padded / 16]
    /// Given for the narrow form, absent for the wide one. `[padded / 16]`
    pub(super) minimum_sums: Option<&'a mut [f32]>,
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { values, codes, scales, sums, minimum_sums } = self;
        let Some(minimum_sums) = minimum_sums else {
            let blocks = values.as_chunks::<WIDE>().0.iter();
            let codes = codes.as_chunks_mut::<WIDE>().0.iter_mut();
            let scales = scales.chunks_exact_mut(WIDE / GROUP);
            let sums = sums.chunks_exact_mut(WIDE / GROUP);
            for (((values, codes), scales), sums) in blocks.zip(codes).zip(scales).zip(sums) {
                quantise_block(s, values, codes, scales, sums, |scale| scale);
            }
            return;
        };
        let blocks = values.as_chunks::<BLOCK>().0.iter();
        let codes = codes.as_chunks_mut::<BLOCK>().0.iter_mut();
        let scales = scales.as_chunks_mut::<2>().0.iter_mut();
        let sums = sums.as_chunks_mut::<2>().0.iter_mut();
        let minimum_sums = minimum_sums.as_chunks_mut::<2>().0.iter_mut();
        let rows = blocks.zip(codes).zip(scales).zip(sums).zip(minimum_sums);
        for ((((values, codes), scales), sums), minimum_sums) in rows {
            let block = quantise_block(s, values, codes, scales, sums, to_f16);
            *minimum_sums = [to_f16(block.scale * block.sum as f32), 0.0];
        }
    }
}

/// Rounds to half precision.
#[inline(always)]
fn to_f16(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

/// A block's scale before rounding and the sum of its codes.
struct Block {
    scale: f32,
    sum: i32,
}

#[inline(always)]
fn quantise_block<S: Simd, const N: usize>(
    s: S,
    values: &[f32; N],
    codes: &mut [i8; N],
    scales: &mut [f32], // [N / 16]
    sums: &mut [f32],   // [N / 16]
    round_scale: impl Fn(f32) -> f32,
) -> Block {
    let parts = values.as_chunks::<LANES>().0;
    let mut magnitudes = s.magnitude_bits(s.load(&parts[0]));
    for part in &parts[1..] {
        magnitudes = s.max_i32(magnitudes, s.magnitude_bits(s.load(part)));
    }
    let max = f32::from_bits(s.reduce_max_i32(magnitudes) as u32);
    if !(max >= TINY && max.is_finite()) {
        codes.fill(0);
        let scale = if max.is_finite() { 0.0 } else { f32::NAN };
        scales.fill(scale);
        sums.fill(scale);
        return Block { scale, sum: 0 };
    }
    let scale = max / 127.0;
    let rounded_scale = round_scale(scale);
    let inverse = s.splat(127.0 / max);
    let mut total = 0;
    let parts = parts.iter().zip(codes.as_chunks_mut::<LANES>().0);
    for (i, (part, codes)) in parts.enumerate() {
        let rounded = s.round(s.mul(s.load(part), inverse));
        s.store_i8(rounded, codes);
        let sum = s.reduce_add_i32(rounded);
        total += sum;
        scales[i] = rounded_scale;
        sums[i] = rounded_scale * sum as f32;
    }
    Block { scale, sum: total }
}
