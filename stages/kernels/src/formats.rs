//! What a block format is: how codes, scales and offsets are read from ggml's bytes.
//!
//! Every quantised format is, per group of 16 elements, `w = scale * code - offset`. A *chunk* is 256
//! elements: one block of a K format, or 8 blocks of 32. Groups of 32 count as two equal groups of 16,
//! so a chunk has 16 scales in every format. Layouts are those of ggml (`ggml-quants.h`).

use forebay_numbers::block::BlockType;

pub(super) use super::looked_up::{Iq4Nl, Iq4Xs, Mxfp4};
use super::simd::{LANES, Simd, at, unrolled};

/// Elements of a chunk.
pub(super) const CHUNK: usize = 256;
/// Elements whose codes fill one vector; a chunk is four of them.
pub(super) const PAIR: usize = 64;
/// Elements that share a scale.
pub(super) const GROUP: usize = 16;

/// Longest pair of blocks of 32 (Q8_0), in bytes.
pub(super) const MAX_PAIR_BYTES: usize = 68;

/// A format with codes and scales.
pub(super) trait Format {
    /// Its name in the file.
    const BLOCK: BlockType;
    /// Whether codes are signed; unsigned ones are at most 63.
    const SIGNED: bool = false;
    /// Whether there are offsets.
    const OFFSET: bool = true;
    /// The code of 0 in formats without minima, whose offsets are `scale * BIAS`.
    const BIAS: f32 = 0.0;
    /// Distance, in lanes, between scales that may differ.
    const SPREAD: usize = if Self::BLOCK.block_len() == CHUNK {
        1
    } else {
        2
    };
    /// Bytes of a chunk.
    const BYTES: usize = Self::BLOCK.block_bytes() * (CHUNK / Self::BLOCK.block_len());
    /// Bytes of 64 elements; only formats with blocks of 32 can be divided there.
    const PAIR_BYTES: usize = Self::BLOCK.block_bytes() * PAIR / Self::BLOCK.block_len();

    /// Scales and offsets, one lane per group of 16. `blocks` is the number of blocks in `chunk` if
    /// blocks have 32 elements (8, or 2 for a tail; the other lanes are then 0).
    fn scales<S: Simd>(s: S, chunk: &[u8], blocks: usize) -> (S::F, S::F);

    /// Codes of elements `64 * p ..`.
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B;

    /// Codes of elements `64 * p ..` as numbers, less [`Self::BIAS`].
    #[inline(always)]
    fn levels<S: Simd>(s: S, chunk: &[u8], p: usize) -> [S::F; 4] {
        let codes = Self::codes(s, chunk, p);
        let mut levels = [s.zero(); 4];
        unrolled!(j in 0..4 => {
            levels[j] = match Self::SIGNED {
                true => s.i8_part(codes, j),
                false => s.u8_part(codes, j),
            };
            if Self::BIAS != 0.0 {
                levels[j] = s.sub(levels[j], s.splat(Self::BIAS));
            }
        });
        levels
    }
}

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Q8_0;
pub(super) struct Q2K;
pub(super) struct Q3K;
pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Q6K;

/// The first four bytes of every block: the f16 scale and, if there is one, the f16 minimum.
#[inline(always)]
pub(super) fn heads<F: Format, S: Simd>(s: S, chunk: &[u8], blocks: usize) -> S::F {
    let stride = F::BLOCK.block_bytes();
    let mut words = [0; 8];
    let mut i = 0;
    while i < blocks {
        words[i] = word(chunk, i * stride);
        i += 1;
    }
    s.f16_pairs(words)
}

#[inline(always)]
pub(super) fn word(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(*at(bytes, offset))
}

#[inline(always)]
fn double_word(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(*at(bytes, offset))
}

/// Symmetric formats: `w = scale * (code - bias)`.
#[inline(always)]
fn symmetric<S: Simd>(s: S, scale: S::F, bias: f32) -> (S::F, S::F) {
    (scale, s.mul(scale, s.splat(bias)))
}

/// Formats with a minimum: `w = scale * code + min`.
#[inline(always)]
fn with_minimum<S: Simd>(s: S, heads: S::F) -> (S::F, S::F) {
    (s.even(heads), s.sub(s.zero(), s.odd(heads)))
}

