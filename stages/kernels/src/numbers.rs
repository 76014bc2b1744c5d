//! Rows of weights as numbers, with the bits of ggml's definition.

use std::marker::PhantomData;

use super::formats::{CHUNK, Float, Format, GROUP, MAX_PAIR_BYTES, PAIR};
use super::simd::{LANES, Simd, unrolled};

/// Longest 64 elements, in bytes: f32.
const MAX_PART_BYTES: usize = PAIR * 4;
const _: () = assert!(MAX_PAIR_BYTES <= MAX_PART_BYTES);

/// A format's bytes as numbers, 256 elements at a time.
pub(super) trait Numbers {
    /// Bytes of 256 elements.
    const BYTES: usize;
    /// Bytes of 64 elements, if rows can be divided there.
    const PART_BYTES: usize;
    /// Whether a row is whole chunks of 256 elements.
    const WHOLE: bool;
    /// Factors of all elements of a row or a group. They are in memory, from which a load puts
    /// single ones into all lanes.
    type Scales: Copy;
    /// Any value.
    const NO_SCALES: Self::Scales;

    /// `h` times the scales of a chunk or, if `whole` is false, of 64 elements.
    fn scales<S: Simd>(s: S, bytes: &[u8], whole: bool, h: f32, scales: &mut Self::Scales);

    /// `sums` and elements `64 * p ..` of a chunk, which are multiplied by `scales`.
    fn add<S: Simd>(
        s: S,
        bytes: &[u8],
        scales: &Self::Scales,
        p: usize,
        sums: [S::F; 4],
    ) -> [S::F; 4];
}

/// Per group of 16 elements, on cache lines, so that no store is split.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct GroupScales {
    scale: [f32; CHUNK / GROUP],
    minimum: [f32; CHUNK / GROUP],
}

/// Formats with codes: `fma(scale, code - bias, sum) - minimum`.
pub(super) struct Codes<F>(PhantomData<F>);

impl<F: Format> Codes<F> {
    /// Whether there are offsets that are not part of the levels.
    const MINIMUM: bool = F::OFFSET && F::BIAS == 0.0;
}

impl<F: Format> Numbers for Codes<F> {
    const BYTES: usize = F::BYTES;
    const PART_BYTES: usize = F::PAIR_BYTES;
    const WHOLE: bool = F::BLOCK.block_len() == CHUNK;
    type Scales = GroupScales;
    const NO_SCALES: GroupScales = GroupScales {
        scale: [0.0; CHUNK / GROUP],
        minimum: [0.0; CHUNK / GROUP],
    };

    #[inline(always)]
    fn scales<S: Simd>(s: S, bytes: &[u8], whole: bool, h: f32, scales: &mut GroupScales) {
        let (scale, offset) = F::scales(s, bytes, if whole { 8 } else { 2 });
        let h = s.splat(h);
        s.store(s.mul(scale, h), &mut scales.scale);
        if Self::MINIMUM {
            s.store(s.mul(offset, h), &mut scales.minimum);
        }
    }

    #[inline(always)]
    fn add<S: Simd>(
        s: S,
        bytes: &[u8],
        scales: &GroupScales,
        p: usize,
        mut sums: [S::F; 4],
    ) -> [S::F; 4] {
        let levels = F::levels(s, bytes, p);
        unrolled!(j in 0..4 => {
            let group = (4 * p + j) / F::SPREAD * F::SPREAD;
            sums[j] = s.fma(s.splat(scales.scale[group]), levels[j], sums[j]);
            if Self::MINIMUM {
                sums[j] = s.sub(sums[j], s.splat(scales.minimum[group]));
            }
        });
        sums
    }
}

/// Formats of numbers: `fma(scale, number, sum)`.
pub(super) struct Floats<F>(PhantomData<F>);

impl<F: Float> Numbers for Floats<F> {
    const BYTES: usize = CHUNK * F::BYTES;
    const PART_BYTES: usize = PAIR * F::BYTES;
    const WHOLE: bool = false;
    type Scales = f32;
    const NO_SCALES: f32 = 0.0;

    #[inline(always)]
    fn scales<S: Simd>(_: S, _: &[u8], _: bool, h: f32, scales: &mut f32) {
        *scales = h;
    }

    #[inline(always)]
    fn add<S: Simd>(s: S, bytes: &[u8], scales: &f32, p: usize, mut sums: [S::F; 4]) -> [S::F; 4] {
        let scale = s.splat(*scales);
        unrolled!(j in 0..4 => {
            let w = F::widen(s, &bytes[(p * PAIR + j * LANES) * F::BYTES..]);
            sums[j] = s.fma(scale, w, sums[j]);
        });
        sums
    }
}

/// `sums` and `h` times up to 64 elements that are not part of a whole chunk.
#[inline(always)]
pub(super) fn add_part<S: Simd, N: Numbers>(
    s: S,
    bytes: &[u8],
    h: f32,
    sums: [S::F; 4],
) -> [S::F; 4] {
    let mut padded = [0; MAX_PART_BYTES];
    let bytes = if bytes.len() >= N::PART_BYTES {
        bytes
    } else {
        padded[..bytes.len()].copy_from_slice(bytes);
        &padded
    };
    let mut scales = N::NO_SCALES;
    N::scales(s, bytes, false, h, &mut scales);
    N::add(s, bytes, &scales, 0, sums)
}
