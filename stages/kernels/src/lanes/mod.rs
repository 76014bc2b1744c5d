//! Laned rows ([`forebay_numbers::lanes`]): a block in every SIMD lane, so that sums of products stay in their lanes.

mod axpy;
mod dot;

use forebay_numbers::block::BlockType;
use forebay_numbers::lanes::{BLOCK, LANES};

use super::simd::{Simd, at};

pub(super) use axpy::LanedAxpy;
pub(super) use dot::LanedMatmul;

/// Elements of a group of blocks.
const GROUP: usize = LANES * BLOCK;

/// Bytes of a word of every block of a group.
const VECTOR: usize = 4 * LANES;

/// Maximum number of words in a block.
const MAX_WORDS: usize = 8;

/// Fields of half a word: a number of code bits that a 16-bit product can take where they are.
const MAX_FIELDS: usize = 4;

/// A format that has laned rows.
pub(super) trait LaneFormat {
    /// Its name in the file.
    const BLOCK: BlockType;
    /// Words of codes in a block.
    const WORDS: usize;
    /// Whether there are minima.
    const MINIMUM: bool = false;
    /// The unsigned code of 0 is 2 to the power of this, if there is any: codes that are stored as signed bytes are
    /// counted from the lowest one.
    const BIAS_BITS: Option<u32>;
    /// Fields of half a word.
    const FIELDS: usize = 4 / (Self::WORDS / 4);

    /// Codes of the elements that are multiplied by word `w` of the activations; `vectors` are those of the group.
    fn codes<S: Simd>(s: S, vectors: &[[u8; VECTOR]], w: usize) -> S::B;

    /// Adds the products of codes and activations to every lane.
    fn dot<S: Simd>(s: S, acc: S::I, codes: S::B, x: S::B) -> S::I;

    /// The start of [`Self::dot`]'s sums, from the negative sums of the activations.
    fn origin<S: Simd>(s: S, counts: S::I) -> S::I;

    /// Words of a group as unsigned codes.
    fn unsigned<S: Simd>(s: S, words: S::I) -> S::I;

    /// Field `i` of both halves of words of unsigned codes, times 2 to the power of [`Self::shift`].
    fn field<S: Simd>(s: S, words: S::I, i: usize) -> S::I;

    /// See [`Self::field`].
    fn shift(i: usize) -> u32;

    /// The index in a block of field `i` of half `half` of word `v`.
    fn element(v: usize, half: usize, i: usize) -> usize;
}

/// Four bits per code. A field in the middle of a half is multiplied where it is.
macro_rules! four_bits {
    ($name:ident, $minimum:expr, $bias:expr) => {
        pub(super) struct $name;

        impl LaneFormat for $name {
            const BLOCK: BlockType = BlockType::$name;
            const WORDS: usize = 4;
            const MINIMUM: bool = $minimum;
            const BIAS_BITS: Option<u32> = $bias;

            #[inline(always)]
            fn codes<S: Simd>(s: S, vectors: &[[u8; VECTOR]], w: usize) -> S::B {
                s.nibble_at(&vectors[w / 2], 4 * (w as u32 % 2))
            }

            #[inline(always)]
            fn dot<S: Simd>(s: S, acc: S::I, codes: S::B, x: S::B) -> S::I {
                s.dot_u8_into(acc, codes, x)
            }

            #[inline(always)]
            fn origin<S: Simd>(s: S, counts: S::I) -> S::I {
                match Self::BIAS_BITS {
                    Some(bits) => s.shift_left(counts, bits),
                    None => s.splat_i32(0),
                }
            }

            #[inline(always)]
            fn unsigned<S: Simd>(_: S, words: S::I) -> S::I {
                words
            }

            #[inline(always)]
            fn field<S: Simd>(s: S, words: S::I, i: usize) -> S::I {
                match i {
                    0 => s.and(words, 0x000f_000f),
                    1 => s.and(words, 0x00f0_00f0),
                    2 => s.and(words, 0x0f00_0f00),
                    // At its own position, it would include the sign.
                    _ => s.and(s.shift_right(words, 12), 0x000f_000f),
                }
            }

            #[inline(always)]
            fn shift(i: usize) -> u32 {
                [0, 4, 8, 0][i]
            }

            #[inline(always)]
            fn element(v: usize, half: usize, i: usize) -> usize {
                8 * v + 2 * half + i / 2 + 4 * (i % 2)
            }
        }
    };
}

four_bits!(Q4_0, false, Some(3));
four_bits!(Q4_1, true, None);

pub(super) struct Q8_0;

impl LaneFormat for Q8_0 {
    const BLOCK: BlockType = BlockType::Q8_0;
    const WORDS: usize = 8;
    const BIAS_BITS: Option<u32> = Some(7);

