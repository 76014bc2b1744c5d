//! What the algorithms need from a vector unit.
//!
//! Every instruction set provides the same three shapes: 16 lanes of f32, 16 lanes of i32, 64 bytes. A unit with
//! narrower registers uses several of them. Since lane counts, operation order and rounding (one fused rounding per
//! multiply-add) are part of this contract, every instruction set computes the same bits, and the algorithms are
//! written once.
//!
//! A value of a type that implements [`Simd`] is the proof that the CPU has the instructions: such a value is only made
//! after a run-time check, so all operations are safe to call.

use super::panel_formats::{Halves, PanelFormat};
use super::prefetch::DISTANCE;
use super::tokens::PanelTokens;

/// Lanes of [`Simd::F`] and [`Simd::I`].
pub(super) const LANES: usize = 16;
/// Groups of four elements in a block of 32.
pub(super) const GROUPS: usize = 8;

/// A loop with a constant number of iterations, unrolled. Vectors must stay in registers and inside functions of the
/// instruction set, which neither `array::map` nor a loop that the optimiser may keep ensures. A number that is not
/// written as a literal needs the largest one that it may be: the compiler checks the body that many times, and nested
/// loops multiply.
macro_rules! unrolled {
    ($i:ident in 0..$n:tt => $body:block) => {
        $crate::simd::unrolled!($i in 0..$n, max $n => $body)
    };
    ($i:ident in 0..$n:expr, max 2 => $body:block) => {
        $crate::simd::unrolled!(@ $n, 2, $body, $i: 0 1)
    };
    ($i:ident in 0..$n:expr, max 3 => $body:block) => {
        $crate::simd::unrolled!(@ $n, 3, $body, $i: 0 1 2)
    };
    ($i:ident in 0..$n:expr, max 4 => $body:block) => {
        $crate::simd::unrolled!(@ $n, 4, $body, $i: 0 1 2 3)
    };
    ($i:ident in 0..$n:expr, max 6 => $body:block) => {
        $crate::simd::unrolled!(@ $n, 6, $body, $i: 0 1 2 3 4 5)
    };
    ($i:ident in 0..$n:expr, max 8 => $body:block) => {
        $crate::simd::unrolled!(@ $n, 8, $body, $i: 0 1 2 3 4 5 6 7)
    };
    ($i:ident in 0..$n:expr, max 16 => $body:block) => {
        $crate::simd::unrolled!(@ $n, 16, $body, $i: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $n:expr, $max:literal, $body:block, $i:ident: $($turn:literal)*) => {{
        const { assert!($n <= $max) };
        // A constant, so that iterations beyond the last one are not even generated.
        #[allow(
            unconditional_panic,
            reason = "iterations that are not generated would index beyond the end"
        )]
        {
            $(if const { $turn < $n } {
                let $i = $turn;
                $body
            })*
        }
    }};
}
pub(super) use unrolled;

/// See [`Simd::BY_GROUP`].
pub(super) const TOGETHER: usize = 4;

/// A computation that is compiled once for every instruction set.
pub(super) trait Kernel {
    /// What it returns.
    type Output;

    /// The computation. Must be `#[inline(always)]`, as everything it calls with `s`: the
    /// instructions are only available inside [`Simd::run`].
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// One instruction set; see the module's documentation.
pub(super) trait Simd: Copy + Send + Sync + 'static {
    /// 16 lanes of f32.
    type F: Copy;
    /// 16 lanes of i32.
    type I: Copy;
    /// 64 bytes, signed or unsigned depending on the operation.
    type B: Copy;
    /// Maximum number of tokens, 16, 4 or 1, that are multiplied by an unpacked block of weights together.
    const WIDEST: usize;

    /// The instruction set for kernels without products of bytes: sets that differ in nothing else share
    /// their code.
    type Plain: Simd;

    /// See [`Self::Plain`].
    fn plain(self) -> Self::Plain;

    /// Runs `kernel` in a function that is compiled for this instruction set.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;

    /// How far ahead of their use weights in panels are prefetched, bytes, if their scales have six bits.
    const AHEAD_OF_SIX_BITS: usize = DISTANCE;

    /// Prefetches the cache line `ahead` bytes after the start of `bytes`, which may be anywhere.
    fn prefetch(self, bytes: &[u8], ahead: usize) {
        let _ = (bytes, ahead);
    }

