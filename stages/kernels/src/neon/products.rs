//! Sums of products of bytes: widening multiplies (every ARMv8-A CPU), `sdot` (`dotprod`, in ARMv8.2)
//! and `smmla` (`i8mm`, in ARMv8.6).
//!
//! Codes are signed here: unsigned ones are at most 127. `sdot` and `smmla` are written in assembly
//! because their intrinsics are not stable in Rust; the semantics are those of the Arm Architecture
//! Reference Manual (DDI 0487), C7.2.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::{B, I, Neon, each};
use crate::simd::Kernel;

/// One way to sum products of bytes. A value is the proof that the CPU has the instructions.
pub(crate) trait Products: Copy + Send + Sync + 'static {
    /// Runs `kernel` in a function that is compiled for these instructions and NEON.
    fn run<K: Kernel>(s: Neon<Self>, kernel: K) -> K::Output;

    /// Lane `i` is the sum of `codes[4i + k] * x[4i + k]` over `k < 4`: both signed, `x` at least -127.
    fn dot(self, codes: uint8x16_t, x: uint8x16_t) -> int32x4_t;

    /// 16 rows' dot products with 32 elements of a token: lane `r` is `init` plus the sum of
    /// `codes[g][4r + k] * x[4g + k]` over `g < 8` and `k < 4`: both signed, `x` at least -127.
    fn dot_block(self, codes: [B; 8], x: &[i8; 32], init: i32) -> I;

    /// [`Products::dot_block`] of the same rows and two tokens.
    #[inline(always)]
    fn dot_block_pair(self, codes: [B; 8], x: [&[i8; 32]; 2], init: [i32; 2]) -> [I; 2] {
        [
            self.dot_block(codes, x[0], init[0]),
            self.dot_block(codes, x[1], init[1]),
        ]
    }
}

/// Byte arithmetic of every ARMv8-A CPU.
#[derive(Clone, Copy)]
pub(crate) struct Baseline(());

/// `sdot`.
#[derive(Clone, Copy)]
pub(crate) struct Dotprod(());

/// `smmla` for two tokens, `sdot` for one.
#[derive(Clone, Copy)]
pub(crate) struct I8mm(());

/// Whether vectors in memory have their first lane first, as all of NEON's kernels here assume.
const LITTLE_ENDIAN: bool = cfg!(target_endian = "little");

impl Neon<Baseline> {
    /// The proof, if the CPU has the instructions.
    pub(crate) fn detect() -> Option<&'static Self> {
        (LITTLE_ENDIAN && is_aarch64_feature_detected!("neon")).then_some(&Self(Baseline(())))
    }
}

impl<P> Neon<P> {
    /// Every flavour has the baseline's instructions.
    pub(super) fn baseline(self) -> Neon<Baseline> {
        Neon(Baseline(()))
    }
}

impl Neon<Dotprod> {
    /// The proof, if the CPU has the instructions.
    pub(crate) fn detect() -> Option<&'static Self> {
        let found = is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod");
        (LITTLE_ENDIAN && found).then_some(&Self(Dotprod(())))
    }
}

impl Neon<I8mm> {
    /// The proof, if the CPU has the instructions.
    pub(crate) fn detect() -> Option<&'static Self> {
        let found = is_aarch64_feature_detected!("neon")
            && is_aarch64_feature_detected!("dotprod")
            && is_aarch64_feature_detected!("i8mm");
        (LITTLE_ENDIAN && found).then_some(&Self(I8mm(())))
    }
}

/// Register `j` (rows `4j ..`) of all groups of four elements.
macro_rules! rows {
    ($codes:ident, $j:ident) => {{
        let [a, b, c, d, e, f, g, h] = $codes;
        [a[$j], b[$j], c[$j], d[$j], e[$j], f[$j], g[$j], h[$j]]
    }};
}

#[inline]
#[target_feature(enable = "neon")]
fn two_registers(x: &[i8; 32]) -> [int8x16_t; 2] {
    // SAFETY: 32 bytes behind the reference.
    unsafe { [vld1q_s8(x.as_ptr()), vld1q_s8(x.as_ptr().add(16))] }
}

/// Sums of four neighbouring products. Two products are at most 2 * 128 * 127 = 32512 in magnitude,
/// so the 16-bit sums of pairs are exact.
#[inline]
#[target_feature(enable = "neon")]
fn dot_widening(codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
    vpaddlq_s16(vpaddq_s16(low, vmull_high_s8(codes, x)))
}

