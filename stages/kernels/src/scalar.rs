//! Plain Rust: the definition that the vector units reproduce bit by bit, and the fall-back.

use half::{bf16, f16};

use super::simd::{Kernel, Simd};

/// Needs no special instructions.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

#[inline(always)]
fn f16_at(bytes: &[u8], i: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32()
}

#[inline(always)]
fn byte(lo: u64, hi: u64, i: usize) -> u8 {
    (if i < 8 { lo } else { hi } >> (8 * (i % 8))) as u8
}

/// All elements in a plain loop. [`std::array::from_fn`] and `map` are chains of calls where little is optimised, as in
/// tests.
#[inline(always)]
fn each<T: Copy + Default, const N: usize>(element: impl Fn(usize) -> T) -> [T; N] {
    let mut out = [T::default(); N];
    let mut i = 0;
    while i < N {
        out[i] = element(i);
        i += 1;
    }
    out
}

/// Sums of four neighbouring products.
#[inline(always)]
fn dot4(product: impl Fn(usize) -> i32) -> [i32; 16] {
    each(|i| product(4 * i) + product(4 * i + 1) + product(4 * i + 2) + product(4 * i + 3))
}

/// Operations are calls. Inlined, with all lanes one after the other, they were two fifths of the code of all kernels.
impl Simd for Scalar {
    type F = [f32; 16];
    type I = [i32; 16];
    type B = [u8; 64];
    const WIDEST: usize = 1;

    type Plain = Self;

    fn plain(self) -> Self {
        self
    }

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    fn zero(self) -> [f32; 16] {
        [0.0; 16]
    }

    fn splat(self, v: f32) -> [f32; 16] {
        [v; 16]
    }

    fn load(self, v: &[f32; 16]) -> [f32; 16] {
        *v
    }

    #[inline(never)]
    fn load4(self, v: &[f32; 4]) -> [f32; 16] {
        each(|i| if i < 4 { v[i] } else { 0.0 })
    }

    fn store(self, a: [f32; 16], to: &mut [f32; 16]) {
        *to = a;
    }

    #[inline(never)]
    fn add(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        each(|i| a[i] + b[i])
    }

    #[inline(never)]
    fn sub(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        each(|i| a[i] - b[i])
    }

    #[inline(never)]
    fn mul(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        each(|i| a[i] * b[i])
    }

    #[inline(never)]
    fn div(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        each(|i| a[i] / b[i])
    }

    #[inline(never)]
    fn fma(self, a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        each(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(never)]
    fn fnma(self, a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        each(|i| (-a[i]).mul_add(b[i], c[i]))
    }

    #[inline(never)]
    fn max(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        self.select_gt(a, b, a, b)
    }

    #[inline(never)]
    fn min(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(never)]
    fn select_gt(self, a: [f32; 16], b: [f32; 16], yes: [f32; 16], no: [f32; 16]) -> [f32; 16] {
        each(|i| if a[i] > b[i] { yes[i] } else { no[i] })
    }

    #[inline(never)]
    fn reduce_add(self, a: [f32; 16]) -> f32 {
        let a: [f32; 8] = each(|i| a[i] + a[i + 8]);
        let a: [f32; 4] = each(|i| a[i] + a[i + 4]);
        let a: [f32; 2] = each(|i| a[i] + a[i + 2]);
        a[0] + a[1]
    }

    #[inline(never)]
    fn reduce_max(self, a: [f32; 16]) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(never)]
    fn spread(self, a: [f32; 16], p: usize) -> [f32; 16] {
        each(|i| a[4 * p + i / 4])
    }

    #[inline(never)]
    fn even(self, a: [f32; 16]) -> [f32; 16] {
        each(|i| a[i & !1])
    }

    #[inline(never)]
    fn odd(self, a: [f32; 16]) -> [f32; 16] {
        each(|i| a[i | 1])
    }

    #[inline(never)]
    fn widen_f32(self, bytes: &[u8; 64]) -> [f32; 16] {
        each(|i| f32::from_le_bytes(each(|k| bytes[4 * i + k])))
    }

    #[inline(never)]
    fn widen_f16(self, bytes: &[u8; 32]) -> [f32; 16] {
        each(|i| f16_at(bytes, i))
    }

    #[inline(never)]
    fn widen_bf16(self, bytes: &[u8; 32]) -> [f32; 16] {
        each(|i| bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32())
    }

    #[inline(never)]
    fn f16_pairs(self, words: [u32; 8]) -> [f32; 16] {
        each(|i| f16_at(&words[i / 2].to_le_bytes(), i % 2))
    }

