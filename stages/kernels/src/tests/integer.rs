//! Integer parts: they are exact on every instruction set.

use super::random::Random;
use crate::Isa;
use crate::activations::Quantise;
#[cfg(target_arch = "aarch64")]
use crate::neon::{Baseline, Dotprod, I8mm, Neon};
use crate::scalar::Scalar;
use crate::simd::{GROUPS, Kernel, Simd, TOGETHER};

/// Integer products of 64 codes, all three ways that a format may ask for.
#[derive(Clone, Copy)]
struct Products<'a> {
    codes: &'a [i8; 64],
    x: &'a [i8; 64],
}

impl Kernel for Products<'_> {
    type Output = [[f32; 16]; 2];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let (codes, x) = (s.bytes(self.codes), s.bytes(self.x));
        let mut out = [[0.0; 16]; 2];
        let unsigned: [u8; 64] = self.codes.map(|c| c as u8 & 127);
        let (first, second) = unsigned.split_at(32);
        if let (Ok(a), Ok(b)) = (first.try_into(), second.try_into()) {
            s.store(s.to_f32(s.dot_u8(s.halves(a, b), x)), &mut out[0]);
        }
        s.store(s.to_f32(s.dot_i8(codes, x)), &mut out[1]);
        out
    }
}

/// Runs on that instruction set, if this CPU has it.
pub(super) fn run_on<K: Kernel>(isa: Isa, kernel: K) -> Option<K::Output> {
    Some(match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => crate::avx2::Avx2::<false>::detect()?.run(kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => crate::avx2::Avx2::<true>::detect()?.run(kernel),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => crate::avx512::Avx512::detect()?.run(kernel),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Neon::<Baseline>::detect()?.run(kernel),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDotprod => Neon::<Dotprod>::detect()?.run(kernel),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonI8mm => Neon::<I8mm>::detect()?.run(kernel),
        Isa::Scalar => Scalar.run(kernel),
        _ => return None,
    })
}

#[test]
fn products_of_codes_are_exact_up_to_the_extremes() {
    let mut random = Random(3);
    let mut cases: Vec<([i8; 64], [i8; 64])> = Vec::new();
    for code in [-128, -127, -1, 0, 1, 127] {
        for x in [-127, 0, 127] {
            cases.push(([code; 64], [x; 64]));
        }
    }
    for _ in 0..500 {
        let codes = std::array::from_fn(|_| random.next() as i8);
        let x = std::array::from_fn(|_| (random.next() as i8).max(-127));
        cases.push((codes, x));
    }
    for (codes, x) in &cases {
        let sum = |i: usize, code: &dyn Fn(i8) -> i32| -> i32 {
            (4 * i..4 * i + 4)
                .map(|k| code(codes[k]) * i32::from(x[k]))
                .sum()
        };
        for isa in Isa::ALL {
            let Some([unsigned, signed]) = run_on(isa, Products { codes, x }) else {
                continue;
            };
            for i in 0..16 {
                assert_eq!(unsigned[i] as i32, sum(i, &|c| i32::from(c as u8 & 127)));
                assert_eq!(signed[i] as i32, sum(i, &|c| i32::from(c)));
            }
        }
    }
}

#[test]
fn quantised_activations_are_equal_and_as_defined() {
    let mut x = Random(9).units(32 * 10);
    x[..32].fill(0.0);
    x[32..64].fill(1e-40);
    x[64] = 1e38;
    x[100] = 0.5;
    x[96..100].copy_from_slice(&[63.5, -63.5, 1.5, 127.0]);
    for isa in Isa::ALL {
        let mut codes = vec![0; x.len()];
        let (mut scales, mut sums) = (vec![0.0; x.len() / 16], vec![0.0; x.len() / 16]);
        let job = Quantise {
            values: &x,
            codes: &mut codes,
            scales: &mut scales,
            sums: &mut sums,
        };
        if run_on(isa, job).is_none() {
            continue;
        }
        for (b, block) in x.chunks(32).enumerate() {
            let max = block.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
            let inverse = if max < 1e-36 { 0.0 } else { 127.0 / max };
            let expected: Vec<i32> = block
                .iter()
                .map(|v| (v * inverse).round_ties_even() as i32)
                .collect();
            let got: Vec<i32> = codes[32 * b..][..32].iter().map(|&c| c.into()).collect();
            assert_eq!(expected, got, "{isa} block {b}");
            let scale = if max < 1e-36 { 0.0 } else { max / 127.0 };
            for g in 0..2 {
                let sum: i32 = expected[16 * g..][..16].iter().sum();
                assert_eq!(scales[2 * b + g], scale);
                assert_eq!(sums[2 * b + g], scale * sum as f32);
            }
        }
    }
}