/// Nibbles of blocks `2p` and `2p + 1`, which start `offset` bytes into the block.
#[inline(always)]
pub(super) fn nibbles<F: Format, S: Simd>(s: S, chunk: &[u8], p: usize, offset: usize) -> S::B {
    let bytes = F::BLOCK.block_bytes();
    let first = 2 * p * bytes + offset;
    s.nibbles(at(chunk, first), at(chunk, first + bytes))
}

/// Levels of blocks `2p` and `2p + 1`, whose nibbles start `offset` bytes into the block.
#[inline(always)]
fn nibble_levels<F: Format, S: Simd>(s: S, chunk: &[u8], p: usize, offset: usize) -> [S::F; 4] {
    let bytes = F::BLOCK.block_bytes();
    let first = 2 * p * bytes + offset;
    let [a, b] = s.nibble_levels(at(chunk, first), F::BIAS);
    let [c, d] = s.nibble_levels(at(chunk, first + bytes), F::BIAS);
    [a, b, c, d]
}

/// [`nibbles`] with the fifth bits, which start `offset` bytes into the block, 4 bytes before the
/// nibbles.
#[inline(always)]
fn five_bits<F: Format, S: Simd>(s: S, chunk: &[u8], p: usize, offset: usize) -> S::B {
    let bytes = F::BLOCK.block_bytes();
    let first = 2 * p * bytes + offset;
    let high = u64::from(word(chunk, first)) | u64::from(word(chunk, first + bytes)) << 32;
    s.add_where(nibbles::<F, S>(s, chunk, p, offset + 4), high, 16)
}

/// `d: f16, codes: [u4; 32]`, bias 8.
impl Format for Q4_0 {
    const BLOCK: BlockType = BlockType::Q4_0;
    const BIAS: f32 = 8.0;

    #[inline(always)]
    fn scales<S: Simd>(s: S, chunk: &[u8], blocks: usize) -> (S::F, S::F) {
        symmetric(s, s.even(heads::<Self, S>(s, chunk, blocks)), Self::BIAS)
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B {
        nibbles::<Self, S>(s, chunk, p, 2)
    }

    #[inline(always)]
    fn levels<S: Simd>(s: S, chunk: &[u8], p: usize) -> [S::F; 4] {
        nibble_levels::<Self, S>(s, chunk, p, 2)
    }
}

/// `d: f16, m: f16, codes: [u4; 32]`.
impl Format for Q4_1 {
    const BLOCK: BlockType = BlockType::Q4_1;

    #[inline(always)]
    fn scales<S: Simd>(s: S, chunk: &[u8], blocks: usize) -> (S::F, S::F) {
        with_minimum(s, heads::<Self, S>(s, chunk, blocks))
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B {
        nibbles::<Self, S>(s, chunk, p, 4)
    }

    #[inline(always)]
    fn levels<S: Simd>(s: S, chunk: &[u8], p: usize) -> [S::F; 4] {
        nibble_levels::<Self, S>(s, chunk, p, 4)
    }
}

/// `d: f16, high: [u1; 32], low: [u4; 32]`, bias 16.
impl Format for Q5_0 {
    const BLOCK: BlockType = BlockType::Q5_0;
    const BIAS: f32 = 16.0;

    #[inline(always)]
    fn scales<S: Simd>(s: S, chunk: &[u8], blocks: usize) -> (S::F, S::F) {
        symmetric(s, s.even(heads::<Self, S>(s, chunk, blocks)), Self::BIAS)
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B {
        five_bits::<Self, S>(s, chunk, p, 2)
    }
}

/// `d: f16, m: f16, high: [u1; 32], low: [u4; 32]`.
impl Format for Q5_1 {
    const BLOCK: BlockType = BlockType::Q5_1;

    #[inline(always)]
    fn scales<S: Simd>(s: S, chunk: &[u8], blocks: usize) -> (S::F, S::F) {
        with_minimum(s, heads::<Self, S>(s, chunk, blocks))
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B {
        five_bits::<Self, S>(s, chunk, p, 4)
    }
}

/// `d: f16, codes: [i8; 32]`.
impl Format for Q8_0 {
    const BLOCK: BlockType = BlockType::Q8_0;
    const SIGNED: bool = true;
    const OFFSET: bool = false;

