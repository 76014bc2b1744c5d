//! AVX2 with FMA and F16C: two registers per vector.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use codes::{i8_to_f32, load16, load32, moved, nibbles, part, u8_to_f32, where_set};

use crate::fixed;
use crate::prefetch::FAR;
use crate::simd::{GROUPS, Kernel, Simd, TOGETHER, unrolled};

/// Proof that the CPU has the instructions of [`Avx2::run`]; only `detect` makes it. With `VNNI`, sums of
/// products of bytes are one instruction (AVX-VNNI).
#[derive(Clone, Copy)]
pub(super) struct Avx2<const VNNI: bool>(());

fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

impl Avx2<false> {
    /// The proof, if the CPU has the instructions.
    pub(super) fn detect() -> Option<&'static Self> {
        has_avx2().then_some(&Self(()))
    }
}

impl Avx2<true> {
    /// The proof, if the CPU has the instructions.
    pub(super) fn detect() -> Option<&'static Self> {
        (has_avx2() && is_x86_feature_detected!("avxvnni")).then_some(&Self(()))
    }
}

/// Two registers of 8 f32.
type F = [__m256; 2];
/// Two registers of 8 i32 or 32 bytes.
type I = [__m256i; 2];

/// The same for both registers.
macro_rules! both {
    ($i:ident => $e:expr) => {{
        let low = {
            let $i = 0;
            $e
        };
        let high = {
            let $i = 1;
            $e
        };
        [low, high]
    }};
}