    #[inline(never)]
    fn u8_lanes(self, lo: u64, hi: u64) -> [f32; 16] {
        each(|i| f32::from(byte(lo, hi, i)))
    }

    #[inline(never)]
    fn u8_pairs(self, a: u64, b: u64) -> [f32; 16] {
        each(|i| f32::from(byte(a, b, i / 2 + 8 * (i % 2))))
    }

    #[inline(never)]
    fn i8_lanes(self, lo: u64, hi: u64) -> [f32; 16] {
        each(|i| f32::from(byte(lo, hi, i) as i8))
    }

    #[inline(never)]
    fn round(self, a: [f32; 16]) -> [i32; 16] {
        each(|i| a[i].round_ties_even() as i32)
    }

    #[inline(never)]
    fn to_f32(self, a: [i32; 16]) -> [f32; 16] {
        each(|i| a[i] as f32)
    }

    #[inline(never)]
    fn pow2(self, a: [i32; 16]) -> [f32; 16] {
        each(|i| f32::from_bits((a[i].wrapping_add(127) as u32) << 23))
    }

    #[inline(never)]
    fn magnitude_bits(self, a: [f32; 16]) -> [i32; 16] {
        each(|i| (a[i].to_bits() & 0x7fff_ffff) as i32)
    }

    #[inline(never)]
    fn max_i32(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        each(|i| a[i].max(b[i]))
    }

    #[inline(never)]
    fn reduce_max_i32(self, a: [i32; 16]) -> i32 {
        a.into_iter().fold(i32::MIN, i32::max)
    }

    #[inline(never)]
    fn reduce_add_i32(self, a: [i32; 16]) -> i32 {
        a.into_iter().sum()
    }

    #[inline(never)]
    fn store_i8(self, a: [i32; 16], to: &mut [i8; 16]) {
        *to = each(|i| a[i] as i8);
    }

    #[inline(never)]
    fn bytes(self, b: &[i8; 64]) -> [u8; 64] {
        each(|i| b[i] as u8)
    }

    #[inline(never)]
    fn store_bytes(self, a: [u8; 64], to: &mut [i8; 64]) {
        *to = each(|i| a[i] as i8);
    }

    #[inline(never)]
    fn halves(self, a: &[u8; 32], b: &[u8; 32]) -> [u8; 64] {
        each(|i| if i < 32 { a[i] } else { b[i - 32] })
    }

    #[inline(never)]
    fn nibbles(self, a: &[u8; 16], b: &[u8; 16]) -> [u8; 64] {
        each(|i| {
            let from = if i < 32 { a } else { b };
            from[i % 16] >> (4 * (i / 16 % 2)) & 0x0f
        })
    }

    #[inline(never)]
    fn nibble_levels(self, b: &[u8; 16], bias: f32) -> [[f32; 16]; 2] {
        each(|h| each(|i| f32::from(b[i] >> (4 * h) & 0x0f) - bias))
    }

    #[inline(never)]
    fn nibble_at(self, b: &[u8; 64], shift: u32) -> [u8; 64] {
        each(|i| b[i] >> shift & 0x0f)
    }

    #[inline(never)]
    fn fields(self, b: &[u8; 32], from: [u32; 2], to: u32, mask: u8) -> [u8; 64] {
        each(|i| ((u32::from(b[i % 32]) << to) >> from[i / 32]) as u8 & mask)
    }

    #[inline(never)]
    fn or(self, a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        each(|i| a[i] | b[i])
    }

    #[inline(never)]
    fn add_where(self, a: [u8; 64], bits: u64, value: u8) -> [u8; 64] {
        each(|i| a[i].wrapping_add(value * (bits >> i & 1) as u8))
    }

    #[inline(never)]
    fn look_up(self, table: &[i8; 16], codes: [u8; 64]) -> [u8; 64] {
        each(|i| table[usize::from(codes[i])] as u8)
    }

    #[inline(never)]
    fn u8_part(self, a: [u8; 64], j: usize) -> [f32; 16] {
        each(|i| f32::from(a[16 * j + i]))
    }

    #[inline(never)]
    fn i8_part(self, a: [u8; 64], j: usize) -> [f32; 16] {
        each(|i| f32::from(a[16 * j + i] as i8))
    }

    #[inline(never)]
    fn dot_u8(self, codes: [u8; 64], x: [u8; 64]) -> [i32; 16] {
        dot4(|i| i32::from(codes[i]) * i32::from(x[i] as i8))
    }