    #[inline(always)]
    fn scales<S: Simd>(s: S, chunk: &[u8], blocks: usize) -> (S::F, S::F) {
        (s.even(heads::<Self, S>(s, chunk, blocks)), s.zero())
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B {
        let bytes = Self::BLOCK.block_bytes();
        let first = 2 * p * bytes + 2;
        s.halves(at(chunk, first), at(chunk, first + bytes))
    }

    #[inline(always)]
    fn levels<S: Simd>(s: S, chunk: &[u8], p: usize) -> [S::F; 4] {
        let mut levels = [s.zero(); 4];
        unrolled!(j in 0..4 => {
            let block = (2 * p + j / 2) * Self::BLOCK.block_bytes();
            levels[j] = s.to_f32(s.widen_i8(at(chunk, block + 2 + LANES * (j % 2))));
        });
        levels
    }
}

/// `scale and min: [u4, u4; 16], codes: [u2; 256], d: f16, dmin: f16`.
impl Format for Q2K {
    const BLOCK: BlockType = BlockType::Q2_K;

    #[inline(always)]
    fn scales<S: Simd>(s: S, chunk: &[u8], _blocks: usize) -> (S::F, S::F) {
        const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        let (lo, hi) = (double_word(chunk, 0), double_word(chunk, 8));
        let d = s.f16_pairs([word(chunk, 80); 8]);
        let scale = s.u8_lanes(lo & LOW, hi & LOW);
        let min = s.u8_lanes((lo >> 4) & LOW, (hi >> 4) & LOW);
        (s.mul(scale, s.even(d)), s.mul(min, s.odd(d)))
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B {
        two_bits(s, chunk, 16, p)
    }
}

/// Two-bit codes of elements `64 * p ..`: 32 bytes hold the codes of 128 elements, 32 apart.
#[inline(always)]
fn two_bits<S: Simd>(s: S, chunk: &[u8], offset: usize, p: usize) -> S::B {
    let shift = 4 * (p as u32 % 2);
    s.fields(at(chunk, offset + 32 * (p / 2)), [shift, shift + 2], 0, 3)
}

/// `high: [u1; 256], low: [u2; 256], scales: [u6; 16], d: f16`, bias 4, scale bias 32.
impl Format for Q3K {
    const BLOCK: BlockType = BlockType::Q3_K;
    const BIAS: f32 = 4.0;

    #[inline(always)]
    fn scales<S: Simd>(s: S, chunk: &[u8], _blocks: usize) -> (S::F, S::F) {
        const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        const TWO: u64 = 0x0303_0303_0303_0303;
        let low = double_word(chunk, 96);
        let high = u64::from(word(chunk, 104));
        let lo = (low & LOW) | ((high | (high >> 2) << 32) & TWO) << 4;
        let hi = ((low >> 4) & LOW) | (((high >> 4) | (high >> 6) << 32) & TWO) << 4;
        let d = u16::from_le_bytes(*at(chunk, 108));
        let d = s.even(s.f16_pairs([u32::from(d); 8]));
        let scale = s.sub(s.u8_lanes(lo, hi), s.splat(32.0));
        symmetric(s, s.mul(scale, d), Self::BIAS)
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B {
        let bit = 2 * p as u32;
        let high = s.fields(at(chunk, 0), [bit, bit + 1], 2, 4);
        s.or(two_bits(s, chunk, 32, p), high)
    }
}

/// `d: f16, dmin: f16, scales and mins: [u6, u6; 8]` of Q4_K and Q5_K.
#[inline(always)]
fn six_bit_scales<S: Simd>(s: S, chunk: &[u8]) -> (S::F, S::F) {
    const SIX: u32 = 0x3f3f_3f3f;
    const LOW: u32 = 0x0f0f_0f0f;
    const TOP: u32 = 0x0303_0303;
    let (a, b, c) = (word(chunk, 4), word(chunk, 8), word(chunk, 12));
    let scale_hi = (c & LOW) | ((a >> 6) & TOP) << 4;
    let min_hi = ((c >> 4) & LOW) | ((b >> 6) & TOP) << 4;
    let scale = u64::from(a & SIX) | u64::from(scale_hi) << 32;
    let min = u64::from(b & SIX) | u64::from(min_hi) << 32;
    let pairs = s.u8_pairs(scale, min);
    let pairs = s.mul(pairs, s.f16_pairs([word(chunk, 0); 8]));
    (s.even(pairs), s.odd(pairs))
}

/// Scales as [`six_bit_scales`], then `codes: [u4; 256]`.
impl Format for Q4K {
    const BLOCK: BlockType = BlockType::Q4_K;

