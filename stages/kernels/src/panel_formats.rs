//! How codes and scales are read from a panel's tiles, for 16 rows at a time; see
//! [`forebay_numbers::panel`] for the bytes.
//!
//! Every quantised format is `w = scale * (code - BIAS) - min` with a scale per 32 or 16 elements.

use forebay_numbers::block::BlockType;
use forebay_numbers::panel::{PANEL_ROWS, PLANE_LEN};

use super::formats::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use super::simd::{GROUPS, Simd, at, unrolled};

/// Bytes of 16 scales in f16.
pub(super) const F16S: usize = 2 * PANEL_ROWS;
/// Bytes of a plane of one bit per code.
const VECTOR: usize = 4 * PANEL_ROWS;

/// Scales of 16 rows for the two halves of a block of 32; if a format has one per 32, both are the same.
pub(super) type Halves<S> = [<S as Simd>::F; 2];

/// A quantised format in panels.
pub(super) trait PanelFormat {
    /// Its name in the file.
    const BLOCK: BlockType;
    /// Whether codes are signed.
    const SIGNED: bool = false;
    /// The largest code of those that are not signed, which is at most 63.
    const MAX_CODE: i32 = (1 << Self::BITS) - 1;
    /// Binary logarithm of the bias; 0 means no bias.
    const BIAS_BITS: u32 = 0;
    /// Whether there are minima.
    const MIN: bool = false;
    /// Whether scales belong to 16 elements instead of 32.
    const HALVES: bool = false;
    /// Whether scales have at most 22 significant bits and are so small that their products with 2^24 are finite, or
    /// are not finite themselves.
    #[cfg(target_arch = "x86_64")]
    const EXACT_SCALES: bool = true;
    /// Whether scales and minima have six bits.
    const SIX_BITS: bool = false;
    /// Bytes of a tile.
    const TILE: usize = PANEL_ROWS * Self::BLOCK.block_bytes();
    /// Blocks of 32 elements in a tile.
    const BLOCKS: usize = Self::BLOCK.block_len() / PLANE_LEN;
    /// Bits per code.
    const BITS: usize;
    /// Where the planes begin.
    const PLANES: usize = Self::TILE - Self::BLOCKS * Self::BITS * VECTOR;

    /// The f16 numbers that a tile starts with: the scale and, if there is one, the minimum, of the whole tile.
    #[inline(always)]
    fn heads<S: Simd>(s: S, tile: &[u8]) -> [S::F; 2] {
        let scale = f16s(s, tile, 0);
        let min = if Self::MIN {
            f16s(s, tile, F16S)
        } else {
            scale
        };
        [scale, min]
    }

    /// Scales and minima of block `b` of the tile with the given heads.
    fn scales<S: Simd>(s: S, tile: &[u8], heads: [S::F; 2], b: usize) -> (Halves<S>, Halves<S>);

    /// Codes of a block: per group of four elements, 16 rows. `planes` starts with the block's planes.
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS];
}

#[inline(always)]
fn f16s<S: Simd>(s: S, tile: &[u8], first: usize) -> S::F {
    s.widen_f16(at(tile, first))
}

#[inline(always)]
pub(super) fn u8s<S: Simd>(s: S, tile: &[u8], first: usize) -> S::I {
    s.widen_u8(at(tile, first))
}

#[inline(always)]
fn plane<S: Simd>(s: S, planes: &[u8], vector: usize) -> S::B {
    s.bytes(bytemuck::cast_ref(at::<VECTOR>(planes, vector * VECTOR)))
}

/// Four bits per code.
#[inline(always)]
pub(super) fn nibbles<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
    let first = plane(s, planes, 0);
    let mut codes = [first; GROUPS];
    unrolled!(v in 0..4 => {
        let bytes = plane(s, planes, v);
        codes[v] = s.field(bytes, 0, 0, 0x0f);
        codes[v + 4] = s.field(bytes, 4, 0, 0x0f);
    });
    codes
}

/// Two bits per code.
#[inline(always)]
fn crumbs<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
    let (a, b) = (plane(s, planes, 0), plane(s, planes, 1));
    let mut codes = [a; GROUPS];
    unrolled!(i in 0..4 => {
        codes[2 * i] = s.field(a, 2 * i as u32, 0, 3);
        codes[2 * i + 1] = s.field(b, 2 * i as u32, 0, 3);
    });
    codes
}

