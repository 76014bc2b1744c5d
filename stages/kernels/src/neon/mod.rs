//! NEON (AArch64): four registers per vector, in three flavours that differ in how products of bytes
//! are summed (`products`).
#![allow(unsafe_code)]

mod products;
#[cfg(test)]
mod tests;

use std::arch::aarch64::*;
use std::arch::asm;

use super::fixed;
use super::simd::{GROUPS, Kernel, Simd, unrolled};
use products::Products;
pub(super) use products::{Baseline, Dotprod, I8mm};

/// NEON with the products of `P`, which proves that the CPU has the instructions of [`Neon::run`].
#[derive(Clone, Copy)]
pub(super) struct Neon<P>(P);

/// Four registers of 4 f32.
type F = [float32x4_t; 4];
/// Four registers of 4 i32.
type I = [int32x4_t; 4];
/// Four registers of 16 bytes.
type B = [uint8x16_t; 4];

/// The same for all four registers.
macro_rules! each {
    ($i:ident => $e:expr) => {
        [
            $crate::neon::each!(@ 0, $i, $e),
            $crate::neon::each!(@ 1, $i, $e),
            $crate::neon::each!(@ 2, $i, $e),
            $crate::neon::each!(@ 3, $i, $e),
        ]
    };
    (@ $turn:literal, $i:ident, $e:expr) => {{
        let $i = $turn;
        $e
    }};
}
use each;

/// Methods of one or a few instructions.
macro_rules! ops {
    ($(fn $name:ident(self $(, $a:ident: $t:ty)*) $(-> $r:ty)? $body:block)*) => {$(
        #[inline(always)]
        fn $name(self $(, $a: $t)*) $(-> $r)? {
            // SAFETY: `self` proves that the CPU has the instructions, and every load and store goes
            // through a reference to an array of exactly the size that the instructions touch.
            unsafe { $body }
        }
    )*};
}

#[inline]
#[target_feature(enable = "neon")]
fn load8(b: &[u8; 8]) -> uint8x8_t {
    // SAFETY: 8 bytes behind the reference.
    unsafe { vld1_u8(b.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn load16(b: &[u8; 16]) -> uint8x16_t {
    // SAFETY: 16 bytes behind the reference.
    unsafe { vld1q_u8(b.as_ptr()) }
}

/// Register `i` of 64 bytes in memory.
#[inline]
#[target_feature(enable = "neon")]
fn load_part(b: &[u8; 64], i: usize) -> uint8x16_t {
    load16(&b.as_chunks::<16>().0[i])
}

/// The bytes of `lo`, then of `hi`.
#[inline]
#[target_feature(enable = "neon")]
fn two_words(lo: u64, hi: u64) -> uint8x16_t {
    vcombine_u8(vcreate_u8(lo), vcreate_u8(hi))
}

/// Four f16 each from the low and the high half. In assembly, since the intrinsics (and Rust's `f16`) are not yet
/// stable in the oldest supported compiler.
#[inline]
#[target_feature(enable = "neon")]
fn f16_to_f32(halves: uint8x16_t) -> [float32x4_t; 2] {
    let (low, high): (float32x4_t, float32x4_t);
    // SAFETY: these instructions of the baseline read and write only the named registers.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {halves:v}.4h",
            "fcvtl2 {high:v}.4s, {halves:v}.8h",
            halves = in(vreg) halves,
            low = out(vreg) low,
            high = lateout(vreg) high,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    [low, high]
}

#[inline]
#[target_feature(enable = "neon")]
fn u8_to_f32(bytes: uint8x16_t) -> F {
    let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
    [
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
        vcvtq_f32_u32(vmovl_high_u16(low)),
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
        vcvtq_f32_u32(vmovl_high_u16(high)),
    ]
}

#[inline]
#[target_feature(enable = "neon")]
fn i8_to_f32(bytes: uint8x16_t) -> F {
    let bytes = vreinterpretq_s8_u8(bytes);
    let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
    [
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
        vcvtq_f32_s32(vmovl_high_s16(low)),
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
        vcvtq_f32_s32(vmovl_high_s16(high)),
    ]
}

/// Moves the bits of every byte from bit `from` to bit `to`; bits that leave the byte are lost.
#[inline]
#[target_feature(enable = "neon")]
fn moved(a: uint8x16_t, from: u32, to: u32) -> uint8x16_t {
    vshlq_u8(a, vdupq_n_s8(to as i8 - from as i8))
}

/// `value` in the bytes of register `i` whose bit is set.
#[inline]
#[target_feature(enable = "neon")]
fn where_set(bits: uint8x16_t, i: usize, value: u8) -> uint8x16_t {
    let first = vdupq_n_u8(2 * i as u8);
    let owner = vaddq_u8(first, two_words(0, 0x0101_0101_0101_0101));
    let own = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
    let set = vtstq_u8(vqtbl1q_u8(bits, owner), own);
    vandq_u8(set, vdupq_n_u8(value))
}

/// Lanes 8 apart, then 4 apart.
#[inline]
#[target_feature(enable = "neon")]
fn add_quarters(a: F) -> float32x4_t {
    vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]))
}