    #[inline(always)]
    fn scales<S: Simd>(s: S, chunk: &[u8], _blocks: usize) -> (S::F, S::F) {
        six_bit_scales(s, chunk)
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B {
        s.fields(at(chunk, 16 + 32 * p), [0, 4], 0, 0x0f)
    }

    #[inline(always)]
    fn levels<S: Simd>(s: S, chunk: &[u8], p: usize) -> [S::F; 4] {
        let [a, c] = s.nibble_levels(at(chunk, 16 + 32 * p), 0.0);
        let [b, d] = s.nibble_levels(at(chunk, 32 + 32 * p), 0.0);
        [a, b, c, d]
    }
}

/// Scales as [`six_bit_scales`], then `high: [u1; 256], low: [u4; 256]`.
impl Format for Q5K {
    const BLOCK: BlockType = BlockType::Q5_K;

    #[inline(always)]
    fn scales<S: Simd>(s: S, chunk: &[u8], _blocks: usize) -> (S::F, S::F) {
        six_bit_scales(s, chunk)
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B {
        let bit = 2 * p as u32;
        let low = s.fields(at(chunk, 48 + 32 * p), [0, 4], 0, 0x0f);
        s.or(low, s.fields(at(chunk, 16), [bit, bit + 1], 4, 16))
    }
}

/// `low: [u4; 256], high: [u2; 256], scales: [i8; 16], d: f16`, bias 32.
impl Format for Q6K {
    const BLOCK: BlockType = BlockType::Q6_K;
    const BIAS: f32 = 32.0;

    #[inline(always)]
    fn scales<S: Simd>(s: S, chunk: &[u8], _blocks: usize) -> (S::F, S::F) {
        let d = u16::from_le_bytes(*at(chunk, 208));
        let d = s.even(s.f16_pairs([u32::from(d); 8]));
        let scale = s.i8_lanes(double_word(chunk, 192), double_word(chunk, 200));
        symmetric(s, s.mul(scale, d), Self::BIAS)
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B {
        let (half, shift) = (p / 2, 4 * (p as u32 % 2));
        let low = s.nibble_at(at(chunk, 64 * half), shift);
        let high = at(chunk, 128 + 32 * half);
        s.or(low, s.fields(high, [shift, shift + 2], 4, 0x30))
    }
}

/// A format whose elements are floating-point numbers.
pub(super) trait Float {
    /// Bytes of an element.
    const BYTES: usize;

    /// 16 elements.
    fn widen<S: Simd>(s: S, bytes: &[u8]) -> S::F;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Float for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    fn widen<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.widen_f32(at(bytes, 0))
    }
}

impl Float for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn widen<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.widen_f16(at(bytes, 0))
    }
}

impl Float for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn widen<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.widen_bf16(at(bytes, 0))
    }
}

/// Calls `$quantised::<F>` or `$float::<F>` for the block format `$block`.
macro_rules! for_format {
    ($block:expr, quantised $f:ident => $quantised:expr, float $g:ident => $float:expr) => {{
        use forebay_numbers::block::BlockType as Bt;
        use $crate::formats as fm;
        macro_rules! quantised {
            ($name:ident) => {{
                type $f = fm::$name;
                $quantised
            }};
        }
        macro_rules! float {
            ($name:ident) => {{
                type $g = fm::$name;
                $float
            }};
        }
        match $block {
            Bt::F32 => float!(F32),
            Bt::F16 => float!(F16),
            Bt::BF16 => float!(Bf16),
            Bt::Q4_0 => quantised!(Q4_0),
            Bt::Q4_1 => quantised!(Q4_1),
            Bt::Q5_0 => quantised!(Q5_0),
            Bt::Q5_1 => quantised!(Q5_1),
            Bt::Q8_0 => quantised!(Q8_0),
            Bt::Q2_K => quantised!(Q2K),
            Bt::Q3_K => quantised!(Q3K),
            Bt::Q4_K => quantised!(Q4K),
            Bt::Q5_K => quantised!(Q5K),
            Bt::Q6_K => quantised!(Q6K),
            Bt::IQ4_NL => quantised!(Iq4Nl),
            Bt::IQ4_XS => quantised!(Iq4Xs),
            Bt::MXFP4 => quantised!(Mxfp4),
        }
    }};
}
pub(super) use for_format;
