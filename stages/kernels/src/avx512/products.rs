//! Products of a block of weights and several tokens.
//!
//! On Intel's CPUs, whatever multiplies or adds vectors takes one of the two units that also find products of bytes. So
//! sums are not converted before they are scaled (see [`ORIGIN`]), and their starts come from memory.
//!
//! Products are in assembly: compilers load activations into registers of their own and store the sums of other tokens
//! for them, or do not, depending on the code around this. No block is declared pure, or they would find all products
//! first and scale them later.

use std::arch::asm;
use std::arch::x86_64::*;

use super::Avx512;
use crate::panel_formats::{Halves, PanelFormat};
use crate::quantised_panels::{add_scaled, add_scaled_halves};
use crate::simd::{GROUPS, Simd, TOGETHER, unrolled};
use crate::tokens::PanelTokens;

/// Sums of products begin here: 1.5 * 2^23 as f32. Its bits, plus a sum of at most 2^22, are those of the f32 that is
/// larger by the sum, so `sum * scale` is `f32 * scale - ORIGIN * scale`, rounded once, if `ORIGIN * scale` is exact.
const ORIGIN: f32 = 12_582_912.0;

/// See [`Simd::add_block`].
#[inline(always)]
pub(super) fn add_block<F: PanelFormat, const T: usize>(
    s: Avx512,
    codes: &[__m512i; GROUPS],
    (scales, mins): (Halves<Avx512>, Halves<Avx512>),
    x: &PanelTokens<'_, T>,
    i: usize,
    sums: &mut [__m512; T],
) {
    let codes = match F::SIGNED {
        true => s.without_sign(*codes),
        false => *codes,
    };
    let origin = s.splat(ORIGIN);
    let origins = [s.mul(scales[0], origin), s.mul(scales[1], origin)];
    let starts = starts::<F, T>(x, i);
    unrolled!(turn in 0..T / TOGETHER, max 4 => {
        let first = turn * TOGETHER;
        let tokens = some(&x.codes[i], first);
        if F::HALVES {
            let low = dot_half(s, &codes, (tokens, 0), some(&starts[0], first));
            let high = dot_half(s, &codes, (tokens, 1), some(&starts[1], first));
            unrolled!(t in 0..4 => {
                let high = scaled::<F>(s, high[t], scales[1], origins[1]);
                let scaled = s.fma(number(s, low[t]), scales[0], high);
                add_scaled_halves::<Avx512, F, T>(s, scaled, mins, x, (i, first + t), sums);
            });
        } else {
            let dots = dot_together(s, &codes, tokens, some(&starts[0], first));
            unrolled!(t in 0..4 => {
                let scaled = scaled::<F>(s, dots[t], scales[0], origins[0]);
                add_scaled::<Avx512, F, T>(s, scaled, mins[0], x, (i, first + t), sums);
            });
        }
    });
}

/// The starts of exact sums of `(code - bias) * x` for block `i` of the tokens: of the whole block, or of its halves.
/// Of signed codes, 128 is the bias.
#[inline(always)]
fn starts<F: PanelFormat, const T: usize>(x: &PanelTokens<'_, T>, i: usize) -> [[i32; T]; 2] {
    let mut starts = [[ORIGIN.to_bits() as i32; T]; 2];
    let bits = if F::SIGNED { 7 } else { F::BIAS_BITS };
    if bits > 0 {
        unrolled!(t in 0..T, max 16 => {
            if F::HALVES {
                let [low, high] = x.half_counts[i][t];
                starts[0][t] += low << bits;
                starts[1][t] += high << bits;
            } else {
                starts[0][t] += x.counts[i][t] << bits;
            }
        });
    }
    starts
}

/// What belongs to the tokens from `first` on.
#[inline(always)]
fn some<V, const T: usize>(of: &[V; T], first: usize) -> &[V; TOGETHER] {
    let Some(some) = of[first..].first_chunk() else {
        panic!("a piece of tokens is cut short");
    };
    some
}

/// A sum of products.
#[inline(always)]
fn number(s: Avx512, sum: __m512i) -> __m512 {
    s.sub(s.bits_as_f32(sum), s.splat(ORIGIN))
}

