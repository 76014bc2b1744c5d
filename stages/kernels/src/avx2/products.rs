//! Products of a block of 16 rows and four tokens, in assembly: compilers add the products of 16 bits in an order of
//! their own, for which the 16 registers do not suffice, and spend half of the time on storing and loading them.
//!
//! Group after group, codes are loaded once for all tokens. Products stay in 16 bits for as many groups as fit there.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::simd::{GROUPS, TOGETHER, groups, unrolled};

use super::{I, word};

/// A block of each token.
pub(super) type Tokens = [[i8; 4 * GROUPS]; TOGETHER];

/// Multiplies group `$g`, the first of a run or the next one, by token `$t`.
macro_rules! token {
    (first $g:literal $t:literal) => {
        concat!(
            "vpbroadcastd {b}, dword ptr [{x} + 32 * ",
            $t,
            " + 4 * ",
            $g,
            "]\n",
            "vpmaddubsw {p",
            $t,
            "}, {c}, {b}\n",
            "vpmaddubsw {q",
            $t,
            "}, {d}, {b}\n",
        )
    };
    (next $g:literal $t:literal) => {
        concat!(
            "vpbroadcastd {b}, dword ptr [{x} + 32 * ",
            $t,
            " + 4 * ",
            $g,
            "]\n",
            "vpmaddubsw {s}, {c}, {b}\n",
            "vpmaddubsw {b}, {d}, {b}\n",
            "vpaddw {p",
            $t,
            "}, {p",
            $t,
            "}, {s}\n",
            "vpaddw {q",
            $t,
            "}, {q",
            $t,
            "}, {b}\n",
        )
    };
}

/// Multiplies a group by all tokens.
macro_rules! group {
    ($which:ident $g:literal) => {
        concat!(
            "vmovdqa {c}, ymmword ptr [{codes} + 64 * ", $g, "]\n",
            "vmovdqa {d}, ymmword ptr [{codes} + 64 * ", $g, " + 32]\n",
            token!($which $g 0), token!($which $g 1), token!($which $g 2), token!($which $g 3),
        )
    };
}

/// A function that multiplies so many groups, whose products fit into 16 bits together. `x` are blocks, and `first` is
/// the place of the first group in them.
macro_rules! run {
    ($name:ident, $n:literal, $($text:expr),*) => {
        #[inline]
        #[target_feature(enable = "avx2")]
        fn $name(codes: &[I; $n], x: &Tokens, first: usize) -> [I; TOGETHER] {
            const { assert!($n <= GROUPS) };
            assert!(first + $n <= GROUPS);
            let (p0, p1, p2, p3): (__m256i, __m256i, __m256i, __m256i);
            let (q0, q1, q2, q3): (__m256i, __m256i, __m256i, __m256i);
            // SAFETY: the CPU has the instructions, and they read the two arrays and nothing else. Codes are vectors,
            // so their addresses are aligned.
            unsafe {
                asm!(
                    $($text,)*
                    codes = in(reg) codes.as_ptr(),
                    x = in(reg) x.as_ptr().cast::<u32>().add(first),
                    p0 = out(ymm_reg) p0,
                    p1 = out(ymm_reg) p1,
                    p2 = out(ymm_reg) p2,
                    p3 = out(ymm_reg) p3,
                    q0 = out(ymm_reg) q0,
                    q1 = out(ymm_reg) q1,
                    q2 = out(ymm_reg) q2,
                    q3 = out(ymm_reg) q3,
                    b = out(ymm_reg) _,
                    c = out(ymm_reg) _,
                    d = out(ymm_reg) _,
                    s = out(ymm_reg) _,
                    options(pure, readonly, nostack, preserves_flags),
                );
            }
            [[p0, q0], [p1, q1], [p2, q2], [p3, q3]]
        }
    };
}

run!(two, 2, group!(first 0), group!(next 1));
run!(
    four,
    4,
    group!(first 0),
    group!(next 1),
    group!(next 2),
    group!(next 3)
);
run!(
    eight,
    8,
    group!(first 0),
    group!(next 1),
    group!(next 2),
    group!(next 3),
    group!(next 4),
    group!(next 5),
    group!(next 6),
    group!(next 7)
);

/// How many groups' products fit into 16 bits together, for codes of at most `max`. A product of two codes and two
/// activations is at most `2 * 127 * max`: eight of nibbles are 30480, four of five bits 31496, two of six bits 32004.
#[inline(always)]
pub(super) fn that_fit(max: i32) -> usize {
    match i32::from(i16::MAX) / (2 * 127 * max) {
        8.. => 8,
        4.. => 4,
        _ => 2,
    }
}