    /// All lanes 0.
    fn zero(self) -> Self::F;
    /// All lanes `v`.
    fn splat(self, v: f32) -> Self::F;
    /// 16 values.
    fn load(self, v: &[f32; 16]) -> Self::F;
    /// 4 values, then 12 zeros.
    fn load4(self, v: &[f32; 4]) -> Self::F;
    /// Writes the 16 lanes.
    fn store(self, a: Self::F, to: &mut [f32; 16]);
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a * b`, rounded once.
    fn fnma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b` (so `b` if either is NaN).
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b` (so `b` if either is NaN).
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a > b ? yes : no`.
    fn select_gt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// Sum of the lanes: halves are added (`l[i] + l[i + 8]`, then 4, 2, 1 apart).
    fn reduce_add(self, a: Self::F) -> f32;
    /// Largest lane; any of them if one is NaN.
    fn reduce_max(self, a: Self::F) -> f32;
    /// Lane `4 * p + i / 4` in lane `i`: the factors of the four groups of 16 of one [`Self::B`].
    fn spread(self, a: Self::F, p: usize) -> Self::F;
    /// Lane `2 * (i / 2)` in lane `i`.
    fn even(self, a: Self::F) -> Self::F;
    /// Lane `2 * (i / 2) + 1` in lane `i`.
    fn odd(self, a: Self::F) -> Self::F;

    /// 16 little-endian f32.
    fn widen_f32(self, bytes: &[u8; 64]) -> Self::F;
    /// 16 little-endian f16.
    fn widen_f16(self, bytes: &[u8; 32]) -> Self::F;
    /// 16 little-endian bf16.
    fn widen_bf16(self, bytes: &[u8; 32]) -> Self::F;
    /// Two f16 from each word, the low one first.
    fn f16_pairs(self, words: [u32; 8]) -> Self::F;
    /// Bytes of `lo`, then of `hi`, as unsigned numbers.
    fn u8_lanes(self, lo: u64, hi: u64) -> Self::F;
    /// Bytes of `a` in the even lanes and of `b` in the odd lanes, as unsigned numbers.
    fn u8_pairs(self, a: u64, b: u64) -> Self::F;
    /// Bytes of `lo`, then of `hi`, as signed numbers.
    fn i8_lanes(self, lo: u64, hi: u64) -> Self::F;

    /// Nearest integer, ties to even; lanes must be within i32.
    fn round(self, a: Self::F) -> Self::I;
    /// Nearest number, ties to even; exact for magnitudes up to 2^24.
    fn to_f32(self, a: Self::I) -> Self::F;
    /// `2^a` for lanes in -126..=127.
    fn pow2(self, a: Self::I) -> Self::F;
    /// Bits of the lanes without the sign; their order as integers is that of the magnitudes, with
    /// infinity and NaN last.
    fn magnitude_bits(self, a: Self::F) -> Self::I;
    /// The larger one per lane.
    fn max_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// Largest lane.
    fn reduce_max_i32(self, a: Self::I) -> i32;
    /// Sum of the lanes.
    fn reduce_add_i32(self, a: Self::I) -> i32;
    /// Writes the lanes, which must be within i8.
    fn store_i8(self, a: Self::I, to: &mut [i8; 16]);

    /// 64 bytes.
    fn bytes(self, b: &[i8; 64]) -> Self::B;
    /// Writes 64 bytes.
    #[cfg_attr(not(any(target_arch = "x86_64", test)), expect(dead_code))]
    fn store_bytes(self, a: Self::B, to: &mut [i8; 64]);
    /// Twice 32 bytes.
    fn halves(self, a: &[u8; 32], b: &[u8; 32]) -> Self::B;
    /// Low nibbles of `a`, high nibbles of `a`, low nibbles of `b`, high nibbles of `b`.
    fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> Self::B;
    /// The nibble at bit `shift` (0 or 4) of 64 bytes.
    fn nibble_at(self, b: &[u8; 64], shift: u32) -> Self::B;
    /// The bits of each byte moved from bit `from[0]` (first 32 lanes) and from bit `from[1]` (last
    /// 32 lanes) to bit `to`, and cut by `mask`.
    fn fields(self, b: &[u8; 32], from: [u32; 2], to: u32, mask: u8) -> Self::B;
    /// Bitwise or.
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    /// Adds `value` to the bytes whose bit is set in `bits`.
    fn add_where(self, a: Self::B, bits: u64, value: u8) -> Self::B;
    /// The entries of `table` with the numbers in `codes`, which are below 16.
    fn look_up(self, table: &[i8; 16], codes: Self::B) -> Self::B;
    /// Bytes `16 * j ..` of unsigned codes as numbers.
    fn u8_part(self, a: Self::B, j: usize) -> Self::F;
    /// Bytes `16 * j ..` of signed codes as numbers.
    fn i8_part(self, a: Self::B, j: usize) -> Self::F;
    /// The low and the high nibbles of 16 bytes as numbers, less `bias`, which is 0 or 8.
    fn nibble_levels(self, b: &[u8; 16], bias: f32) -> [Self::F; 2];
    /// Lane `i` is the sum of `codes[4i + k] * x[4i + k]` over `k < 4`: codes unsigned and at most
    /// 127, `x` signed and at least -127. Two such products are at most 2 * 127 * 127 = 32258 in
    /// magnitude, so the saturating 16-bit sums of AVX2 are exact.
    fn dot_u8(self, codes: Self::B, x: Self::B) -> Self::I;
    /// As [`Self::dot_u8`] for signed codes of the whole range: computed as `|code| * (x * sign)`,
    /// whose pairs are at most 2 * 128 * 127 = 32512, which is exact in 16 bits too.
    fn dot_i8(self, codes: Self::B, x: Self::B) -> Self::I;