/// `sum * scale`; `origin` is `ORIGIN * scale`.
#[inline(always)]
fn scaled<F: PanelFormat>(s: Avx512, sum: __m512i, scale: __m512, origin: __m512) -> __m512 {
    if F::EXACT_SCALES {
        // SAFETY: `s` proves that the CPU has the instructions.
        unsafe { _mm512_fmsub_ps(s.bits_as_f32(sum), scale, origin) }
    } else {
        s.mul(number(s, sum), scale)
    }
}

/// The products of a block and several tokens.
#[inline(always)]
fn dot_together(
    _s: Avx512,
    codes: &[__m512i; GROUPS],
    x: &[[i8; 4 * GROUPS]; TOGETHER],
    starts: &[i32; TOGETHER],
) -> [__m512i; TOGETHER] {
    // SAFETY: `_s` proves that the CPU has the instructions.
    unsafe {
        let starts = spread(starts);
        let [a, b] = dot_pair(*codes, [&x[0], &x[1]], [starts[0], starts[1]]);
        let [c, d] = dot_pair(*codes, [&x[2], &x[3]], [starts[2], starts[3]]);
        [a, b, c, d]
    }
}

/// The products of the first or second half of a block and several tokens.
#[inline(always)]
fn dot_half(
    _s: Avx512,
    codes: &[__m512i; GROUPS],
    (x, half): (&[[i8; 4 * GROUPS]; TOGETHER], usize),
    starts: &[i32; TOGETHER],
) -> [__m512i; TOGETHER] {
    let (codes, _) = codes.as_chunks::<{ GROUPS / 2 }>();
    let x = x.as_flattened()[2 * GROUPS * half..].as_ptr();
    // SAFETY: `_s` proves that the CPU has the instructions; a half that begins there is within each token's block.
    unsafe {
        let mut sums = spread(starts);
        add_half(codes[half], x, &mut sums);
        sums
    }
}

/// `starts` in all lanes of a vector each.
#[inline]
#[target_feature(enable = "avx512f")]
fn spread(starts: &[i32; TOGETHER]) -> [__m512i; TOGETHER] {
    let (a, b, c, d): (__m512i, __m512i, __m512i, __m512i);
    // SAFETY: the CPU has the instruction, and it reads `starts` and nothing else.
    unsafe {
        asm!(
            "vpbroadcastd {a}, dword ptr [{from} + 0]",
            "vpbroadcastd {b}, dword ptr [{from} + 4]",
            "vpbroadcastd {c}, dword ptr [{from} + 8]",
            "vpbroadcastd {d}, dword ptr [{from} + 12]",
            from = in(reg) starts.as_ptr(),
            a = out(zmm_reg) a,
            b = out(zmm_reg) b,
            c = out(zmm_reg) c,
            d = out(zmm_reg) d,
            options(readonly, nostack, preserves_flags),
        );
    }
    [a, b, c, d]
}