    #[inline(always)]
    fn codes<S: Simd>(s: S, vectors: &[[u8; VECTOR]], w: usize) -> S::B {
        s.bytes(bytemuck::cast_ref(&vectors[w]))
    }

    #[inline(always)]
    fn dot<S: Simd>(s: S, acc: S::I, codes: S::B, x: S::B) -> S::I {
        s.add_i32(acc, s.dot_i8(codes, x))
    }

    #[inline(always)]
    fn origin<S: Simd>(s: S, _: S::I) -> S::I {
        s.splat_i32(0)
    }

    #[inline(always)]
    fn unsigned<S: Simd>(s: S, words: S::I) -> S::I {
        s.xor(words, i32::from_ne_bytes([0x80; 4]))
    }

    #[inline(always)]
    fn field<S: Simd>(s: S, words: S::I, i: usize) -> S::I {
        match i {
            0 => s.and(words, 0x00ff_00ff),
            _ => s.and(s.shift_right(words, 8), 0x00ff_00ff),
        }
    }

    #[inline(always)]
    fn shift(_: usize) -> u32 {
        0
    }

    #[inline(always)]
    fn element(v: usize, half: usize, i: usize) -> usize {
        4 * v + 2 * half + i
    }
}

/// A row in its parts.
#[derive(Clone, Copy)]
struct LanedRow<'a> {
    bytes: &'a [u8],
    /// Number of blocks.
    n: usize,
    /// Bytes of a block's codes.
    code_bytes: usize,
}

/// A group of blocks of a row; the last one of a row is padded with zeros.
struct RowGroup<'a> {
    codes: &'a [[u8; VECTOR]], // [WORDS]
    scales: &'a [u8; 2 * LANES],
    minima: &'a [u8; 2 * LANES],
}

/// Room for a padded group.
#[derive(Clone, Copy)]
struct Filled {
    codes: [[u8; VECTOR]; MAX_WORDS],
    scales: [u8; 2 * LANES],
    minima: [u8; 2 * LANES],
}

impl Filled {
    const EMPTY: Self = Self {
        codes: [[0; VECTOR]; MAX_WORDS],
        scales: [0; 2 * LANES],
        minima: [0; 2 * LANES],
    };

    fn group(&self, words: usize) -> RowGroup<'_> {
        RowGroup {
            codes: &self.codes[..words],
            scales: &self.scales,
            minima: &self.minima,
        }
    }
}

impl<'a> LanedRow<'a> {
    #[inline(always)]
    fn new<F: LaneFormat>(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            n: bytes.len() / F::BLOCK.block_bytes(),
            code_bytes: 4 * F::WORDS,
        }
    }

    /// Offset of the scales of group `g`.
    #[inline(always)]
    fn scales_at(&self, g: usize) -> usize {
        self.n * self.code_bytes + 2 * LANES * g
    }

    /// The whole group `g`.
    #[inline(always)]
    fn group<F: LaneFormat>(&self, g: usize) -> RowGroup<'a> {
        let codes = &self.bytes[LANES * self.code_bytes * g..][..LANES * self.code_bytes];
        let scales = self.scales_at(g);
        RowGroup {
            codes: codes.as_chunks().0,
            scales: at(self.bytes, scales),
            minima: at(self.bytes, scales + if F::MINIMUM { 2 * self.n } else { 0 }),
        }
    }

    /// The group of fewer than 16 blocks after the whole ones.
    #[inline(always)]
    fn fill<F: LaneFormat>(&self, filled: &mut Filled) {
        let (g, k) = (self.n / LANES, self.n % LANES);
        let codes = &self.bytes[LANES * self.code_bytes * g..];
        for (to, from) in filled.codes[..F::WORDS]
            .iter_mut()
            .zip(codes.chunks_exact(4 * k))
        {
            to[..4 * k].copy_from_slice(from);
        }
        let scales = self.scales_at(g);
        filled.scales[..2 * k].copy_from_slice(&self.bytes[scales..][..2 * k]);
        if F::MINIMUM {
            filled.minima[..2 * k].copy_from_slice(&self.bytes[scales + 2 * self.n..][..2 * k]);
        }
    }
}

/// Calls `$body` with `$f` for the format `$block`, which has laned rows.
macro_rules! for_laned {
    ($block:expr, $f:ident => $body:expr) => {{
        use forebay_numbers::block::BlockType as Bt;
        macro_rules! laned {
            ($name:ident) => {{
                type $f = $crate::lanes::$name;
                $body
            }};
        }
        match $block {
            Bt::Q4_0 => laned!(Q4_0),
            Bt::Q4_1 => laned!(Q4_1),
            Bt::Q8_0 => laned!(Q8_0),
            other => unreachable!("{other} has no laned rows"),
        }
    }};
}
pub(super) use for_laned;
