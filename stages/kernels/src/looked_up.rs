//! Formats whose codes are places in a table of 16 signed values, which the vector unit looks up; then they are used
//! like codes of 8 bits.

use forebay_numbers::block::{BlockType, IQ4_VALUES, MXFP4_VALUES};
use forebay_numbers::panel::PANEL_ROWS;

use super::formats::{Format, heads, nibbles, word};
use super::panel_formats::{self as panels, F16S, Halves, PanelFormat, plain_scale, u8s};
use super::simd::{GROUPS, Simd, at, unrolled};

pub(super) struct Iq4Nl;
pub(super) struct Iq4Xs;
pub(super) struct Mxfp4;

/// `d: f16, codes: [u4; 32]`, places in a table.
impl Format for Iq4Nl {
    const BLOCK: BlockType = BlockType::IQ4_NL;
    const SIGNED: bool = true;
    const OFFSET: bool = false;

    #[inline(always)]
    fn scales<S: Simd>(s: S, chunk: &[u8], blocks: usize) -> (S::F, S::F) {
        (s.even(heads::<Self, S>(s, chunk, blocks)), s.zero())
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B {
        s.look_up(&IQ4_VALUES, nibbles::<Self, S>(s, chunk, p, 2))
    }
}

/// `d: f16, upper bits of scales: [u2; 8], lower bits: [u4; 8], codes: [u4; 256]`, scale bias 32, codes as in
/// [`Iq4Nl`].
impl Format for Iq4Xs {
    const BLOCK: BlockType = BlockType::IQ4_XS;
    const SIGNED: bool = true;
    const OFFSET: bool = false;

    #[inline(always)]
    fn scales<S: Simd>(s: S, chunk: &[u8], _blocks: usize) -> (S::F, S::F) {
        // Each nibble and each pair of bits moves to a separate byte.
        let mut low = u64::from(word(chunk, 4));
        low = (low | low << 16) & 0x0000_ffff_0000_ffff;
        low = (low | low << 8) & 0x00ff_00ff_00ff_00ff;
        low = (low | low << 4) & 0x0f0f_0f0f_0f0f_0f0f;
        let mut high = u64::from(u16::from_le_bytes(*at(chunk, 2)));
        high = (high | high << 24) & 0x0000_00ff_0000_00ff;
        high = (high | high << 12) & 0x000f_000f_000f_000f;
        high = (high | high << 6) & 0x0303_0303_0303_0303;
        let both = low | high << 4;
        let d = u16::from_le_bytes(*at(chunk, 0));
        let d = s.even(s.f16_pairs([u32::from(d); 8]));
        let scale = s.sub(s.u8_pairs(both, both), s.splat(32.0));
        (s.mul(scale, d), s.zero())
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B {
        let codes = s.nibbles(at(chunk, 8 + 32 * p), at(chunk, 24 + 32 * p));
        s.look_up(&IQ4_VALUES, codes)
    }
}

/// `exponent: u8, codes: [u4; 32]`, places in a table.
impl Format for Mxfp4 {
    const BLOCK: BlockType = BlockType::MXFP4;
    const SIGNED: bool = true;
    const OFFSET: bool = false;

    #[inline(always)]
    fn scales<S: Simd>(s: S, chunk: &[u8], blocks: usize) -> (S::F, S::F) {
        let stride = BlockType::MXFP4.block_bytes();
        let (mut exponents, mut i) = (0, 0);
        while i < blocks {
            exponents |= u64::from(chunk[i * stride]) << (8 * i);
            i += 1;
        }
        let exponents = s.round(s.u8_pairs(exponents, exponents));
        (mxfp4_scale(s, exponents), s.zero())
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, chunk: &[u8], p: usize) -> S::B {
        s.look_up(&MXFP4_VALUES, nibbles::<Self, S>(s, chunk, p, 1))
    }
}

/// `2^(e - 128)` for lanes in 0..=255. From 2 on, `e - 1` is the number's exponent; the two below are subnormal, with
/// the bits `(e + 1) << 21`, which are fewer than the others'.
#[inline(always)]
fn mxfp4_scale<S: Simd>(s: S, e: S::I) -> S::F {
    let one = s.splat_i32(1);
    let normal = s.shift_left(s.sub_i32(e, one), 23);
    s.bits_as_f32(s.max_i32(normal, s.shift_left(s.add_i32(e, one), 21)))
}

/// Codes of a block of a panel.
#[inline(always)]
fn entries<S: Simd>(s: S, table: &[i8; 16], planes: &[u8]) -> [S::B; GROUPS] {
    let places = panels::nibbles(s, planes);
    let mut codes = places;
    unrolled!(g in 0..8 => { codes[g] = s.look_up(table, places[g]); });
    codes
}

impl PanelFormat for Iq4Nl {
    const BLOCK: BlockType = BlockType::IQ4_NL;
    const SIGNED: bool = true;
    const BITS: usize = 4;
    plain_scale!();

    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
        entries(s, &IQ4_VALUES, planes)
    }
}

impl PanelFormat for Iq4Xs {
    const BLOCK: BlockType = BlockType::IQ4_XS;
    const SIGNED: bool = true;
    const BITS: usize = 4;

    /// Per 32 elements six bits with bias 32: the upper two of scale `b` are bits `2 * (b % 4)` of byte `b / 4`, the
    /// low four a nibble of byte `2 + b / 2`.
    #[inline(always)]
    fn scales<S: Simd>(s: S, tile: &[u8], [d, _]: [S::F; 2], b: usize) -> (Halves<S>, Halves<S>) {
        let high = u8s(s, tile, F16S + PANEL_ROWS * (b / 4));
        let high = s.and(s.shift_right(high, 2 * (b as u32 % 4)), 3);
        let low = u8s(s, tile, F16S + PANEL_ROWS * (2 + b / 2));
        let low = s.and(s.shift_right(low, 4 * (b as u32 % 2)), 0x0f);
        let code = s.to_f32(s.or_i32(low, s.shift_left(high, 4)));
        ([s.mul(s.sub(code, s.splat(32.0)), d); 2], [s.zero(); 2])
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
        entries(s, &IQ4_VALUES, planes)
    }
}

/// Values from -12 to 12, with a bias: as codes without a sign, several of their products fit into 16 bits.
const BIASED_MXFP4: [i8; 16] = {
    let mut values = MXFP4_VALUES;
    let mut i = 0;
    while i < 16 {
        values[i] += 1 << Mxfp4::BIAS_BITS;
        i += 1;
    }
    values
};

impl PanelFormat for Mxfp4 {
    const BLOCK: BlockType = BlockType::MXFP4;
    const BIAS_BITS: u32 = 4;
    const MAX_CODE: i32 = 16 + 12;
    /// They are powers of two up to 2^127.
    #[cfg(target_arch = "x86_64")]
    const EXACT_SCALES: bool = false;
    const BITS: usize = 4;
    plain_scale!();

    #[inline(always)]
    fn heads<S: Simd>(s: S, tile: &[u8]) -> [S::F; 2] {
        [mxfp4_scale(s, u8s(s, tile, 0)); 2]
    }

    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::B; GROUPS] {
        entries(s, &BIASED_MXFP4, planes)
    }
}