    /// All lanes `v`.
    fn splat_i32(self, v: i32) -> Self::I;
    /// 16 unsigned bytes.
    fn widen_u8(self, bytes: &[u8; 16]) -> Self::I;
    /// 16 signed bytes.
    fn widen_i8(self, bytes: &[u8; 16]) -> Self::I;
    /// Bitwise and of every lane with `mask`.
    fn and(self, a: Self::I, mask: i32) -> Self::I;
    /// Bitwise or.
    fn or_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a << by`, with `by` below 32.
    fn shift_left(self, a: Self::I, by: u32) -> Self::I;
    /// `a >> by` filled with zeros, with `by` below 32.
    fn shift_right(self, a: Self::I, by: u32) -> Self::I;
    /// 16 little-endian words.
    fn words(self, b: &[u8; 64]) -> Self::I;
    /// Writes 16 little-endian words.
    fn store_words(self, a: Self::I, to: &mut [u8; 64]);
    /// Bitwise exclusive or of every lane with `mask`.
    fn xor(self, a: Self::I, mask: i32) -> Self::I;
    /// `a + b`, which wraps.
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a - b`, which wraps.
    fn sub_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// The f32 with these bits.
    fn bits_as_f32(self, a: Self::I) -> Self::F;
    /// `acc` and the products of the two signed 16-bit halves of every lane, which wraps.
    fn dot_halves(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// The bits of each byte moved from bit `from` to bit `to`, both below 8, and cut by `mask`.
    fn field(self, a: Self::B, from: u32, to: u32, mask: u8) -> Self::B;
    /// Lane `r` is `start + sum(codes[g][4r + k] * x[g][k])`: 16 rows times one token. Codes are
    /// unsigned and at most `max`, which is at most 63 where sums have 16 bits; `x` is at least -127.
    fn dot_unsigned<const N: usize>(
        self,
        codes: [Self::B; N],
        x: &[[i8; 4]; N],
        start: Self::I,
        max: i32,
    ) -> Self::I;
    /// Like [`Self::dot_unsigned`] starting at 0, for signed codes of the whole range; `count` is `-sum(x)`.
    fn dot_signed<const N: usize>(
        self,
        codes: [Self::B; N],
        x: &[[i8; 4]; N],
        count: i32,
    ) -> Self::I;
    /// Adds the scaled products of a block of weights with all tokens of a piece, of which it is block `i`, to their
    /// sums, if there is a faster way than adding [`Self::dot_unsigned_pair`] and its like.
    #[inline(always)]
    fn add_block<F: PanelFormat, const T: usize>(
        self,
        codes: &[Self::B; GROUPS],
        scales_and_mins: (Halves<Self>, Halves<Self>),
        x: &PanelTokens<'_, T>,
        i: usize,
        sums: &mut [Self::F; T],
    ) -> bool {
        let _ = (codes, scales_and_mins, x, i, sums);
        false
    }
    /// [`Self::dot_unsigned`] of the same rows and two tokens, for which some CPUs have an instruction.
    #[inline(always)]
    fn dot_unsigned_pair(
        self,
        codes: [Self::B; GROUPS],
        x: [&[[i8; 4]; GROUPS]; 2],
        starts: [Self::I; 2],
        max: i32,
    ) -> [Self::I; 2] {
        [
            self.dot_unsigned(codes, x[0], starts[0], max),
            self.dot_unsigned(codes, x[1], starts[1], max),
        ]
    }
    /// [`Self::dot_signed`] of the same rows and two tokens.
    #[inline(always)]
    fn dot_signed_pair(
        self,
        codes: [Self::B; GROUPS],
        x: [&[[i8; 4]; GROUPS]; 2],
        counts: [i32; 2],
    ) -> [Self::I; 2] {
        [
            self.dot_signed(codes, x[0], counts[0]),
            self.dot_signed(codes, x[1], counts[1]),
        ]
    }
    /// Whether the products of a block are found group by group for [`TOGETHER`] tokens at a time, because the codes of
    /// all groups do not fit into the registers.
    const BY_GROUP: bool = false;
    /// [`Self::dot_unsigned`] of the same rows and several tokens, of whose blocks `x` the groups from `first` on are
    /// meant, for codes of at most `max`.
    #[inline(always)]
    fn dot_unsigned_together<const N: usize>(
        self,
        codes: &[Self::B; N],
        (x, first): (&[[i8; 4 * GROUPS]; TOGETHER], usize),
        starts: [Self::I; TOGETHER],
        max: i32,
    ) -> [Self::I; TOGETHER] {
        let mut sums = starts;
        unrolled!(t in 0..4 => {
            sums[t] = self.dot_unsigned(*codes, groups(&x[t][4 * first..]), starts[t], max);
        });
        sums
    }
    /// [`Self::dot_signed`] of the same rows and several tokens.
    #[inline(always)]
    fn dot_signed_together(
        self,
        codes: &[Self::B; GROUPS],
        x: &[[i8; 4 * GROUPS]; TOGETHER],
        counts: [i32; TOGETHER],
    ) -> [Self::I; TOGETHER] {
        let mut sums = [self.splat_i32(0); TOGETHER];
        unrolled!(t in 0..4 => { sums[t] = self.dot_signed(*codes, groups(&x[t]), counts[t]); });
        sums
    }
    /// Rows and columns of a product's tile of vectors that stays in registers, with some left for operands: at most 6
    /// and 4.
    const TILE: [usize; 2];
    /// The start of [`Self::dot_add`]'s sums if the elements of `x` add up to `sum`.
    fn dot_origin(self, sum: i32) -> Self::I;
    /// Adds the products of four neighbouring codes and the elements of `x` to every lane: codes
    /// signed, both at least -127. The result is meaningful after all of `x` has been added.
    fn dot_add(self, acc: Self::I, codes: Self::B, x: [i8; 4]) -> Self::I;
    /// Number of accumulators of a tile that stay in registers, together with operands.
    const ACCUMULATORS: usize;

    /// `acc + dot_u8(codes, x)`, in one instruction if there is one; wraps.
    fn dot_u8_into(self, acc: Self::I, codes: Self::B, x: Self::B) -> Self::I;

    /// `acc += round(p * 2^32)`; see [`super::fixed`]. Returns whether all were in range.
    fn fold(self, p: &[f32; 16], acc: &mut [i64; 16]) -> bool {
        super::fixed::fold_each(p, acc)
    }

    /// `x += sum * 2^-32`; see [`super::fixed`].
    fn unfold(self, sum: &[i64; 16], x: &mut [f32; 16]) {
        super::fixed::unfold_each(sum, x);
    }
}

/// Loads up to 16 values and pads with zeros.
#[inline(always)]
pub(super) fn load_part<S: Simd>(s: S, v: &[f32]) -> S::F {
    match v.first_chunk() {
        Some(full) => s.load(full),
        None => {
            let mut lanes = [0.0; LANES];
            lanes[..v.len()].copy_from_slice(v);
            s.load(&lanes)
        }
    }
}

/// Stores the first lanes to up to 16 elements.
#[inline(always)]
pub(super) fn store_part<S: Simd>(s: S, a: S::F, to: &mut [f32]) {
    match to.first_chunk_mut() {
        Some(full) => s.store(a, full),
        None => {
            let mut lanes = [0.0; LANES];
            s.store(a, &mut lanes);
            let n = to.len();
            to.copy_from_slice(&lanes[..n]);
        }
    }
}

/// The `N` bytes at `offset`.
///
/// # Panics
/// The slice is too short.
#[inline(always)]
pub(super) fn at<const N: usize>(bytes: &[u8], offset: usize) -> &[u8; N] {
    match bytes[offset..].first_chunk() {
        Some(b) => b,
        None => panic!("weight block is cut short"),
    }
}

/// Groups of four codes.
///
/// # Panics
/// There are not so many.
#[inline(always)]
pub(super) fn groups<const N: usize>(codes: &[i8]) -> &[[i8; 4]; N] {
    match codes.as_chunks().0.first_chunk() {
        Some(groups) => groups,
        None => panic!("a block of activations is cut short"),
    }
}
