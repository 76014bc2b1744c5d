//! AVX-512 with VNNI: one register per vector.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use crate::fixed;
use crate::panel_formats::{Halves, PanelFormat};
use crate::simd::{GROUPS, Kernel, Simd, unrolled};
use crate::tokens::PanelTokens;

mod products;

/// Proof that the CPU has the instructions of [`Avx512::run`]; only [`Avx512::detect`] makes it.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// The proof, if the CPU has the instructions.
    pub(super) fn detect() -> Option<&'static Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(&Self(()))
    }

    /// Signed codes plus 128.
    #[inline(always)]
    fn without_sign<const N: usize>(self, mut codes: [__m512i; N]) -> [__m512i; N] {
        // SAFETY: `self` proves that the CPU has the instructions.
        let top = unsafe { _mm512_set1_epi8(i8::MIN) };
        unrolled!(g in 0..N, max 8 => {
            // SAFETY: as above.
            codes[g] = unsafe { _mm512_xor_si512(codes[g], top) };
        });
        codes
    }
}

/// `a & b | c` of three bits, as a table of the eight results.
const AND_OR: i32 = 0b1110_1010;

/// Methods of one or a few instructions.
macro_rules! ops {
    ($(fn $name:ident(self $(, $a:ident: $t:ty)*) $(-> $r:ty)? $body:block)*) => {$(
        #[inline(always)]
        fn $name(self $(, $a: $t)*) $(-> $r)? {
            // SAFETY: `self` proves that the CPU has the instructions, and every load and store goes
            // through a reference to an array of exactly the size that the instruction touches.
            unsafe { $body }
        }
    )*};
}