/// `low` with one more bit per code, from the plane in vector `v`, at bit `to`.
#[inline(always)]
fn with_bit<S: Simd>(
    s: S,
    low: [S::B; GROUPS],
    planes: &[u8],
    v: usize,
    to: u32,
) -> [S::B; GROUPS] {
    let bits = plane(s, planes, v);
    let mut codes = low;
    unrolled!(g in 0..8 => {
        codes[g] = s.or(low[g], s.field(bits, g as u32, to, 1 << to));
    });
    codes
}

/// One scale per 32 elements in f16, and no minimum.
macro_rules! plain_scale {
    () => {
        #[inline(always)]
        fn scales<S: Simd>(
            s: S,
            _tile: &[u8],
            [scale, _]: [S::F; 2],
            _b: usize,
        ) -> (Halves<S>, Halves<S>) {
            ([scale; 2], [s.zero(); 2])
        }
    };
}
pub(super) use plain_scale;

/// A scale and a minimum, which is added, per 32 elements in f16.
macro_rules! scale_and_minimum {
    () => {
        #[inline(always)]
        fn scales<S: Simd>(
            s: S,
            _tile: &[u8],
            [scale, min]: [S::F; 2],
            _b: usize,
        ) -> (Halves<S>, Halves<S>) {
            ([scale; 2], [s.sub(s.zero(), min); 2])
        }
    };
}

/// Scales and minima of six bits per 32 elements, with factors in f16 per 256.
macro_rules! six_bit_scales {
    () => {
        const SIX_BITS: bool = true;

        #[inline(always)]
        fn scales<S: Simd>(
            s: S,
            tile: &[u8],
            [d, dmin]: [S::F; 2],
            b: usize,
        ) -> (Halves<S>, Halves<S>) {
            let (scale, min) = six_bits(s, tile, b);
            let (scale, min) = (s.mul(s.to_f32(scale), d), s.mul(s.to_f32(min), dmin));
            ([scale; 2], [min; 2])
        }
    };
}

impl PanelFormat for Q4_0 {
    const BLOCK: BlockType = BlockType::Q4_0;
    const BIAS_BITS: u32 = 3;
    const BITS: usize = 4;
    plain_scale!();

    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
        nibbles(s, planes)
    }
}

impl PanelFormat for Q4_1 {
    const BLOCK: BlockType = BlockType::Q4_1;
    const MIN: bool = true;
    const BITS: usize = 4;
    scale_and_minimum!();

    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
        nibbles(s, planes)
    }
}

impl PanelFormat for Q5_0 {
    const BLOCK: BlockType = BlockType::Q5_0;
    const BIAS_BITS: u32 = 4;
    const BITS: usize = 5;
    plain_scale!();

    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
        with_bit(s, nibbles(s, planes), planes, 4, 4)
    }
}

impl PanelFormat for Q5_1 {
    const BLOCK: BlockType = BlockType::Q5_1;
    const MIN: bool = true;
    const BITS: usize = 5;
    scale_and_minimum!();

    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
        with_bit(s, nibbles(s, planes), planes, 4, 4)
    }
}

impl PanelFormat for Q8_0 {
    const BLOCK: BlockType = BlockType::Q8_0;
    const SIGNED: bool = true;
    const BITS: usize = 8;
    plain_scale!();

    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
        let mut codes = [plane(s, planes, 0); GROUPS];
        unrolled!(g in 0..8 => { codes[g] = plane(s, planes, g); });
        codes
    }
}

impl PanelFormat for Q2K {
    const BLOCK: BlockType = BlockType::Q2_K;
    const MIN: bool = true;
    const HALVES: bool = true;
    const BITS: usize = 2;

    /// Per 16 elements four bits of scale and four of minimum.
    #[inline(always)]
    fn scales<S: Simd>(
        s: S,
        tile: &[u8],
        [d, dmin]: [S::F; 2],
        b: usize,
    ) -> (Halves<S>, Halves<S>) {
        let (mut scales, mut mins) = ([d; 2], [dmin; 2]);
        unrolled!(h in 0..2 => {
            let both = u8s(s, tile, 2 * F16S + PANEL_ROWS * (2 * b + h));
            scales[h] = s.mul(s.to_f32(s.and(both, 0x0f)), d);
            mins[h] = s.mul(s.to_f32(s.shift_right(both, 4)), dmin);
        });
        (scales, mins)
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
        crumbs(s, planes)
    }
}