/// Four rows' sums over 32 elements. The products at the same position in two neighbouring groups are added in 16 bits,
/// which is exact as in [`dot_widening`].
#[inline]
#[target_feature(enable = "neon")]
fn rows_widening(codes: [uint8x16_t; 8], x: [int32x4_t; 8], init: i32) -> int32x4_t {
    let codes = codes.as_chunks::<2>().0;
    let x = x.as_chunks::<2>().0;
    let [a, b, c, d] = each!(g => {
        let [c0, c1] = codes[g];
        let (c0, c1) = (vreinterpretq_s8_u8(c0), vreinterpretq_s8_u8(c1));
        let [x0, x1] = x[g];
        let (x0, x1) = (vreinterpretq_s8_s32(x0), vreinterpretq_s8_s32(x1));
        let low = vmull_s8(vget_low_s8(c0), vget_low_s8(x0));
        let low = vmlal_s8(low, vget_low_s8(c1), vget_low_s8(x1));
        let high = vmull_high_s8(c0, x0);
        [low, vmlal_high_s8(high, c1, x1)]
    });
    // Lanes: a row's first two elements of every group, its last two, then the next row's.
    let low = vpadalq_s16(
        vpadalq_s16(vpadalq_s16(vpaddlq_s16(a[0]), b[0]), c[0]),
        d[0],
    );
    let high = vpadalq_s16(
        vpadalq_s16(vpadalq_s16(vpaddlq_s16(a[1]), b[1]), c[1]),
        d[1],
    );
    vaddq_s32(vdupq_n_s32(init), vpaddq_s32(low, high))
}

/// 16 rows' sums over 32 elements.
#[inline]
#[target_feature(enable = "neon")]
fn block_widening(codes: [B; 8], x: &[i8; 32], init: i32) -> I {
    let [x0, x1] = two_registers(x);
    let (x0, x1) = (vreinterpretq_s32_s8(x0), vreinterpretq_s32_s8(x1));
    let x = [
        vdupq_laneq_s32::<0>(x0),
        vdupq_laneq_s32::<1>(x0),
        vdupq_laneq_s32::<2>(x0),
        vdupq_laneq_s32::<3>(x0),
        vdupq_laneq_s32::<0>(x1),
        vdupq_laneq_s32::<1>(x1),
        vdupq_laneq_s32::<2>(x1),
        vdupq_laneq_s32::<3>(x1),
    ];
    each!(j => rows_widening(rows!(codes, j), x, init))
}

/// `acc[i]` plus the sum of `codes[4i + k] * x[4i + k]` over `k < 4`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut acc: int32x4_t, codes: uint8x16_t, x: uint8x16_t) -> int32x4_t {
    // SAFETY: the function's features include the instruction, which reads and writes only the
    // named registers.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {codes:v}.16b, {x:v}.16b",
            acc = inout(vreg) acc,
            codes = in(vreg) codes,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// `acc[i]` plus the sum of `codes[4i + k] * x[4 * LANE + k]` over `k < 4`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot_lane<const LANE: usize>(mut acc: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the function's features include the instruction, which reads and writes only the
    // named registers.
    unsafe {
        asm!(
            "sdot {acc:v}.4s, {codes:v}.16b, {x:v}.4b[{lane}]",
            acc = inout(vreg) acc,
            codes = in(vreg) codes,
            x = in(vreg) x,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// Four rows' sums over 32 elements.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn rows_sdot(codes: [uint8x16_t; 8], x: [int8x16_t; 2], init: i32) -> int32x4_t {
    let acc = vdupq_n_s32(init);
    let acc = sdot_lane::<0>(acc, codes[0], x[0]);
    let acc = sdot_lane::<1>(acc, codes[1], x[0]);
    let acc = sdot_lane::<2>(acc, codes[2], x[0]);
    let acc = sdot_lane::<3>(acc, codes[3], x[0]);
    let acc = sdot_lane::<0>(acc, codes[4], x[1]);
    let acc = sdot_lane::<1>(acc, codes[5], x[1]);
    let acc = sdot_lane::<2>(acc, codes[6], x[1]);
    sdot_lane::<3>(acc, codes[7], x[1])
}

/// 16 rows' sums over 32 elements.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn block_sdot(codes: [B; 8], x: &[i8; 32], init: i32) -> I {
    let x = two_registers(x);
    each!(j => rows_sdot(rows!(codes, j), x, init))
}

