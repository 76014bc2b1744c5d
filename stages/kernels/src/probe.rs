//! The machine's limits: only reading memory, or only multiplying, at full speed.
//!
//! Other kernels' speeds are quoted as fractions of these bounds. They are written for the same abstract vector unit,
//! so each instruction set has its own bounds.

use std::hint::black_box;

use super::simd::{Kernel, Simd, unrolled};

/// Bytes of a vector.
const LINE: usize = 64;
/// Parts of the buffer that are read alternately, so that more pages are being read at once: otherwise one core alone
/// is too slow.
const STREAMS: usize = 4;
/// Maximum number of rounds: no accumulator can overflow or round, and they take some microseconds.
pub(super) const MAX_ROUNDS: usize = 1 << 16;

/// Reads all bytes with full-width loads; the sum, as signed numbers, of the 64 bytes that the vectors
/// give or-ed together, which is zero only if all bytes are or if bytes cancel out.
pub(super) struct ReadPass<'a>(pub(super) &'a [u8]);

impl Kernel for ReadPass<'_> {
    type Output = i32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> i32 {
        // Loads that cross cache lines would take twice as long.
        let head = self.0.as_ptr().align_offset(LINE).min(self.0.len());
        let (head, aligned) = bytemuck::cast_slice::<u8, i8>(self.0).split_at(head);
        let (lines, rest) = aligned.as_chunks::<LINE>();
        // Each stream is whole pairs of lines.
        let len = lines.len() / (2 * STREAMS) * 2;
        let mut seen = [[s.bytes(&[0; LINE]); 2]; STREAMS];
        let [a, b, c, d] =
            [0, 1, 2, 3].map(|i| lines[i * len..(i + 1) * len].as_chunks::<2>().0.iter());
        for (((a, b), c), d) in a.zip(b).zip(c).zip(d) {
            let pairs = [a, b, c, d];
            unrolled!(j in 0..4 => {
                let [a, b] = pairs[j];
                seen[j] = [s.or(seen[j][0], s.bytes(a)), s.or(seen[j][1], s.bytes(b))];
            });
        }
        let mut ends = [[0; LINE]; 2];
        ends[0][..head.len()].copy_from_slice(head);
        ends[1][..rest.len()].copy_from_slice(rest);
        let mut all = s.or(s.bytes(&ends[0]), s.bytes(&ends[1]));
        for line in &lines[STREAMS * len..] {
            all = s.or(all, s.bytes(line));
        }
        unrolled!(j in 0..4 => { all = s.or(all, s.or(seen[j][0], seen[j][1])); });
        s.reduce_add_i32(s.dot_i8(all, s.bytes(&[1; LINE])))
    }
}

/// 8-bit products of operands that stay in registers; the number of multiply-adds as the accumulators
/// have counted them, since all operands are 1.
pub(super) struct Int8Peak {
    pub(super) rounds: usize,
}

impl Kernel for Int8Peak {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u64 {
        let rounds = self.rounds.min(MAX_ROUNDS);
        if const { S::ACCUMULATORS >= 12 } {
            int8_tile::<S, 4, 3>(s, rounds)
        } else {
            int8_tile::<S, 2, 2>(s, rounds)
        }
    }
}

/// `R * C` accumulators. Their operands are distinct, and new in each round, as far as the compiler can
/// see: otherwise it would multiply once and add the product again and again.
#[inline(always)]
fn int8_tile<S: Simd, const R: usize, const C: usize>(s: S, rounds: usize) -> u64 {
    let mut codes = [s.bytes(&[1; LINE]); R];
    let mut xs = [s.bytes(&[1; LINE]); C];
    unrolled!(r in 0..R, max 4 => { codes[r] = s.bytes(black_box(&[1; LINE])); });
    let mut sums = [[s.round(s.zero()); C]; R];
    for _ in 0..rounds {
        unrolled!(c in 0..C, max 3 => { xs[c] = s.bytes(black_box(&[1; LINE])); });
        unrolled!(r in 0..R, max 4 => {
            unrolled!(c in 0..C, max 3 => { sums[r][c] = s.dot_u8_into(sums[r][c], codes[r], xs[c]); });
        });
    }
    let mut count = 0;
    unrolled!(r in 0..R, max 4 => {
        unrolled!(c in 0..C, max 3 => { count += s.reduce_add_i32(sums[r][c]) as u64; });
    });
    count
}

/// Like [`Int8Peak`], with fused f32 multiply-adds.
pub(super) struct F32Peak {
    pub(super) rounds: usize,
}

impl Kernel for F32Peak {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u64 {
        let rounds = self.rounds.min(MAX_ROUNDS);
        if const { S::ACCUMULATORS >= 12 } {
            f32_tile::<S, 4, 3>(s, rounds)
        } else {
            f32_tile::<S, 2, 2>(s, rounds)
        }
    }
}

#[inline(always)]
fn f32_tile<S: Simd, const R: usize, const C: usize>(s: S, rounds: usize) -> u64 {
    let (mut a, mut b) = ([s.zero(); R], [s.zero(); C]);
    unrolled!(r in 0..R, max 4 => { a[r] = s.splat(black_box(1.0)); });
    unrolled!(c in 0..C, max 3 => { b[c] = s.splat(black_box(1.0)); });
    let mut sums = [[s.zero(); C]; R];
    for _ in 0..rounds {
        unrolled!(r in 0..R, max 4 => {
            unrolled!(c in 0..C, max 3 => { sums[r][c] = s.fma(a[r], b[c], sums[r][c]); });
        });
    }
    let mut count = 0;
    unrolled!(r in 0..R, max 4 => {
        unrolled!(c in 0..C, max 3 => { count += s.reduce_add(sums[r][c]) as u64; });
    });
    count
}