/// `starts` and the products of a block and two tokens. Four chains take turns: each instruction waits less for its
/// chain's previous one, and more tokens fit into the scheduler.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dot_pair(
    codes: [__m512i; GROUPS],
    x: [&[i8; 4 * GROUPS]; 2],
    starts: [__m512i; 2],
) -> [__m512i; 2] {
    let [mut a, mut b] = starts;
    let zero = _mm512_setzero_si512();
    let (mut more_a, mut more_b) = (zero, zero);
    // SAFETY: the CPU has the instructions, and they read the arrays in `x` as a whole and nothing else.
    unsafe {
        asm!(
            "vpdpbusd {a0}, {c0}, dword ptr [{x} + 0]{{1to16}}",
            "vpdpbusd {a1}, {c4}, dword ptr [{x} + 16]{{1to16}}",
            "vpdpbusd {b0}, {c0}, dword ptr [{y} + 0]{{1to16}}",
            "vpdpbusd {b1}, {c4}, dword ptr [{y} + 16]{{1to16}}",
            "vpdpbusd {a0}, {c1}, dword ptr [{x} + 4]{{1to16}}",
            "vpdpbusd {a1}, {c5}, dword ptr [{x} + 20]{{1to16}}",
            "vpdpbusd {b0}, {c1}, dword ptr [{y} + 4]{{1to16}}",
            "vpdpbusd {b1}, {c5}, dword ptr [{y} + 20]{{1to16}}",
            "vpdpbusd {a0}, {c2}, dword ptr [{x} + 8]{{1to16}}",
            "vpdpbusd {a1}, {c6}, dword ptr [{x} + 24]{{1to16}}",
            "vpdpbusd {b0}, {c2}, dword ptr [{y} + 8]{{1to16}}",
            "vpdpbusd {b1}, {c6}, dword ptr [{y} + 24]{{1to16}}",
            "vpdpbusd {a0}, {c3}, dword ptr [{x} + 12]{{1to16}}",
            "vpdpbusd {a1}, {c7}, dword ptr [{x} + 28]{{1to16}}",
            "vpdpbusd {b0}, {c3}, dword ptr [{y} + 12]{{1to16}}",
            "vpdpbusd {b1}, {c7}, dword ptr [{y} + 28]{{1to16}}",
            "vpaddd {a0}, {a0}, {a1}",
            "vpaddd {b0}, {b0}, {b1}",
            x = in(reg) x[0].as_ptr(),
            y = in(reg) x[1].as_ptr(),
            c0 = in(zmm_reg) codes[0],
            c1 = in(zmm_reg) codes[1],
            c2 = in(zmm_reg) codes[2],
            c3 = in(zmm_reg) codes[3],
            c4 = in(zmm_reg) codes[4],
            c5 = in(zmm_reg) codes[5],
            c6 = in(zmm_reg) codes[6],
            c7 = in(zmm_reg) codes[7],
            a0 = inout(zmm_reg) a,
            b0 = inout(zmm_reg) b,
            a1 = inout(zmm_reg) more_a,
            b1 = inout(zmm_reg) more_b,
            options(readonly, nostack, preserves_flags),
        );
    }
    let _ = (more_a, more_b);
    [a, b]
}

/// Adds the products of half a block to the sums of several tokens, which take turns.
///
/// # Safety
/// `x` are the elements of the half in the first token's block, behind which are those of [`TOGETHER`] tokens.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn add_half(codes: [__m512i; GROUPS / 2], x: *const i8, sums: &mut [__m512i; TOGETHER]) {
    let [mut a, mut b, mut c, mut d] = *sums;
    // SAFETY: the CPU has the instructions, and they read what the caller promises and nothing else.
    unsafe {
        asm!(
            "vpdpbusd {a}, {w0}, dword ptr [{x} + 0]{{1to16}}",
            "vpdpbusd {b}, {w0}, dword ptr [{x} + 32]{{1to16}}",
            "vpdpbusd {c}, {w0}, dword ptr [{x} + 64]{{1to16}}",
            "vpdpbusd {d}, {w0}, dword ptr [{x} + 96]{{1to16}}",
            "vpdpbusd {a}, {w1}, dword ptr [{x} + 4]{{1to16}}",
            "vpdpbusd {b}, {w1}, dword ptr [{x} + 36]{{1to16}}",
            "vpdpbusd {c}, {w1}, dword ptr [{x} + 68]{{1to16}}",
            "vpdpbusd {d}, {w1}, dword ptr [{x} + 100]{{1to16}}",
            "vpdpbusd {a}, {w2}, dword ptr [{x} + 8]{{1to16}}",
            "vpdpbusd {b}, {w2}, dword ptr [{x} + 40]{{1to16}}",
            "vpdpbusd {c}, {w2}, dword ptr [{x} + 72]{{1to16}}",
            "vpdpbusd {d}, {w2}, dword ptr [{x} + 104]{{1to16}}",
            "vpdpbusd {a}, {w3}, dword ptr [{x} + 12]{{1to16}}",
            "vpdpbusd {b}, {w3}, dword ptr [{x} + 44]{{1to16}}",
            "vpdpbusd {c}, {w3}, dword ptr [{x} + 76]{{1to16}}",
            "vpdpbusd {d}, {w3}, dword ptr [{x} + 108]{{1to16}}",
            x = in(reg) x,
            w0 = in(zmm_reg) codes[0],
            w1 = in(zmm_reg) codes[1],
            w2 = in(zmm_reg) codes[2],
            w3 = in(zmm_reg) codes[3],
            a = inout(zmm_reg) a,
            b = inout(zmm_reg) b,
            c = inout(zmm_reg) c,
            d = inout(zmm_reg) d,
            options(readonly, nostack, preserves_flags),
        );
    }
    *sums = [a, b, c, d];
}