/// Adds sums of 16 bits, two by two. A macro: a function, which test builds do not inline, would take and give all sums
/// through memory, for a sixth of these tests' time.
macro_rules! add {
    ($sums:ident, $products:expr) => {
        let (ones, products) = (_mm256_set1_epi16(1), $products);
        unrolled!(t in 0..4 => {
            unrolled!(half in 0..2 => {
                let added = _mm256_madd_epi16(products[t][half], ones);
                $sums[t][half] = _mm256_add_epi32($sums[t][half], added);
            });
        });
    };
}

/// `starts + codes * x`, with groups from `first` on and codes of at most `max`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn unsigned<const N: usize>(
    codes: &[I; N],
    (x, first): (&Tokens, usize),
    starts: [I; TOGETHER],
    max: i32,
) -> [I; TOGETHER] {
    let fit = that_fit(max);
    let mut sums = starts;
    if let (8, Some(codes)) = (fit, codes.first_chunk()) {
        add!(sums, eight(codes, x, first));
    } else if fit >= 4 {
        for (i, codes) in codes.as_chunks().0.iter().enumerate() {
            add!(sums, four(codes, x, first + 4 * i));
        }
    } else {
        for (i, codes) in codes.as_chunks().0.iter().enumerate() {
            add!(sums, two(codes, x, first + 2 * i));
        }
    }
    sums
}

/// Multiplies a group of signed codes by token `$t`.
macro_rules! signed_token {
    ($g:literal $t:literal) => {
        concat!(
            "vpbroadcastd {b}, dword ptr [{x} + 32 * ",
            $t,
            " + 4 * ",
            $g,
            "]\n",
            "vpsignb {s}, {b}, {c}\n",
            "vpsignb {b}, {b}, {d}\n",
            "vpmaddubsw {s}, {e}, {s}\n",
            "vpmaddubsw {b}, {f}, {b}\n",
            "vpmaddwd {s}, {s}, {ones}\n",
            "vpmaddwd {b}, {b}, {ones}\n",
            "vpaddd {p",
            $t,
            "}, {p",
            $t,
            "}, {s}\n",
            "vpaddd {q",
            $t,
            "}, {q",
            $t,
            "}, {b}\n",
        )
    };
}

macro_rules! signed_group {
    ($g:literal) => {
        concat!(
            "vmovdqa {c}, ymmword ptr [{codes} + 64 * ", $g, "]\n",
            "vmovdqa {d}, ymmword ptr [{codes} + 64 * ", $g, " + 32]\n",
            "vpabsb {e}, {c}\n",
            "vpabsb {f}, {d}\n",
            signed_token!($g 0), signed_token!($g 1), signed_token!($g 2), signed_token!($g 3),
        )
    };
}

/// `codes * x` with signed codes: `|code| * (x * sign)`, as in [`super::Avx2`]'s other products.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn signed(codes: &[I; GROUPS], x: &Tokens) -> [I; TOGETHER] {
    let zero = _mm256_setzero_si256();
    let (mut p0, mut p1, mut p2, mut p3) = (zero, zero, zero, zero);
    let (mut q0, mut q1, mut q2, mut q3) = (zero, zero, zero, zero);
    // SAFETY: the CPU has the instructions, and they read the two arrays and nothing else. Codes are vectors, so their
    // addresses are aligned.
    unsafe {
        asm!(
            signed_group!(0),
            signed_group!(1),
            signed_group!(2),
            signed_group!(3),
            signed_group!(4),
            signed_group!(5),
            signed_group!(6),
            signed_group!(7),
            codes = in(reg) codes.as_ptr(),
            x = in(reg) x.as_ptr(),
            ones = in(ymm_reg) _mm256_set1_epi16(1),
            p0 = inout(ymm_reg) p0,
            p1 = inout(ymm_reg) p1,
            p2 = inout(ymm_reg) p2,
            p3 = inout(ymm_reg) p3,
            q0 = inout(ymm_reg) q0,
            q1 = inout(ymm_reg) q1,
            q2 = inout(ymm_reg) q2,
            q3 = inout(ymm_reg) q3,
            b = out(ymm_reg) _,
            c = out(ymm_reg) _,
            d = out(ymm_reg) _,
            e = out(ymm_reg) _,
            f = out(ymm_reg) _,
            s = out(ymm_reg) _,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [[p0, q0], [p1, q1], [p2, q2], [p3, q3]]
}

/// `starts + codes * x` with the instructions for that (AVX-VNNI).
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
pub(super) fn accumulated<const N: usize>(
    codes: &[I; N],
    (x, first): (&Tokens, usize),
    starts: [I; TOGETHER],
) -> [I; TOGETHER] {
    let mut sums = starts;
    unrolled!(g in 0..N, max 8 => {
        unrolled!(t in 0..4 => {
            let x = _mm256_set1_epi32(word(groups::<GROUPS>(&x[t])[first + g]));
            sums[t] = [
                _mm256_dpbusd_avx_epi32(sums[t][0], codes[g][0], x),
                _mm256_dpbusd_avx_epi32(sums[t][1], codes[g][1], x),
            ];
        });
    });
    sums
}