mod codes;
mod products;

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
#[target_feature(enable = "avx2")]
fn dot(codes: __m256i, x: __m256i) -> __m256i {
    _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1))
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type F = F;
    type I = I;
    type B = I;
    const WIDEST: usize = 16;

    const AHEAD_OF_SIX_BITS: usize = FAR;

    const BY_GROUP: bool = true;

    const TILE: [usize; 2] = [6, 1];

    const ACCUMULATORS: usize = 4;

    type Plain = Avx2<false>;

    fn plain(self) -> Avx2<false> {
        Avx2(())
    }

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn plain<S: Simd, K: Kernel>(s: S, kernel: K) -> K::Output {
            kernel.run(s)
        }
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn vnni<S: Simd, K: Kernel>(s: S, kernel: K) -> K::Output {
            kernel.run(s)
        }
        // SAFETY: `self` proves that the CPU has these instructions.
        unsafe {
            if const { VNNI } {
                vnni(self, kernel)
            } else {
                plain(self, kernel)
            }
        }
    }

    ops! {
        fn prefetch(self, bytes: &[u8], ahead: usize) {
            // Into the second cache, as in AVX-512. Prefetching never faults, so the address need not be valid.
            _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().wrapping_add(ahead).cast());
        }
        fn zero(self) -> F { [_mm256_setzero_ps(); 2] }
        fn splat(self, v: f32) -> F { [_mm256_set1_ps(v); 2] }
        fn load(self, v: &[f32; 16]) -> F {
            [_mm256_loadu_ps(v.as_ptr()), _mm256_loadu_ps(v.as_ptr().add(8))]
        }
        fn load4(self, v: &[f32; 4]) -> F {
            [_mm256_zextps128_ps256(_mm_loadu_ps(v.as_ptr())), _mm256_setzero_ps()]
        }
        fn store(self, a: F, to: &mut [f32; 16]) {
            _mm256_storeu_ps(to.as_mut_ptr(), a[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), a[1]);
        }
        fn add(self, a: F, b: F) -> F { both!(i => _mm256_add_ps(a[i], b[i])) }
        fn sub(self, a: F, b: F) -> F { both!(i => _mm256_sub_ps(a[i], b[i])) }
        fn mul(self, a: F, b: F) -> F { both!(i => _mm256_mul_ps(a[i], b[i])) }
        fn div(self, a: F, b: F) -> F { both!(i => _mm256_div_ps(a[i], b[i])) }
        fn fma(self, a: F, b: F, c: F) -> F {
            both!(i => _mm256_fmadd_ps(a[i], b[i], c[i]))
        }
        fn fnma(self, a: F, b: F, c: F) -> F {
            both!(i => _mm256_fnmadd_ps(a[i], b[i], c[i]))
        }
        fn max(self, a: F, b: F) -> F { both!(i => _mm256_max_ps(a[i], b[i])) }
        fn min(self, a: F, b: F) -> F { both!(i => _mm256_min_ps(a[i], b[i])) }
        fn select_gt(self, a: F, b: F, yes: F, no: F) -> F {
            both!(i => {
                let greater = _mm256_cmp_ps::<_CMP_GT_OQ>(a[i], b[i]);
                _mm256_blendv_ps(no[i], yes[i], greater)
            })
        }
        fn reduce_add(self, a: F) -> f32 {
            let a = _mm256_add_ps(a[0], a[1]);
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        }
        fn reduce_max(self, a: F) -> f32 {
            let a = _mm256_max_ps(a[0], a[1]);
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)))
        }
        fn spread(self, a: F, p: usize) -> F {
            let first = _mm256_set1_epi32(4 * (p as i32 % 2));
            let low = _mm256_add_epi32(first, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
            let high = _mm256_add_epi32(first, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3));
            let half = a[p / 2];
            [_mm256_permutevar8x32_ps(half, low), _mm256_permutevar8x32_ps(half, high)]
        }
        fn even(self, a: F) -> F { both!(i => _mm256_moveldup_ps(a[i])) }
        fn odd(self, a: F) -> F { both!(i => _mm256_movehdup_ps(a[i])) }
        fn widen_f32(self, bytes: &[u8; 64]) -> F {
            let p: *const f32 = bytes.as_ptr().cast();
            [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))]
        }
        fn widen_f16(self, bytes: &[u8; 32]) -> F {
            let p: *const __m128i = bytes.as_ptr().cast();
            [_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1)))]
        }
        fn widen_bf16(self, bytes: &[u8; 32]) -> F {
            let p: *const __m128i = bytes.as_ptr().cast();
            both!(i => {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(i)));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            })
        }
        fn f16_pairs(self, words: [u32; 8]) -> F {
            let [a, b, c, d, e, f, g, h]: [i32; 8] = bytemuck::cast(words);
            let halves = [_mm_setr_epi32(a, b, c, d), _mm_setr_epi32(e, f, g, h)];
            both!(i => _mm256_cvtph_ps(halves[i]))
        }
        fn u8_lanes(self, lo: u64, hi: u64) -> F { u8_to_f32(_mm_set_epi64x(hi as i64, lo as i64)) }
        fn u8_pairs(self, a: u64, b: u64) -> F {
            let (a, b) = (_mm_cvtsi64_si128(a as i64), _mm_cvtsi64_si128(b as i64));
            u8_to_f32(_mm_unpacklo_epi8(a, b))
        }
        fn i8_lanes(self, lo: u64, hi: u64) -> F { i8_to_f32(_mm_set_epi64x(hi as i64, lo as i64)) }
        fn round(self, a: F) -> I {
            // Nearest even, whatever the thread's rounding mode.
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            both!(i => _mm256_cvtps_epi32(_mm256_round_ps::<NEAREST>(a[i])))
        }
        fn to_f32(self, a: I) -> F { both!(i => _mm256_cvtepi32_ps(a[i])) }
        fn pow2(self, a: I) -> F {
            let bias = _mm256_set1_epi32(127);
            both!(i => {
                let biased = _mm256_add_epi32(a[i], bias);
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            })
        }
        fn magnitude_bits(self, a: F) -> I {
            let mask = _mm256_set1_epi32(0x7fff_ffff);
            both!(i => _mm256_and_si256(_mm256_castps_si256(a[i]), mask))
        }
        fn max_i32(self, a: I, b: I) -> I {
            both!(i => _mm256_max_epi32(a[i], b[i]))
        }
        fn reduce_max_i32(self, a: I) -> i32 {
            let a = _mm256_max_epi32(a[0], a[1]);
            let a = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let a = _mm_max_epi32(a, _mm_shuffle_epi32::<0b01_00_11_10>(a));
            _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32::<0b10_11_00_01>(a)))
        }
        fn reduce_add_i32(self, a: I) -> i32 {
            let a = _mm256_add_epi32(a[0], a[1]);
            let a = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let a = _mm_add_epi32(a, _mm_shuffle_epi32::<0b01_00_11_10>(a));
            _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32::<0b10_11_00_01>(a)))
        }
        fn store_i8(self, a: I, to: &mut [i8; 16]) {
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(a[0], a[1]));
            let (low, high) = (
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            _mm_storeu_si128(to.as_mut_ptr().cast(), _mm_packs_epi16(low, high));
        }
        fn bytes(self, b: &[i8; 64]) -> I {
            let p: *const __m256i = b.as_ptr().cast();
            both!(i => _mm256_loadu_si256(p.add(i)))
        }
        fn store_bytes(self, a: I, to: &mut [i8; 64]) {
            let p: *mut __m256i = to.as_mut_ptr().cast();
            both!(i => _mm256_storeu_si256(p.add(i), a[i]));
        }
        fn halves(self, a: &[u8; 32], b: &[u8; 32]) -> I { [load32(a), load32(b)] }
        fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> I { [nibbles(a), nibbles(b)] }
        fn nibble_at(self, b: &[u8; 64], shift: u32) -> I {
            let p: *const __m256i = b.as_ptr().cast();
            both!(i => {
                let codes = moved(_mm256_loadu_si256(p.add(i)), shift, 0);
                _mm256_and_si256(codes, _mm256_set1_epi8(0x0f))
            })
        }
        fn fields(self, b: &[u8; 32], from: [u32; 2], to: u32, mask: u8) -> I {
            let (b, mask) = (load32(b), _mm256_set1_epi8(mask as i8));
            both!(i => _mm256_and_si256(moved(b, from[i], to), mask))
        }
        fn or(self, a: I, b: I) -> I {
            both!(i => _mm256_or_si256(a[i], b[i]))
        }
        fn add_where(self, a: I, bits: u64, value: u8) -> I {
            both!(i => _mm256_add_epi8(a[i], where_set((bits >> (32 * i)) as u32, value)))
        }
        fn look_up(self, table: &[i8; 16], codes: I) -> I {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            both!(i => _mm256_shuffle_epi8(table, codes[i]))
        }
        fn u8_part(self, a: I, j: usize) -> F { u8_to_f32(part(a, j)) }
        fn i8_part(self, a: I, j: usize) -> F { i8_to_f32(part(a, j)) }
        fn nibble_levels(self, b: &[u8; 16], bias: f32) -> [F; 2] {
            let b = load16(b);
            let (mask, bias) = (_mm_set1_epi8(0x0f), _mm_set1_epi8(bias as i8));
            let low = _mm_and_si128(b, mask);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(b), mask);
            [i8_to_f32(_mm_sub_epi8(low, bias)), i8_to_f32(_mm_sub_epi8(high, bias))]
        }
        fn dot_u8(self, codes: I, x: I) -> I { both!(i => dot(codes[i], x[i])) }
        fn dot_i8(self, codes: I, x: I) -> I {
            both!(i => dot(_mm256_abs_epi8(codes[i]), _mm256_sign_epi8(x[i], codes[i])))
        }
        fn splat_i32(self, v: i32) -> I { [_mm256_set1_epi32(v); 2] }
        fn widen_u8(self, bytes: &[u8; 16]) -> I {
            both!(i => _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.as_ptr().add(8 * i).cast())))
        }
        fn widen_i8(self, bytes: &[u8; 16]) -> I {
            both!(i => _mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes.as_ptr().add(8 * i).cast())))
        }
        fn and(self, a: I, mask: i32) -> I {
            both!(i => _mm256_and_si256(a[i], _mm256_set1_epi32(mask)))
        }
        fn or_i32(self, a: I, b: I) -> I { both!(i => _mm256_or_si256(a[i], b[i])) }
        fn words(self, b: &[u8; 64]) -> I {
            let p: *const __m256i = b.as_ptr().cast();
            both!(i => _mm256_loadu_si256(p.add(i)))
        }
        fn store_words(self, a: I, to: &mut [u8; 64]) {
            let p: *mut __m256i = to.as_mut_ptr().cast();
            both!(i => _mm256_storeu_si256(p.add(i), a[i]));
        }
        fn xor(self, a: I, mask: i32) -> I {
            both!(i => _mm256_xor_si256(a[i], _mm256_set1_epi32(mask)))
        }
        fn add_i32(self, a: I, b: I) -> I { both!(i => _mm256_add_epi32(a[i], b[i])) }
        fn sub_i32(self, a: I, b: I) -> I { both!(i => _mm256_sub_epi32(a[i], b[i])) }
        fn bits_as_f32(self, a: I) -> F { both!(i => _mm256_castsi256_ps(a[i])) }
        fn dot_halves(self, acc: I, a: I, b: I) -> I {
            both!(i => _mm256_add_epi32(acc[i], _mm256_madd_epi16(a[i], b[i])))
        }
        fn shift_left(self, a: I, by: u32) -> I {
            both!(i => _mm256_sll_epi32(a[i], _mm_cvtsi32_si128(by as i32)))
        }
        fn shift_right(self, a: I, by: u32) -> I {
            both!(i => _mm256_srl_epi32(a[i], _mm_cvtsi32_si128(by as i32)))
        }
        fn field(self, a: I, from: u32, to: u32, mask: u8) -> I {
            both!(i => _mm256_and_si256(moved(a[i], from, to), _mm256_set1_epi8(mask as i8)))
        }
        fn dot_origin(self, _sum: i32) -> I { [_mm256_setzero_si256(); 2] }
        fn dot_add(self, acc: I, codes: I, x: [i8; 4]) -> I {
            let x = _mm256_set1_epi32(word(x));
            both!(i => {
                let product = dot(_mm256_abs_epi8(codes[i]), _mm256_sign_epi8(x, codes[i]));
                _mm256_add_epi32(acc[i], product)
            })
        }
        fn dot_u8_into(self, acc: I, codes: I, x: I) -> I {
            both!(i => _mm256_add_epi32(acc[i], dot(codes[i], x[i])))
        }
        fn fold(self, p: &[f32; 16], acc: &mut [i64; 16]) -> bool {
            // Adding 1.5 * 2^52 to a number below 2^51 rounds it (to even) to the last bit of the
            // significand: the difference of the bits is the integer.
            const MAGIC: f64 = 6_755_399_441_055_744.0;
            let limit = _mm256_set1_ps((1_u32 << 18) as f32);
            let sign = _mm256_set1_ps(-0.0);
            let within = both!(i => {
                let magnitude = _mm256_andnot_ps(sign, _mm256_loadu_ps(p.as_ptr().add(8 * i)));
                _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(magnitude, limit))
            });
            if within != [0xff; 2] {
                return fixed::fold_each(p, acc);
            }
            let (unit, magic) = (_mm256_set1_pd(fixed::UNIT), _mm256_set1_pd(MAGIC));
            for (p, acc) in p.as_chunks::<4>().0.iter().zip(acc.as_chunks_mut::<4>().0) {
                let scaled = _mm256_mul_pd(_mm256_cvtps_pd(_mm_loadu_ps(p.as_ptr())), unit);
                let rounded = _mm256_castpd_si256(_mm256_add_pd(scaled, magic));
                let value = _mm256_sub_epi64(rounded, _mm256_castpd_si256(magic));
                let to: *mut __m256i = acc.as_mut_ptr().cast();
                _mm256_storeu_si256(to, _mm256_add_epi64(_mm256_loadu_si256(to), value));
            }
            true
        }
    }

    /// Sums of two pairs fit into 16 bits at least: `4 * 63 * 127 = 32004`.
    #[inline(always)]
    fn dot_unsigned<const N: usize>(
        self,
        codes: [I; N],
        x: &[[i8; 4]; N],
        start: I,
        max: i32,
    ) -> I {
        let mut sum = start;
        if const { VNNI } {
            unrolled!(g in 0..N, max 8 => {
                // SAFETY: `self` proves that the CPU has the instructions.
                sum = unsafe {
                    let x = _mm256_set1_epi32(word(x[g]));
                    both!(i => _mm256_dpbusd_avx_epi32(sum[i], codes[g][i], x))
                };
            });
            return sum;
        }
        let fit = products::that_fit(max);
        let mut products = sum;
        unrolled!(g in 0..N, max 8 => {
            // SAFETY: `self` proves that the CPU has the instructions.
            unsafe {
                let x = _mm256_set1_epi32(word(x[g]));
                let more = both!(i => _mm256_maddubs_epi16(codes[g][i], x));
                products = match g % fit {
                    0 => more,
                    _ => both!(i => _mm256_add_epi16(products[i], more[i])),
                };
                if g % fit == fit - 1 || g == N - 1 {
                    let ones = _mm256_set1_epi16(1);
                    sum = both!(i => {
                        _mm256_add_epi32(sum[i], _mm256_madd_epi16(products[i], ones))
                    });
                }
            }
        });
        sum
    }

    #[inline(always)]
    fn dot_unsigned_together<const N: usize>(
        self,
        codes: &[I; N],
        (x, first): (&products::Tokens, usize),
        starts: [I; TOGETHER],
        max: i32,
    ) -> [I; TOGETHER] {
        // SAFETY: `self` proves that the CPU has the instructions.
        unsafe {
            match const { VNNI } {
                true => products::accumulated(codes, (x, first), starts),
                false => products::unsigned(codes, (x, first), starts, max),
            }
        }
    }

    #[inline(always)]
    fn dot_signed_together(
        self,
        codes: &[I; GROUPS],
        x: &products::Tokens,
        counts: [i32; TOGETHER],
    ) -> [I; TOGETHER] {
        if const { VNNI } {
            let mut starts = [self.splat_i32(0); TOGETHER];
            unrolled!(t in 0..4 => { starts[t] = self.shift_left(self.splat_i32(counts[t]), 7); });
            return self.dot_unsigned_together(&without_sign(*codes), (x, 0), starts, 255);
        }
        // SAFETY: `self` proves that the CPU has the instructions.
        unsafe { products::signed(codes, x) }
    }

    /// As `|code| * (x * sign)`, whose pairs are at most `2 * 128 * 127 = 32512`; with VNNI as
    /// `(code + 128) * x`, where `128 * sum(x)` was subtracted first.
    #[inline(always)]
    fn dot_signed<const N: usize>(self, codes: [I; N], x: &[[i8; 4]; N], count: i32) -> I {
        if const { VNNI } {
            let start = self.shift_left(self.splat_i32(count), 7);
            return self.dot_unsigned(without_sign(codes), x, start, 255);
        }
        let mut sum = self.splat_i32(0);
        unrolled!(g in 0..N, max 8 => { sum = self.dot_add(sum, codes[g], x[g]); });
        sum
    }
}

/// `code + 128`.
#[inline(always)]
fn without_sign<const N: usize>(mut codes: [I; N]) -> [I; N] {
    unrolled!(g in 0..N, max 8 => {
        // SAFETY: only called where `Avx2` proves that the CPU has the instructions.
        codes[g] = unsafe { both!(i => _mm256_xor_si256(codes[g][i], _mm256_set1_epi8(i8::MIN))) };
    });
    codes
}

/// Four signed bytes as they are in memory.
#[inline(always)]
fn word(x: [i8; 4]) -> i32 {
    bytemuck::cast(x)
}