    #[inline(never)]
    fn dot_i8(self, codes: [u8; 64], x: [u8; 64]) -> [i32; 16] {
        dot4(|i| i32::from(codes[i] as i8) * i32::from(x[i] as i8))
    }

    fn splat_i32(self, v: i32) -> [i32; 16] {
        [v; 16]
    }

    #[inline(never)]
    fn widen_u8(self, bytes: &[u8; 16]) -> [i32; 16] {
        each(|i| i32::from(bytes[i]))
    }

    #[inline(never)]
    fn widen_i8(self, bytes: &[u8; 16]) -> [i32; 16] {
        each(|i| i32::from(bytes[i] as i8))
    }

    #[inline(never)]
    fn and(self, a: [i32; 16], mask: i32) -> [i32; 16] {
        each(|i| a[i] & mask)
    }

    #[inline(never)]
    fn or_i32(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        each(|i| a[i] | b[i])
    }

    #[inline(never)]
    fn words(self, b: &[u8; 64]) -> [i32; 16] {
        each(|i| i32::from_le_bytes([b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]]))
    }

    #[inline(never)]
    fn store_words(self, a: [i32; 16], to: &mut [u8; 64]) {
        for (to, word) in to.as_chunks_mut().0.iter_mut().zip(a) {
            *to = word.to_le_bytes();
        }
    }

    #[inline(never)]
    fn xor(self, a: [i32; 16], mask: i32) -> [i32; 16] {
        each(|i| a[i] ^ mask)
    }

    #[inline(never)]
    fn add_i32(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        each(|i| a[i].wrapping_add(b[i]))
    }

    #[inline(never)]
    fn sub_i32(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        each(|i| a[i].wrapping_sub(b[i]))
    }

    #[inline(never)]
    fn bits_as_f32(self, a: [i32; 16]) -> [f32; 16] {
        each(|i| f32::from_bits(a[i] as u32))
    }

    #[inline(never)]
    fn dot_halves(self, acc: [i32; 16], a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        let product =
            |i: usize, by: u32| i32::from((a[i] >> by) as i16) * i32::from((b[i] >> by) as i16);
        each(|i| {
            acc[i]
                .wrapping_add(product(i, 0))
                .wrapping_add(product(i, 16))
        })
    }

    #[inline(never)]
    fn shift_left(self, a: [i32; 16], by: u32) -> [i32; 16] {
        each(|i| a[i] << by)
    }

    #[inline(never)]
    fn shift_right(self, a: [i32; 16], by: u32) -> [i32; 16] {
        each(|i| (a[i] as u32 >> by) as i32)
    }

    #[inline(never)]
    fn field(self, a: [u8; 64], from: u32, to: u32, mask: u8) -> [u8; 64] {
        each(|i| ((u32::from(a[i]) << to) >> from) as u8 & mask)
    }

    #[inline(never)]
    fn dot_unsigned<const N: usize>(
        self,
        codes: [[u8; 64]; N],
        x: &[[i8; 4]; N],
        start: [i32; 16],
        _max: i32,
    ) -> [i32; 16] {
        let mut sum = start;
        for (codes, x) in codes.iter().zip(x) {
            let products = dot4(|i| i32::from(codes[i]) * i32::from(x[i % 4]));
            sum = each(|i| sum[i] + products[i]);
        }
        sum
    }

    #[inline(never)]
    fn dot_signed<const N: usize>(
        self,
        codes: [[u8; 64]; N],
        x: &[[i8; 4]; N],
        _count: i32,
    ) -> [i32; 16] {
        let mut sum = [0; 16];
        for (codes, x) in codes.iter().zip(x) {
            let products = dot4(|i| i32::from(codes[i] as i8) * i32::from(x[i % 4]));
            sum = each(|i| sum[i] + products[i]);
        }
        sum
    }

    const TILE: [usize; 2] = [1, 1];

    fn dot_origin(self, _: i32) -> [i32; 16] {
        [0; 16]
    }

    #[inline(never)]
    fn dot_add(self, acc: [i32; 16], codes: [u8; 64], x: [i8; 4]) -> [i32; 16] {
        let products = dot4(|i| i32::from(codes[i] as i8) * i32::from(x[i % 4]));
        each(|i| acc[i] + products[i])
    }

    const ACCUMULATORS: usize = 4;

    #[inline(never)]
    fn dot_u8_into(self, acc: [i32; 16], codes: [u8; 64], x: [u8; 64]) -> [i32; 16] {
        let dot = self.dot_u8(codes, x);
        each(|i| acc[i].wrapping_add(dot[i]))
    }
}