/// Adds the product of a 2 x 8 matrix of codes (two rows) and an 8 x 2 matrix of activations (two
/// tokens, one after the other): lanes are row 0 with token 0 and 1, then row 1 with token 0 and 1.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn smmla(mut acc: int32x4_t, codes: int32x4_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the function's features include the instruction, which reads and writes only the
    // named registers.
    unsafe {
        asm!(
            "smmla {acc:v}.4s, {codes:v}.16b, {x:v}.16b",
            acc = inout(vreg) acc,
            codes = in(vreg) codes,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    acc
}

/// Four rows' sums over 32 elements of two tokens; `x[h]` are elements `8h ..` of both.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn rows_smmla(codes: [uint8x16_t; 8], x: [int8x16_t; 4], init: int32x4_t) -> [int32x4_t; 2] {
    let codes = codes.as_chunks::<2>().0;
    let (mut low, mut high) = (init, init);
    each!(h => {
        // Four bytes of a row in each word: zipped, rows have eight adjacent elements.
        let [a, b] = codes[h];
        let (a, b) = (vreinterpretq_s32_u8(a), vreinterpretq_s32_u8(b));
        low = smmla(low, vzip1q_s32(a, b), x[h]);
        high = smmla(high, vzip2q_s32(a, b), x[h]);
    });
    [vuzp1q_s32(low, high), vuzp2q_s32(low, high)]
}

/// 16 rows' sums over 32 elements of two tokens.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn block_smmla(codes: [B; 8], x: [&[i8; 32]; 2], init: [i32; 2]) -> [I; 2] {
    let (x0, x1) = (x[0].as_chunks::<8>().0, x[1].as_chunks::<8>().0);
    let x = each!(h => {
        // SAFETY: 8 bytes behind each of the references.
        unsafe { vcombine_s8(vld1_s8(x0[h].as_ptr()), vld1_s8(x1[h].as_ptr())) }
    });
    let init = vzip1q_s32(vdupq_n_s32(init[0]), vdupq_n_s32(init[1]));
    let sums = each!(j => rows_smmla(rows!(codes, j), x, init));
    [each!(j => sums[j][0]), each!(j => sums[j][1])]
}

impl Products for Baseline {
    fn run<K: Kernel>(s: Neon<Self>, kernel: K) -> K::Output {
        #[target_feature(enable = "neon")]
        fn inner<K: Kernel>(s: Neon<Baseline>, kernel: K) -> K::Output {
            kernel.run(s)
        }
        // SAFETY: `s` proves that the CPU has these instructions.
        unsafe { inner(s, kernel) }
    }

    #[inline(always)]
    fn dot(self, codes: uint8x16_t, x: uint8x16_t) -> int32x4_t {
        // SAFETY: `self` proves that the CPU has the instructions.
        unsafe { dot_widening(vreinterpretq_s8_u8(codes), vreinterpretq_s8_u8(x)) }
    }

    #[inline(always)]
    fn dot_block(self, codes: [B; 8], x: &[i8; 32], init: i32) -> I {
        // SAFETY: `self` proves that the CPU has the instructions.
        unsafe { block_widening(codes, x, init) }
    }
}

impl Products for Dotprod {
    fn run<K: Kernel>(s: Neon<Self>, kernel: K) -> K::Output {
        #[target_feature(enable = "neon,dotprod")]
        fn inner<K: Kernel>(s: Neon<Dotprod>, kernel: K) -> K::Output {
            kernel.run(s)
        }
        // SAFETY: `s` proves that the CPU has these instructions.
        unsafe { inner(s, kernel) }
    }

    #[inline(always)]
    fn dot(self, codes: uint8x16_t, x: uint8x16_t) -> int32x4_t {
        // SAFETY: `self` proves that the CPU has the instructions.
        unsafe { sdot(vdupq_n_s32(0), codes, x) }
    }

    #[inline(always)]
    fn dot_block(self, codes: [B; 8], x: &[i8; 32], init: i32) -> I {
        // SAFETY: `self` proves that the CPU has the instructions.
        unsafe { block_sdot(codes, x, init) }
    }
}

impl Products for I8mm {
    fn run<K: Kernel>(s: Neon<Self>, kernel: K) -> K::Output {
        #[target_feature(enable = "neon,dotprod,i8mm")]
        fn inner<K: Kernel>(s: Neon<I8mm>, kernel: K) -> K::Output {
            kernel.run(s)
        }
        // SAFETY: `s` proves that the CPU has these instructions.
        unsafe { inner(s, kernel) }
    }

    #[inline(always)]
    fn dot(self, codes: uint8x16_t, x: uint8x16_t) -> int32x4_t {
        // SAFETY: `self` proves that the CPU has the instructions.
        unsafe { sdot(vdupq_n_s32(0), codes, x) }
    }

    #[inline(always)]
    fn dot_block(self, codes: [B; 8], x: &[i8; 32], init: i32) -> I {
        // SAFETY: `self` proves that the CPU has the instructions.
        unsafe { block_sdot(codes, x, init) }
    }

    #[inline(always)]
    fn dot_block_pair(self, codes: [B; 8], x: [&[i8; 32]; 2], init: [i32; 2]) -> [I; 2] {
        // SAFETY: `self` proves that the CPU has the instructions.
        unsafe { block_smmla(codes, x, init) }
    }
}