/// The 32 bytes in both halves.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn twice(b: &[u8; 32]) -> __m512i {
    // SAFETY: 32 bytes behind the reference.
    _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(b.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn part(a: __m512i, j: usize) -> __m128i {
    match j {
        0 => _mm512_castsi512_si128(a),
        1 => _mm512_extracti32x4_epi32::<1>(a),
        2 => _mm512_extracti32x4_epi32::<2>(a),
        _ => _mm512_extracti32x4_epi32::<3>(a),
    }
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;
    const WIDEST: usize = 16;

    const TILE: [usize; 2] = [6, 4];

    const ACCUMULATORS: usize = 12;

    type Plain = Self;

    fn plain(self) -> Self {
        self
    }

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        #[inline(never)]
        fn inner<K: Kernel>(s: Avx512, kernel: K) -> K::Output {
            kernel.run(s)
        }
        // SAFETY: `self` proves that the CPU has these instructions.
        unsafe { inner(self, kernel) }
    }

    ops! {
        fn prefetch(self, bytes: &[u8], ahead: usize) {
            // Into the second cache: a core waits for many more lines there than on the way into its first (Zen 4: 16
            // GB/s instead of 10 of rows anywhere in memory), and from there they arrive in time. Prefetching never
            // faults, so the address need not be valid.
            _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().wrapping_add(ahead).cast());
        }
        fn zero(self) -> __m512 { _mm512_setzero_ps() }
        fn splat(self, v: f32) -> __m512 { _mm512_set1_ps(v) }
        fn load(self, v: &[f32; 16]) -> __m512 { _mm512_loadu_ps(v.as_ptr()) }
        fn load4(self, v: &[f32; 4]) -> __m512 { _mm512_zextps128_ps512(_mm_loadu_ps(v.as_ptr())) }
        fn store(self, a: __m512, to: &mut [f32; 16]) { _mm512_storeu_ps(to.as_mut_ptr(), a); }
        fn add(self, a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(self, a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(self, a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(self, a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn fnma(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fnmadd_ps(a, b, c) }
        fn max(self, a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn min(self, a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn select_gt(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), no, yes)
        }
        fn reduce_add(self, a: __m512) -> f32 {
            let a = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        }
        fn reduce_max(self, a: __m512) -> f32 { _mm512_reduce_max_ps(a) }
        fn spread(self, a: __m512, p: usize) -> __m512 {
            let groups = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
            let index = _mm512_add_epi32(groups, _mm512_set1_epi32(4 * p as i32));
            _mm512_permutexvar_ps(index, a)
        }
        fn even(self, a: __m512) -> __m512 { _mm512_moveldup_ps(a) }
        fn odd(self, a: __m512) -> __m512 { _mm512_movehdup_ps(a) }
        fn widen_f32(self, bytes: &[u8; 64]) -> __m512 { _mm512_loadu_ps(bytes.as_ptr().cast()) }
        fn widen_f16(self, bytes: &[u8; 32]) -> __m512 {
            _mm512_cvtph_ps(_mm256_loadu_si256(bytes.as_ptr().cast()))
        }
        fn widen_bf16(self, bytes: &[u8; 32]) -> __m512 {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bytes.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
        fn f16_pairs(self, words: [u32; 8]) -> __m512 {
            let [a, b, c, d, e, f, g, h]: [i32; 8] = bytemuck::cast(words);
            _mm512_cvtph_ps(_mm256_setr_epi32(a, b, c, d, e, f, g, h))
        }
        fn u8_lanes(self, lo: u64, hi: u64) -> __m512 {
            let bytes = _mm_set_epi64x(hi as i64, lo as i64);
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))
        }
        fn u8_pairs(self, a: u64, b: u64) -> __m512 {
            let bytes = _mm_unpacklo_epi8(_mm_cvtsi64_si128(a as i64), _mm_cvtsi64_si128(b as i64));
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))
        }
        fn i8_lanes(self, lo: u64, hi: u64) -> __m512 {
            let bytes = _mm_set_epi64x(hi as i64, lo as i64);
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
        }
        fn round(self, a: __m512) -> __m512i {
            _mm512_cvt_roundps_epi32::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
        }
        fn to_f32(self, a: __m512i) -> __m512 { _mm512_cvtepi32_ps(a) }
        fn pow2(self, a: __m512i) -> __m512 {
            let biased = _mm512_add_epi32(a, _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
        fn magnitude_bits(self, a: __m512) -> __m512i {
            _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fff_ffff))
        }
        fn max_i32(self, a: __m512i, b: __m512i) -> __m512i { _mm512_max_epi32(a, b) }
        fn reduce_max_i32(self, a: __m512i) -> i32 { _mm512_reduce_max_epi32(a) }
        fn reduce_add_i32(self, a: __m512i) -> i32 { _mm512_reduce_add_epi32(a) }
        fn store_i8(self, a: __m512i, to: &mut [i8; 16]) {
            _mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(a));
        }
        fn bytes(self, b: &[i8; 64]) -> __m512i { _mm512_loadu_si512(b.as_ptr().cast()) }
        fn store_bytes(self, a: __m512i, to: &mut [i8; 64]) {
            _mm512_storeu_si512(to.as_mut_ptr().cast(), a);
        }
        fn halves(self, a: &[u8; 32], b: &[u8; 32]) -> __m512i {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(a.as_ptr().cast()));
            _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(b.as_ptr().cast()))
        }
        fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> __m512i {
            let a = _mm512_broadcast_i32x4(_mm_loadu_si128(a.as_ptr().cast()));
            let b = _mm_loadu_si128(b.as_ptr().cast());
            let both = _mm512_mask_broadcast_i32x4(a, 0xff00, b);
            let shift = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4);
            _mm512_and_si512(_mm512_srlv_epi32(both, shift), _mm512_set1_epi8(0x0f))
        }
        fn nibble_at(self, b: &[u8; 64], shift: u32) -> __m512i {
            let b = _mm512_loadu_si512(b.as_ptr().cast());
            let moved = _mm512_srlv_epi32(b, _mm512_set1_epi32(shift as i32));
            _mm512_and_si512(moved, _mm512_set1_epi8(0x0f))
        }
        fn fields(self, b: &[u8; 32], from: [u32; 2], to: u32, mask: u8) -> __m512i {
            // A rotation of a word by less than 8 bits either way moves a field inside its byte;
            // what is shifted in from other bytes is cut off by the mask.
            let lo = (from[0] as i32 - to as i32) & 31;
            let hi = (from[1] as i32 - to as i32) & 31;
            let by = _mm512_inserti64x4::<1>(_mm512_set1_epi32(lo), _mm256_set1_epi32(hi));
            _mm512_and_si512(_mm512_rorv_epi32(twice(b), by), _mm512_set1_epi8(mask as i8))
        }
        fn or(self, a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn add_where(self, a: __m512i, bits: u64, value: u8) -> __m512i {
            _mm512_mask_add_epi8(a, bits, a, _mm512_set1_epi8(value as i8))
        }
        fn look_up(self, table: &[i8; 16], codes: __m512i) -> __m512i {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, codes)
        }
        fn u8_part(self, a: __m512i, j: usize) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(part(a, j)))
        }
        fn i8_part(self, a: __m512i, j: usize) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(part(a, j)))
        }
        fn nibble_levels(self, b: &[u8; 16], bias: f32) -> [__m512; 2] {
            // Low nibbles are looked up: the permutation sees the low 4 bits of a lane only. High ones become the last
            // bits of 2^19 + code. Shifting or looking up both would be as many instructions, but for ports that are
            // already busy.
            let codes = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
                8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
            );
            const ORIGIN: f32 = (1 << 19) as f32;
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(b.as_ptr().cast()));
            let origin = _mm512_set1_epi32(ORIGIN.to_bits() as i32);
            let high = _mm512_ternarylogic_epi32::<AND_OR>(bytes, _mm512_set1_epi32(0xf0), origin);
            [
                _mm512_permutexvar_ps(bytes, _mm512_sub_ps(codes, _mm512_set1_ps(bias))),
                _mm512_sub_ps(_mm512_castsi512_ps(high), _mm512_set1_ps(ORIGIN + bias)),
            ]
        }
        fn dot_u8(self, codes: __m512i, x: __m512i) -> __m512i {
            _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, x)
        }
        fn dot_i8(self, codes: __m512i, x: __m512i) -> __m512i {
            let negative = _mm512_movepi8_mask(codes);
            let signed = _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x);
            _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_abs_epi8(codes), signed)
        }
        fn splat_i32(self, v: i32) -> __m512i { _mm512_set1_epi32(v) }
        fn widen_u8(self, bytes: &[u8; 16]) -> __m512i {
            _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()))
        }
        fn widen_i8(self, bytes: &[u8; 16]) -> __m512i {
            _mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()))
        }
        fn and(self, a: __m512i, mask: i32) -> __m512i {
            _mm512_and_si512(a, _mm512_set1_epi32(mask))
        }
        fn or_i32(self, a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn words(self, b: &[u8; 64]) -> __m512i { _mm512_loadu_si512(b.as_ptr().cast()) }
        fn store_words(self, a: __m512i, to: &mut [u8; 64]) {
            _mm512_storeu_si512(to.as_mut_ptr().cast(), a);
        }
        fn xor(self, a: __m512i, mask: i32) -> __m512i {
            _mm512_xor_si512(a, _mm512_set1_epi32(mask))
        }
        fn add_i32(self, a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        fn sub_i32(self, a: __m512i, b: __m512i) -> __m512i { _mm512_sub_epi32(a, b) }
        fn bits_as_f32(self, a: __m512i) -> __m512 { _mm512_castsi512_ps(a) }
        fn dot_halves(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
            _mm512_dpwssd_epi32(acc, a, b)
        }
        fn shift_left(self, a: __m512i, by: u32) -> __m512i {
            _mm512_sll_epi32(a, _mm_cvtsi32_si128(by as i32))
        }
        fn shift_right(self, a: __m512i, by: u32) -> __m512i {
            _mm512_srl_epi32(a, _mm_cvtsi32_si128(by as i32))
        }
        fn field(self, a: __m512i, from: u32, to: u32, mask: u8) -> __m512i {
            // Bits that cross into the neighbouring byte are cut off by the mask.
            let by = _mm_cvtsi32_si128(from.abs_diff(to) as i32);
            let moved = if from > to { _mm512_srl_epi16(a, by) } else { _mm512_sll_epi16(a, by) };
            _mm512_and_si512(moved, _mm512_set1_epi8(mask as i8))
        }
        fn dot_origin(self, sum: i32) -> __m512i { _mm512_set1_epi32(-128 * sum) }
        fn dot_add(self, acc: __m512i, codes: __m512i, x: [i8; 4]) -> __m512i {
            // The instruction wants unsigned codes: 128 is added here, 128 * sum(x) was subtracted.
            let unsigned = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
            let x = _mm512_set1_epi32(word(x));
            _mm512_dpbusd_epi32(acc, unsigned, x)
        }
        fn dot_u8_into(self, acc: __m512i, codes: __m512i, x: __m512i) -> __m512i {
            _mm512_dpbusd_epi32(acc, codes, x)
        }
        fn fold(self, p: &[f32; 16], acc: &mut [i64; 16]) -> bool {
            let v = _mm512_loadu_ps(p.as_ptr());
            let limit = _mm512_set1_ps(fixed::LIMIT);
            if _mm512_cmp_ps_mask::<_CMP_LE_OQ>(_mm512_abs_ps(v), limit) != 0xffff {
                return fixed::fold_each(p, acc);
            }
            // A multiplication by a power of two is exact in f32, too.
            let scaled = _mm512_mul_ps(v, _mm512_set1_ps(fixed::UNIT as f32));
            let halves = [_mm512_castps512_ps256(scaled), _mm512_extractf32x8_ps::<1>(scaled)];
            for (half, acc) in halves.into_iter().zip(acc.as_chunks_mut::<8>().0) {
                let to = acc.as_mut_ptr();
                let sum = _mm512_add_epi64(_mm512_loadu_si512(to.cast()), _mm512_cvtps_epi64(half));
                _mm512_storeu_si512(to.cast(), sum);
            }
            true
        }
        fn unfold(self, sum: &[i64; 16], x: &mut [f32; 16]) {
            let unit = _mm512_set1_pd(1.0 / fixed::UNIT);
            for (s, x) in sum.as_chunks::<8>().0.iter().zip(x.as_chunks_mut::<8>().0) {
                let wide = _mm512_cvtepi64_pd(_mm512_loadu_si512(s.as_ptr().cast()));
                let v = _mm512_cvtpd_ps(_mm512_mul_pd(wide, unit));
                let sum = _mm256_add_ps(_mm256_loadu_ps(x.as_ptr()), v);
                _mm256_storeu_ps(x.as_mut_ptr(), sum);
            }
        }
    }

    #[inline(always)]
    fn dot_unsigned<const N: usize>(
        self,
        codes: [__m512i; N],
        x: &[[i8; 4]; N],
        start: __m512i,
        _max: i32,
    ) -> __m512i {
        // Two chains of half the length: a token's products wait for each other less, and more tokens
        // fit into the scheduler.
        let mut sums = [start, self.splat_i32(0)];
        unrolled!(g in 0..N, max 8 => {
            let sum = &mut sums[g * 2 / N];
            // SAFETY: `self` proves that the CPU has the instructions.
            *sum = unsafe { _mm512_dpbusd_epi32(*sum, codes[g], _mm512_set1_epi32(word(x[g]))) };
        });
        // SAFETY: as above.
        unsafe { _mm512_add_epi32(sums[0], sums[1]) }
    }

    #[inline(always)]
    fn add_block<F: PanelFormat, const T: usize>(
        self,
        codes: &[__m512i; GROUPS],
        (scales, mins): (Halves<Self>, Halves<Self>),
        x: &PanelTokens<'_, T>,
        i: usize,
        sums: &mut [__m512; T],
    ) -> bool {
        products::add_block::<F, T>(self, codes, (scales, mins), x, i, sums);
        true
    }

    /// [`Self::without_sign`] adds 128 to the codes, so the sum starts at `-128 * sum(x)`.
    #[inline(always)]
    fn dot_signed<const N: usize>(
        self,
        codes: [__m512i; N],
        x: &[[i8; 4]; N],
        count: i32,
    ) -> __m512i {
        let start = self.shift_left(self.splat_i32(count), 7);
        self.dot_unsigned(self.without_sign(codes), x, start, 255)
    }
}

/// Four signed bytes as they are in memory.
#[inline(always)]
fn word(x: [i8; 4]) -> i32 {
    bytemuck::cast(x)
}