impl PanelFormat for Q3K {
    const BLOCK: BlockType = BlockType::Q3_K;
    const BIAS_BITS: u32 = 2;
    const HALVES: bool = true;
    const BITS: usize = 3;

    /// Per 16 elements six bits with bias 32: the low four of scale `i` are a nibble of byte `i % 8`,
    /// the high two are bits `2 * (i / 4)` of byte `8 + i % 4`.
    #[inline(always)]
    fn scales<S: Simd>(s: S, tile: &[u8], [d, _]: [S::F; 2], b: usize) -> (Halves<S>, Halves<S>) {
        let mut scales = [d; 2];
        unrolled!(h in 0..2 => {
            let i = 2 * b + h;
            let low = u8s(s, tile, F16S + PANEL_ROWS * (i % 8));
            let low = s.and(s.shift_right(low, 4 * (i as u32 / 8)), 0x0f);
            let high = u8s(s, tile, F16S + PANEL_ROWS * (8 + i % 4));
            let high = s.and(s.shift_right(high, 2 * (i as u32 / 4)), 3);
            let code = s.to_f32(s.or_i32(low, s.shift_left(high, 4)));
            scales[h] = s.mul(s.sub(code, s.splat(32.0)), d);
        });
        (scales, [s.zero(); 2])
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
        with_bit(s, crumbs(s, planes), planes, 2, 2)
    }
}

/// Scale and minimum of block `b`: for the first four the low six bits of bytes `b` and `b + 4`, for the
/// others the nibbles of byte `b + 4` with the upper bits of bytes `b - 4` and `b`.
#[inline(always)]
fn six_bits<S: Simd>(s: S, tile: &[u8], b: usize) -> (S::I, S::I) {
    let byte = |i: usize| u8s(s, tile, 2 * F16S + PANEL_ROWS * i);
    if b < 4 {
        return (s.and(byte(b), 63), s.and(byte(b + 4), 63));
    }
    let low = byte(b + 4);
    let scale_high = s.and(s.shift_right(byte(b - 4), 2), 0x30);
    let min_high = s.and(s.shift_right(byte(b), 2), 0x30);
    (
        s.or_i32(s.and(low, 0x0f), scale_high),
        s.or_i32(s.shift_right(low, 4), min_high),
    )
}

impl PanelFormat for Q4K {
    const BLOCK: BlockType = BlockType::Q4_K;
    const MIN: bool = true;
    const BITS: usize = 4;
    six_bit_scales!();

    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
        nibbles(s, planes)
    }
}

impl PanelFormat for Q5K {
    const BLOCK: BlockType = BlockType::Q5_K;
    const MIN: bool = true;
    const BITS: usize = 5;
    six_bit_scales!();

    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
        with_bit(s, nibbles(s, planes), planes, 4, 4)
    }
}

impl PanelFormat for Q6K {
    const BLOCK: BlockType = BlockType::Q6_K;
    const BIAS_BITS: u32 = 5;
    const HALVES: bool = true;
    const BITS: usize = 6;

    /// Per 16 elements a signed byte.
    #[inline(always)]
    fn scales<S: Simd>(s: S, tile: &[u8], [d, _]: [S::F; 2], b: usize) -> (Halves<S>, Halves<S>) {
        let mut scales = [d; 2];
        unrolled!(h in 0..2 => {
            let code = s.widen_i8(at(tile, F16S + PANEL_ROWS * (2 * b + h)));
            scales[h] = s.mul(s.to_f32(code), d);
        });
        (scales, [s.zero(); 2])
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
        let low = nibbles(s, planes);
        let (a, b) = (plane(s, planes, 4), plane(s, planes, 5));
        let mut codes = low;
        unrolled!(i in 0..4 => {
            codes[2 * i] = s.or(low[2 * i], s.field(a, 2 * i as u32, 4, 0x30));
            codes[2 * i + 1] = s.or(low[2 * i + 1], s.field(b, 2 * i as u32, 4, 0x30));
        });
        codes
    }
}