/// `acc + dot` against the dot product alone.
struct Accumulate<'a> {
    acc: i8,
    codes: &'a [i8; 64],
    x: &'a [i8; 64],
}

impl Kernel for Accumulate<'_> {
    type Output = [[f32; 16]; 2];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let (codes, x) = (s.bytes(self.codes), s.bytes(self.x));
        let start = s.round(s.splat(f32::from(self.acc)));
        let mut out = [[0.0; 16]; 2];
        s.store(s.to_f32(s.dot_u8_into(start, codes, x)), &mut out[0]);
        let sum = s.add(s.to_f32(start), s.to_f32(s.dot_u8(codes, x)));
        s.store(sum, &mut out[1]);
        out
    }
}

#[test]
fn accumulating_adds_the_dot_product() {
    let mut random = Random(11);
    for _ in 0..200 {
        let codes = std::array::from_fn(|_| (random.next() & 127) as i8);
        let x = std::array::from_fn(|_| (random.next() as i8).max(-127));
        let job = || Accumulate {
            acc: (codes[0] ^ x[0]) / 2,
            codes: &codes,
            x: &x,
        };
        let [into, apart] = Scalar.run(job());
        assert_eq!(into, apart);
        for isa in Isa::ALL {
            assert!(
                run_on(isa, job()).is_none_or(|sums| sums == [into; 2]),
                "{isa}"
            );
        }
    }
}

/// Products of a block with several tokens.
struct Together<'a> {
    codes: &'a [[i8; 64]; GROUPS],
    x: &'a [[i8; 4 * GROUPS]; TOGETHER],
    /// `None` for signed codes.
    max: Option<i32>,
}

impl Kernel for Together<'_> {
    type Output = [[f32; 16]; TOGETHER];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let codes = self.codes.map(|codes| s.bytes(&codes));
        let mut out = [[0.0; 16]; TOGETHER];
        let sums = match self.max {
            Some(max) => {
                let starts = [s.splat_i32(-5); TOGETHER];
                s.dot_unsigned_together(&codes, (self.x, 0), starts, max)
            }
            None => {
                let count = |x: &[i8; 4 * GROUPS]| -x.iter().map(|&x| i32::from(x)).sum::<i32>();
                s.dot_signed_together(&codes, self.x, self.x.map(|x| count(&x)))
            }
        };
        for (out, sums) in out.iter_mut().zip(sums) {
            s.store(s.to_f32(sums), out);
        }
        out
    }
}

#[test]
fn products_of_several_tokens_are_exact_up_to_the_extremes() {
    let mut random = Random(17);
    for max in [Some(3), Some(7), Some(15), Some(31), Some(63), None] {
        for turn in 0..64 {
            let mut extreme = |least: i32, most: i32| match (turn, random.next() % 4) {
                (0, _) => most as i8,
                (1, _) => least as i8,
                (_, 0) => least as i8,
                (_, 1 | 2) => most as i8,
                (_, _) => (least + (random.next() as i32).rem_euclid(most - least + 1)) as i8,
            };
            let (least, most) = max.map_or((-128, 127), |max| (0, max));
            let codes: [[i8; 64]; GROUPS] =
                std::array::from_fn(|_| std::array::from_fn(|_| extreme(least, most)));
            let x: [[i8; 4 * GROUPS]; TOGETHER] =
                std::array::from_fn(|_| std::array::from_fn(|_| extreme(-127, 127)));
            let start = if max.is_some() { -5 } else { 0 };
            for isa in Isa::ALL {
                let job = Together {
                    codes: &codes,
                    x: &x,
                    max,
                };
                let Some(sums) = run_on(isa, job) else {
                    continue;
                };
                for (t, row) in (0..TOGETHER).flat_map(|t| (0..16).map(move |row| (t, row))) {
                    let products = (0..4 * GROUPS)
                        .map(|i| i32::from(codes[i / 4][4 * row + i % 4]) * i32::from(x[t][i]));
                    let sum = start + products.sum::<i32>();
                    assert_eq!(
                        sums[t][row] as i32, sum,
                        "{isa} {max:?} token {t} row {row}"
                    );
                }
            }
        }
    }
}