impl<P: Products> Simd for Neon<P> {
    type F = F;
    type I = I;
    type B = B;
    const WIDEST: usize = 4;
    const TILE: [usize; 2] = [2, 2];
    const ACCUMULATORS: usize = 4;

    type Plain = Neon<Baseline>;

    fn plain(self) -> Neon<Baseline> {
        self.baseline()
    }

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        P::run(self, kernel)
    }

    ops! {
        fn prefetch(self, bytes: &[u8], ahead: usize) {
            // Prefetching never faults, so the address need not be valid.
            asm!(
                "prfm pldl1keep, [{0}]",
                in(reg) bytes.as_ptr().addr().wrapping_add(ahead),
                options(nomem, nostack, preserves_flags),
            );
        }
        fn zero(self) -> F { [vdupq_n_f32(0.0); 4] }
        fn splat(self, v: f32) -> F { [vdupq_n_f32(v); 4] }
        fn load(self, v: &[f32; 16]) -> F { each!(i => vld1q_f32(v.as_ptr().add(4 * i))) }
        fn load4(self, v: &[f32; 4]) -> F {
            let zero = vdupq_n_f32(0.0);
            [vld1q_f32(v.as_ptr()), zero, zero, zero]
        }
        fn store(self, a: F, to: &mut [f32; 16]) {
            each!(i => vst1q_f32(to.as_mut_ptr().add(4 * i), a[i]));
        }
        fn add(self, a: F, b: F) -> F { each!(i => vaddq_f32(a[i], b[i])) }
        fn sub(self, a: F, b: F) -> F { each!(i => vsubq_f32(a[i], b[i])) }
        fn mul(self, a: F, b: F) -> F { each!(i => vmulq_f32(a[i], b[i])) }
        fn div(self, a: F, b: F) -> F { each!(i => vdivq_f32(a[i], b[i])) }
        fn fma(self, a: F, b: F, c: F) -> F { each!(i => vfmaq_f32(c[i], a[i], b[i])) }
        fn fnma(self, a: F, b: F, c: F) -> F { each!(i => vfmsq_f32(c[i], a[i], b[i])) }
        // Not `fmax` and `fmin`, which return NaN if either is NaN and order the zeros.
        fn max(self, a: F, b: F) -> F {
            each!(i => vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]))
        }
        fn min(self, a: F, b: F) -> F {
            each!(i => vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]))
        }
        fn select_gt(self, a: F, b: F, yes: F, no: F) -> F {
            each!(i => vbslq_f32(vcgtq_f32(a[i], b[i]), yes[i], no[i]))
        }
        fn reduce_add(self, a: F) -> f32 {
            let a = add_quarters(a);
            vpadds_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a)))
        }
        fn reduce_max(self, a: F) -> f32 {
            vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(a[0], a[1]), vmaxnmq_f32(a[2], a[3])))
        }
        fn spread(self, a: F, p: usize) -> F {
            let group = a[p];
            [
                vdupq_laneq_f32::<0>(group),
                vdupq_laneq_f32::<1>(group),
                vdupq_laneq_f32::<2>(group),
                vdupq_laneq_f32::<3>(group),
            ]
        }
        fn even(self, a: F) -> F { each!(i => vtrn1q_f32(a[i], a[i])) }
        fn odd(self, a: F) -> F { each!(i => vtrn2q_f32(a[i], a[i])) }
        fn widen_f32(self, bytes: &[u8; 64]) -> F {
            each!(i => vreinterpretq_f32_u8(load_part(bytes, i)))
        }
        fn widen_f16(self, bytes: &[u8; 32]) -> F {
            let parts = bytes.as_chunks::<16>().0;
            let (low, high) = (f16_to_f32(load16(&parts[0])), f16_to_f32(load16(&parts[1])));
            [low[0], low[1], high[0], high[1]]
        }
        fn widen_bf16(self, bytes: &[u8; 32]) -> F {
            let zero = vdupq_n_u16(0);
            each!(i => {
                let four = vreinterpret_u16_u8(load8(&bytes.as_chunks::<8>().0[i]));
                let four = vcombine_u16(four, four);
                vreinterpretq_f32_u16(vzip1q_u16(zero, four))
            })
        }
        fn f16_pairs(self, words: [u32; 8]) -> F {
            let words: *const u32 = words.as_ptr();
            let low = f16_to_f32(vreinterpretq_u8_u32(vld1q_u32(words)));
            let high = f16_to_f32(vreinterpretq_u8_u32(vld1q_u32(words.add(4))));
            [low[0], low[1], high[0], high[1]]
        }
        fn u8_lanes(self, lo: u64, hi: u64) -> F { u8_to_f32(two_words(lo, hi)) }
        fn u8_pairs(self, a: u64, b: u64) -> F {
            u8_to_f32(vzip1q_u8(two_words(a, 0), two_words(b, 0)))
        }
        fn i8_lanes(self, lo: u64, hi: u64) -> F { i8_to_f32(two_words(lo, hi)) }
        fn round(self, a: F) -> I { each!(i => vcvtnq_s32_f32(a[i])) }
        fn to_f32(self, a: I) -> F { each!(i => vcvtq_f32_s32(a[i])) }
        fn pow2(self, a: I) -> F {
            let bias = vdupq_n_s32(127);
            each!(i => vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(a[i], bias))))
        }
        fn magnitude_bits(self, a: F) -> I { each!(i => vreinterpretq_s32_f32(vabsq_f32(a[i]))) }
        fn max_i32(self, a: I, b: I) -> I { each!(i => vmaxq_s32(a[i], b[i])) }
        fn reduce_max_i32(self, a: I) -> i32 {
            vmaxvq_s32(vmaxq_s32(vmaxq_s32(a[0], a[1]), vmaxq_s32(a[2], a[3])))
        }
        fn reduce_add_i32(self, a: I) -> i32 {
            vaddvq_s32(vaddq_s32(vaddq_s32(a[0], a[1]), vaddq_s32(a[2], a[3])))
        }
        fn store_i8(self, a: I, to: &mut [i8; 16]) {
            let low = vmovn_high_s32(vmovn_s32(a[0]), a[1]);
            let high = vmovn_high_s32(vmovn_s32(a[2]), a[3]);
            vst1q_s8(to.as_mut_ptr(), vmovn_high_s16(vmovn_s16(low), high));
        }
        fn bytes(self, b: &[i8; 64]) -> B {
            each!(i => vreinterpretq_u8_s8(vld1q_s8(b.as_ptr().add(16 * i))))
        }
        fn store_bytes(self, a: B, to: &mut [i8; 64]) {
            each!(i => vst1q_s8(to.as_mut_ptr().add(16 * i), vreinterpretq_s8_u8(a[i])));
        }
        fn halves(self, a: &[u8; 32], b: &[u8; 32]) -> B {
            let halves = [a.as_chunks::<16>().0, b.as_chunks::<16>().0];
            each!(i => load16(&halves[i / 2][i % 2]))
        }
        fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> B {
            let (a, b, mask) = (load16(a), load16(b), vdupq_n_u8(0x0f));
            [vandq_u8(a, mask), vshrq_n_u8::<4>(a), vandq_u8(b, mask), vshrq_n_u8::<4>(b)]
        }
        fn nibble_at(self, b: &[u8; 64], shift: u32) -> B {
            let mask = vdupq_n_u8(0x0f);
            each!(i => vandq_u8(moved(load_part(b, i), shift, 0), mask))
        }
        fn fields(self, b: &[u8; 32], from: [u32; 2], to: u32, mask: u8) -> B {
            let mask = vdupq_n_u8(mask);
            each!(i => {
                let bytes = load16(&b.as_chunks::<16>().0[i % 2]);
                vandq_u8(moved(bytes, from[i / 2], to), mask)
            })
        }
        fn or(self, a: B, b: B) -> B { each!(i => vorrq_u8(a[i], b[i])) }
        fn add_where(self, a: B, bits: u64, value: u8) -> B {
            let bits = two_words(bits, 0);
            each!(i => vaddq_u8(a[i], where_set(bits, i, value)))
        }
        fn nibble_levels(self, b: &[u8; 16], bias: f32) -> [F; 2] {
            let (b, bias) = (load16(b), vdupq_n_u8(bias as u8));
            let (low, high) = (vandq_u8(b, vdupq_n_u8(0x0f)), vshrq_n_u8::<4>(b));
            [i8_to_f32(vsubq_u8(low, bias)), i8_to_f32(vsubq_u8(high, bias))]
        }
        fn look_up(self, table: &[i8; 16], codes: B) -> B {
            let table = vreinterpretq_u8_s8(vld1q_s8(table.as_ptr()));
            each!(i => vqtbl1q_u8(table, codes[i]))
        }
        fn u8_part(self, a: B, j: usize) -> F { u8_to_f32(a[j]) }
        fn i8_part(self, a: B, j: usize) -> F { i8_to_f32(a[j]) }
        fn splat_i32(self, v: i32) -> I { [vdupq_n_s32(v); 4] }
        fn widen_u8(self, bytes: &[u8; 16]) -> I {
            let bytes = load16(bytes);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                vreinterpretq_s32_u32(vmovl_high_u16(low)),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                vreinterpretq_s32_u32(vmovl_high_u16(high)),
            ]
        }
        fn widen_i8(self, bytes: &[u8; 16]) -> I {
            let bytes = vreinterpretq_s8_u8(load16(bytes));
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ]
        }
        fn and(self, a: I, mask: i32) -> I { each!(i => vandq_s32(a[i], vdupq_n_s32(mask))) }
        fn or_i32(self, a: I, b: I) -> I { each!(i => vorrq_s32(a[i], b[i])) }
        fn words(self, b: &[u8; 64]) -> I { each!(i => vreinterpretq_s32_u8(load_part(b, i))) }
        fn store_words(self, a: I, to: &mut [u8; 64]) {
            each!(i => vst1q_u8(to.as_mut_ptr().add(16 * i), vreinterpretq_u8_s32(a[i])));
        }
        fn xor(self, a: I, mask: i32) -> I { each!(i => veorq_s32(a[i], vdupq_n_s32(mask))) }
        fn add_i32(self, a: I, b: I) -> I { each!(i => vaddq_s32(a[i], b[i])) }
        fn sub_i32(self, a: I, b: I) -> I { each!(i => vsubq_s32(a[i], b[i])) }
        fn bits_as_f32(self, a: I) -> F { each!(i => vreinterpretq_f32_s32(a[i])) }
        fn dot_halves(self, acc: I, a: I, b: I) -> I {
            each!(i => {
                let (a, b) = (vreinterpretq_s16_s32(a[i]), vreinterpretq_s16_s32(b[i]));
                let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
                vaddq_s32(acc[i], vpaddq_s32(low, vmull_high_s16(a, b)))
            })
        }
        fn shift_left(self, a: I, by: u32) -> I {
            each!(i => vshlq_s32(a[i], vdupq_n_s32(by as i32)))
        }
        fn shift_right(self, a: I, by: u32) -> I {
            let by = vdupq_n_s32(-(by as i32));
            each!(i => vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a[i]), by)))
        }
        fn field(self, a: B, from: u32, to: u32, mask: u8) -> B {
            each!(i => vandq_u8(moved(a[i], from, to), vdupq_n_u8(mask)))
        }
        fn fold(self, p: &[f32; 16], acc: &mut [i64; 16]) -> bool {
            let v = each!(i => vld1q_f32(p.as_ptr().add(4 * i)));
            let limit = vdupq_n_f32(fixed::LIMIT);
            let [a, b, c, d] = each!(i => vcaleq_f32(v[i], limit));
            let within = vandq_u32(vandq_u32(a, b), vandq_u32(c, d));
            if vminvq_u32(within) != u32::MAX {
                return fixed::fold_each(p, acc);
            }
            each!(i => {
                let wide = [vcvt_f64_f32(vget_low_f32(v[i])), vcvt_high_f64_f32(v[i])];
                for (half, wide) in wide.into_iter().enumerate() {
                    let to = acc.as_mut_ptr().add(4 * i + 2 * half);
                    let units = vcvtnq_s64_f64(vmulq_n_f64(wide, fixed::UNIT));
                    vst1q_s64(to, vaddq_s64(vld1q_s64(to), units));
                }
            });
            true
        }
        fn unfold(self, sum: &[i64; 16], x: &mut [f32; 16]) {
            each!(i => {
                let from = sum.as_ptr().add(4 * i);
                let low = vmulq_n_f64(vcvtq_f64_s64(vld1q_s64(from)), 1.0 / fixed::UNIT);
                let high = vmulq_n_f64(vcvtq_f64_s64(vld1q_s64(from.add(2))), 1.0 / fixed::UNIT);
                let sum = vcvt_high_f32_f64(vcvt_f32_f64(low), high);
                let to = x.as_mut_ptr().add(4 * i);
                vst1q_f32(to, vaddq_f32(vld1q_f32(to), sum));
            });
        }
    }

    #[inline(always)]
    fn dot_u8(self, codes: B, x: B) -> I {
        each!(i => self.0.dot(codes[i], x[i]))
    }

    #[inline(always)]
    fn dot_i8(self, codes: B, x: B) -> I {
        each!(i => self.0.dot(codes[i], x[i]))
    }

    #[inline(always)]
    fn dot_unsigned<const N: usize>(
        self,
        codes: [B; N],
        x: &[[i8; 4]; N],
        start: I,
        _max: i32,
    ) -> I {
        if let (Some(codes), Some(x)) = (codes.first_chunk(), x.first_chunk::<8>()) {
            return self.add_i32(start, self.0.dot_block(*codes, bytemuck::cast_ref(x), 0));
        }
        let mut sum = start;
        unrolled!(g in 0..N, max 8 => { sum = self.dot_add(sum, codes[g], x[g]); });
        sum
    }

    #[inline(always)]
    fn dot_unsigned_pair(
        self,
        codes: [B; GROUPS],
        x: [&[[i8; 4]; GROUPS]; 2],
        starts: [I; 2],
        _max: i32,
    ) -> [I; 2] {
        let x = [bytemuck::cast_ref(x[0]), bytemuck::cast_ref(x[1])];
        let sums = self.0.dot_block_pair(codes, x, [0; 2]);
        [
            self.add_i32(starts[0], sums[0]),
            self.add_i32(starts[1], sums[1]),
        ]
    }

    /// All products here are signed.
    #[inline(always)]
    fn dot_signed<const N: usize>(self, codes: [B; N], x: &[[i8; 4]; N], _count: i32) -> I {
        self.dot_unsigned(codes, x, self.splat_i32(0), 127)
    }

    #[inline(always)]
    fn dot_signed_pair(
        self,
        codes: [B; GROUPS],
        x: [&[[i8; 4]; GROUPS]; 2],
        _counts: [i32; 2],
    ) -> [I; 2] {
        self.dot_unsigned_pair(codes, x, [self.splat_i32(0); 2], 127)
    }

    #[inline(always)]
    fn dot_origin(self, _sum: i32) -> I {
        self.splat_i32(0)
    }

    #[inline(always)]
    fn dot_add(self, acc: I, codes: B, x: [i8; 4]) -> I {
        // SAFETY: `self` proves that the CPU has the instructions.
        let x = unsafe { vreinterpretq_u8_s32(vdupq_n_s32(bytemuck::cast(x))) };
        self.add_i32(acc, each!(i => self.0.dot(codes[i], x)))
    }

    #[inline(always)]
    fn dot_u8_into(self, acc: I, codes: B, x: B) -> I {
        self.add_i32(acc, self.dot_u8(codes, x))
    }
}
