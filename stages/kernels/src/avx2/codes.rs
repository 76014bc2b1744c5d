//! Codes in registers: how bytes are loaded, their bits moved, and how they become numbers.

use std::arch::x86_64::*;

use super::{F, I};

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load16(b: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes behind the reference.
    unsafe { _mm_loadu_si128(b.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load32(b: &[u8; 32]) -> __m256i {
    // SAFETY: 32 bytes behind the reference.
    unsafe { _mm256_loadu_si256(b.as_ptr().cast()) }
}

/// Moves the bits of every byte from bit `from` to bit `to`; other bytes' bits fall into the rest.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn moved(a: __m256i, from: u32, to: u32) -> __m256i {
    if from >= to {
        _mm256_srl_epi16(a, _mm_cvtsi32_si128((from - to) as i32))
    } else {
        _mm256_sll_epi16(a, _mm_cvtsi32_si128((to - from) as i32))
    }
}

/// Low nibbles in the first half, high ones in the second.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn nibbles(b: &[u8; 16]) -> __m256i {
    let b = load16(b);
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(b), _mm_srli_epi16::<4>(b));
    _mm256_and_si256(both, _mm256_set1_epi8(0x0f))
}

/// `value` in the bytes whose bit is set.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn where_set(bits: u32, value: u8) -> __m256i {
    let owner = _mm256_setr_epi64x(
        0,
        0x0101_0101_0101_0101,
        0x0202_0202_0202_0202,
        0x0303_0303_0303_0303,
    );
    let copies = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), owner);
    let others = _mm256_set1_epi64x(0x7fbf_dfef_f7fb_fdfe);
    let set = _mm256_cmpeq_epi8(_mm256_or_si256(copies, others), _mm256_set1_epi8(-1));
    _mm256_and_si256(set, _mm256_set1_epi8(value as i8))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn part(a: I, j: usize) -> __m128i {
    if j.is_multiple_of(2) {
        _mm256_castsi256_si128(a[j / 2])
    } else {
        _mm256_extracti128_si256::<1>(a[j / 2])
    }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn u8_to_f32(bytes: __m128i) -> F {
    let high = _mm_srli_si128::<8>(bytes);
    let halves = [bytes, high];
    both!(i => _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(halves[i])))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn i8_to_f32(bytes: __m128i) -> F {
    let high = _mm_srli_si128::<8>(bytes);
    let halves = [bytes, high];
    both!(i => _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(halves[i])))
}
